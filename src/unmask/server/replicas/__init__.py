"""One server, many processes that decode: requests go to replicas of Ray Serve, their answers come back through here.

replica: the application in one process;  front: who accepts requests and asks the replicas;  deploy: where they are.
Ray is imported when replicas are started, and nowhere else.
"""

from unmask.server.replicas.deploy import Plan, serve_replicas, to_replicas

__all__ = ["Plan", "serve_replicas", "to_replicas"]

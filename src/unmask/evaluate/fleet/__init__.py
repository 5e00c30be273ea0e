"""Workers on many machines -> a crew: parts of a job are done by actors of Ray, and this process writes their rows.

queue: which part next;  workers: what an actor does;  cluster: where they are;  metrics: how far they are;  fleet: the
crew. Ray is imported when a fleet has its first part, and nowhere else.
"""

from unmask.evaluate.fleet.fleet import Fleet, to_workers
from unmask.evaluate.fleet.metrics import Progress
from unmask.evaluate.loading import Loading, Source

__all__ = ["Fleet", "Loading", "Progress", "Source", "to_workers"]

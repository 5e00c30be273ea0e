"""A plan -> replicas of Ray Serve that are ready, and the front before them; they end with it."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import Metric

from unmask.errors import InputError, UnmaskError, first_line
from unmask.server.limits import Limits
from unmask.server.metrics import Metrics
from unmask.server.middleware import App, Middleware
from unmask.server.replicas.front import SLACK, Front, Message, Messages
from unmask.server.replicas.replica import SILENCE, Replica
from unmask.server.request import ServeConfig
from unmask.server.run import Server, listen, serve_app

NAME = "replica"  # of the deployment
BUSY = 4  # a replica is added where each has more than 1 / BUSY of a batch to answer, as choices of one


@dataclass(frozen=True)
class Plan:
    """How many replicas there are, and what each has."""

    replicas: int | tuple[int, int]  # their number, or between which two Ray may choose by the requests in progress
    gpus: float
    cpus: int

    def options(self, limits: Limits) -> dict[str, Any]:
        """Of a deployment."""
        made: dict[str, Any] = {
            "name": NAME,
            "ray_actor_options": {"num_cpus": self.cpus, "num_gpus": self.gpus},
            "max_ongoing_requests": 4 * limits.queue,  # a replica has a queue of its own, and refuses what is too much
            "graceful_shutdown_timeout_s": limits.seconds + SLACK,  # of one that is not needed any more
            "graceful_shutdown_wait_loop_s": 0.1,
            "health_check_period_s": 5.0,
            "health_check_timeout_s": 30.0,
            "max_constructor_retry_count": 2,  # at the start; later Ray tries on
        }
        if isinstance(self.replicas, int):
            return made | {"num_replicas": self.replicas}
        least, most = self.replicas
        aim = max(1, limits.batch // BUSY)
        return made | {
            "autoscaling_config": {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": aim}
        }


def to_replicas(text: str) -> int | tuple[int, int]:
    """`4` or `2-8`."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    least, most = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= least <= most:
        raise InputError(f"replicas is {text!r}", "give a number from 1 on, or a range like 2-8")
    return least if least == most else (least, most)


class ServeReplicas:
    """The replicas of one application of Ray Serve."""

    def __init__(self, handle: Any) -> None:
        from ray import exceptions

        self.handle = handle
        self.answers = handle.options(stream=True).answer
        self.lost: tuple[type[BaseException], ...] = (
            exceptions.RayActorError,
            exceptions.RaySystemError,
            exceptions.NodeDiedError,
        )

    def ask(self, scope: Message, body: bytes) -> Messages:
        found: Messages = self.answers.remote(scope, body)
        return found

    async def collected(self) -> list[tuple[str, list[Metric]]]:
        found = await self.handle.broadcast("collected").results_async(return_exceptions=True)
        return [one for one in found if not isinstance(one, BaseException)]

    def close(self) -> None:
        self._tell("close")

    def beat(self, stopped: threading.Event) -> None:
        """Say now and then that the front is there."""
        while not stopped.wait(SILENCE / 6):
            self._tell("beat")

    def _tell(self, what: str) -> None:
        with suppress(Exception):  # one that was lost needs to be told nothing
            self.handle.broadcast(what).results(timeout_s=2.0)


def serve_replicas(
    connect: Callable[[], Any],
    build: Callable[[], ServeConfig],
    limits: Limits,
    plan: Plan,
    host: str,
    port: int,
    *,
    token: str | None = None,
    seconds: float | None = None,
    on_ready: Callable[[str, Server], None] = lambda url, server: None,
) -> None:
    """Serve until a signal, or for `seconds`, with replicas of what `build` makes in each of their processes.

    `connect` returns the module `ray`, connected to the cluster where they are.
    """
    listen(host, port).close()  # before the long work
    with _deployed(connect, build, limits, plan, token is not None) as replicas:

        def make(local: bool) -> tuple[App, Front]:
            metrics = Metrics()
            front = Front(replicas, limits, metrics)
            return Middleware(front, limits, metrics, token, local), front

        with _passing_on(signal.SIGTERM):
            serve_app(make, limits, host, port, token=token, seconds=seconds, on_ready=on_ready)


@contextmanager
def _passing_on(number: int) -> Iterator[None]:
    """Have a signal that ends the server end this process only after its replicas, which are ended meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found: list[int] = []
    before = signal.signal(number, lambda given, frame: found.append(given))
    try:
        yield
    finally:
        signal.signal(number, before)
        if found:
            raise SystemExit(128 + number)


@contextmanager
def _deployed(
    connect: Callable[[], Any], build: Callable[[], ServeConfig], limits: Limits, plan: Plan, wants_token: bool
) -> Iterator[ServeReplicas]:
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    if importlib.util.find_spec("ray") is None:
        raise InputError("replicas need Ray Serve", "pip install 'unmask[ray-serve]'")
    ray = connect()
    try:
        from ray import serve
    except ImportError as error:
        ray.shutdown()
        raise InputError(f"replicas need Ray Serve ({first_line(error)})", "pip install 'unmask[ray-serve]'") from None
    for name in ("ray.serve", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("asyncio").addFilter(_not_of_lost_replicas)
    name, stopped = f"unmask-{uuid.uuid4().hex[:6]}", threading.Event()
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    try:
        serve.start(proxy_location="Disabled", logging_config=quiet)  # no port of Serve's own
        deployment = serve.deployment(**plan.options(limits), logging_config=quiet)(Replica)
        bound = deployment.bind(build, plan.cpus, os.getcwd(), wants_token)
        try:
            handle = serve.run(bound, name=name, route_prefix=None)
        except RuntimeError as error:
            raise _failed(serve, name, error) from None
        replicas = ServeReplicas(handle)
        threading.Thread(target=replicas.beat, args=(stopped,), name="unmask-beat", daemon=True).start()
        yield replicas
    finally:
        stopped.set()
        with suppress(Exception):
            serve.delete(name)
        ray.shutdown()  # ends a local cluster; another one stays


def _not_of_lost_replicas(record: logging.LogRecord) -> bool:
    """Drop asyncio's word on questions of Serve's own to a replica that is gone: nobody waits for their answers."""
    error = record.exc_info[1] if record.exc_info else None
    return not (record.name == "asyncio" and type(error).__module__.startswith("ray."))


def _failed(serve: Any, name: str, error: RuntimeError) -> UnmaskError:
    """Why no replica could begin: the error that it raised, if that is one of ours."""
    found = serve.status().applications[name].deployments[NAME].message
    ours = re.findall(r"^unmask\.errors\.\w+: (.+)$", found, re.MULTILINE)
    if ours:
        message, _, hint = ours[-1].partition(": ")
        return UnmaskError(message, hint)
    lines = [line for line in found.splitlines() if line.strip()]
    return UnmaskError("the replicas did not start", lines[-1] if lines else first_line(error))

"""An address -> a connection to a Ray cluster, or one that is started on this machine and ends with this process."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from unmask.errors import InputError, first_line

LOCAL = "local"
STORE = 80 << 20  # bytes: parts and rows are small, and /dev/shm of a container is, too


def _answers(address: str) -> None:
    """Refuse an address where nobody listens: Ray would wait for it for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"cannot reach a Ray cluster at {address!r}", first_line(error)) from None


def _off_standard_output() -> None:
    """Have Ray's remarks on standard error, as results are on standard output; a fleet itself says who was lost."""
    from ray._private import worker

    told = getattr(worker, "print_to_stdstream", None)  # private: another version may lack it
    if told is not None and not isinstance(told, partial):
        worker.print_to_stdstream = partial(_on_standard_error, told)


def _on_standard_error(told: Callable[..., None], data: Mapping[str, Any], *more: Any, **how: Any) -> None:
    lines = [line for line in data["lines"] if "worker died" not in line]
    if lines:
        told({**data, "lines": lines, "is_err": True}, *more, **how)


def _alone() -> None:
    """Have a cluster of this machine listen to this machine only, and to those alone who know its token.

    Whoever reaches a port of Ray without a token runs programs there. On Linux Ray would take an address of the network
    in the place of 127.0.0.1, and listen on all of them. A token must be there before Ray is imported.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the name that Ray has for it, on every system
    constants = sys.modules.get("ray._private.ray_constants")
    if constants is not None:  # imported before: it has read the variable
        constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)


def connected(address: str, workers: int | None, gpus: float, cpus: int) -> Any:
    """The module `ray`, connected."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address.startswith("ray://"):
        way = "start this command on a machine of the cluster, and give auto or HOST:PORT"
        raise InputError(f"{address!r} is of Ray Client, which loses the run with its connection", way)
    if address == LOCAL and gpus and not torch.cuda.is_available():
        raise InputError("there is no GPU on this machine", "add --gpus 0 for workers on CPUs")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: nothing is reported unasked
    if address == LOCAL:
        _alone()
    try:
        import ray
    except ImportError:
        raise InputError("a fleet needs Ray", "pip install 'unmask[ray]'") from None
    if address not in (LOCAL, "auto"):
        _answers(address)
    if ray.is_initialized():
        raise InputError("this process is connected to Ray already", "call ray.shutdown() first")
    _off_standard_output()
    handler = signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address != LOCAL:
            ray.init(address=address, **quiet)
            return ray
        cores = max(os.cpu_count() or 1, cpus * (workers or 1))
        own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
        ray.init(address=LOCAL, _node_ip_address="127.0.0.1", **own, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        what = "start Ray on this machine" if address == LOCAL else f"reach a Ray cluster at {address!r}"
        raise InputError(f"cannot {what}", first_line(error)) from None
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has put its own there, which ends the process
    return ray


def room(ray: Any, gpus: float, cpus: int) -> int:
    """How many workers the cluster has room for now."""
    has = ray.cluster_resources()
    fits = [int(has.get("CPU", 0) // cpus)] + ([int(has.get("GPU", 0) // gpus)] if gpus else [])
    return min(fits)


def described(ray: Any) -> str:
    """What a cluster has, for errors."""
    has, nodes = ray.cluster_resources(), [node for node in ray.nodes() if node["Alive"]]
    return f"{len(nodes)} machines with {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"

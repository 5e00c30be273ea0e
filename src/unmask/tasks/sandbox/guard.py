"""A job on stdin -> its verdict on stdout: a small process between unmask and an untrusted program.

unmask ── guard (watches, kills) ── keeper (first process of a pid namespace) ── the program, and what it starts

It runs without the rest of unmask, so it starts in milliseconds and holds nothing that a program should not see.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from unmask.tasks.sandbox import kernel, seccomp
from unmask.tasks.sandbox.tree import remove
from unmask.tasks.sandbox.watch import Watch, kill_all

ROOM = 64  # processes above those of the account, where other processes of it count, too
OPEN_FILES = 64  # of a process at a time
PENDING = 256  # signals and timers that wait, which the kernel counts by account
BEYOND = (32, 40, 42)  # AF_IUCV, AF_VSOCK, AF_QIPCRTR: addresses that no network namespace keeps apart


def attempt(act: Callable[[], object]) -> bool:
    """Whether an act succeeds, tried in a child process."""
    child = os.fork()
    if not child:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def sealed() -> None:
    """Fail where the kernel has a kind of socket that an empty network namespace does not cover."""
    kernel.unshare({"user", "net"})
    for family, kind in itertools.product(BEYOND, (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)):
        with contextlib.suppress(OSError):
            socket.socket(family, kind).close()
            raise AssertionError(f"sockets of family {family}")


def probe(work: str, libraries: list[str]) -> dict[str, Any]:
    """The protections of this kernel, tried one by one."""
    account = "user"
    if os.geteuid() == 0:
        account = "nobody" if attempt(lambda: kernel.become_nobody(work)) else "root"

    def enter(name: str) -> None:
        if account == "nobody":
            kernel.become_nobody(work)
        kernel.unshare({"user", name})
        if name == "mount":
            kernel.mount_private(work, 2**20, libraries)
            kernel.stay_inside(work)

    spaces = {name: sys.platform == "linux" and attempt(partial(enter, name)) for name in kernel.FLAGS}
    filters = seccomp.available()
    apart = not filters and spaces["net"] and attempt(sealed)  # it may have the kernel load modules: only if needed
    return {"account": account, "landlock": kernel.landlock_abi(), "seccomp": filters, "sealed": apart, **spaces}


def enter(plan: dict[str, Any], work: str, size: int, libraries: list[str]) -> None:
    """Give up what the guard itself does not need either."""
    if plan["account"] == "nobody":
        kernel.become_nobody(work, own=not counted_apart(plan))
    if plan["user"]:
        kernel.unshare(name for name in kernel.FLAGS if plan[name])
    if plan["mount"]:
        kernel.mount_private(work, size, libraries)
    os.chdir(work)


@contextlib.contextmanager
def first_to_go() -> Iterator[Callable[[], None]]:
    """If memory ends all the same, the kernel is to take it from what is forked after the call, not from the guard."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    except OSError:
        yield lambda: None
        return
    before = os.read(descriptor, 16)

    def write(score: bytes) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, score, 0)

    try:
        yield lambda: write(b"1000")
    finally:
        write(before)
        os.close(descriptor)


def counted_apart(plan: dict[str, Any]) -> bool:
    """Whether the kernel counts the processes of a namespace without those of the same account outside."""
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
    return bool(plan["user"]) and release >= (5, 14)


def processes(plan: dict[str, Any], allowed: int) -> int:
    """The limit of RLIMIT_NPROC that leaves this many to the program."""
    if counted_apart(plan):
        return allowed + 2  # the namespace counts for itself: guard and keeper
    mine = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                mine += len(os.listdir(f"/proc/{name}/task"))
    return mine + allowed + ROOM


def set_limits(plan: dict[str, Any], limits: dict[str, Any]) -> None:
    """The kernel's limits of one process."""
    seconds = math.ceil(limits["seconds"]) + 1
    wanted = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_AS": limits["memory_bytes"],
        "RLIMIT_FSIZE": limits["file_bytes"],
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": PENDING,
        "RLIMIT_NPROC": processes(plan, limits["processes"]) if os.path.isdir("/proc/self") else None,
    }
    for name, value in wanted.items():
        if value is not None and hasattr(resource, name):
            which = getattr(resource, name)
            _, most = resource.getrlimit(which)
            bound = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(which, (bound, bound))


def program_text(copy: bool) -> str:
    """The source of what runs in the sandbox's own interpreter."""
    with open(os.path.join(os.path.dirname(__file__), "program.py"), encoding="utf-8") as file:
        return file.read() + f"\nmain({copy!r})\n"


def read_only(work: str, data: bytes) -> int:
    """A file without a name that holds the data and cannot be written."""
    path = os.path.join(work, "given")
    with open(path, "wb") as file:
        file.write(data)
    descriptor = os.open(path, os.O_RDONLY)
    os.unlink(path)
    return descriptor


def keep(program: int) -> NoReturn:
    """The first process of a pid namespace: whatever ends is cleared away, and with the program all ends."""
    for descriptor in range(5):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def close_from(first: int) -> None:
    """No descriptors but those below; without a list of them, Python's own are closed by exec anyway."""
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        if int(name) >= first:
            with contextlib.suppress(OSError):
                os.close(int(name))


def become_program(job: dict[str, Any], descriptors: list[int], text: str) -> NoReturn:
    """In the child: all that is to be given up, and a new interpreter."""
    plan, limits = job["plan"], job["limits"]
    for place, descriptor in enumerate([os.dup(descriptor) for descriptor in descriptors]):
        os.dup2(descriptor, place)
    try:
        os.setsid()
        if sys.platform == "linux":
            kernel.call("prctl", 1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG: not without the guard
        if plan["pid"]:
            program = os.fork()
            if program:
                keep(program)
        close_from(5)
        set_limits(plan, limits)
        if plan["mount"]:
            kernel.stay_inside(job["work"])
        if sys.platform == "linux":
            kernel.drop_capabilities()
        if plan["landlock"]:
            kernel.landlock(plan["landlock"], job["work"], job["libraries"])
        if plan["seccomp"]:
            alone = plan["pid"] or plan["landlock"] >= 6
            rules = seccomp.instructions(forks=plan["account"] != "root", signals=alone, pid=os.getpid())
            seccomp.apply(rules)
        os.execve(job["python"], [job["python"], "-s", "-S", "-B", "-X", "utf8", "-c", text], environment(job["work"]))
    except BaseException as error:
        os.write(4, f"error {error}".encode())
    finally:
        os._exit(126)


def environment(work: str) -> dict[str, str]:
    """All the variables that the program sees; sets have the same order in every run."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    place = dict.fromkeys(("HOME", "TMPDIR", "PWD"), work)
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **place, **kept}


def judge(watch: Watch, status: int, token: bytes) -> str:
    """The verdict: the watch's, or what the program's end says."""
    if watch.why:
        return watch.why
    said = watch.kept[4]
    if status == 0 and said == b"began " + token:
        return "passed"
    if said.endswith(b"memory"):
        return "out of memory"
    if status == 128 + signal.SIGXCPU:
        return "timed out"
    return "killed" if status > 128 else "failed"


def guard(job: dict[str, Any]) -> dict[str, Any]:
    """Start the program, watch it, end it and all that it started, and say what happened."""
    limits, work = job["limits"], job["work"]
    token = os.urandom(16).hex().encode()
    text = program_text(job["copy"])
    given = read_only(work, job["stdin"].encode("utf-8", "surrogatepass"))
    code = read_only(work, token + job["code"].encode("utf-8", "surrogatepass"))
    if sys.platform == "linux":
        kernel.call("prctl", 36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here
    ends = {name: os.pipe() for name in (1, 2, 4)}
    watch = Watch(
        limits, {ends[1][0]: 1, ends[2][0]: 2, ends[4][0]: 4}, job["lifeline"], None if job["plan"]["mount"] else work
    )
    with first_to_go() as offer:
        enter(job["plan"], work, limits["file_bytes"], job["libraries"])
        offer()
        child = os.fork()
        if not child:
            become_program(job, [given, ends[1][1], ends[2][1], code, ends[4][1]], text)
    for _, write in ends.values():
        os.close(write)
    try:
        status = watch.until_it_ends(child)
    finally:
        kill_all(child)  # also where the watch itself fails
    if watch.why == "stopped":
        remove(work)
        os._exit(1)  # nobody listens
    watch.drain()
    said = watch.kept[4]
    answer = {"why": judge(watch, status, token), "status": status, "seconds": watch.seconds}
    if not said.startswith(b"began "):
        answer["error"] = said.decode(errors="replace") or watch.kept[2].decode(errors="replace") or f"status {status}"
    return {**answer, "stdout": watch.kept[1].decode("latin-1"), "stderr": watch.kept[2].decode("latin-1")}


def main() -> None:
    """One job."""
    job = json.load(sys.stdin)
    json.dump(guard(job) if "code" in job else probe(job["work"], job["libraries"]), sys.stdout)

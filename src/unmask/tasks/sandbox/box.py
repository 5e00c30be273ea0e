"""An untrusted Python program -> whether it runs to its end, in a process that can harm nothing else."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from unmask.errors import SettingError, UnmaskError, unknown
from unmask.tasks.sandbox.tree import remove

MIB = 2**20
GRACE = 20  # seconds for the guard itself, over the program's own

Why = Literal[
    "passed",
    "failed",
    "timed out",
    "out of memory",
    "too much output",
    "too many processes",
    "too many files",
    "killed",
]


class SandboxError(UnmaskError):
    """A program that could not be run, for a reason that lies in the machine."""


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 10.0  # of the clock, from its start; the same of each process's CPU time
    memory_bytes: int = 1024 * MIB  # address space of a process; memory of all of them together
    processes: int = 8  # at a time, threads included
    output_bytes: int = MIB  # on stdout, and as many on stderr
    file_bytes: int = 64 * MIB  # of a file, and of all files together

    def __post_init__(self) -> None:
        for field in fields(self):
            least = {"memory_bytes": 64 * MIB, "seconds": 0.1}.get(field.name, 1)
            if not getattr(self, field.name) >= least:
                raise SettingError(f"{field.name} is {getattr(self, field.name)}", f"give at least {least}")


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ok: bool  # it ran to its end: all its assertions held
    why: Why
    stdout: str  # both cut at the limit
    stderr: str
    seconds: float
    status: int  # as a shell gives it: 128 and the signal for a process that was killed


@dataclass(frozen=True)
class Protections:
    """The protections that this kernel offers."""

    account: Literal["user", "nobody", "root"] = "user"  # whose processes the program's are
    landlock: int = 0  # version of its interface
    seccomp: bool = False
    user: bool = False  # namespaces
    net: bool = False
    mount: bool = False
    pid: bool = False
    sealed: bool = False  # with an empty network namespace no socket leads out; looked for only without seccomp

    def lacking(self) -> list[str]:
        """What a program could still do with these protections."""
        held = {
            "writing files elsewhere": self.landlock or self.mount,
            "the network": self.seccomp or (self.net and self.mount and self.sealed),  # mount: sockets with names
            "other processes": self.seccomp or self.pid,
            "starting processes without end": self.seccomp or self.account != "root",
        }
        return [name for name, by in held.items() if not by]


def run(
    code: str,
    *,
    stdin: str = "",
    limits: Limits = Limits(),
    insist: bool = False,
    copy: bool = True,
    without: frozenset[str] = frozenset(),
) -> Outcome:
    """Run a program. `copy`: it finds its own text as program.py, and tracebacks have lines; not for graders.

    `without` leaves protections out, by their names in `Protections`: for tests of the others.
    """
    plan = leave_out(available(), without)
    if plan.lacking() and not insist:
        lacking = " and from ".join(plan.lacking())
        raise SandboxError(
            f"this kernel cannot keep untrusted code from {lacking}", "pass insist=True / --insist to run it anyway"
        )
    with workplace() as work:
        job = {"code": code, "stdin": stdin, "limits": asdict(limits), "plan": asdict(plan), "work": work, "copy": copy}
        answer = ask({**job, "python": interpreter()}, limits.seconds + GRACE)
    if "error" in answer:
        reason = " ".join(str(answer["error"]).split())[-300:]
        raise SandboxError(
            f"the sandbox did not start ({answer['why']}; {reason})", "`unmask help sandbox` prints what it needs"
        )
    texts = {name: answer[name].encode("latin-1").decode(errors="replace") for name in ("stdout", "stderr")}
    return Outcome(
        answer["why"] == "passed", answer["why"], **texts, seconds=answer["seconds"], status=answer["status"]
    )


def available() -> Protections:
    """The protections of this kernel, tried once."""
    return tried(tempfile.gettempdir(), interpreter())


@functools.cache
def tried(folder: str, python: str) -> Protections:
    """The same, for a place of temporary directories and an interpreter."""
    if not hasattr(os, "fork"):
        return Protections()
    with workplace() as work:
        return Protections(**ask({"work": work}, 60))


def leave_out(found: Protections, without: frozenset[str]) -> Protections:
    """The same without some of them; a namespace needs the user's own."""
    names = [field.name for field in fields(found) if field.name != "account"]
    for name in without:
        if name not in names:
            raise unknown("protection", name, names)
    less: dict[str, Any] = {name: 0 if name == "landlock" else False for name in without}
    if "user" in without or not found.user:
        less.update(user=False, net=False, mount=False, pid=False, sealed=False)
    return replace(found, **less)


def interpreter() -> str:
    """The Python that runs guards and programs: this one."""
    return os.path.realpath(sys.executable)


LOADED = """
import contextlib, os, sys
for folder in filter(os.path.isdir, sys.path):
    for name in os.listdir(folder):
        if name.endswith(".so") and not name.startswith(("_test", "_xx", "xx")):
            with contextlib.suppress(Exception):
                __import__(name.partition(".")[0])
with open("/proc/self/maps") as file:
    found = {line.rstrip("\\n").split(maxsplit=5)[-1] for line in file if "/" in line}
print("\\n", *sorted(found), sep="\\n")
"""


@functools.cache
def libraries(paths: str, python: str) -> tuple[str, tuple[str, ...]]:
    """What is left of a LD_LIBRARY_PATH for an interpreter: directories, and in them the files that it loads."""
    places = [os.path.abspath(place) for place in re.split("[:;]", paths) if place]
    command = [python, "-I", "-S", "-B", "-X", "utf8", "-c", LOADED]
    env = {"LD_LIBRARY_PATH": ":".join(places)}
    loaded: set[str] = set()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        loaded.update(os.fsdecode(done.stdout).splitlines())
    found: dict[str, list[str]] = {}
    for place in map(Path, places):
        for path in sorted([*place.glob("*"), *place.glob("glibc-hwcaps/*/*")]):
            if os.path.realpath(path) in loaded:
                found.setdefault(str(place), []).append(str(path))
    return ":".join(found), tuple(path for inside in found.values() for path in inside)


START = """
import sys, types
# without torch and the rest of unmask
for name, path in (("unmask", {0!r}), ("unmask.tasks", {1!r}), ("unmask.tasks.sandbox", {2!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from unmask.tasks.sandbox.guard import main
main()
"""


def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A guard's answer to one job; the guard and all that it started have ended when this returns."""
    if not hasattr(os, "fork"):
        raise SandboxError("untrusted code cannot be run on this system", "use Linux")
    here = Path(__file__).parent
    start = START.format(str(here.parent.parent), str(here.parent), str(here))
    paths = os.environ.get("LD_LIBRARY_PATH", "")
    places, files = libraries(paths, interpreter()) if paths else ("", ())
    kept = {"LD_LIBRARY_PATH": places} if places else {}
    read, write = os.pipe()  # the lifeline: a guard that finds it closed ends its program
    command = [interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", start]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    guard = subprocess.Popen(command, **pipes, pass_fds=[read], cwd="/", env=kept, start_new_session=True)
    os.close(read)
    try:
        answer, trouble = guard.communicate(
            json.dumps({**job, "lifeline": read, "libraries": files}).encode(), timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise SandboxError("the guard of a program does not answer", "is the machine overloaded?") from None
    finally:
        os.close(write)
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(timeout=5)
        guard.kill()
        guard.wait()
    if guard.returncode:
        reason = trouble.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(
            f"the guard of a program ended ({reason or guard.returncode})", "`unmask help sandbox` prints what it needs"
        )
    found: dict[str, Any] = json.loads(answer)
    return found


@contextlib.contextmanager
def workplace() -> Iterator[str]:
    """A temporary directory, removed afterwards whatever it holds."""
    work = os.path.realpath(tempfile.mkdtemp(prefix="unmask-sandbox-"))
    try:
        yield work
    finally:
        remove(work)

"""Programs that nobody trusts: right ones pass, and what the others do costs one failed example and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from unmask.errors import SettingError, UnmaskError
from unmask.tasks.sandbox import Limits, Outcome, SandboxError, available, box, run, seccomp, tree

FOUND = available()
SHORT = Limits(seconds=1.5)
NO_SPACES = frozenset({"user"})  # as in most containers

pytestmark = pytest.mark.skipif(bool(FOUND.lacking()), reason=f"this kernel does not guard: {FOUND.lacking()}")
needs_landlock = pytest.mark.skipif(not FOUND.landlock, reason="this kernel has no Landlock")
needs_seccomp = pytest.mark.skipif(not FOUND.seccomp, reason="this kernel has no seccomp filters")
needs_namespaces = pytest.mark.skipif(
    not (FOUND.user and FOUND.net and FOUND.mount and FOUND.pid), reason="this kernel gives no namespaces here"
)
ways = pytest.mark.parametrize(
    "without",
    [
        pytest.param(frozenset(), id="all"),
        pytest.param(NO_SPACES, id="no-namespaces", marks=[needs_landlock, needs_seccomp]),
        pytest.param(frozenset({"landlock", "seccomp"}), id="namespaces-only", marks=needs_namespaces),
    ],
)


@pytest.fixture(autouse=True)
def sealed(monkeypatch):
    """As on a machine without other kinds of sockets, so that namespaces alone are enough."""
    tried = box.tried
    monkeypatch.setattr(box, "tried", lambda *given: replace(tried(*given), sealed=True))
    return tried


@pytest.fixture
def marked():
    """A name for the processes of a program, and how many of that name are alive."""
    name = uuid.uuid4().hex[:12]

    def alive() -> int:
        found = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = path.read_text()
            except OSError:
                continue
            found += f"({name})" in text and ") Z" not in text
        return found

    return f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n", alive


# Right and wrong


def test_a_right_program_passes():
    outcome = run("def f(x):\n    return x + 1\n\nassert f(1) == 2\nprint('fine')")
    assert outcome == Outcome(True, "passed", "fine\n", "", outcome.seconds, 0)
    assert 0 < outcome.seconds < 5


def test_a_wrong_assertion_fails_with_its_message():
    outcome = run("def f(x):\n    return x\n\nassert f(1) == 2, 'one more was asked for'")
    assert not outcome.ok and outcome.why == "failed" and outcome.status == 1
    assert "AssertionError: one more was asked for" in outcome.stderr
    assert "line 4" in outcome.stderr and "f(1) == 2" in outcome.stderr and "<string>" not in outcome.stderr


ENDS = {
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "SystemExit": "raise SystemExit",
    "quit": "quit()",
    "exit": "exit(0)",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "said so": "import os; os.write(1, b'passed'); os.write(4, b'passed'); os._exit(0)",
    "a fork goes on": "import os\nif os.fork(): os._exit(0)",
    "atexit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)",
    "raises": "raise KeyboardInterrupt",
    "thread": "import threading, os; threading.Thread(target=os._exit, args=(0,)).start(); import time; time.sleep(5)",
    "kills itself": "import os; os.kill(os.getpid(), 15)",
    "aborts": "import os; os.abort()",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_early_end_is_no_pass(end):
    outcome = run(f"{end}\nassert False")
    assert not outcome.ok and outcome.why in ("failed", "killed")


def test_signals_are_told_as_a_shell_does():
    outcome = run("import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(3)")
    assert (outcome.why, outcome.status) == ("killed", 128 + 15)


def test_every_descriptor_written_and_closed():
    blind = "import os\nfor i in range(64):\n    try: {}\n    except OSError: pass\n"
    assert not run(blind.format("os.write(i, b'x' * 32)") + "os._exit(0)").ok
    assert not run(blind.format("os.write(i, os.read(i, 99))") + "os._exit(0)").ok
    outcome = run(blind.format("os.close(i)"))
    assert not outcome.ok and outcome.why == "failed"


def test_names_that_a_program_replaces():
    program = """
import builtins, os, sys
builtins.print = builtins.open = builtins.exit = builtins.compile = builtins.exec = None
os.write = os._exit = os.getpid = sys.exit = sys.excepthook = lambda *given: None
sys.modules.clear()
sys.stdout = sys.stderr = None
"""
    assert run(program).ok
    assert not run(program + "assert 0").ok


def test_the_program_is_main():
    program = """
import sys, __main__, dataclasses, typing, pickle
@dataclasses.dataclass
class Point:
    x: "int"
assert __name__ == "__main__" and __main__.Point is Point and typing.get_type_hints(Point) == {"x": int}
assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
assert sys.argv == ["program.py"] and "main" not in globals() and "token" not in globals()
"""
    assert run(program) == replace(run(program), seconds=pytest.approx(0, abs=5))
    assert run(program).stderr == ""


def test_text_of_all_kinds():
    outcome = run("s = 'žluťoučký 🐎'\nprint(s)\nprint('a\\0b')\nassert len(s) == 11")
    assert outcome.ok and outcome.stdout == "žluťoučký 🐎\na\0b\n"
    for broken in ("x = '\0'", "def f(:", "s = '\ud800'", "\tx = 1\n y = 2"):
        outcome = run(broken)
        assert not outcome.ok and outcome.why == "failed" and outcome.stderr
    assert run("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')").stdout == "\ufffd\ufffd"
    assert run("").ok


def test_stdin():
    outcome = run("import sys; assert input() == 'ö'; print(len(sys.stdin.read()))", stdin="ö\n" + "x" * 200_000)
    assert outcome.ok and outcome.stdout == "200000\n"
    assert "EOFError" in run("input()").stderr


def test_the_order_of_a_set_is_the_same_every_time():
    outputs = {run("print({'a', 'b', 'c', 'd', 'e'}, hash('x'))").stdout for _ in range(3)}
    assert len(outputs) == 1


# Limits


@ways
def test_an_endless_loop(without):
    for body in ("while True: pass", "import time; time.sleep(99)", "import signal; signal.pause()"):
        start = time.monotonic()
        outcome = run(body, limits=Limits(seconds=1), without=without)
        assert outcome.why == "timed out" and 1 <= outcome.seconds < 2
        assert time.monotonic() - start < 2


BOMBS = {
    "fork": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork and sleep": "import os, time\nfor _ in range(99999):\n    if not os.fork(): time.sleep(99)",
    "thread": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "small thread": "import threading, time\nthreading.stack_size(32768)\nwhile True:\n"
    "    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: pass",
    "subprocess": "import subprocess, sys\nwhile True: subprocess.Popen(['/bin/sleep', '99'])",
}


@ways
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_bombs(bomb, without, marked):
    mark, alive = marked
    start = time.monotonic()
    outcome = run(mark + bomb, limits=Limits(seconds=1.5), without=without)
    assert not outcome.ok and time.monotonic() - start < 4
    assert not alive()
    assert run("pass", without=without).ok  # and the next one has all it needs


@ways
def test_leftovers_are_dead(without, marked):
    mark, alive = marked
    program = """
import os, signal, time
for number in range(1, 32):
    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
if not os.fork():
    try: os.setsid()
    except OSError: pass
    if not os.fork():
        time.sleep(99)
    os._exit(0)
time.sleep(0.3)
"""
    if FOUND.account == "root" and "seccomp" not in without:
        pytest.skip("root that cannot become nobody may not start processes")
    outcome = run(mark + program, limits=SHORT, without=without)
    assert outcome.ok and not alive()


@ways
def test_endless_output(without):
    for stream in ("stdout", "stderr"):
        start = time.monotonic()
        outcome = run(f"import sys\nwhile True: print('x' * 999, file=sys.{stream})", without=without)
        assert outcome.why == "too much output" and time.monotonic() - start < 5
        assert len(getattr(outcome, stream)) == Limits().output_bytes
    assert run("print('x' * 1000)", limits=Limits(output_bytes=1001)).ok
    assert not run("print('x' * 1000)", limits=Limits(output_bytes=1000)).ok


@ways
def test_much_memory(without):
    outcome = run("x = bytearray(10 * 2**30)", without=without)
    assert outcome.why == "out of memory" and not outcome.ok
    outcome = run("x = []\nwhile True: x.append('x' * 10**7 + str(len(x)))", without=without)
    assert outcome.why == "out of memory" and outcome.seconds < 8
    assert run("x = bytearray(2**28)").ok


@pytest.mark.skipif(FOUND.account == "root", reason="root that cannot become nobody may not start processes")
def test_much_memory_in_many_processes():
    program = """
import os, time
for _ in range(3):
    if not os.fork(): break
x = bytearray(100 * 2**20)
time.sleep(5)
"""
    outcome = run(program, limits=Limits(memory_bytes=256 * 2**20))
    assert outcome.why == "out of memory" and outcome.seconds < 4
    shared = "x = bytearray(90 * 2**20)\n" + program.replace("x = bytearray(100 * 2**20)", "").replace("5", "0.5")
    assert run(shared, limits=Limits(memory_bytes=256 * 2**20)).ok  # what they share counts once


def test_large_files():
    outcome = run("open('large', 'wb').write(bytes(2**21))", limits=Limits(file_bytes=2**20))
    assert not outcome.ok and "OSError" in outcome.stderr


@ways
def test_many_files(without):
    spaces = FOUND.mount and "user" not in without
    large = "import time\nfor i in range(30):\n    open(str(i), 'wb').write(bytes(2**20)); time.sleep(0.02)"
    many = "import time\nfor i in range(9999): open(str(i), 'w').close()\ntime.sleep(3)"
    for program in (large, many):
        outcome = run(program, limits=Limits(file_bytes=8 * 2**20), without=without)
        assert not outcome.ok and outcome.why == ("failed" if spaces else "too many files"), outcome
        assert not spaces or "No space left" in outcome.stderr


HIDES = {
    "a directory that cannot be listed": "os.mkdir('a', 0o300); os.chdir('a')",
    "a path that is too long": "for _ in range(18):\n    os.mkdir('d' * 250); os.chdir('d' * 250)",
}


@needs_landlock
@needs_seccomp
@pytest.mark.parametrize("hide", HIDES.values(), ids=HIDES)
def test_files_cannot_hide(hide):
    large = "for i in range(4): open(str(i), 'wb').write(bytes(3 << 20))\ntime.sleep(1)"
    many = "for i in range(4200): open(str(i), 'w').close()\ntime.sleep(1)"
    for fill in (large, many):
        outcome = run(f"import os, time\n{hide}\n{fill}", limits=Limits(file_bytes=8 << 20), without=NO_SPACES)
        assert outcome.why == "too many files", outcome


@needs_landlock
@needs_seccomp
def test_files_without_a_name_count():
    """Deleted while they are open, they take room all the same; what the program is given does not count."""
    program = """
import os, sys, time
held = []
for _ in range(10):
    held.append(open("large", "wb"))
    held[-1].write(bytes(3 << 20)); held[-1].flush(); os.unlink("large")
    time.sleep(0.02)
time.sleep(1)
"""
    outcome = run(program, limits=Limits(file_bytes=8 << 20), without=NO_SPACES)
    assert outcome.why == "too many files", outcome
    given = "import sys, time; time.sleep(0.5); assert len(sys.stdin.read()) == 12 << 20"
    assert run(given, stdin="x" * (12 << 20), limits=Limits(file_bytes=8 << 20), without=NO_SPACES).ok


def test_limits_are_checked():
    for wrong in ({"seconds": 0}, {"memory_bytes": 2**20}, {"processes": 0}, {"output_bytes": -1}):
        with pytest.raises(SettingError, match="give at least"):
            Limits(**wrong)


# What is elsewhere


WRITES = """
import os
folder = FOLDER
def tries(act, *given):
    try: act(*given)
    except OSError as error: print(error)
    else: print("DONE", act, given)
tries(open, folder + "/new", "w")
tries(open, folder + "/kept", "a")
tries(open, folder + "/kept", "w")
tries(os.open, folder + "/kept", os.O_RDONLY | os.O_TRUNC)
tries(os.truncate, folder + "/kept", 0)
tries(os.unlink, folder + "/kept")
tries(os.rename, folder + "/kept", folder + "/other")
tries(os.rename, folder + "/kept", "here")
tries(os.link, folder + "/kept", "here")
tries(os.mkdir, folder + "/new")
tries(os.symlink, "/", folder + "/new")
tries(os.chmod, folder + "/kept", 0)
tries(os.utime, folder + "/kept", (1, 1))
tries(os.setxattr, folder + "/kept", "user.x", b"y")
os.symlink(folder + "/kept", "way")
tries(open, "way", "a")
for place in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~root"), HOME):
    tries(open, place + "/unmask-sandbox-new", "w")
open("here", "w").write("inside"); os.mkdir("sub"); os.rename("here", "there"); os.unlink("there")
"""


def check_no_writes_elsewhere(without: frozenset[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        kept = Path(folder, "kept")
        kept.write_text("kept")
        kept.chmod(0o666)
        before = kept.stat()
        outcome = run(f"FOLDER, HOME = {folder!r}, {str(Path.home())!r}\n{WRITES}", without=without)
        assert outcome.ok and "DONE" not in outcome.stdout, outcome
        after = kept.stat()
        assert os.listdir(folder) == ["kept"] and kept.read_text() == "kept"
        assert (after.st_mode, after.st_mtime, after.st_nlink) == (before.st_mode, before.st_mtime, before.st_nlink)


@ways
def test_no_writes_elsewhere(without):
    check_no_writes_elsewhere(without)


@needs_landlock
@needs_seccomp
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_older_landlocks(abi, monkeypatch):
    if FOUND.landlock < abi:
        pytest.skip(f"this kernel has Landlock {FOUND.landlock}")
    monkeypatch.setattr(box, "available", lambda: replace(FOUND, landlock=abi))
    check_no_writes_elsewhere(NO_SPACES)
    outcome = run(f"import os\nos.kill({os.getpid()}, 0)", without=NO_SPACES)
    assert "PermissionError" in outcome.stderr


@needs_landlock
def test_no_reading_elsewhere():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        secret = Path(folder, "secret")
        secret.write_text("the secret")
        secret.chmod(0o644)
        places = [str(secret), "/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", __file__]
        program = f"""
import os
for place in {places!r}:
    try: print("DONE", place, open(place).read())
    except OSError: pass
for place in ({folder!r}, "/", "/proc", "/tmp", "/home"):
    try: print("DONE", place, os.listdir(place))
    except OSError: pass
open("/dev/null", "w").write("x"), open("/dev/urandom", "rb").read(1)
"""
        for without in (frozenset(), NO_SPACES if FOUND.seccomp else frozenset()):
            outcome = run(program, without=without)
            assert outcome.ok and outcome.stdout == "", outcome


@ways
def test_no_network(without):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        program = f"""
import socket
def tries(act, *given):
    try: act(*given)
    except OSError as error: print(error)
    else: print("DONE", act, given)
tries(socket.create_connection, ("127.0.0.1", {port}), 2)
tries(socket.create_connection, ("1.1.1.1", 80), 2)
tries(socket.getaddrinfo, "localhost.example.com", 80)
def datagram():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53))
tries(datagram)
def named():
    socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket")
if {"seccomp" not in without}: tries(named)
one, other = socket.socketpair()
one.send(b"x")
assert other.recv(1) == b"x"
"""
        outcome = run(program, without=without, limits=Limits(seconds=15))
        assert outcome.ok and "DONE" not in outcome.stdout, outcome
        with pytest.raises(TimeoutError):
            server.accept()


NO_FILTER = pytest.mark.parametrize(
    "without",
    [
        pytest.param(frozenset({"seccomp"}), id="landlock-and-namespaces"),
        pytest.param(frozenset({"seccomp", "landlock"}), id="namespaces-only"),
    ],
)


@needs_namespaces
@NO_FILTER
def test_sockets_and_pipes_with_a_name_are_out_of_reach(without, place):
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        stream.bind(str(place / "stream"))
        stream.listen()
        datagrams.bind(str(place / "datagrams"))
        os.mkfifo(place / "pipe")
        for path in place.iterdir():
            path.chmod(0o777)
        program = f"""
import os, socket
def tries(act, *given):
    try: act(*given)
    except OSError as error: print(error)
    else: print("DONE", act, given)
for path in ({str(place)!r}, "." + "/.." * 20 + {str(place)!r}):
    tries(socket.socket(socket.AF_UNIX).connect, path + "/stream")
    tries(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto, b"x", path + "/datagrams")
    tries(os.open, path + "/pipe", os.O_RDWR | os.O_NONBLOCK)
    tries(os.stat, path + "/stream")
tries(os.listdir, "/proc/self/fd")
"""
        outcome = run(program, without=without)
        assert outcome.ok and "DONE" not in outcome.stdout, outcome
        for server in (stream, datagrams):
            server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stream.accept()
        with pytest.raises(TimeoutError):
            datagrams.recv(1)


@needs_namespaces
@NO_FILTER
def test_there_is_no_way_back_to_the_root_outside(without):
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("in")
for flags in (0x10000000, 0x10000000 | 0x20000):
    assert libc.unshare(flags) == -1  # no new user namespace, which would have chroot and mounts
assert libc.chroot(b"in") == -1 and libc.mount(b"none", b"in", b"tmpfs", 0, None) == -1
for number in range(3, 64):
    try: os.fchdir(number)
    except OSError: pass
    else: raise AssertionError(number)
assert not os.path.exists("/proc") and not os.path.exists("/etc/passwd")
"""
    outcome = run(program, without=without)
    assert outcome.ok, outcome


def test_without_a_filter_other_kinds_of_sockets_are_refused(sealed, monkeypatch):
    monkeypatch.setattr(box, "tried", lambda *given: replace(sealed(*given), seccomp=False, sealed=False))
    with pytest.raises(SandboxError, match="cannot keep untrusted code from the network"):
        run("pass")

    def opens(family: int, kind: int) -> bool:
        with contextlib.suppress(OSError), socket.socket(family, kind):
            return True
        return False

    none = "from unmask.tasks.sandbox import seccomp\nseccomp.available = lambda: False\nmain()\n"
    monkeypatch.setattr(box, "START", box.START.replace("\nmain()\n", "\n" + none))
    found = sealed.__wrapped__(tempfile.gettempdir(), box.interpreter())
    kinds = [opens(family, kind) for family in (32, 40, 42) for kind in (1, 2, 5)]
    assert not found.seccomp and found.sealed == (FOUND.net and not any(kinds))


@ways
def test_sockets_without_a_file_are_out_of_reach(without):
    name = f"unmask-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        server.settimeout(0.1)
        program = f"""
import socket
try: socket.socket(socket.AF_UNIX).connect("\\0{name}")
except OSError: pass
else: raise AssertionError("connected")
"""
        outcome = run(program, without=without)
        assert outcome.ok, outcome
        with pytest.raises(TimeoutError):
            server.accept()


MAPPED = {
    "private": "mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    "shared": "mmap.mmap(-1, 1 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
    "a file's": "mmap.mmap(FILE, 1 << 20)",
}


@ways
@pytest.mark.parametrize("how", MAPPED.values(), ids=MAPPED)
def test_memory_that_is_mapped(how, without):
    program = f"""
import mmap
file = open("held", "w+b")
file.truncate(1 << 20)
held = []
while True:
    held.append({how.replace("FILE", "file.fileno()")})
    held[-1][::4096] = b"x" * 256
"""
    outcome = run(program, limits=Limits(memory_bytes=256 << 20), without=without)
    assert not outcome.ok and outcome.why in ("failed", "out of memory") and outcome.seconds < 8, outcome


@ways
def test_other_processes_are_out_of_reach(without):
    program = f"""
import os, signal, resource
def tries(act, *given):
    try: act(*given)
    except OSError as error: print(error)
    else: print("DONE", act, given)
tries(os.kill, {os.getpid()}, 0)
tries(os.kill, {max(2, os.getppid())}, 0)  # 1 would be the first process of its own namespace
if {not FOUND.pid or "user" in without}: tries(os.kill, os.getppid(), 9)
else:
    try: os.kill(os.getppid(), 9)  # the first process of a namespace does not hear it
    except OSError: pass
if {"seccomp" not in without}:
    tries(resource.prlimit, {os.getpid()}, resource.RLIMIT_NOFILE, (16, 16))
    tries(os.setpriority, os.PRIO_USER, 0, 19)
    tries(os.setsid)
"""
    outcome = run(program, without=without)
    assert outcome.ok and "DONE" not in outcome.stdout, outcome


@needs_seccomp
def test_signals_by_seccomp_alone():
    without = frozenset({"user", "landlock"})
    program = f"""
import os
for process in ({os.getpid()}, os.getppid(), -1, 0):
    try: os.kill(process, 0)
    except PermissionError: pass
    else: print("DONE", process)
"""
    outcome = run(program, without=without, insist=True)
    assert outcome.ok and outcome.stdout == "", outcome
    assert run("import os; os.abort()", without=without, insist=True).why == "killed"


SIGNALLED = """
import fcntl, os, socket, struct, time
def by_fcntl(target):
    end, other = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETOWN, target)
    return end, lambda: os.write(other, b"x")
def by_fcntl_ex(target):
    end, other = os.pipe()
    fcntl.fcntl(end, 15, struct.pack("ii", 1, target))
    return end, lambda: os.write(other, b"x")
def by_ioctl(target):
    end, other = socket.socketpair()
    fcntl.ioctl(end, COMMAND, struct.pack("i", target))
    return end.detach(), lambda: other.send(b"x")
def tries(target):
    try: end, act = ACT(target)
    except PermissionError: return
    try: fcntl.fcntl(end, fcntl.F_SETSIG, 9)
    except PermissionError: pass
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    act()
    print("DONE", target)
for target in (os.getppid(), OTHER): tries(target)
time.sleep(0.3)
"""


@needs_seccomp
@pytest.mark.parametrize("act", ["by_fcntl", "by_fcntl_ex", "by_ioctl 0x8901", "by_ioctl 0x8902"])
def test_no_file_signals_another_process(act):
    """Where neither namespaces nor a new Landlock are: the guard could be killed, and any process of the account."""
    name, _, command = act.partition(" ")
    program = SIGNALLED.replace("ACT", name).replace("COMMAND", command or "0").replace("OTHER", str(os.getpid()))
    for without in (frozenset({"user", "landlock"}), frozenset({"user"}), frozenset()):
        outcome = run(program, without=without, insist=True)
        assert outcome.ok and outcome.stdout == "", outcome


@needs_seccomp
def test_nobody_is_told_what_others_do_with_files():
    program = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.inotify_init1(0) == -1 and libc.inotify_init() == -1
"""
    for without in (frozenset(), NO_SPACES):
        outcome = run(program, without=without, insist=True)
        assert outcome.ok, outcome


@ways
def test_signals_and_timers_that_wait_are_few(without):
    """The kernel counts them for an account, so that others of it could have none."""
    program = """
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {34})
libc, count = ctypes.CDLL(None, use_errno=True), 0
while count < 5000 and libc.sigqueue(os.getpid(), 34, 0) == 0:
    count += 1
print(count)
"""
    outcome = run(program, without=without, insist=True)
    assert outcome.ok and int(outcome.stdout) <= 256, outcome


@needs_seccomp
def test_dangerous_calls_fail():
    program = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
for name, numbers in TABLE.items():
    if numbers[column] >= 0:
        answer = libc.syscall(numbers[column], 0, 0, 0, 0, 0, 0)
        assert (answer, ctypes.get_errno()) == (-1, errno.EPERM), name
for number in (435, 437, 450, 451, 462, 500, 0x40000000 + 39):
    assert libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, number
for flags in (0x10000000, 0x40000000, 0x20000 | 17):
    assert libc.syscall((56, 220)[column], flags, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM
head, held = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)()
assert libc.capget(head, held) == 0 and not any(held), list(held)
"""
    program = program.replace("TABLE", repr(seccomp.FORBIDDEN))
    for without in (frozenset(), NO_SPACES):
        outcome = run(program, without=without, insist=True)
        assert outcome.ok, outcome


@needs_seccomp
def test_a_program_must_die_with_its_guard():
    program = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for option in (1, 1 + (1 << 32)):
    assert libc.syscall(NUMBER, ctypes.c_ulong(option), 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM
assert libc.prctl(15, b"name", 0, 0, 0) == 0
"""
    number = {"x86_64": 157, "aarch64": 167}[platform.machine()]
    outcome = run(program.replace("NUMBER", str(number)), without=NO_SPACES, insist=True)
    assert outcome.ok, outcome


def test_the_filter_of_the_other_machine():
    for machine in seccomp.ARCHITECTURES:
        rules = seccomp.instructions(forks=False, signals=False, pid=7, machine=machine)
        assert len(rules) < 4096
        for place, (code, yes, no, _) in enumerate(rules):
            jump = code in (seccomp.EQUAL, seccomp.ABOVE)
            assert not jump or place + 1 + max(yes, no) < len(rules)
    assert not seccomp.known("riscv64")


def test_the_environment_is_clean(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    program = """
import os, sys
assert "SECRET_TOKEN" not in os.environ and os.getcwd() == os.environ["HOME"]
assert sorted(os.listdir()) == ["program.py"]
assert not any("site-packages" in path or not path for path in sys.path)
try: os.fstat(5)
except OSError: pass
else: raise AssertionError("an open descriptor")
"""
    outcome = run(program)
    assert outcome.ok, outcome
    assert run("import os; assert os.listdir() == []", copy=False).ok  # nor its own text


@ways
def test_directories_of_libraries_are_not_shown(without, place, monkeypatch):
    (place / "secret").write_text("hush")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{place}:/usr/lib")
    program = f"""
import os
try: open({str(place / "secret")!r})
except OSError: pass
else: raise AssertionError("the secret")
assert {str(place)!r} not in os.environ.get("LD_LIBRARY_PATH", "")
"""
    outcome = run(program, without=without)
    assert outcome.ok, outcome


@ways
def test_libraries_that_the_interpreter_loads_are_shown(without, place, monkeypatch):
    assert ctypes.sizeof(ctypes.c_char) == 1  # it is loaded
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {Path(line.split(maxsplit=5)[-1]) for line in lines if "/libffi" in line}
    if not mapped:
        pytest.skip("ctypes has no library of its own here")
    real = mapped.pop()
    (place / real.name).write_bytes(real.read_bytes())
    for name in real.parent.iterdir():
        if name.resolve() == real and name.name != real.name:
            (place / name.name).symlink_to(real.name)
    (place / "secret").write_text("hush")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{place};/nowhere")
    program = f"""
import ctypes, os
ctypes.CDLL({str(place / real.name)!r})
assert os.environ["LD_LIBRARY_PATH"] == {str(place)!r}
try: open({str(place / "secret")!r})
except OSError: pass
else: raise AssertionError("the secret")
"""
    outcome = run(program, without=without)
    assert outcome.ok, outcome


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to give up")
def test_root_becomes_nobody():
    if FOUND.account == "root":
        pytest.skip("root cannot become nobody here")
    assert run("import os; assert os.getuid() == os.geteuid() == os.getgid() == 65534").ok
    accounts = [run("import os; print(*os.getresuid(), os.getgid())", without=NO_SPACES).stdout for _ in range(2)]
    for account in accounts:
        real, effective, saved, group = map(int, account.split())
        assert real == effective == saved != 0 and group == 65534
    assert accounts[0] != accounts[1]  # where accounts count processes, each program has its own


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to give up")
def test_a_program_that_forks_without_end_leaves_room_for_others():
    if FOUND.account == "root":
        pytest.skip("root cannot become nobody here")
    bomb = "import os, time\nfor _ in range(500):\n    try: os.fork()\n    except OSError: time.sleep(0.01)"
    thread = "import threading, time\nfor _ in range(40):\n    x = threading.Thread(target=int); x.start(); x.join()\n"
    with ThreadPoolExecutor(4) as pool:
        bombs = [pool.submit(run, bomb, limits=Limits(seconds=2), without=NO_SPACES) for _ in range(3)]
        assert all(run(thread, without=NO_SPACES).ok for _ in range(3))
        assert not any(one.result().ok for one in bombs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an account to give up")
def test_root_that_cannot_become_nobody_starts_no_processes(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "in"))
    assert available().account == "root"
    assert run("import threading as t; x = t.Thread(target=print); x.start(); x.join()").ok
    for bomb in BOMBS.values():
        outcome = run(bomb, limits=Limits(seconds=1))
        assert not outcome.ok
    assert "PermissionError" in run("import os; os.fork()").stderr
    assert list((tmp_path / "in").iterdir()) == []


# Cleaning up


@ways
def test_a_deleted_temporary_directory(without):
    program = "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors={})\nassert 1"
    assert not run(program.format(False), without=without).ok  # the directory itself is held
    assert run(program.format(True), without=without).ok
    assert run("pass", without=without).ok


@pytest.fixture
def place(monkeypatch):
    """An empty directory for the temporary directories of programs."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@needs_landlock
@needs_seccomp
def test_a_deep_tree_kills_neither_guard_nor_clean_up(marked, place):
    mark, alive = marked
    deep = "import os, time\nfor _ in range(1100):\n    os.mkdir('d'); os.chdir('d')\n"
    outcome = run(mark + deep + "time.sleep(9)", without=NO_SPACES)
    assert outcome.why == "too many files" and outcome.seconds < 5
    run(mark + deep, without=NO_SPACES)  # over before anyone looks, perhaps
    assert not alive() and os.listdir(place) == []


@needs_landlock
@needs_seccomp
def test_a_path_that_is_too_long_is_removed(place):
    assert run("import os\nfor _ in range(18):\n    os.mkdir('d' * 250); os.chdir('d' * 250)", without=NO_SPACES).ok
    assert os.listdir(place) == []


@ways
def test_a_guard_that_fails_ends_the_program(without, marked, place, monkeypatch):
    if FOUND.account == "root" and "seccomp" not in without:
        pytest.skip("root that cannot become nobody may not start processes")
    fails = """
from unmask.tasks.sandbox.watch import Watch
def look(self, child): raise RecursionError("too deep")
Watch.look = look
main()
"""
    monkeypatch.setattr(box, "START", box.START.replace("\nmain()\n", fails))
    mark, alive = marked
    with pytest.raises(SandboxError, match="too deep"):
        run(mark + "import os, time\nos.fork()\ntime.sleep(99)", without=without)
    assert not alive() and os.listdir(place) == []


def test_no_right_is_given_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(outside)
    for act in (tree.unlock, tree.open_folder):
        with pytest.raises(NotADirectoryError):
            act(str(tmp_path / "work" / "link"))
    tree.remove(str(tmp_path / "work"))
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755 and [path.name for path in tmp_path.iterdir()] == ["outside"]


@ways
def test_many_runs_leave_nothing(without, marked, monkeypatch):
    mark, alive = marked
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        outside = Path(folder).parent.stat().st_mode
        awkward = (
            "import os\nos.mkdir('shut', 0)\nos.makedirs('a/b/c'); open('a/b/c/d', 'w').write('x')\n"
            "os.symlink('/', 'way'); os.symlink('" + folder + "', 'a/up'); os.mkfifo('pipe')"
        )
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(12):
            assert run(mark + awkward, without=without).ok
            run(mark + "import os\nwhile True: os.fork()", without=without, limits=SHORT)
        assert os.listdir(folder) == [] and not alive()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert Path(folder).parent.stat().st_mode == outside and stat.S_IMODE(os.stat(folder).st_mode) == 0o755


def children() -> set[str]:
    """Processes that this one has started and not waited for; others of a worker's tests, such as chats', may live."""
    found = set()
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            number, rest = stat_file.parent.name, stat_file.read_text().rpartition(")")[2].split()
            found |= {number} if rest[1] == str(os.getpid()) else set()
    return found


def test_many_runs_in_a_row(marked):
    mark, alive = marked
    before = children()
    for number in range(25):
        assert run(mark + f"print({number})").stdout == f"{number}\n"
    assert not alive()
    assert children() <= before


@ways
def test_eight_at_once(without):
    programs = [
        f"import time\nopen('mine', 'w').write('{i}')\ntime.sleep(0.2)\nprint(open('mine').read())" for i in range(5)
    ]
    programs += ["import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"]
    programs += ["bytearray(10**10)", "while True: print('x' * 99)"]
    threads = "import threading\nx = threading.Thread(target=print)\nx.start()\nx.join()\n"
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda p: run(threads + p, limits=Limits(seconds=3), without=without), programs * 2))
    for place, outcome in enumerate(outcomes):
        number = place % 8
        assert outcome.ok == (number < 5), outcome
        assert number >= 5 or outcome.stdout == f"\n{number}\n"


@ways
def test_all_ends_when_unmask_is_killed(without, marked):
    mark, alive = marked
    program = mark + "import time; time.sleep(60)"
    call = f"run({program!r}, limits=Limits(seconds=60), without={without!r}, insist=True)"
    code = f"from unmask.tasks.sandbox import run, Limits; {call}"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": folder})
        try:
            until(alive)
        finally:
            child.kill()
            child.wait()
        until(lambda: not alive())
        until(lambda: all(path.is_dir() for path in Path(folder).rglob("*")))


def until(holds, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_ends_the_program(marked):
    mark, alive = marked
    start = time.monotonic()

    def interrupt() -> None:
        until(alive)
        os.kill(os.getpid(), 2)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(mark + "while True: print('x' * 100, flush=True)", limits=Limits(seconds=20, output_bytes=2**40))
    assert time.monotonic() - start < 10 and not alive()


# Where the kernel cannot


def test_it_refuses_unless_the_user_insists(marked):
    mark, alive = marked
    nothing = frozenset({"user", "landlock", "seccomp"})
    with pytest.raises(UnmaskError) as error:
        run("pass", without=nothing)
    assert str(error.value).startswith("this kernel cannot keep untrusted code from writing files elsewhere and from")
    assert str(error.value).endswith("pass insist=True / --insist to run it anyway") and "\n" not in str(error.value)
    assert run("assert 1", without=nothing, insist=True).ok
    assert run("while True: pass", without=nothing, insist=True, limits=Limits(seconds=1)).why == "timed out"
    leave = (
        mark
        + "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork(): time.sleep(99)\n    os._exit(0)"
    )
    assert run(leave, without=nothing, insist=True).ok and not alive()  # still nothing is left


def test_an_unknown_protection_is_refused():
    with pytest.raises(SettingError, match="did you mean 'landlock'"):
        run("pass", without=frozenset({"landlok"}))


def test_a_sandbox_that_does_not_start_is_no_failed_program(monkeypatch):
    ask = box.ask
    monkeypatch.setattr(box, "ask", lambda job, seconds: ask({**job, "python": "/no/such/python"}, seconds))
    with pytest.raises(SandboxError, match=r"the sandbox did not start .*No such file"):
        run("pass")
    monkeypatch.setattr(box, "available", lambda: FOUND)
    monkeypatch.setattr(box, "interpreter", lambda: "/bin/false")
    with pytest.raises(SandboxError, match="the guard of a program ended"):
        run("pass")

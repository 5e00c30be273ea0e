"""What the kernel can take away from a process: accounts, capabilities, namespaces, mounts, files (Landlock)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534
OWN = 2**30  # plus the guard's number: an account that nothing else has
FILES = 4096  # in the temporary directory
NEWUSER, NEWNS, NEWPID, NEWNET_IPC = 0x10000000, 0x20000, 0x20000000, 0x40000000 | 0x08000000
FLAGS = {"user": NEWUSER, "mount": NEWNS, "pid": NEWPID, "net": NEWNET_IPC}

READABLE = ["/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"]
DEVICES = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8  # Landlock's rights
MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK, TRUNCATE = 1 << 6, 1 << 9, 1 << 11, 1 << 14
HANDLED = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 4: 2**15 - 1}  # by ABI; from 5 on also ioctl on devices


def call(name: str, *arguments: object) -> int:
    """A function of libc, or an error with its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, name):
        raise OSError(errno.ENOSYS, f"{name}: not on this system")
    function = getattr(libc, name)
    function.restype = ctypes.c_long
    given = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    answer = int(function(*given))
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def reachable(path: str) -> bool:
    """Whether any account may come to a path."""
    return all(parent.stat().st_mode & 0o001 for parent in Path(path).resolve().parents)


def open_way(path: str) -> None:
    """A directory that only root can come to, for all: in a mount namespace, without anything that is beside it."""
    closed = next(parent for parent in reversed(Path(path).parents) if not parent.stat().st_mode & 0o001)
    call("unshare", NEWNS)
    call("mount", b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    held = os.open(path, os.O_PATH)
    os.umask(0o022)
    call("mount", b"way", bytes(closed), b"tmpfs", 2 | 4, b"size=1m,mode=0755")
    os.makedirs(path)
    call("mount", f"/proc/self/fd/{held}".encode(), os.fsencode(path), None, 0x5000, None)  # MS_BIND | MS_REC
    os.close(held)


def become_nobody(work: str, own: bool = False) -> None:
    """Root gives itself and the temporary directory away: to nobody, or to an account of this program's own."""
    user = OWN + os.getpid() if own else NOBODY
    if not reachable(work):
        raise PermissionError(f"{work} is root's alone")
    if not reachable(sys.executable):
        open_way(os.path.realpath(sys.base_prefix))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    try:
        os.chown(work, user, NOBODY)
        os.setresuid(user, user, user)
    except OSError:  # a container that knows no such number
        os.chown(work, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.stat(sys.executable), os.listdir(os.path.dirname(os.__file__))  # or it could start nothing
    call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: or it could not write its own uid_map


def unshare(names: Iterable[str]) -> None:
    """New namespaces; the account keeps its number, except root, which is nobody there."""
    user, group = os.geteuid(), os.getegid()
    flags = 0
    for name in names:
        flags |= FLAGS[name]
    call("unshare", flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user or NOBODY} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group or NOBODY} {group} 1")


def mount_private(work: str, size: int, libraries: Iterable[str] = ()) -> None:
    """All that is mounted becomes read-only. On the temporary directory is a root for `stay_inside`, which holds only
    what may be read and, as memory of a fixed size that is gone at the end, the temporary directory itself.
    """
    call("mount", b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    read_only(b"/", 0x8000)  # AT_RECURSIVE
    call("mount", b"root", os.fsencode(work), b"tmpfs", 2 | 4, b"size=1m,mode=0755")  # MS_NOSUID | MS_NODEV
    for path in sorted({*READABLE, *DEVICES, *homes(), *libraries}):  # what is above others comes first
        if os.path.exists(path) and not os.path.lexists(work + path):
            show(path, work + path)
    os.makedirs(work + work, exist_ok=True)
    read_only(os.fsencode(work), 0)
    options = f"size={size},nr_inodes={FILES},mode=0700".encode()
    call("mount", b"sandbox", os.fsencode(work + work), b"tmpfs", 2 | 4, options)


def read_only(place: bytes, flags: int) -> None:
    """What is mounted at a place cannot be written."""
    attributes = struct.pack("QQQQ", 1, 0, 0, 0)  # MOUNT_ATTR_RDONLY
    call("syscall", 442, -100, place, flags, attributes, len(attributes))  # mount_setattr


def show(path: str, place: str) -> None:
    """A file, or a directory with all that is below it, at another place, too."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    call("mount", os.fsencode(path), os.fsencode(place), None, 0x5000, None)  # MS_BIND | MS_REC


def stay_inside(work: str) -> None:
    """Nothing but the root on the temporary directory exists from here on: no files, no sockets or pipes with a name.

    Without capabilities and descriptors of directories there is no way back, nor a new user namespace to gain them in.
    """
    os.chroot(work)
    os.chdir(work)


def drop_capabilities() -> None:
    """None are left, and none can be gained."""
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    with contextlib.suppress(OSError):
        call("prctl", 28, 0x3, 0, 0, 0)  # PR_SET_SECUREBITS: SECBIT_NOROOT, locked; only a privileged process may
    call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def landlock_abi() -> int:
    """The version of Landlock, 0 where there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return call("syscall", 444, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    except OSError:
        return 0


def homes() -> list[str]:
    """Where the interpreter is."""
    found = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))]
    return sorted({path for path in map(os.path.realpath, found) if path != "/"})


def landlock(abi: int, work: str, libraries: Iterable[str] = ()) -> None:
    """Files: the temporary directory and, to read, the system's libraries and the interpreter. No TCP, no signals."""
    files = HANDLED.get(abi, 2**16 - 1)
    attributes = struct.pack("QQQ", files, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = call("syscall", 444, attributes, len(attributes), 0)
    read = EXECUTE | READ_FILE | READ_DIR
    inside = files & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK)
    rules = [(path, read) for path in [*READABLE, *homes(), *libraries]]
    rules += [(path, (READ_FILE | WRITE_FILE | TRUNCATE) & files) for path in DEVICES]
    for path, rights in [*rules, (work, inside)]:
        if os.path.exists(path):
            allow(ruleset, path, rights)
    call("syscall", 446, ruleset, 0)  # landlock_restrict_self
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    """These rights on a file, or on all that is below a directory."""
    if not os.path.isdir(path):
        rights &= ~READ_DIR
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        call("syscall", 445, ruleset, 1, struct.pack("=Qi", rights, place), 0)  # landlock_add_rule, PATH_BENEATH
    finally:
        os.close(place)

"""An open file -> a lock that one process holds until it closes the file: the system's, or a file beside it.

Some network file systems have no locks (Lustre mounted without them). There a file NAME.lock names the machine and the
process that writes, and a process of this machine that has ended holds it no longer.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

WITHOUT = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}  # errors of such file systems


def locked(file: IO[Any], path: str, wait: bool = False) -> Path | bool:
    """Lock an open file until it is closed or the process ends; False where another process has it locked.

    Where the file system has no locks, the path of the file beside it that is the lock: `release` removes it.
    """
    if sys.platform == "win32":  # has no such locks
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT:
            return False
        return _beside(Path(f"{path}.lock"), wait)
    return True


def release(lock: Path | bool) -> None:
    """Remove the lock file, if that is what the lock is."""
    if isinstance(lock, Path):
        with suppress(OSError):
            lock.unlink()


def holder(path: str) -> str | None:
    """Who has the lock file of this file, if there is one."""
    with suppress(OSError):
        return Path(f"{path}.lock").read_text(encoding="utf-8")
    return None


def _beside(lock: Path, wait: bool) -> Path | bool:
    """Make the lock file; one whose process has ended is removed first."""
    mine = f"process {os.getpid()} on {socket.gethostname()}"
    while True:
        try:
            with lock.open("x", encoding="utf-8") as file:
                file.write(mine)
            return lock
        except FileExistsError:
            if _ended(lock):
                release(lock)
            elif not wait:
                return False
            else:
                time.sleep(0.05)


def _ended(lock: Path) -> bool:
    """Whether the process that made a lock file was one of this machine, and is no longer there."""
    try:
        word, number, _, place = lock.read_text(encoding="utf-8").split(" ", 3)
        if word != "process" or place != socket.gethostname():
            return False
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):  # not ours to signal, or being written now
        return False
    return False

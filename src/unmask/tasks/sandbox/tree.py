"""The temporary directory of a program -> how full it is, and its removal; by descriptors, so no link is followed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from collections.abc import Generator

from unmask.tasks.sandbox.kernel import FILES

DEPTH = 100  # of directories in each other; each holds a descriptor of the guard while it is looked at
SLACK = 2**20  # bytes of files: blocks are larger than what is in them
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooDeepError(Exception):
    """Directories in each other, more than DEPTH."""


def unlock(name: str, parent: int | None = None) -> None:
    """Give its owner all rights on a directory; a link is an error, and cannot take its place in between."""
    if sys.platform != "linux":
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    held = os.open(name, os.O_PATH | FOLDER, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{held}", 0o700)
    finally:
        os.close(held)


def open_folder(name: str, parent: int | None = None) -> int:
    """A descriptor of a directory, even of one that forbids to look into itself."""
    try:
        folder = os.open(name, os.O_RDONLY | FOLDER, dir_fd=parent)
    except PermissionError:
        unlock(name, parent)
        return os.open(name, os.O_RDONLY | FOLDER, dir_fd=parent)
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o500 != 0o500:
        os.fchmod(folder, mode | 0o500)
    return folder


def sizes(folder: int, depth: int = 0) -> Generator[int, None, None]:
    """Bytes on the disk of all that is in a directory and below it; 0 for a directory. Closes the descriptor."""
    try:
        if depth > DEPTH:
            raise TooDeepError
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the program goes on meanwhile
                    found = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                    if not stat.S_ISDIR(found.st_mode):
                        yield found.st_blocks * 512
                        continue
                    yield 0
                    yield from sizes(open_folder(entry.name, folder), depth + 1)
    finally:
        os.close(folder)


def overfull(work: str, most: int) -> bool:
    """Whether the files of a directory are too many or too deep or, together, too large."""
    total = 0
    try:
        folder = open_folder(work)
    except FileNotFoundError:
        return False
    try:
        with contextlib.closing(sizes(folder)) as found:
            for count, size in enumerate(found, 1):
                total += size
                if count > FILES or total > most + SLACK:
                    return True
    except TooDeepError:
        return True
    return False


def removed(name: str, parent: int) -> bool:
    """Whether a file or an empty directory could be removed."""
    for act in (os.unlink, os.rmdir):
        with contextlib.suppress(OSError):
            act(name, dir_fd=parent)
            return True
    return False


def remove(work: str) -> None:
    """Remove a directory and all below it, as far as this account may."""
    with contextlib.suppress(OSError):
        unlock(work)
        top = open_folder(work)
        try:
            clear(top)
        finally:
            os.close(top)
        os.rmdir(work)


def clear(top: int) -> None:
    """Remove all that is in a directory. What is deeper is first moved to the top: no path is ever long."""
    waiting, prefix, numbers = os.listdir(top), os.urandom(8).hex(), itertools.count()
    while waiting:
        name = waiting.pop()
        if removed(name, top):
            continue
        with contextlib.suppress(OSError):
            unlock(name, top)
            folder = open_folder(name, top)
            try:
                for inner in os.listdir(folder):
                    if not removed(inner, folder):
                        unlock(inner, folder)  # moving a directory writes into it
                        raised = f"{prefix}-{next(numbers)}"
                        os.rename(inner, raised, src_dir_fd=folder, dst_dir_fd=top)
                        waiting.append(raised)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)

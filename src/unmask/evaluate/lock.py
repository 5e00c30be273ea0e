"""An open file -> whether this process alone has it."""

from __future__ import annotations

import sys
from typing import IO, Any


def locked(file: IO[Any]) -> bool:
    """Whether nobody else has a file locked; now it is, until it is closed or its process has ended."""
    if sys.platform == "win32":  # has no such locks
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # nor have some file systems
    return True

"""Every write the store makes goes through here, so that a test can kill or fail any of them.

MACHINE_FAULT=ACTION:N (tests only) makes the Nth step of this process fail: `kill` ends it
as kill -9 does, `enospc` and `eio` raise OSError, `short` writes half the bytes and raises.
"""

from __future__ import annotations

import errno
import os
import signal

_plan: tuple[str, int] | None = None
_steps = 0


def plan_fault(text: str | None) -> None:
    """Arrange for the fault that text describes, `ACTION:N`; None for none."""
    global _plan, _steps
    action, _, number = (text or "").partition(":")
    _plan = (action, int(number)) if number else None
    _steps = 0


def _step() -> str | None:
    """Count a step; die or fail if it is the one. Returns `short` for a write to be cut."""
    global _steps
    if _plan is None:
        return None
    _steps += 1
    action, number = _plan
    if _steps != number:
        return None
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "short":
        return action
    code = errno.ENOSPC if action == "enospc" else errno.EIO
    raise OSError(code, os.strerror(code))


def write(fd: int, data: bytes) -> None:
    """Write all of data. A short write is gone on with; an error leaves what was written."""
    if _step() == "short":
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync(fd: int) -> None:
    """Wait until what was written to fd is on the disk."""
    _step()
    os.fsync(fd)


def rename(source: str, target: str) -> None:
    """Put a file in place, atomically."""
    _step()
    os.rename(source, target)


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)

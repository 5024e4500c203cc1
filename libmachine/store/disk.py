"""Every write the store makes goes through here, so that a test can kill or fail any of them.

MACHINE_FAULT=ACTION:N (tests only) makes the Nth step of this process fail: `kill` ends it
as kill -9 does, `enospc` and `eio` raise OSError, `short` writes half the bytes and raises.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from libmachine.folders import make_private

_plan: tuple[str, int] | None = None
_steps = 0


def plan_fault(text: str | None) -> None:
    """Arrange for the fault that text describes, `ACTION:N`; None for none."""
    global _plan, _steps
    action, _, number = (text or "").partition(":")
    _plan = (action, int(number)) if number else None
    _steps = 0


def _step(fd: int | None = None, data: bytes = b"") -> None:
    """Count a step; die or fail if it is the one."""
    global _steps
    if _plan is None:
        return
    _steps += 1
    action, number = _plan
    if _steps != number:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(2, f"fault: {action} at step {number}\n".encode())
    if action == "short" and fd is not None:
        os.write(fd, data[: len(data) // 2])
    code = errno.EIO if action == "eio" else errno.ENOSPC
    raise OSError(code, os.strerror(code))


def write(fd: int, data: bytes) -> None:
    """Write all of data. A short write is gone on with; an error leaves what was written."""
    _step(fd, data)
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


def unlink(path: str) -> None:
    """Remove a file. One that is not there is no error."""
    _step()
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def step() -> None:
    """A step that another program takes for us, git say."""
    _step()


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def put(path: str, data: bytes, mode: int, fsync: bool, temporary: Callable[[], str]) -> None:
    """Make a file in one step: whole or not at all. temporary: gives a new name on the same file system."""
    while True:
        name = temporary()
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            break
        except FileExistsError:
            continue  # left by a dead process that had our pid
    try:
        try:
            write(fd, data)
            if fsync:
                sync(fd)
        finally:
            os.close(fd)
        rename(name, path)
    except BaseException:
        os.unlink(name)
        raise
    if fsync:
        sync_directory(os.path.dirname(path))


def make_folder(path: str, fsync: bool) -> None:
    """Make a directory and those above it that are missing, each private to its owner."""
    make_private(path, sync_directory if fsync else lambda above: None)

"""Turns between processes: one command computes with the local model at a time.

The lock is taken when the calls of this process in flight go from none to one and let go when they
are none again, so two commands joined by a pipe never wait for each other for ever: one that waits
for its reader has no call in flight. Turns are a courtesy to the processor, nothing is wrong without
them: where the file cannot be made or locked, calls go ahead.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from libmachine.errors import ProviderError
from libmachine.folders import make_private

_POLL_S = 0.05


class _Shared:
    """One lock file in this process: whether its turn is held, by which descriptor, for how many calls."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.calls = 0
        self.held = False
        self.fd: int | None = None
        self.asking = False  # one thread asks for the file lock, the others wait for its answer


_by_path: dict[str, _Shared] = {}
_by_path_lock = threading.Lock()


@contextmanager
def turn(path: str, wait_s: float, closed: threading.Event) -> Iterator[None]:
    """Hold this process's turn on a lock file, made if absent.

    wait_s: seconds to wait for other processes; closed: set to give up. Raises ProviderError then.
    """
    with _by_path_lock:
        shared = _by_path.setdefault(os.path.realpath(path), _Shared())
    _enter(shared, path, time.monotonic() + wait_s, closed)
    try:
        yield
    finally:
        with shared.changed:
            shared.calls -= 1
            if shared.calls == 0:
                shared.held = False
                _unlock(shared.fd)


def _enter(shared: _Shared, path: str, deadline: float, closed: threading.Event) -> None:
    with shared.changed:
        while shared.asking:
            shared.changed.wait(_POLL_S)
            _check(deadline, closed)
        if shared.held:
            shared.calls += 1
            return
        shared.asking = True
    got = False
    try:
        fd = _lock(path, deadline, closed)
        got = True
    finally:
        with shared.changed:
            shared.asking = False
            if got:
                shared.held, shared.fd, shared.calls = True, fd, 1
            shared.changed.notify_all()


def _lock(path: str, deadline: float, closed: threading.Event) -> int | None:
    """Descriptor of the locked file; None where there is no locking."""
    try:
        make_private(os.path.dirname(path))
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                _check(deadline, closed)
                closed.wait(_POLL_S)
    except OSError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise


def _unlock(fd: int | None) -> None:
    if fd is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)  # by name: a child forked meanwhile may hold the descriptor too
        os.close(fd)


def _check(deadline: float, closed: threading.Event) -> None:
    if closed.is_set():
        raise ProviderError("the local model was closed")
    if time.monotonic() > deadline:
        raise ProviderError("another command keeps the local model busy; run this one again later")

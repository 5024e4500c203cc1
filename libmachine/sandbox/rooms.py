"""The directories of runs: `.machine/sandboxes/NAME`, one each, gone when the run is over.

Beside each lies NAME.lock, which its process holds locked for as long as it lives. So what a
crash or a kill -9 left is known, whatever number its process had, and is removed at the next
start; what another process uses is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from libmachine.console import say
from libmachine.errors import MachineError
from libmachine.folders import make_private
from libmachine.redact import of_environment as redacted
from libmachine.sandbox import trees
from libmachine.sandbox.files import FileError, Root
from libmachine.sandbox.workspace import Workspace
from libmachine.store.store import Store

FOLDER = "sandboxes"
_LOCK = ".lock"
Opener = Callable[[], AbstractContextManager[Workspace]]
"""Opens what a run left in a fresh directory, for the length of a `with`."""


@contextlib.contextmanager
def room(store: Store, tree: str | None) -> Iterator[Workspace]:
    """A fresh workspace with the files of a tree of the store, removed at the end."""
    folder = f"{store.directory}/{FOLDER}"
    store.prepare()
    make_private(folder)
    name, lock = _lock(folder)
    path = f"{folder}/{name}"
    try:
        os.mkdir(path, 0o700)
        if tree is not None:
            with Root(path) as root:
                trees.put(root, tree, store.read_blob)
        yield Workspace(Path(path))
    finally:
        _remove(path)
        _unlink(f"{path}{_LOCK}")
        os.close(lock)


def keep(store: Store, workspace: Workspace) -> str | None:
    """Store what is in a workspace; the id of its tree. None, and a warning, where that is too much."""
    try:
        with Root(workspace.directory) as root:
            return trees.take(root, store.objects, _clean)
    except (trees.TooMuch, FileError) as error:
        say(f"warning: the files of a run are not kept: {error}")
        return None


def opener(store: Store, run: Mapping[str, Any]) -> Opener:
    """Opens the files that a stored run left. Raises MachineError then, where there are none."""

    def opened() -> AbstractContextManager[Workspace]:
        tree = (run.get("workspace") or {}).get("after")
        if tree is None:
            why = "were not kept" if run.get("workspace") else "are none: no tool of it acts on a workspace"
            raise MachineError(f"the files of run {run['id'][:12]} {why}")
        return room(store, tree)

    return opened


def sweep(directory: str) -> None:
    """Remove the directories in a store whose processes are gone."""
    folder = f"{directory}/{FOLDER}"
    try:
        names = set(os.listdir(folder))
    except OSError:
        return
    for name in sorted(names):
        stem = name.removesuffix(_LOCK)
        if name == stem and name + _LOCK in names:
            continue
        with contextlib.suppress(OSError):
            if name == stem:  # a lock comes before its directory and goes after it: this one has no owner
                _remove(f"{folder}/{name}")
                continue
            lock = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(f"{folder}/{stem}")
                _unlink(f"{folder}/{name}")
            except BlockingIOError:
                pass  # its process lives
            finally:
                os.close(lock)


def _lock(folder: str) -> tuple[str, int]:
    """A new name that nobody can guess, and its locked file."""
    while True:
        name = secrets.token_hex(16)
        path = f"{folder}/{name}{_LOCK}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path):
                return name, lock
        except BlockingIOError:
            pass  # a sweep took it for a dead one's, in the moment before it was locked
        os.close(lock)


def _remove(path: str) -> None:
    """Take a directory and all in it away, whatever rights a run has put on what is in it."""
    if not os.path.isdir(path):
        return
    try:
        os.chmod(path, 0o700)
        with Root(path) as root:
            root.clear()
        os.rmdir(path)
    except (OSError, FileError) as error:
        say(f"warning: '{path}' is not removed: {error}")


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _clean(data: bytes) -> bytes:
    """The bytes of a file without secrets; what is no text is kept as it is."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    cleaned = redacted(text)
    return data if cleaned is text else str(cleaned).encode()

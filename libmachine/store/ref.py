"""Refs of the store, read and written without git: a run must cost a millisecond.

Git's own protocol (NAME.lock, then rename), so that `git pack-refs` and we do not lose each other's
update. Our lock is a link that names us: whoever writes refs holds the flock of `chained`, so one
that is there already was left by the dead.
"""

from __future__ import annotations

import os
import time

from libmachine.store import disk, layout

_OURS = "machine"
_PATIENCE_S = 10.0
_LONGEST = 1000
"""Characters of a file that is a ref; git's own has 41."""


def read(directory: str, name: str) -> str | None:
    """What a ref points to, loose or packed; None if it is not there."""
    try:
        with open(f"{directory}/{name}", errors="replace") as file:
            return file.read(_LONGEST).strip() or None
    except (FileNotFoundError, IsADirectoryError):
        return _packed(directory).get(name)


def _packed(directory: str) -> dict[str, str]:
    found = {}
    try:
        with open(f"{directory}/packed-refs", errors="surrogateescape") as file:
            for line in file:
                oid, _, name = line.rstrip("\n").partition(" ")
                if name and len(oid) == 40:
                    found[name] = oid
    except FileNotFoundError:
        pass
    return found


def under(directory: str, prefix: str) -> dict[str, str]:
    """Name -> id of the refs that begin with a prefix, which ends in a slash."""
    found = {name: oid for name, oid in _packed(directory).items() if name.startswith(prefix)}
    for here, _, files in os.walk(f"{directory}/{prefix.rstrip('/')}"):
        for file in files:
            name = os.path.relpath(f"{here}/{file}", directory)
            if not name.endswith(".lock") and (oid := read(directory, name)):
                found[name] = oid
    return found


def write(directory: str, name: str, oid: str, fsync: bool) -> None:
    """Point a ref at an object."""
    path = f"{directory}/{name}"
    lock = f"{path}.lock"
    _lock(path, lock, fsync)
    try:
        disk.put(path, f"{oid}\n".encode(), 0o600, fsync, lambda: layout.temporary(directory))
    finally:
        _unlink(lock)


def delete(directory: str, name: str) -> None:
    """Remove a ref, loose and packed."""
    kept = {other: oid for other, oid in _packed(directory).items() if other != name}
    path = f"{directory}/packed-refs"
    if os.path.exists(path):
        lines = ["# pack-refs with: sorted", *(f"{oid} {other}" for other, oid in sorted(kept.items()))]
        text = "".join(f"{line}\n" for line in lines)
        _lock(path, f"{path}.lock", False)
        try:
            disk.put(path, text.encode(), 0o600, False, lambda: layout.temporary(directory))
        finally:
            _unlink(f"{path}.lock")
    disk.unlink(f"{directory}/{name}")


def _lock(path: str, lock: str, fsync: bool) -> None:
    waited = 0.0
    while True:
        disk.make_folder(os.path.dirname(path), fsync)
        try:
            os.symlink(_OURS, lock)
            return
        except FileNotFoundError:
            continue  # git took the empty directory away
        except FileExistsError:
            if os.path.islink(lock) or waited > _PATIENCE_S:
                _unlink(lock)
            else:
                time.sleep(0.05)
                waited += 0.05


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass

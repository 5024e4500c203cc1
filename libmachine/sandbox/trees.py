"""Directories into trees of the store and back: bytes, any names, the executable bit, symbolic links.

A `.git` is left out: git refuses trees that have one, so a run that had made one could not be
shared. So are devices, sockets and pipes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from libmachine.errors import MachineError
from libmachine.githash import DIRECTORY, FILE
from libmachine.sandbox.base import MIB
from libmachine.sandbox.files import Entry, Root
from libmachine.store.objects import Objects, tree_rows

EXECUTABLE, LINK = "100755", "120000"
MOST_BYTES = 64 * MIB
MOST_FILES = 5000
"""What of a directory is kept with a run; of one with more, nothing is."""


class TooMuch(MachineError):
    """A directory holds more than is kept of a run."""


def take(root: Root, objects: Objects, clean: Callable[[bytes], bytes]) -> str:
    """Store what is in a directory and return the id of its tree. clean: takes secrets out of a file.

    Raises TooMuch, and FileError for what cannot be read.
    """
    folders: dict[bytes, list[tuple[str, str, str]]] = {b"": []}
    size = count = 0
    for entry in root.walk():
        above, _, name = entry.path.rpartition(b"/")
        if name.lower() == b".git" or above not in folders or entry.kind == "other":
            continue
        count += 1
        size += entry.size if entry.kind == "file" else 0
        if count > MOST_FILES or size > MOST_BYTES:
            raise TooMuch(f"more than {MOST_FILES} files or {MOST_BYTES // MIB} MiB")
        if entry.kind == "directory":
            folders[entry.path] = []
        else:
            mode, data = _content(root, entry, clean)
            folders[above].append((mode, os.fsdecode(name), objects.blob(data)))
    for path in sorted(folders, key=lambda path: -path.count(b"/")):
        if path:
            above, _, name = path.rpartition(b"/")
            folders[above].append((DIRECTORY, os.fsdecode(name), objects.tree(folders[path])))
    return objects.tree(folders[b""])


def _content(root: Root, entry: Entry, clean: Callable[[bytes], bytes]) -> tuple[str, bytes]:
    if entry.kind == "link":
        return LINK, root.link(entry.path)
    data = root.read(entry.path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise TooMuch(f"more than {MOST_BYTES // MIB} MiB")
    return EXECUTABLE if entry.executable else FILE, clean(data)


def put(root: Root, tree: str, read: Callable[[str], bytes], above: str = "") -> None:
    """Write a tree of the store into an empty directory. read: the bytes of an object by its id.

    Links are made last and never followed, so that no file is written through one. Raises
    MachineError for a name that no file may have.
    """
    for path, target in _put(root, tree, read, above):
        root.link(os.fsencode(path), target)


def _put(root: Root, tree: str, read: Callable[[str], bytes], above: str) -> list[tuple[str, bytes]]:
    """Write all but the links of a tree, which are returned."""
    links = []
    for mode, name, oid in tree_rows(read(tree)):
        if name in ("", ".", "..") or "/" in name or name.lower() == ".git":
            raise MachineError(f"tree {tree} has a file called {name!a}, which is not written")
        path = above + name
        if mode == DIRECTORY:
            root.make(os.fsencode(path))
            links += _put(root, oid, read, f"{path}/")
        elif mode == LINK:
            links.append((path, read(oid)))
        elif mode in (FILE, EXECUTABLE):
            root.write(os.fsencode(path), read(oid), mode == EXECUTABLE)
        else:
            raise MachineError(f"tree {tree} has an entry of mode {mode}, which is not written")
    return links

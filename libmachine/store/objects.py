"""Objects of the store: loose git objects written by hashlib and zlib, read loose or packed.

Written by us and not by git or libgit2, because a run must cost a millisecond and no
import, and because each write must be one that a test can fail. Formats: git's loose
objects, trees and commits.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from libmachine.errors import MachineError
from libmachine.githash import object_id, tree_data
from libmachine.store import disk
from libmachine.store.layout import temporary

_SMALL = 8000


def _deflated(data: bytes) -> bytes:
    """Data as zlib packs it at its fastest. What zlib sets up for its largest window costs six times as
    much as packing a small record; the window's size stands in the data, and git reads any."""
    small = len(data) < _SMALL
    packer = zlib.compressobj(1, wbits=13 if small else 15, memLevel=6 if small else 8)
    return packer.compress(data) + packer.flush()


_WINDOW = 1 << 20  # bytes of a pack that are mapped at once


def tree_rows(data: bytes) -> Iterator[tuple[str, str, str]]:
    """(mode, name, id) of each entry of a tree; bytes of a name that are no UTF-8 are surrogates."""
    while data:
        head, _, rest = data.partition(b"\0")
        mode, _, name = head.partition(b" ")
        yield mode.decode("ascii", "replace"), name.decode("utf-8", "surrogateescape"), rest[:20].hex()
        data = rest[20:]


def tree_entries(data: bytes) -> Iterator[tuple[str, str]]:
    """(name, id) of each entry of a tree, for reading: what is no UTF-8 shows as a replacement."""
    for _, name, oid in tree_rows(data):
        yield name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), oid


class Objects:
    """The objects of one repository. fsync: wait for the disk at each write."""

    def __init__(self, directory: str, fsync: bool) -> None:
        self.directory = directory
        self.fsync = fsync
        self._packs: Any = None

    def path(self, oid: str) -> str:
        """Where a loose object lies."""
        return f"{self.directory}/objects/{oid[:2]}/{oid[2:]}"

    def write(self, kind: str, data: bytes) -> str:
        """Store an object and return its id. Storing it again changes nothing."""
        oid = object_id(kind, data)
        path = self.path(oid)
        if os.path.exists(path):
            return oid
        packed = _deflated(b"%s %d\0" % (kind.encode(), len(data)) + data)
        try:
            self._put(path, packed)
        except FileNotFoundError:  # most of the 256 directories are soon there
            disk.make_folder(os.path.dirname(path), self.fsync)
            self._put(path, packed)
        return oid

    def _put(self, path: str, packed: bytes) -> None:
        disk.put(path, packed, 0o400, self.fsync, lambda: temporary(self.directory))

    def blob(self, data: bytes) -> str:
        """Store a blob."""
        return self.write("blob", data)

    def tree(self, entries: Iterable[tuple[str, str, str]]) -> str:
        """Store a tree of (mode, name, id)."""
        return self.write("tree", tree_data(entries))

    def files(self, files: dict[str, str]) -> str:
        """Store files (path -> text) as a tree of trees; returns its id."""
        here: dict[str, tuple[str, str]] = {}
        below: dict[str, dict[str, str]] = {}
        for path, text in files.items():
            head, _, tail = path.partition("/")
            if tail:
                below.setdefault(head, {})[tail] = text
            else:
                here[head] = ("100644", self.blob(text.encode()))
        for name, inner in below.items():
            if name in here:
                raise MachineError(f"case has '{name}' both as a file and as a directory; rename one")
            here[name] = ("40000", self.files(inner))
        return self.tree((mode, name, oid) for name, (mode, oid) in here.items())

    def commit(self, tree: str, parents: Iterable[str], message: str, at: int) -> str:
        """Store a commit of ours. at: seconds since the epoch."""
        who = f"machine <machine@localhost> {at} +0000"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"author {who}", f"committer {who}", "", message, ""]
        return self.write("commit", "\n".join(lines).encode())

    def read(self, oid: str) -> tuple[str, bytes]:
        """(kind, data) of an object, loose or packed. Raises KeyError if there is none,
        MachineError if its bytes are not what its id says."""
        try:
            with open(self.path(oid), "rb") as file:
                packed = file.read()
        except FileNotFoundError:
            return self.read_packed(oid)
        try:
            head, _, data = zlib.decompress(packed).partition(b"\0")
        except zlib.error as error:
            raise MachineError(f"object {oid} is damaged ({error}); machine-fsck says what it was") from None
        kind = head.partition(b" ")[0].decode("ascii", "replace")
        if object_id(kind, data) != oid:
            raise MachineError(f"object {oid} is damaged; machine-fsck says what it was")
        return kind, data

    def exists(self, oid: str) -> bool:
        """Is the object here, loose or packed?"""
        return os.path.exists(self.path(oid)) or oid in self._packed()

    def _packed(self) -> Any:
        # libgit2 only where something is packed: importing it costs more than a small command.
        # The object database and not the repository: nothing of config or ownership matters here.
        if self._packs is None:
            try:
                names = os.listdir(f"{self.directory}/objects/pack")
            except FileNotFoundError:
                names = []
            lent = os.path.exists(f"{self.directory}/objects/info/alternates")
            if not lent and not any(name.endswith(".idx") for name in names):
                return ()
            import pygit2

            # A part of a pack at a time: else all of it is mapped, and counts as our memory.
            pygit2.settings.mwindow_size = _WINDOW
            pygit2.settings.mwindow_mapped_limit = 8 * _WINDOW
            self._packs = pygit2.Odb(f"{self.directory}/objects")
        return self._packs

    def read_packed(self, oid: str) -> tuple[str, bytes]:
        """(kind, data) of an object as a pack has it. Raises as `read`."""
        damage = None
        for _ in range(2):
            packs = self._packed()
            if not packs:
                break
            import pygit2

            try:
                kind, data = packs.read(oid)
            except KeyError:
                damage = None
            except pygit2.GitError as error:
                damage = str(error)
            else:
                names = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
                return names[int(kind)], data
            # machine-gc may have put its pack into another meanwhile: look anew. (libgit2 shares a pack
            # among all who have it open, so the old one must go first.)
            del packs
            self._packs = None
        if damage is None:
            raise KeyError(oid)
        raise MachineError(f"object {oid} is damaged ({damage}); machine-fsck says what it was")

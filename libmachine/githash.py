"""Git object ids computed with hashlib: the same ids git gives, without git and without writing.

Source: the loose object format, `<kind> <length>\\0<data>`, SHA-1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

FILE = "100644"
DIRECTORY = "40000"


def object_id(kind: str, data: bytes) -> str:
    """Id (40 hex) of an object of a kind: blob, tree, commit."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()


def blob_id(data: bytes) -> str:
    """Id (40 hex) of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def tree_data(entries: Iterable[tuple[str, str, str]]) -> bytes:
    """The bytes of a tree object. entries: (mode, name, id), in any order.

    Git sorts names as bytes, a directory as if its name ended in a slash.
    """
    rows = [(mode, name.encode("utf-8", "surrogateescape"), oid) for mode, name, oid in entries]
    rows.sort(key=lambda row: row[1] + (b"/" if row[0] == DIRECTORY else b""))
    return b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in rows)


EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def tree_id(entries: Iterable[tuple[str, str, str]]) -> str:
    """Id (40 hex) of a tree. entries: (mode, name, id)."""
    return object_id("tree", tree_data(entries))

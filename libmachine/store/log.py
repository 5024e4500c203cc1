"""The log: which objects are records, in the order they came. One JSON line a record.

Append-only, under flock; a tail torn by a crash is cut off before the next line goes in.
"Newest" means later in this file, never by a clock. Readers take whole lines only.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any

import orjson

from libmachine.canon import called
from libmachine.githash import blob_id
from libmachine.store import disk

Row = dict[str, Any]

_MARKED = 1024
_Shape = tuple[tuple[str, frozenset[type], bool], ...]
"""Name and types of each field, and whether it is an id."""


def _shape(*wanted: tuple[str, tuple[type, ...]]) -> _Shape:
    return tuple(
        (name, frozenset(types), name in ("id", "run", "key"))
        for names, types in wanted
        for name in names.split()
    )


_SHAPES: dict[str, _Shape] = {
    "run": _shape(
        ("id machine version identity case_id base key status", (str,)),
        ("trial", (int,)),
        ("parts given", (dict,)),
    ),
    "scorecard": _shape(
        ("id run machine rubric", (str,)), ("score", (int, float, NoneType)), ("passed", (bool, NoneType))
    ),
}
_SHAPE = _shape(("id machine", (str,)))  # of a record of any other type
_HEX = re.compile(r"[0-9a-f]{40}")


def problem(row: Row) -> str | None:
    """What is wrong with a row, None if nothing is: readers take only whole ones."""
    kind = row["type"]
    for name, types, is_id in _SHAPES.get(kind, _SHAPE):
        if type(row.get(name, ...)) not in types:
            if name not in row:
                return f"{kind} row has no '{name}'"
            return f"'{name}' of the {kind} row is {called(row[name])}"
        if is_id and not _HEX.fullmatch(row[name]):
            return f"'{name}' of the {kind} row is no id"
    for part, oid in row["parts"].items() if kind == "run" else ():
        if not isinstance(oid, str) or not _HEX.fullmatch(oid) or "/" in part or part in ("", ".", ".."):
            return f"part '{part}' of the run row is none"
    return None


def append(path: str, rows: Sequence[Row], fsync: bool) -> tuple[int, int]:
    """Add rows at the end; returns where they begin and end. An error leaves the log as it was."""
    data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    fd = lock(path)
    try:
        end = _whole_end(fd)
        os.lseek(fd, end, os.SEEK_SET)
        try:
            disk.write(fd, data)
            if fsync:
                disk.sync(fd)
                if end == 0:
                    disk.sync_directory(os.path.dirname(path))
        except OSError:
            os.ftruncate(fd, end)
            raise
        return end, end + len(data)
    finally:
        os.close(fd)


def lock(path: str) -> int:
    """A descriptor of the log, locked: of the file at that path, not of one that a keeper has replaced."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _whole_end(fd: int) -> int:
    """Offset after the last whole line; what lies behind it is cut off."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) == b"\n":
        return size
    end = size
    while end:
        start = max(0, end - 65536)
        chunk = os.pread(fd, end - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)
    return end


def read(path: str, offset: int = 0, seen: bytearray | None = None) -> Iterator[tuple[int, int, Row | None]]:
    """Rows from an offset on, as (offset, offset of the next line, row or None if it is no row).

    A last line without its newline is not yet there and not returned. seen: becomes the last bytes that
    were read, as `before` gives them: what they were, whatever happens to the log meanwhile.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            following = offset + len(line)
            if seen is not None:
                seen += line
                del seen[:-_MARKED]
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            whole = isinstance(row, dict) and isinstance(row.get("type"), str)
            yield offset, following, row if whole else None
            offset = following


def mark(path: str, offset: int) -> str:
    """Hash of the last bytes before an offset: says whether the log is still the one that was read."""
    return blob_id(before(path, offset))


def before(path: str, offset: int) -> bytes:
    """The last bytes before an offset, those that `mark` is made of."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, offset - _MARKED))
            return file.read(min(offset, _MARKED))
    except FileNotFoundError:
        return b""


def is_boundary(path: str, offset: int) -> bool:
    """Does a line begin, or the log end, at an offset?"""
    if offset == 0:
        return True
    if offset > size(path):
        return False
    with open(path, "rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"


def size(path: str) -> int:
    """Bytes in the log, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0

"""The log: which objects are records, in the order they came. One JSON line a record.

Append-only, under flock; a tail torn by a crash is cut off before the next line goes in.
"Newest" means later in this file, never by a clock. Readers take whole lines only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from libmachine.store import disk

Row = dict[str, Any]


def append(path: str, rows: Sequence[Row], fsync: bool) -> tuple[int, int]:
    """Add rows at the end; returns where they begin and end. An error leaves the log as it was."""
    data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        end = _whole_end(fd)
        os.lseek(fd, end, os.SEEK_SET)
        try:
            disk.write(fd, data)
            if fsync:
                disk.sync(fd)
        except OSError:
            os.ftruncate(fd, end)
            raise
        return end, end + len(data)
    finally:
        os.close(fd)


def _whole_end(fd: int) -> int:
    """Offset after the last whole line; what lies behind it is cut off."""
    size = os.fstat(fd).st_size
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


def read(path: str, offset: int = 0) -> Iterator[tuple[int, int, Row | None]]:
    """Rows from an offset on, as (offset, offset of the next line, row or None if it is no row).

    A last line without its newline is not yet there and not returned.
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
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            yield offset, following, row if isinstance(row, dict) and "type" in row else None
            offset = following


def size(path: str) -> int:
    """Bytes in the log, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0

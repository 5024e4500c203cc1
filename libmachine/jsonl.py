"""Reading and writing lines: one JSON value a line, with its number and its very bytes.

A JSON array is accepted where lines are. Bad lines are reported by number and skipped by
whoever reads; good ones before and after them are not touched.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from libmachine.canon import RecordError, dump_line, loads

_CHUNK = 1 << 18
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """number: from 1 (of the line, or of the array's element). raw: its bytes, newline included.
    value: what it holds, or None with the error."""

    number: int
    raw: bytes
    value: Any
    error: str | None


def split_lines(fd: int) -> Iterator[bytes]:
    """Lines of a file descriptor as they come, each with its newline (the last perhaps without)."""
    # os.read and not a buffered file: a thread blocked here must not hold a lock at interpreter exit.
    rest: list[bytes] = []
    while chunk := _read(fd):
        pieces = chunk.split(b"\n")
        if len(pieces) > 1:
            yield b"".join(rest) + pieces[0] + b"\n"
            for piece in pieces[1:-1]:
                yield piece + b"\n"
            rest = []
        rest.append(pieces[-1])
    if last := b"".join(rest):
        yield last


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:  # a descriptor that another program has left non-blocking
            select.select([fd], [], [])


def read(fd: int) -> Iterator[Line]:
    """Parsed lines of a file descriptor. Blank lines are passed over, but counted."""
    return parsed(split_lines(fd))


def parsed(raws: Iterable[bytes]) -> Iterator[Line]:
    """Parsed lines of what has been split into lines."""
    lines = enumerate(raws, 1)
    for number, raw in lines:
        text = raw.removeprefix(_BOM) if number == 1 else raw
        if text.lstrip().startswith(b"["):
            yield from _array(number, text, (line for _, line in lines))
            return
        if text.strip():
            yield parse(number, raw, text)
            break
    for number, raw in lines:
        if not raw.isspace():
            yield parse(number, raw, raw)


def parse(number: int, raw: bytes, text: bytes) -> Line:
    """One line, parsed."""
    try:
        return Line(number, raw, loads(text), None)
    except RecordError as error:
        return Line(number, raw, None, str(error))


def _array(number: int, first: bytes, others: Iterator[bytes]) -> Iterator[Line]:
    # An array is whole or nothing: it is read to its end before its elements are.
    text = b"".join([first, *others])
    try:
        values = loads(text)
    except RecordError as error:
        yield from _no_array(number, text, str(error))
        return
    for position, value in enumerate(values, 1):
        try:
            yield Line(position, dump_line(value), value, None)
        except RecordError as error:
            yield Line(position, b"", None, str(error))


def _no_array(number: int, text: bytes, told: str) -> Iterator[Line]:
    # Where another line is a record by itself, these are lines of which the first is bad.
    lines = list(enumerate(text.split(b"\n"), number))
    others = [parse(at, line + b"\n", line) for at, line in lines[1:] if line.strip()]
    if any(isinstance(line.value, dict | str) for line in others):
        yield parse(number, lines[0][1] + b"\n", lines[0][1])
        yield from others
    else:
        yield Line(number, text, None, f"{told} (it begins like a JSON array)")


def read_file(path: str) -> Iterator[Line]:
    """Parsed lines of a file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from read(fd)
    finally:
        os.close(fd)


def write(fd: int, data: bytes) -> None:
    """Write all of a line. Raises BrokenPipeError when the reader is gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])

"""What those who keep a store in order share: who may, what was set aside, what was forgotten, the log anew.

keeper      locked by the one who packs, mends, shares or forgets
writers     locked by everybody who writes, together; by who forgets, alone
aside/      what --repair took out: `records`, one line each with why, and objects that are damaged
forgotten   ids of what machine-forget removed: who, when, no content
forgetting  objects that a machine-forget under way has still to remove
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from libmachine.canon import now
from libmachine.store import chain, disk, log
from libmachine.store.layout import temporary


@contextmanager
def keeper(directory: str, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Be the one keeper of a store. waiting: called if another one has to end first."""
    with _locked(f"{directory}/keeper", waiting):
        yield


@contextmanager
def alone(directory: str, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Keep everybody who writes out; those under way are waited for."""
    with _locked(f"{directory}/writers", waiting):
        yield


@contextmanager
def _locked(path: str, waiting: Callable[[], object]) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def hold_writing(directory: str) -> int:
    """A descriptor that says, while it is open, that this process writes."""
    fd = os.open(f"{directory}/writers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


# the log --------------------------------------------------------------------------------


def rewrite_log(directory: str, lines: Iterable[tuple[int | None, bytes]], end: int, fsync: bool) -> None:
    """Put other lines in the place of the log up to an offset; what came behind it meanwhile stays.

    lines: (offset where it was, or None, the line). A torn tail is set aside. The index is dropped, and
    the chains know what of it they hold.
    """
    path = f"{directory}/records"
    with chain.locked(directory) as held:
        done, new_done, at = chain.chained(directory, path), 0, 0
        fd = log.lock(path)
        try:
            new = temporary(directory)
            out = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                behind = None
                for chunk in _chunks([*lines, *_tail(directory, fd, end, fsync)]):
                    for offset, line in chunk:
                        if behind is None and offset is not None and offset >= done:
                            behind = at
                        at += len(line)
                    disk.write(out, b"".join(line for _, line in chunk))
                new_done = at if behind is None else behind
                if fsync:
                    disk.sync(out)
            finally:
                os.close(out)
            chain.note(held, 0, path)  # whoever finds it so chains all once more
            disk.rename(new, path)
            if fsync:
                disk.sync_directory(directory)
        finally:
            os.close(fd)
        drop_index(directory)
        chain.note(held, new_done, path)


def _tail(directory: str, fd: int, end: int, fsync: bool) -> Iterator[tuple[int, bytes]]:
    size = os.fstat(fd).st_size
    data = os.pread(fd, size - end, end) if size > end else b""
    whole = data.rfind(b"\n") + 1
    if data[whole:]:
        set_aside(directory, data[whole:], "log-torn-end", fsync)
    for line in data[:whole].splitlines(keepends=True):
        yield end, line
        end += len(line)


def _chunks(lines: list[tuple[int | None, bytes]]) -> Iterator[list[tuple[int | None, bytes]]]:
    for start in range(0, len(lines), 1000):
        yield lines[start : start + 1000]


def drop_index(directory: str) -> None:
    """Delete the index: the next reader makes it anew."""
    for end in ("", "-wal", "-shm", "-journal"):
        disk.unlink(f"{directory}/index.db{end}")


# what was set aside ---------------------------------------------------------------------


def set_aside(directory: str, line: bytes, why: str, fsync: bool) -> None:
    """Keep a line of the log that is taken out of it, once."""
    line = line.rstrip(b"\n")
    try:
        row: dict[str, Any] = {"why": why, "line": line.decode()}
    except UnicodeDecodeError:
        row = {"why": why, "hex": line.hex()}
    path = f"{directory}/aside/records"
    if any({**old, "at": None} == {**row, "at": None} for old in read_lines(path)):
        return
    disk.make_folder(f"{directory}/aside", fsync)
    log.append(path, [{**row, "at": now()}], fsync)


def read_lines(path: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; what is none is left out, as is a file that is not there."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


# what was forgotten ---------------------------------------------------------------------


def forgotten(directory: str) -> set[str]:
    """Ids of the records that machine-forget removed."""
    return {str(row.get("id")) for row in read_lines(f"{directory}/forgotten")}


def forgetting(directory: str) -> dict[str, Any] | None:
    """What a machine-forget under way has to do: `records`, `objects`, `machines`, `tombstones`; or None."""
    rows = read_lines(f"{directory}/forgetting")
    return rows[0] if rows else None

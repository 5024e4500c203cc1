"""An account: what was spent, what is held back for calls under way, and the limit of both together.

In memory for one command, or a file that all processes of a pipe share. JSON lines under flock:

    {"type": "budget", "limit_usd", "above"}                    first line of a pipe's file
    {"type": "reserve", "id", "at", "usd", "holder", ...}       before a call
    {"type": "settle", "id", "at", "usd", ...}                  after it
    {"type": "release", "id", "at"}                             after a call that was not billed

Money is counted in whole microdollars. What a dead process held back stays counted, in full:
nobody knows whether it was billed.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import orjson

from libmachine.budget.holder import is_alive
from libmachine.errors import MachineError
from libmachine.store import disk, layout, log

Row = dict[str, Any]
Write = Callable[[Row], None]
POLL_S = 0.1  # between looks at what other processes did; threads of one process wake each other


def micro(usd: float) -> int:
    """Dollars in whole microdollars, rounded up. Raises ValueError for what is no amount."""
    if not (isinstance(usd, int | float) and 0 <= usd < 1e9):
        raise ValueError(f"{usd!r} is no amount of money")
    return math.ceil(round(usd * 1e6, 3))  # rounded first, so that float dust does not add one


def amount_of(row: Row) -> int | None:
    """What a row comes to, in microdollars; None where that is not known."""
    try:
        return None if row["usd"] is None else micro(row["usd"])
    except (KeyError, ValueError):
        return None


class Figures(NamedTuple):
    """An account at a moment, in microdollars. spent: settled, and what the dead held back (lost, a part
    of it). held: for calls under way, in_flight of them. unknown: of the calls, those without a price."""

    spent: int
    lost: int
    held: int
    in_flight: int
    calls: int
    unknown: int


class Account(Protocol):
    """What a ledger puts its rows into. limit: microdollars, None for none. name: for messages."""

    limit: int | None
    name: str

    def take(self, row: Row, force: bool = False) -> bool:
        """Enter a reserve row if it fits, or by force; wait while it does not fit and others are in flight.

        False if it does not fit and no other is. Those of the calling thread are no others.
        """

    def enter(self, row: Row) -> None:
        """Enter a settle or release row."""


class Book:
    """An account in memory, for one process."""

    def __init__(self, limit: int | None, name: str) -> None:
        self.limit, self.name = limit, name
        self._changed = threading.Condition()
        self._open: dict[str, Row] = {}
        self._threads: dict[str, int] = {}
        self._settled = self._calls = self._unknown = 0

    def take(self, row: Row, force: bool = False) -> bool:
        """See Account."""
        with self._changed:
            while (taken := self._try(row, force)) is None:
                self._changed.wait(POLL_S)
            if taken:
                self._threads[row["id"]] = threading.get_ident()
            return taken

    def _try(self, row: Row, force: bool) -> bool | None:
        """True: taken. None: it may fit later. False: it cannot."""
        with self._transaction() as write:
            held = sum(amount_of(r) or 0 for r in self._open.values())
            if (
                not force
                and self.limit is not None
                and self._settled + held + (amount_of(row) or 0) > self.limit
            ):
                # Inside the transaction, where a process that is about to settle is still alive.
                return None if self._others() else False
            write(row)
            return True

    def _others(self) -> bool:
        me = threading.get_ident()
        return any(self._threads.get(oid) != me and is_alive(row) for oid, row in self._open.items())

    def enter(self, row: Row) -> None:
        """See Account."""
        with self._changed:
            self._threads.pop(row["id"], None)
            with self._transaction() as write:
                write(row)
            self._changed.notify_all()

    def figures(self) -> Figures:
        """The account now."""
        with self._changed, self._transaction():
            held = {True: 0, False: 0}
            alive = 0
            for row in self._open.values():
                lives = is_alive(row)
                alive += lives
                held[lives] += amount_of(row) or 0
            lost = held[False]
            return Figures(self._settled + lost, lost, held[True], alive, self._calls, self._unknown)

    def _transaction(self) -> AbstractContextManager[Write]:
        return nullcontext(self._apply)

    def _apply(self, row: Row) -> None:
        kind, oid = row.get("type"), str(row.get("id"))
        if kind == "reserve":
            self._open[oid] = row
        elif kind in ("settle", "release"):
            self._open.pop(oid, None)
        if kind == "settle":
            amount = amount_of(row)
            self._calls += 1
            self._unknown += amount is None
            self._settled += amount or 0


class FileBook(Book):
    """The account of a pipe, in a file that create_pipe made. Raises MachineError if it is none.

    above: path of the account around it, None if there is none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        head = next((row for _, _, row in log.read(path)), None) or {}
        try:
            if head["type"] != "budget":
                raise ValueError
            limit = None if head["limit_usd"] is None else micro(head["limit_usd"])
        except (KeyError, ValueError):
            raise MachineError(f"MACHINE_LEDGER names '{path}', which is no ledger; unset it") from None
        super().__init__(limit, "the budget of machine-budget")
        self.above: str | None = head.get("above")
        self._offset = 0

    @contextmanager
    def _transaction(self) -> Iterator[Write]:
        # Opened anew each time: a flock belongs to the open file, which a forked child would share.
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LedgerGone(
                f"the ledger '{self.path}' is gone with its machine-budget; unset MACHINE_LEDGER"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._catch_up(fd)
            yield partial(self._append, fd)
        finally:
            os.close(fd)

    def _catch_up(self, fd: int) -> None:
        """Take in what others wrote; cut off a line that a dead process left unfinished."""
        size = os.fstat(fd).st_size
        if size < self._offset:
            raise MachineError(f"the ledger '{self.path}' was cut; begin anew under machine-budget")
        data = os.pread(fd, size - self._offset, self._offset)
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].split(b"\n"):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(row, dict):
                self._apply(row)
        self._offset += whole
        if whole != len(data):
            os.ftruncate(fd, self._offset)

    def _append(self, fd: int, row: Row) -> None:
        data = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        os.lseek(fd, self._offset, os.SEEK_SET)
        try:
            disk.write(fd, data)
        except OSError:
            os.ftruncate(fd, self._offset)
            raise
        self._offset += len(data)
        self._apply(row)

    def enter(self, row: Row) -> None:
        """See Account. An account that is gone has nothing left to settle."""
        try:
            super().enter(row)
        except LedgerGone:
            pass


class LedgerGone(MachineError):
    """The file of a pipe's account was removed."""


class Journal:
    """The permanent account of a store: no limit, so nothing is read. path: <store>/spend."""

    def __init__(self, path: str, fsync: bool) -> None:
        self.path, self.fsync = path, fsync
        self.limit: int | None = None
        self.name = "spend"

    def take(self, row: Row, force: bool = False) -> bool:
        """See Account."""
        self._append(row)
        return True

    def enter(self, row: Row) -> None:
        """See Account."""
        is_new = self._append(row) == 0
        if not self.fsync:
            return
        # Not under the lock of the log: threads that wait for the disk then wait together.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            disk.sync(fd)
        finally:
            os.close(fd)
        if is_new:
            disk.sync_directory(os.path.dirname(self.path))

    def _append(self, row: Row) -> int:
        try:
            return log.append(self.path, [row], fsync=False)[0]
        except FileNotFoundError:
            layout.create(os.path.dirname(self.path), self.fsync)
            return log.append(self.path, [row], fsync=False)[0]


def create_pipe(path: str, limit: int | None, above: str | None) -> None:
    """Make the file of a pipe's account, private to its owner. limit: microdollars. above: see FileBook."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        head = {"type": "budget", "v": 1, "limit_usd": None if limit is None else limit / 1e6, "above": above}
        disk.write(fd, orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE))
    finally:
        os.close(fd)

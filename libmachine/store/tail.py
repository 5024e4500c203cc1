"""The rows of the log that the index has not taken in: as much of them as a look-up needs to know.

While runs stream in, each would make the index of every command in the pipe take in a row, which
costs more than the run. Most look-ups are about something that no new row is about; those the
index answers as it stands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from libmachine.store import log

MOST = 500
"""Rows that are remembered before the index takes them in."""


class Tail:
    """What rows beyond an offset are about."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.restart(0)

    def restart(self, offset: int) -> None:
        """Forget; the index has taken in the log up to an offset."""
        self._offset = offset
        self._file = self._inode() if offset else 0
        self._rows = 0
        self._runs: set[str] = set()
        self._about: set[str] = set()

    def _inode(self) -> int:
        try:
            return os.stat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def read(self) -> bool:
        """Take note of new rows. False if the index should take them in: they are many, or the log is
        not the one that it was."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return self._offset == 0
        if found.st_size == self._offset:
            return self._rows < MOST
        if found.st_ino != self._file or found.st_size < self._offset:
            return False
        for _, following, row in log.read(self.path, self._offset):
            self._offset = following
            self._rows += 1
            if row is not None and log.problem(row) is None:
                self._note(row)
        return self._rows < MOST

    def add(self, start: int, end: int, rows: Sequence[log.Row]) -> None:
        """Take note of rows that were just written there, without reading them."""
        if start == self._offset:
            self._offset = end
            self._rows += len(rows)
            for row in rows:
                self._note(row)

    def _note(self, row: log.Row) -> None:
        if row["type"] == "run":
            self._runs.add(row["id"])
            self._about.update((row["key"], row["base"]))
        elif row["type"] == "scorecard":
            self._about.add(row["run"])

    def has_run(self, oid: str) -> bool:
        """Is there a new run of this id?"""
        return oid in self._runs

    def is_about(self, name: str) -> bool:
        """Has a new run this key or base, or is a new scorecard of this run?"""
        return name in self._about

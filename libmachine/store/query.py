"""What a list of runs may be asked for, as SQL over the index. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from libmachine.record import SLACK


class Conditions(NamedTuple):
    """What a run must be to be listed; every given condition must hold. The default admits all.

    since: ISO time. at: begin of a version id. case: a case's id, or 4 and more digits of its identity.
    passed: what the newest scorecard must say. best: runs kept of each machine and case, of those that
    fulfil the rest and have a score, by score, ties to the newest.
    """

    since: str | None = None
    at: str | None = None
    case: str | None = None
    status: str | None = None
    min_score: float | None = None
    passed: bool | None = None
    best: int | None = None

    def where(self, machine: str | None) -> tuple[str, list[Any]]:
        """A WHERE clause (without the word) over the table of runs, and its values; best is left out."""
        parts = list(self._parts(machine))
        values = [value for _, values in parts for value in values]
        return " AND ".join(part for part, _ in parts) or "TRUE", values

    def ranked(self, machine: str | None) -> tuple[str, list[Any]]:
        """A query for the positions of the best, in any order, and its values."""
        where, values = self.where(machine)
        places = (
            "SELECT pos, row_number() OVER "
            "(PARTITION BY machine, identity ORDER BY score DESC, pos DESC) AS place FROM runs "
            f"WHERE {where} AND score IS NOT NULL AND status <> 'failed'"
        )
        return f"SELECT pos FROM ({places}) WHERE place <= ?", [*values, self.best]

    def _parts(self, machine: str | None) -> Iterator[tuple[str, list[Any]]]:
        if machine is not None:
            yield "machine = ?", [machine]
        if self.since is not None:
            yield "started_at >= ?", [self.since]
        if self.at is not None:
            yield "version >= ? AND version < ?", [self.at, self.at + "g"]  # after every hex digit
        if self.case is not None:
            if len(self.case) > 3:
                yield "(case_id = ? OR identity >= ? AND identity < ?)", [*[self.case] * 2, self.case + "g"]
            else:
                yield "case_id = ?", [self.case]
        if self.status is not None:
            yield "status = ?", [self.status]
        if self.min_score is not None:
            yield "score >= ?", [self.min_score - SLACK]
        if self.passed is not None:
            yield "passed = ?", [self.passed]

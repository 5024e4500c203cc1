"""The work behind machine-runs' options."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from libmachine import console
from libmachine.canon import Record, dump_line
from libmachine.case import label
from libmachine.cmd import _cli, _select
from libmachine.define import is_earlier_turn
from libmachine.errors import MachineError
from libmachine.grade import Grading
from libmachine.load import find, load
from libmachine.project import Project
from libmachine.record import SLACK, arrange
from libmachine.splits import Splits
from libmachine.store.store import Store
from libmachine.times import since as moment

Row = dict[str, Any]
Read = TypeVar("Read")


def main(
    workspace: str | None, name: str | None, last: int | None, as_json: bool | None, **options: Any
) -> int:
    """List."""
    project = _cli.project(workspace)
    if name is not None:
        options["name"] = name
    if options["since"]:
        options["since"] = moment(options["since"])
    if options["at"]:
        options["at"] = _select.version(options["at"], workspace)
    store = project.open_store()
    if name is not None and (not store.has_records() or name not in store.index.machines()):
        find(name, project.places)
    if not store.has_records():
        return 0
    stop = threading.Event()
    output = _cli.Output(stop)
    tally = _cli.Tally(stop)
    lister = _Lister(store, project)
    try:
        rows = itertools.islice(lister.wanted(name, options), min(last or sys.maxsize, sys.maxsize))
        if as_json if as_json is not None else not console.is_terminal(1):
            for row in rows:
                if (run := lister.readable(lister.whole, row, tally)) is not None:
                    output.write(dump_line(run))
                if output.gone:
                    break
        else:
            lines = [["run", "started", "machine", "case", "n", "status", "score", "output"]]
            lines += [c for row in rows if (c := lister.readable(lister.cells, row, tally)) is not None]
            if name is not None:
                lines = [[*line[:2], *line[3:]] for line in lines]
            if len(lines) > 1:
                right = (3, 5) if name is not None else (4, 6)
                shrink = (2,) if name is not None else (2, 3)
                room = console.width()
                output.text(console.table(lines, room, right, shrink).rstrip("\n"))
        return tally.code(output=output)
    finally:
        store.close()


class _Lister:
    """Rows of the index that fit, and what is shown of them."""

    def __init__(self, store: Store, project: Project) -> None:
        self.store, self.project = store, project
        self._splits: dict[str, Splits | None] = {}
        self._gradings: dict[str, Grading | None] = {}

    def wanted(self, name: str | None, options: dict[str, Any]) -> Iterator[Row]:
        """Rows that fit every option, newest first, each with its newest scorecard's figures."""
        for row in self.store.index.runs(name):
            row["scorecard"] = self.store.index.scorecard(row["id"])
            if self._fits(row, options):
                yield row

    def _fits(self, row: Row, options: dict[str, Any]) -> bool:
        card = row["scorecard"]
        case = options["case"]
        return not (
            (options["since"] and row["started_at"] < options["since"])
            or (options["at"] and not row["version"].startswith(options["at"]))
            or (options["status"] and row["status"] != options["status"])
            or (case and case != row["case_id"] and not (len(case) > 3 and row["identity"].startswith(case)))
            or (options["passing"] and not (card and card["passed"]))
            or (options["min_score"] is not None and not _scores(card, options["min_score"]))
            or (options["split"] and self._split(row) != options["split"])
            or (options["stale"] and not self._is_stale(row))
        )

    def _split(self, row: Row) -> str | None:
        name = row["machine"]
        if name not in self._splits:
            try:
                self._splits[name] = Splits(find(name, self.project.places))
            except MachineError:
                self._splits[name] = None  # a machine that is no more has no sides
        splits = self._splits[name]
        return splits.of(row["identity"]) if splits else None

    def _is_stale(self, row: Row) -> bool:
        name = row["machine"]
        if row["status"] == "failed":
            return False
        if name not in self._gradings:
            self._gradings[name] = Grading(load(name, self.project.places))
        grading = self._gradings[name]
        run = self.store.load_run(row)
        if grading is None or is_earlier_turn(run):
            return False
        return not grading.is_current(grading.todays(run), run.get("scorecard"))

    def readable(self, read: Callable[[Row], Read], row: Row, tally: _cli.Tally) -> Read | None:
        """What read makes of a row; a damaged one is told and left out."""
        try:
            return read(row)
        except MachineError as damage:
            tally.note(f"run {row['id'][:12]}: {damage}")
            return None

    def whole(self, row: Row) -> Record:
        """The record of a row as it goes down a pipe."""
        return arrange("run", {**self.store.load_run(row), "split": self._split(row)})

    def cells(self, row: Row) -> list[str]:
        """What a person sees of a row."""
        card = row["scorecard"]
        score = "-" if card is None or card["score"] is None else f"{card['score']:.2f}"
        run = self.store.load_run(row, scorecard=False)
        return [
            row["id"][:8],
            row["started_at"][5:16].replace("T", " "),
            console.one_line(row["machine"], 24),
            label({**run["case"], "id": row["case_id"]}, 24),
            str(row["trial"]),
            row["status"],
            score,
            console.one_line(run["output"], 200),
        ]


def _scores(card: Row | None, least: float) -> bool:
    return card is not None and card["score"] is not None and card["score"] >= least - SLACK

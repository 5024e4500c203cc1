"""The work behind machine-runs' options."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from libmachine import console
from libmachine.canon import Record, dump_line
from libmachine.case import label
from libmachine.cmd import _cli, _select
from libmachine.define import is_earlier_turn
from libmachine.errors import MachineError, UsageError
from libmachine.grade import Grading
from libmachine.load import find, load
from libmachine.project import Project
from libmachine.record import arrange
from libmachine.splits import Splits
from libmachine.store.query import Conditions
from libmachine.store.store import Store
from libmachine.times import since as moment

Row = dict[str, Any]
Read = TypeVar("Read")


def main(
    workspace: str | None,
    name: str | None,
    last: int | None,
    brief: bool,
    as_json: bool | None,
    split: str | None,
    stale: bool,
    **options: Any,
) -> int:
    """List."""
    conditions = _conditions(workspace, stale, **options)
    project = _cli.project(workspace)
    store = project.open_store()
    if name is not None and (not store.has_records() or not store.index.has_runs_of(name)):
        find(name, project.places)
    if not store.has_records():
        return 0
    stop = threading.Event()
    output = _cli.Output(stop)
    tally = _cli.Tally(stop)
    lister = _Lister(store, project)
    try:
        rows = lister.rows(name, conditions, split, stale, brief)
        rows = itertools.islice(rows, min(last or sys.maxsize, sys.maxsize))
        if as_json if as_json is not None else not console.is_terminal(1):
            # What needs no look at a run itself is ready at once, and goes out together.
            pages = _pages(rows, _PAGE if brief else 1)
            for page in pages:
                runs = page if brief else lister.readable(lister.whole, page, tally)
                output.write(b"".join(map(dump_line, runs)))
                if output.gone:
                    break
        else:
            _table(lister, rows, name, brief, tally, output)
        return tally.code(output=output)
    finally:
        store.close()


_PAGE = 500


def _conditions(
    workspace: str | None, stale: bool, passing: bool, failing: bool, best: int | None, **options: Any
) -> Conditions:
    if passing and failing:
        raise UsageError("--passing and --failing exclude each other")
    if best is not None and stale:
        raise UsageError("--best and --stale exclude each other: a stale score ranks nothing")
    if options["since"]:
        options["since"] = moment(options["since"])
    if options["at"]:
        options["at"] = _select.version(options["at"], workspace)
    return Conditions(**options, best=best, passed=passing if passing or failing else None)


def _pages(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while page := list(itertools.islice(rows, size)):
        yield page


def _table(
    lister: _Lister,
    rows: Iterator[Row],
    name: str | None,
    brief: bool,
    tally: _cli.Tally,
    output: _cli.Output,
) -> None:
    """Print rows for people, a page at once: columns may grow from page to page."""
    head = [["run", "started", "machine", "case", "n", "status", "score", "model" if brief else "output"]]
    right = (3, 5) if name is not None else (4, 6)
    widths: list[int] = []
    for page in _pages(rows, _PAGE):
        cells = list(map(_cells, page)) if brief else lister.readable(lister.cells, page, tally)
        if not cells:
            continue
        lines, head = [*head, *cells], []
        if name is not None:
            lines = [[*line[:2], *line[3:]] for line in lines]
        widths = console.widths(lines, widths)
        shrink = (2,) if name is not None else (2, 3)
        output.text(console.table(lines, console.width(), right, shrink, widths).rstrip("\n"))
        if output.gone:
            return


class _Lister:
    """Rows of the index that fit, and what is shown of them."""

    def __init__(self, store: Store, project: Project) -> None:
        self.store, self.project = store, project
        self._splits: dict[str, Splits | None] = {}
        self._gradings: dict[str, Grading | None] = {}

    def rows(
        self, name: str | None, conditions: Conditions, split: str | None, stale: bool, brief: bool
    ) -> Iterator[Row]:
        """Rows that fit every condition, newest first; short records instead, if brief."""
        index = self.store.index
        rows = index.briefs(name, conditions) if brief else index.runs(name, wanted=conditions)
        return self._fitting(rows, split, stale, brief) if split is not None or stale else rows

    def _fitting(self, rows: Iterator[Row], split: str | None, stale: bool, brief: bool) -> Iterator[Row]:
        for row in rows:
            identity = row["case"]["identity"] if brief else row["identity"]
            if (split is None or self._split(row["machine"], identity) == split) and (
                not stale or self._is_stale(row)
            ):
                yield row

    def _split(self, name: str, identity: str) -> str | None:
        if name not in self._splits:
            try:
                self._splits[name] = Splits(find(name, self.project.places))
            except MachineError:
                self._splits[name] = None  # a machine that is no more has no sides
        splits = self._splits[name]
        return splits.of(identity) if splits else None

    def _is_stale(self, row: Row) -> bool:
        name = row["machine"]
        if row["status"] == "failed":
            return False
        if name not in self._gradings:
            self._gradings[name] = Grading(load(name, self.project.places))
        grading = self._gradings[name]
        whole = self.store.index.run(row["id"])
        if grading is None or whole is None:
            return False
        run = self.store.load_run(whole)
        if is_earlier_turn(run):
            return False
        return not grading.is_current(grading.todays(run), run.get("scorecard"))

    def readable(self, read: Callable[[Row], Read], rows: Iterable[Row], tally: _cli.Tally) -> list[Read]:
        """What read makes of each row; a damaged run is told and left out."""
        made = []
        for row in rows:
            try:
                made.append(read(row))
            except MachineError as damage:
                tally.note(f"run {row['id'][:12]}: {damage}")
        return made

    def whole(self, row: Row) -> Record:
        """The record of a row as it goes down a pipe."""
        split = self._split(row["machine"], row["identity"])
        return arrange("run", {**self.store.load_run(row), "split": split})

    def cells(self, row: Row) -> list[str]:
        """What a person sees of a row: the answer at its end."""
        run = self.store.load_run(row, scorecard=False)
        row = {**row, "case": {"id": label({**run["case"], "id": row["case_id"]}, 24)}}
        return [*_cells(row)[:-1], console.one_line(run["output"], 200)]


def _cells(row: Row) -> list[str]:
    """What a person sees of a short record."""
    card = row["scorecard"]
    return [
        row["id"][:8],
        (row["started_at"] or "")[5:16].replace("T", " "),
        console.one_line(row["machine"], 16),
        console.one_line(row["case"]["id"], 16),
        str(row["trial"]),
        row["status"],
        "-" if card is None or card["score"] is None else f"{card['score']:.2f}",
        console.one_line(row["model"] or "", 200),
    ]

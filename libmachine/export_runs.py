"""Which runs may be learned from: what export, sft and train have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from libmachine import export
from libmachine.canon import Record
from libmachine.define import is_earlier_turn
from libmachine.errors import MachineError
from libmachine.grade import Grading
from libmachine.load import Loaded, find, load
from libmachine.project import Project
from libmachine.select import Wanted, identities, select
from libmachine.splits import Splits
from libmachine.times import since as moment


def from_store(project: Project, name: str, tree: bool) -> Iterator[Record]:
    """Stored runs of a machine, oldest first, with their newest scorecards; tree: of its descendants too."""
    folder = find(name, project.places)
    store = project.open_store()
    try:
        for member in [folder, *(folder.descendants() if tree else ())]:
            for row in store.index.runs(member.name, newest_first=False) if store.has_records() else ():
                yield store.load_run(row)
    finally:
        store.close()


class Checked:
    """Leaves out what nothing may be learned from, before the best are chosen of the rest."""

    def __init__(self, project: Project, dropped: export.Dropped, drop_reasoning: bool) -> None:
        self.project, self.dropped, self.drop_reasoning = project, dropped, drop_reasoning
        self._known: dict[str, tuple[Splits, Grading]] = {}

    def keeps(self, run: Record) -> bool:
        """May this run be an example? The split is computed, not believed."""
        if is_earlier_turn(run):
            return False  # what the machine said there is in the last turn
        name = run["machine"]
        if name not in self._known:
            machine = load(name, self.project.places)
            self._known[name] = (Splits(machine.folder), Grading(machine))
        splits, grading = self._known[name]
        run["split"] = splits.of(run["case"]["identity"])
        card = run.get("scorecard")
        why = export.refusal(run, self.drop_reasoning)
        if why is None and (not card or card["rubric"] != grading.rubric):
            why = "graded under an older rubric; machine-grade grades it again"
        if why is not None:
            self.dropped.add(why, run)
        return why is None


def chosen_of(runs: list[Record], options: Mapping[str, Any]) -> Iterator[Record]:
    """The best of each case, by the options of machine-select."""
    wanted = Wanted(
        best=options["best"],
        distinct=options["distinct"],
        min_score=options["min_score"],
        passing=options["passing"],
        since=moment(options["since"]) if options["since"] else None,
        cases=identities(options["cases"]) if options["cases"] else None,
        not_cases=identities(options["not_cases"]) if options["not_cases"] else frozenset(),
    )
    for kept in select(((b"%d" % number, run) for number, run in enumerate(runs)), wanted):
        yield runs[int(kept)]


class Change:
    """What is changed of chosen runs: their reasoning (--transform, --from), their instructions.

    The machine that is trained is NAME, else each run's own. Raises MachineError if it declares no
    transform_reasoning and one is wanted, or PARENT is no parent of NAME.
    """

    def __init__(
        self, project: Project, name: str | None, dropped: export.Dropped, options: Mapping[str, Any]
    ) -> None:
        self.project, self.name, self.dropped = project, name, dropped
        self.parent = options["parent"]
        self.transforms = options["transform"] or self.parent is not None
        self.instructs = options["instructions"] == "student"
        self._known: dict[str, tuple[Loaded, list[Any]]] = {}
        if name is not None:
            self._student(name)

    def all(self, runs: Iterable[Record]) -> Iterator[Record]:
        """The runs as they are to be learned from; those that cannot be changed are left out and told."""
        for run in runs:
            trained = self.name if self.name is not None and self.parent is not None else run["machine"]
            machine, transforms = self._student(trained)
            if self.instructs:
                run = export.instructed(run, machine.instructions)
            try:
                yield export.transformed(run, transforms) if self.transforms else run
            except export.CannotChange as error:
                self.dropped.add(str(error), run)

    def _student(self, name: str) -> tuple[Loaded, list[Any]]:
        """A machine with the transforms that lead to it: from below PARENT, or of its whole family."""
        if name not in self._known:
            machine = load(name, self.project.places)
            family = {member.name: member for member in _family(machine)}
            if self.parent is not None and self.parent not in [*family][1:]:
                raise MachineError(
                    f"'{self.parent}' is no parent of '{name}'; machine-tree shows the families"
                )
            below = itertools.takewhile(lambda member: member != self.parent, family)
            transforms = [t for member in below if (t := family[member].transform) is not None]
            if self.transforms and not transforms:
                where = machine.folder.file("machine.py")
                raise MachineError(f"'{name}' transforms no reasoning; add transform_reasoning to {where}")
            self._known[name] = machine, transforms[::-1]
        return self._known[name]


def _family(machine: Loaded | None) -> Iterator[Loaded]:
    """A machine and its parents, nearest first."""
    while machine is not None:
        yield machine
        machine = machine.parent


def pairs(runs: Iterable[Record], drop_reasoning: bool, dropped: export.Dropped) -> Iterator[Record]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        groups.setdefault(export.pair_of(run), []).append(run)
    for group in groups.values():
        yield from export.as_pairs(group, drop_reasoning, dropped)


def dataset(
    project: Project,
    name: str | None,
    found: Iterable[Record],
    form: str,
    options: Mapping[str, Any],
    dropped: export.Dropped,
) -> Iterator[Record]:
    """The rows of a dataset in a form of export.FORMATS. What gives none is told in dropped.

    found: the runs. options: those of machine-export, with underscores. name: the machine that was named.
    """
    change = Change(project, name, dropped, options)
    checked = Checked(project, dropped, options["drop_reasoning"])
    runs = [run for run in found if checked.keeps(run)]
    if form == "dpo":
        return pairs(change.all(runs), options["drop_reasoning"], dropped)
    chosen = change.all(chosen_of(runs, options))
    return export.rows(chosen, form, options["per_turn"], options["drop_reasoning"], dropped)

"""Which runs may be learned from: what export, sft and train have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libmachine import export
from libmachine.canon import Record
from libmachine.define import is_earlier_turn
from libmachine.grade import Grading
from libmachine.load import find, load
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


def chosen_of(runs: list[Record], options: dict[str, Any]) -> Iterator[Record]:
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

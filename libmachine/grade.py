"""machine-grade's work: a run and its machine in, a scorecard out; what is known is not asked again.

A grade is reused by its key: run, criterion text, grader, case with target and metadata.
So what differs is graded again and the rest stays. score is the weighted mean; None means
not graded, a third state that enters no mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libmachine.canon import Record, hash_of, now, plain
from libmachine.define import Check, Run
from libmachine.folder import Criterion, rubric_hash
from libmachine.graders import check
from libmachine.load import Loaded
from libmachine.record import arrange
from libmachine.splits import todays_cases
from libmachine.store.store import Store

SLACK = 1e-9
NO_SPEND = {
    "calls": 0,
    "prompt_tokens": 0,
    "cached_tokens": 0,
    "completion_tokens": 0,
    "reasoning_tokens": 0,
    "cost_usd": 0,
}


class Grading:
    """Grades runs of one machine by its graders as they are today."""

    def __init__(self, machine: Loaded) -> None:
        self.machine = machine
        self.rubric = rubric_hash(machine.criteria)
        self.graders = {name: identity(grader, machine.source) for name, grader in machine.graders.items()}
        self._cases = todays_cases(machine.folder)

    def todays(self, run: Record) -> Record:
        """The run with its case's target and metadata as they stand in the machine's files today."""
        case = self._cases.get(run["case"]["identity"])
        if case is None:
            return run
        kept = {name: run["case"][name] for name in ("id", "identity", "input")}
        kept |= {name: case[name] for name in ("target", "metadata") if case.get(name) is not None}
        return {**run, "case": kept}

    def keys(self, run: Record) -> dict[str, str]:
        """Criterion -> key under which its grade of this run is known."""
        target = target_hash(run)
        return {
            criterion.id: hash_of([run["id"], criterion.text(), self.graders[criterion.id], target])
            for criterion in self.machine.criteria
        }

    def is_current(self, run: Record, card: Record | None) -> bool:
        """Would grading this run today give the same scorecard?"""
        if card is None or card["rubric"] != self.rubric:
            return False
        keys = self.keys(run)
        return {g["criterion"]: g["key"] for g in card["grades"] if not g.get("error")} == keys

    def grade(self, run: Record, known: Mapping[str, Record]) -> Record:
        """A scorecard (without id) for a run. known: key -> grade that need not be made again."""
        keys = self.keys(run)
        view = Run(run)
        grades = []
        for criterion in self.machine.criteria:
            key = keys[criterion.id]
            if key in known:
                grades.append({**known[key], "weight": criterion.weight})
            else:
                grades.append(self._ask(criterion, view, key))
        score, passed = total(grades, self.machine.criteria, self.machine.graders)
        card: Record = {
            "v": 1,
            "type": "scorecard",
            "run": run["id"],
            "machine": run["machine"],
            "rubric": self.rubric,
            "target": target_hash(run),
            "score": score,
            "passed": passed,
            "grades": grades,
            "usage": NO_SPEND,
            "graded_at": now(),
        }
        return card

    def _ask(self, criterion: Criterion, view: Run, key: str) -> Record:
        mark = check.apply(self.machine.graders[criterion.id], view)
        grade: Record = {
            "criterion": criterion.id,
            "weight": criterion.weight,
            "reason": mark.reason,
            "score": mark.score,
            "grader": self.graders[criterion.id],
            "key": key,
        }
        if not mark.applies:
            grade["applies"] = False
        if mark.error is not None:
            grade["error"] = mark.error
        return grade


def identity(grader: Check, source: str) -> str:
    """Who a grader is: its name and the hash of the code it is part of."""
    return f"check:{grader.name}@{source[:12]}"


def target_hash(run: Record) -> str:
    """Hash of what the case says a right answer is."""
    return hash_of([run["case"].get("target"), run["case"].get("metadata")])


def total(
    grades: Sequence[Record], criteria: Sequence[Criterion], graders: Mapping[str, Check]
) -> tuple[float | None, bool | None]:
    """(score, passed) of grades: the weighted mean, and whether every criterion reached its pass_at.

    Audits and criteria that do not apply are left out. A criterion without a score makes both None.
    """
    audits = {criterion.id for criterion in criteria if criterion.is_audit}
    counted = [g for g in grades if g["criterion"] not in audits and g.get("applies", True)]
    weight = sum(g["weight"] for g in counted)
    if weight <= 0 or any(g["score"] is None for g in counted):
        return None, None
    score = sum(g["weight"] * g["score"] for g in counted) / weight
    passed = all(g["score"] >= graders[g["criterion"]].pass_at - SLACK for g in counted)
    return min(1.0, max(0.0, score)), passed


def known_grades(store: Store, run: Record) -> dict[str, Record]:
    """Key -> newest grade with an answer, over all scorecards of a run."""
    known: dict[str, Record] = {}
    for oid in store.scorecards(run["id"]):
        for grade in store.load_scorecard(oid)["grades"]:
            if not grade.get("error"):
                known.setdefault(grade["key"], grade)
    return known


def grade_and_store(
    grading: Grading, store: Store, run: Record, regrade: bool = False
) -> tuple[Record, bool]:
    """The run with its scorecard, and whether anything had to be graded.

    A failed run is missing data: it keeps no scorecard.
    """
    if run["status"] == "failed":
        return {name: value for name, value in run.items() if name != "scorecard"}, False
    asked = grading.todays(run)
    known: dict[str, Any] = {}
    if not regrade:
        newest = store.newest_scorecard(run["id"])
        if newest is not None:
            card = store.load_scorecard(newest["id"])
            if grading.is_current(asked, card):
                return arrange("run", {**asked, "scorecard": card}), False
            known = known_grades(store, run)
    card = store.add_scorecard(plain(grading.grade(asked, known)))
    return arrange("run", {**asked, "scorecard": card}), True

"""Two graders of one criterion on the same stored runs: a reference, and a candidate to be trusted or not.

The reference is the machine's own grader, whose stored grades are taken as they are, or people's marks.
The candidate's grades are made here and never stored, so no scorecard changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from libmachine.canon import Record
from libmachine.define import Escalation, Grader, Judge, JudgePanel, Question, Run, jev
from libmachine.folder import Criterion
from libmachine.grade import Grading, known_grades, target_hash
from libmachine.sandbox.rooms import opener
from libmachine.store.store import Store

WHOLE = "*"


@dataclass(frozen=True)
class Terms:
    """What is asked: how (jev, judge or same), against (grader or marks), how often each run is graded."""

    how: str
    against: str
    repeat: int


class Pair(NamedTuple):
    """One run's grades, as grade records (score None: none): the reference, each repeat of the candidate.

    stored: the reference was not made for this.
    """

    run: Record
    reference: Record
    candidates: list[Record]
    stored: bool


def candidate_of(own: Grader, how: str, model: str | None, effort: str | None) -> Grader:
    """The grader that is measured. own: the criterion's."""
    if how == "same":
        return own
    if how == "judge":
        return Judge(model, effort)
    first = own.cheap if isinstance(own, Escalation) else own
    return first if isinstance(first, Question) else jev.noul()


class Pairing:
    """Makes the pairs of runs. reference, candidate: gradings, each with its own judges. Bears threads."""

    def __init__(
        self,
        reference: Grading,
        candidate: Grading,
        criterion: Criterion,
        grader: Grader,
        store: Store,
        terms: Terms,
    ) -> None:
        self.reference, self.candidate, self.store, self.terms = reference, candidate, store, terms
        self.criterion, self.grader = criterion, grader
        self.own = reference.machine.graders[criterion.id]
        others = [c for c in reference.machine.criteria if not c.is_audit and c.id != criterion.id]
        self._marks = (criterion.id,) if others else (criterion.id, WHOLE)

    def pair(self, row: dict[str, Any]) -> Pair | None:
        """The grades of a row of the index; None for a run that failed, which is missing data."""
        if row["status"] == "failed":
            return None
        run = self.reference.todays(self.store.load_run(row, scorecard=False))
        found = self._mark(run) if self.terms.against == "marks" else self._stored(run)
        stored = found is not None
        if found is None and self.terms.against == "marks":
            return Pair(run, {"score": None, "grader": "person:"}, [], False)
        view = Run(run, opener(self.store, run))
        if found is None:
            made = self.reference.ask([(self.criterion, self.own)], view)[self.criterion.id]
            found = {**made, "grader": self.reference.identity_of(self.own, run)}
        candidates = []
        if found["score"] is not None:  # else nothing can be learned from asking
            for _ in range(self.terms.repeat):
                asked = [(self.criterion, self.grader)]
                candidates.append(self.candidate.ask(asked, view)[self.criterion.id])
        return Pair(run, found, candidates, stored)

    def identity(self, run: Record) -> str:
        """Who the candidate is."""
        return self.candidate.identity_of(self.grader, run)

    def _stored(self, run: Record) -> Record | None:
        """The stored grade of today's grader. Of a judge that names no model also the newest of its kind by
        the same rubric: which option named the model then is not known here."""
        key = self.reference.keys(run)[self.criterion.id]
        if (grade := known_grades(self.store, run).get(key)) is not None:
            return grade
        if isinstance(self.own, Escalation) or not _names_no_model(self.own):
            return None
        for oid in self.store.scorecards(run["id"]):
            card = self.store.load_scorecard(oid)
            if card["rubric"] != self.reference.rubric or card["target"] != target_hash(run):
                continue
            for grade in card["grades"]:
                mine = grade["criterion"] == self.criterion.id and grade["grader"].startswith(
                    f"{self.own.kind}:"
                )
                if mine and " unsure " not in grade["grader"] and not grade.get("error"):
                    found: Record = grade
                    return found
        return None

    def _mark(self, run: Record) -> Record | None:
        """People's newest marks by this criterion; of several people their mean."""
        newest: dict[str, float] = {}
        for oid in self.store.marks(run["id"]):
            for grade in self.store.load_scorecard(oid)["grades"]:
                if grade["criterion"] in self._marks and grade["score"] is not None:
                    newest.setdefault(grade["grader"], grade["score"])
        if not newest:
            return None
        return {"score": fmean(newest.values()), "reason": None, "grader": ", ".join(sorted(newest))}


def _names_no_model(grader: Grader) -> bool:
    return isinstance(grader, Judge | JudgePanel) and grader.model is None

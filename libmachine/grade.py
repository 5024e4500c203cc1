"""machine-grade's work: a run and its machine in, a scorecard out; what is known is not asked again.

A grade is reused by its key: run, criterion text, grader, case with target and metadata.
So what differs is graded again and the rest stays. score is the weighted mean; None means
not graded, a third state that enters no mean.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from libmachine import env
from libmachine.canon import Record, hash_of, now, plain, usd
from libmachine.define import Check, Escalation, Grader, Judge, JudgePanel, Question, Run, is_earlier_turn
from libmachine.errors import Interrupted
from libmachine.folder import Criterion, rubric_hash
from libmachine.graders import check
from libmachine.judging import Judging
from libmachine.load import Loaded
from libmachine.record import SLACK, arrange
from libmachine.redact import redactor
from libmachine.sandbox.rooms import Opener, opener
from libmachine.splits import todays_cases
from libmachine.store.store import Store

NO_SPEND = {
    "calls": 0,
    "prompt_tokens": 0,
    "cached_tokens": 0,
    "completion_tokens": 0,
    "reasoning_tokens": 0,
    "cost_usd": 0,
}


class Grading:
    """Grades runs of one machine by its graders as they are today. Safe to use from several threads."""

    def __init__(self, machine: Loaded, judging: Judging | None = None) -> None:
        self.machine = machine
        self.judging = judging or Judging()
        self.rubric = rubric_hash(machine.criteria)
        self.redacted = redactor(env.secrets())
        self._cases = todays_cases(machine.folder)
        self._checks = threading.Lock()  # an author's function need not bear two threads

    @property
    def judged(self) -> set[str]:
        """Criteria that a model judges."""
        return {name for name, grader in self.machine.graders.items() if isinstance(grader, Judge)}

    @property
    def has_judges(self) -> bool:
        """Does grading call models?"""
        return any(calls_models(grader) for grader in self.machine.graders.values())

    def todays(self, run: Record) -> Record:
        """The run with its case's target and metadata as they stand in the machine's files today."""
        case = self._cases.get(run["case"]["identity"])
        if case is None:
            return run
        kept = {name: run["case"][name] for name in ("id", "identity", "input") if name in run["case"]}
        kept |= {name: case[name] for name in ("target", "metadata") if case.get(name) is not None}
        return {**run, "case": kept}

    def identity(self, criterion: str, run: Record) -> str:
        """Who grades a criterion of a run: a check with the hash of the code it is part of, a model with
        its effort and the hash of its prompt or question, or both graders of an escalation."""
        return self.identity_of(self.machine.graders[criterion], run)

    def identity_of(self, grader: Grader, run: Record) -> str:
        """Who a grader is that need not be the machine's own."""
        if isinstance(grader, Escalation):
            low, high = grader.unsure
            cheap, stronger = self.identity_of(grader.cheap, run), self.identity_of(grader.stronger, run)
            return f"{cheap} unsure {low:g}-{high:g} {stronger}"
        if isinstance(grader, Judge):
            return self.judging.identity(grader, run)
        if isinstance(grader, JudgePanel):
            return self.judging.panel_identity(grader, self._panel(grader), run)
        if isinstance(grader, Question):
            return self.judging.jev_identity(grader)
        return f"check:{grader.name}@{self.machine.source[:12]}"

    def _panel(self, panel: JudgePanel) -> list[Criterion]:
        """The criteria that a panel grades in one call."""
        graders = self.machine.graders
        firsts = {name: g.cheap if isinstance(g, Escalation) else g for name, g in graders.items()}
        return [
            c
            for c in self.machine.criteria
            if isinstance(first := firsts[c.id], JudgePanel) and first.group == panel.group
        ]

    def keys(self, run: Record) -> dict[str, str]:
        """Criterion -> key under which its grade of this run is known."""
        return {criterion: key for criterion, (_, key) in self._signed(run, target_hash(run)).items()}

    def _signed(self, run: Record, target: str) -> dict[str, tuple[str, str]]:
        """Criterion -> who grades it, and the key of that grade of this run."""
        signed = {}
        for criterion in self.machine.criteria:
            grader = self.identity(criterion.id, run)
            signed[criterion.id] = grader, hash_of([run["id"], criterion.text(), grader, target])
        return signed

    def is_current(self, run: Record, card: Record | None) -> bool:
        """Would grading this run today give the same scorecard?"""
        if card is None or card["rubric"] != self.rubric:
            return False
        return {g["criterion"]: g["key"] for g in card["grades"] if not g.get("error")} == self.keys(run)

    def grade(self, run: Record, known: Mapping[str, Record], files: Opener | None = None) -> Record:
        """A scorecard (without id) for a run. known: key -> grade that need not be made again. files:
        opens the directory that the run left."""
        target = target_hash(run)
        signed = self._signed(run, target)
        unknown = [criterion for criterion in self.machine.criteria if signed[criterion.id][1] not in known]
        asked = [(criterion, self.machine.graders[criterion.id]) for criterion in unknown]
        made = self.ask(asked, Run(run, files))
        grades = []
        for criterion in self.machine.criteria:
            grader, key = signed[criterion.id]
            if key in known:
                grades.append({**known[key], "criterion": criterion.id, "weight": criterion.weight})
            else:
                named = {"grader": grader, "key": key}
                first = {"criterion": criterion.id, "weight": criterion.weight}
                grades.append({**first, **made[criterion.id], **named})
        spent = [grade.get("usage") or NO_SPEND for grade in made.values()]
        score, passed = total(grades, self.machine.criteria, self.machine.graders)
        return {
            "v": 1,
            "type": "scorecard",
            "run": run["id"],
            "machine": run["machine"],
            "rubric": self.rubric,
            "target": target,
            "score": score,
            "passed": passed,
            "grades": grades,
            "usage": sum_usage(spent),
            "graded_at": now(),
        }

    def ask(self, asked: Sequence[tuple[Criterion, Grader]], run: Run) -> dict[str, Record]:
        """Criterion -> reason, score and what else a grader says of a run, whatever is known.

        Calls that several criteria share are made once; their spend stands in the first of these grades.
        """
        made = self._ask([(c, g.cheap if isinstance(g, Escalation) else g) for c, g in asked], run)
        unsure: list[tuple[Criterion, Grader]] = [
            (criterion, grader.stronger)
            for criterion, grader in asked
            if isinstance(grader, Escalation) and is_unsure(made[criterion.id]["score"], grader.unsure)
        ]
        for name, grade in self._ask(unsure, run).items():
            cheap = made[name]
            usage = sum_usage([part for part in (cheap.get("usage"), grade.get("usage")) if part])
            made[name] = {**grade, "usage": usage, "first": cheap}
        return made

    def _ask(self, asked: Sequence[tuple[Criterion, Grader]], run: Run) -> dict[str, Record]:
        """Ask graders that are no escalations."""
        made: dict[str, Record] = {}
        panels = {grader.group: grader for _, grader in asked if isinstance(grader, JudgePanel)}
        for panel in panels.values():
            mine = [c.id for c, g in asked if isinstance(g, JudgePanel) and g.group == panel.group]
            made |= _shared(mine, *self.judging.panel(panel, self._panel(panel), run))
        for model in dict.fromkeys(g.model for _, g in asked if isinstance(g, Question)):
            questions = [(c, g) for c, g in asked if isinstance(g, Question) and g.model == model]
            made |= _shared([c.id for c, _ in questions], *self.judging.jev(questions, run))
        for criterion, grader in asked:
            if isinstance(grader, Judge):
                made[criterion.id] = self.judging.grade(grader, criterion, run)
            elif isinstance(grader, Check):
                made[criterion.id] = self._check(grader, run)
        return made

    def _check(self, grader: Check, run: Run) -> Record:
        with self._checks:
            mark = check.apply(grader, run)
        grade: Record = {"reason": mark.reason, "score": mark.score}
        if not mark.applies:
            grade["applies"] = False
        if mark.error is not None:
            grade["error"] = mark.error
        return grade


def calls_models(grader: Grader) -> bool:
    """Does a grader call a model?"""
    return not isinstance(grader, Check)


def is_unsure(score: float | None, band: tuple[float, float]) -> bool:
    """Does a score lie in a band, ends included?"""
    return score is not None and band[0] - SLACK <= score <= band[1] + SLACK


def _shared(names: Sequence[str], grades: Mapping[str, Record], usage: Record | None) -> dict[str, Record]:
    """The grades of names; the first holds what their common call spent."""
    made = {name: dict(grades[name]) for name in names}
    if usage is not None and names:
        made[names[0]]["usage"] = usage
    return made


def sum_usage(parts: Iterable[Mapping[str, Any]]) -> Record:
    """The sum of usages; a count that one of them does not know is unknown for all."""
    total_usage: Record = dict(NO_SPEND)
    for part in parts:
        for name, value in part.items():
            old = total_usage[name]
            total_usage[name] = None if old is None or value is None else old + value
    total_usage["cost_usd"] = usd(total_usage["cost_usd"])
    return total_usage


def target_hash(run: Record) -> str:
    """Hash of what the case says a right answer is."""
    return hash_of([run["case"].get("target"), run["case"].get("metadata")])


def total(
    grades: Sequence[Record], criteria: Sequence[Criterion], graders: Mapping[str, Grader]
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


def why_ungraded(card: Record) -> str:
    """Why a scorecard has no score, in words."""
    errors = [grade for grade in card["grades"] if grade.get("error")]
    return f"{errors[0]['criterion']}: {errors[0]['error']}" if errors else "no criterion applies"


def known_grades(store: Store, run: Record) -> dict[str, Record]:
    """Key -> newest grade with an answer, over all scorecards of a run."""
    known: dict[str, Record] = {}
    for oid in store.scorecards(run["id"]):
        for grade in store.load_scorecard(oid)["grades"]:
            if not grade.get("error"):
                known.setdefault(grade["key"], grade)
    return known


def due(store: Store, grading: Grading) -> Iterator[Record]:
    """A machine's stored runs that are due for grading, oldest first: not graded as they would be today."""
    name = grading.machine.name
    for row in store.index.runs(name, newest_first=False) if store.has_records() else ():
        if row["status"] == "failed":
            continue
        run = store.load_run(row)
        if not is_earlier_turn(run) and not grading.is_current(grading.todays(run), run.get("scorecard")):
            yield run


def grade_and_store(
    grading: Grading,
    store: Store,
    run: Record,
    regrade: bool = False,
    stop: threading.Event | None = None,
) -> tuple[Record, bool]:
    """The run with its scorecard, and whether anything had to be graded.

    A failed run is missing data: it keeps no scorecard. Of a conversation the last turn is graded.
    stop: ends the wait for another command that grades the same run, by Interrupted.
    """
    if run["status"] == "failed" or is_earlier_turn(run):
        return {name: value for name, value in run.items() if name != "scorecard"}, False
    asked = grading.todays(run)
    known: dict[str, Any] = {}
    seen: str | None = None
    if not regrade:
        newest = store.newest_scorecard(run["id"])
        if newest is not None:
            seen = newest["id"]
            card = store.load_scorecard(newest["id"])
            if grading.is_current(asked, card):
                return arrange("run", {**asked, "scorecard": card}), False
            known = known_grades(store, run)
    # Two pipes that grade one run at the same time would pay for its judges twice.
    claim = hash_of(["grade", run["id"], grading.rubric])
    if not store.wait_for(claim, stop or threading.Event()):
        raise Interrupted("interrupted while another command graded the same run")
    try:
        newest = None if regrade else store.newest_scorecard(run["id"])
        if newest is not None and newest["id"] != seen:
            card = store.load_scorecard(newest["id"])
            if grading.is_current(asked, card):
                return arrange("run", {**asked, "scorecard": card}), False
            known = known_grades(store, run)
        card = store.add_scorecard(grading.redacted(plain(grading.grade(asked, known, opener(store, asked)))))
    finally:
        store.release(claim)
    return arrange("run", {**asked, "scorecard": card}), True

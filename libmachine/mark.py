"""machine-mark's work: a person's grade of a run, kept beside the machine's."""

from __future__ import annotations

import difflib
import os
import pwd

from libmachine.canon import Record, hash_of, now, plain
from libmachine.errors import MachineError
from libmachine.folder import rubric_hash
from libmachine.git import plumb
from libmachine.grade import NO_SPEND, Grading, target_hash
from libmachine.load import Loaded, load
from libmachine.project import Project
from libmachine.store.rows import PERSON
from libmachine.store.store import Store

WHOLE = "*"
"""In the place of a criterion: the mark is of the run as a whole."""
GOOD = 0.5


def mark(
    project: Project, store: Store, run: Record, score: float, note: str | None, criterion: str | None = None
) -> Record:
    """Store a person's mark of a run, as a whole or by a criterion; the scorecard. score: 0..1.

    Raises MachineError for a criterion that the run's machine has not.
    """
    bare = {name: value for name, value in run.items() if name != "scorecard"}
    machine = _machine(run["machine"], criterion, project)
    return store.add_scorecard(plain(_mark(bare, machine, criterion, score, note, person(project))))


def _machine(name: str, criterion: str | None, project: Project) -> Loaded | None:
    """The run's machine; None if it is no more and the mark names no criterion of it."""
    try:
        machine = load(name, project.places)
    except MachineError:
        if criterion is None:
            return None
        raise
    known = [c.id for c in machine.criteria]
    if criterion is not None and criterion not in known:
        near = difflib.get_close_matches(criterion, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known) or 'none'}"
        raise MachineError(f"'{name}' has no criterion '{criterion}'; {hint}")
    return machine


def _mark(
    run: Record, machine: Loaded | None, criterion: str | None, score: float, note: str | None, who: str
) -> Record:
    asked = Grading(machine).todays(run) if machine else run
    grader = PERSON + who
    key = hash_of([run["id"], criterion, grader, target_hash(asked)])
    grade = {"criterion": criterion or WHOLE, "weight": 1, "reason": note, "score": score}
    return {
        "v": 1,
        "type": "scorecard",
        "run": run["id"],
        "machine": run["machine"],
        "rubric": rubric_hash(machine.criteria if machine else ()),
        "target": target_hash(asked),
        "score": score,
        "passed": score >= GOOD,
        "grades": [{**grade, "grader": grader, "key": key}],
        "usage": dict(NO_SPEND),
        "graded_at": now(),
    }


def person(project: Project) -> str:
    """Who marks: git's user.name, else the login."""
    try:
        told = plumb.run(project.root, "config", "user.name").out.decode("utf-8", "replace")
    except MachineError:
        told = ""
    if found := " ".join(told.split()):
        return found
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

"""The work behind machine-mark's options."""

from __future__ import annotations

import difflib
import os
import pwd
import threading

from libmachine import console
from libmachine.canon import Record, dump_line, hash_of, now, plain
from libmachine.cmd import _cli
from libmachine.cmd._show import resolve
from libmachine.errors import MachineError, UsageError
from libmachine.folder import rubric_hash
from libmachine.git import plumb
from libmachine.grade import NO_SPEND, Grading, target_hash
from libmachine.load import Loaded, load
from libmachine.project import Project
from libmachine.record import arrange
from libmachine.store.rows import PERSON

WHOLE = "*"
"""In the place of a criterion: the mark is of the run as a whole."""
GOOD = 0.5


def main(
    workspace: str | None,
    run: str,
    criterion: str | None,
    good: bool,
    bad: bool,
    score: float | None,
    note: str | None,
    as_json: bool,
) -> int:
    """Mark."""
    given = _score(good, bad, score)
    project = _cli.project(workspace)
    store = project.open_store()
    try:
        record = resolve(run, store, project)
        if record["type"] != "run":
            raise MachineError(f"'{run}' is a {record['type']}; a mark is of a run: machine-runs lists them")
        record.pop("scorecard", None)
        machine = _machine(record["machine"], criterion, project)
        card = store.add_scorecard(plain(_mark(record, machine, criterion, given, note, name(project))))
    finally:
        store.close()
    verdict = "good" if card["passed"] else "bad"
    what = f" by {criterion}" if criterion else ""
    console.say(console.safe(f"run {record['id'][:12]} is marked {verdict}{what}, {given:g}"))
    output = _cli.Output(threading.Event())
    if as_json or not console.is_terminal(1):
        output.write(dump_line(arrange("scorecard", card)))
    return _cli.Tally(output.stop).code(output=output)


def _score(good: bool, bad: bool, score: float | None) -> float:
    if good and bad:
        raise UsageError("--good and --bad: it is one of them")
    if score is None:
        if not good and not bad:
            raise UsageError("say --good, --bad or --score S")
        return float(good)
    if (good and score < GOOD) or (bad and score >= GOOD):
        raise UsageError(
            f"a score of {score:g} is not {'good' if good else 'bad'}: good is {GOOD:g} and above"
        )
    return score


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


def name(project: Project) -> str:
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

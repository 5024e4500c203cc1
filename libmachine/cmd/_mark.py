"""The work behind machine-mark's options."""

from __future__ import annotations

import threading

from libmachine import console
from libmachine.canon import dump_line
from libmachine.cmd import _cli
from libmachine.cmd._show import resolve
from libmachine.errors import MachineError, UsageError
from libmachine.mark import GOOD, mark
from libmachine.record import arrange


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
        card = mark(project, store, record, given, note, criterion)
    finally:
        store.close()
    verdict = "good" if card["passed"] else "bad"
    what = f" by {criterion}" if criterion else ""
    console.say(f"run {record['id'][:12]} is marked {verdict}{what}, {given:g}")
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

"""The work behind machine-grade's options."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, jsonl
from libmachine.canon import Record, RecordError, dump_line, hash_of, plain
from libmachine.cmd import _cli
from libmachine.grade import Grading, grade_and_store
from libmachine.load import load
from libmachine.project import Project
from libmachine.record import read_record, record_id
from libmachine.store.store import Store


def main(
    workspace: str | None, regrade: bool, adopt: bool, allow_failed: int, strict: bool, as_json: bool
) -> int:
    """Grade what comes in, print it, count."""
    _cli.refuse_terminal("runs", "pipe them in: machine-run NAME < cases.jsonl | machine-grade")
    project = _cli.project(workspace)
    stop = threading.Event()
    tally = _cli.Tally(stop, allow_failed, strict)
    output = _cli.Output(stop)
    lines = as_json or not console.is_terminal(1)
    counts = {"graded": 0, "known": 0, "ungraded": 0, "failed": 0}
    gradings: dict[str, Grading] = {}
    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts:
            for run in _runs(tally, stop, adopt):
                grading = _grading(run["machine"], gradings, project)
                _keep(store, run)
                graded, asked = grade_and_store(grading, store, run, regrade)
                _count(graded, asked, counts, tally)
                output.write(dump_line(graded)) if lines else output.text(_row(graded))
                if stop.is_set():
                    break
        _say(counts)
        return tally.code(interrupts, output)
    finally:
        store.close()


def _runs(tally: _cli.Tally, stop: threading.Event, adopt: bool) -> Iterator[Record]:
    for line in jsonl.read(0):
        if stop.is_set():
            return
        try:
            if line.error:
                raise RecordError(line.error)
            value: Any = line.value
            if adopt and isinstance(value, dict) and value.get("type") == "run":
                value = _adopted(value)
            yield read_record(value, "run")
        except RecordError as error:
            tally.bad_line(line.number, str(error))


def _adopted(value: Record) -> Record:
    try:
        value = plain(value)
        return {**value, "id": record_id(value)}
    except (KeyError, TypeError, AttributeError):
        return value


def _grading(name: str, gradings: dict[str, Grading], project: Project) -> Grading:
    if name not in gradings:
        gradings[name] = Grading(load(name, project.places))
    return gradings[name]


def _keep(store: Store, run: Record) -> None:
    """A run that came from elsewhere is stored before money is spent on grading it."""
    if not store.knows_run(run["id"]):
        base = hash_of(["foreign", run["machine"], run["case"]["identity"]])
        store.add_run({**run, "case": {"id": run["case"]["identity"][:12], **run["case"]}}, base)


def _count(run: Record, asked: bool, counts: dict[str, int], tally: _cli.Tally) -> None:
    card = run.get("scorecard")
    if card is None:
        counts["failed"] += 1
        tally.note(f"run {run['id'][:12]} failed and is not graded")
        return
    counts["graded" if asked else "known"] += 1
    errors = [grade for grade in card["grades"] if grade.get("error")]
    if card["score"] is None:
        counts["ungraded"] += 1
        why = f"{errors[0]['criterion']}: {errors[0]['error']}" if errors else "no criterion applies"
        tally.note(f"run {run['id'][:12]} is ungraded: {why}")


def _row(run: Record) -> str:
    card = run.get("scorecard")
    if card is None or card["score"] is None:
        verdict = "   -  failed  " if card is None else "   -  ungraded"
    else:
        verdict = f"{card['score']:>4.2f}  {'passed' if card['passed'] else 'not':<8}"
    head = f"{run['id'][:8]}  {console.one_line(run['case']['id'], 20):<20}  {run['trial']:>2}  {verdict}  "
    return head + console.one_line(run["output"], max(10, console.width() - len(head)))


def _say(counts: dict[str, int]) -> None:
    told = f"{console.count(counts['graded'] + counts['known'], 'run')}: {counts['graded']} graded"
    told += f", {counts['known']} known already" if counts["known"] else ""
    told += f", {counts['ungraded']} ungraded" if counts["ungraded"] else ""
    told += f"; {counts['failed']} failed" if counts["failed"] else ""
    console.say(f"{told}, $0.00")

"""The work behind machine-grade's options."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, env, jsonl, pool
from libmachine.canon import Record, RecordError, dump_line, hash_of, plain
from libmachine.case import label
from libmachine.cmd import _cli
from libmachine.define import is_earlier_turn
from libmachine.errors import MachineError
from libmachine.grade import Grading, grade_and_store, why_ungraded
from libmachine.judging import Judging, kin
from libmachine.load import load
from libmachine.project import Project
from libmachine.purse import Purse
from libmachine.record import read_record, record_id
from libmachine.store.keep import forgotten
from libmachine.store.store import Store


def main(
    workspace: str | None,
    judge_model: str | None,
    judge_effort: str | None,
    regrade: bool,
    adopt: bool,
    concurrency: int,
    budget: str | None,
    price_as: str | None,
    allow_failed: int,
    strict: bool,
    as_json: bool,
) -> int:
    """Grade what comes in, print it, count."""
    _cli.refuse_terminal("runs", "pipe them in: machine-run NAME < cases.jsonl | machine-grade")
    project = _cli.project(workspace)
    stop = threading.Event()
    tally = _cli.Tally(stop, allow_failed, strict)
    output = _cli.Output(stop)
    lines = as_json or not console.is_terminal(1)
    purse = Purse(project, "grade", budget, price_as)
    judging = Judging(judge_model or env.get("MACHINE_JUDGE_MODEL"), judge_effort, purse.judge)
    failure: BaseException | None = None
    store = project.open_store()
    grader = _Grader(project, store, judging, regrade, tally)
    progress = console.Progress("grades", None, purse.ledger.spent)
    progress.shown &= not stat.S_ISFIFO(os.fstat(0).st_mode)  # in a pipe its beginning shows how far it is
    try:
        with _cli.Interrupts(stop) as interrupts:
            for graded in pool.stream(grader.grade, _runs(tally, stop, adopt), concurrency, True, stop):
                progress.clear()
                grader.count(graded)
                output.write(dump_line(graded[0])) if lines else output.text(_row(graded))
                progress.step()
        return tally.code(interrupts, output)
    except BaseException as error:
        failure = error
        raise
    finally:
        progress.clear()
        purse.told(grader.summary(), failure)
        store.close()
        judging.close()


REJUDGED_WARNING = 20


class _Grader:
    """Grades one run after another, of any mix of machines, and counts."""

    def __init__(
        self, project: Project, store: Store, judging: Judging, regrade: bool, tally: _cli.Tally
    ) -> None:
        self.project, self.store, self.judging, self.regrade, self.tally = (
            project,
            store,
            judging,
            regrade,
            tally,
        )
        self._gradings: dict[str, Grading | None] = {}
        self._loading = threading.Lock()
        self._keeping = threading.Lock()
        self.counts = {"graded": 0, "known": 0, "ungraded": 0, "failed": 0, "earlier": 0}
        self._kin: set[str] = set()
        self._rejudged = 0

    def grade(self, run: Record) -> tuple[Record, bool]:
        """The run with its scorecard, and whether anything was asked."""
        with self._loading:
            if run["machine"] not in self._gradings:
                self._gradings[run["machine"]] = self._load(run["machine"])
            grading = self._gradings[run["machine"]]
        if grading is None:
            return run, False
        with self._keeping:  # two lines of one foreign run are one run
            if not keep(self.store, run):
                self.tally.note(f"run {run['id']} was forgotten here, and is neither stored nor graded again")
                return run, False
            if grading.has_judges and not self.regrade and not is_earlier_turn(run):
                self._watch_judges(grading, run)
        return grade_and_store(grading, self.store, run, self.regrade, self.tally.stop)

    def _load(self, name: str) -> Grading | None:
        """How a machine grades. One that cannot be loaded ends the command, unless others were graded:
        then its lines pass ungraded."""
        try:
            return Grading(load(name, self.project.places), self.judging)
        except MachineError as error:
            if not self._gradings:
                raise
            console.say(f"warning: runs of '{name}' are not graded: {error}")
            return None

    def _watch_judges(self, grading: Grading, run: Record) -> None:
        """Warn when more than a few runs are to be judged again only because the judge is another."""
        newest = self.store.newest_scorecard(run["id"])
        if newest is None or self._rejudged > REJUDGED_WARNING:
            return
        for grade in self.store.load_scorecard(newest["id"])["grades"]:
            now = grading.identity(grade["criterion"], run) if grade["criterion"] in grading.judged else None
            if now is not None and str(grade["grader"]).startswith("judge:") and grade["grader"] != now:
                self._rejudged += 1
                if self._rejudged > REJUDGED_WARNING:
                    console.say(
                        f"warning: more than {REJUDGED_WARNING} runs are judged again only because the judge "
                        f"changed, from {grade['grader']} to {now}; ^C stops, and keeps what is judged"
                    )
                break

    def count(self, graded: tuple[Record, bool]) -> None:
        """Count one run; say what is wrong with it."""
        run, asked = graded
        card = run.get("scorecard")
        if self._gradings.get(run["machine"]) is None:
            self.counts["ungraded"] += 1
            why = "its machine cannot be loaded"
            self.tally.note(f"run {run['id'][:12]} is ungraded: {why}", f"{run['machine']}: {why}")
            return
        if is_earlier_turn(run):
            self.counts["earlier"] += 1
            return
        if card is None:
            self.counts["failed"] += 1
            self.tally.note(f"run {run['id'][:12]} failed and is not graded")
            return
        self.counts["graded" if asked else "known"] += 1
        if card["score"] is None:
            self.counts["ungraded"] += 1
            why = why_ungraded(card)
            self.tally.note(f"run {run['id'][:12]} is ungraded: {why}", why)
        for grade in card["grades"]:
            if shared := kin(grade, run):
                self._kin.add(shared)

    def summary(self) -> str:
        """What it came to; a warning about the judges is said."""
        counts = self.counts
        told = f"{console.count(counts['graded'] + counts['known'], 'run')}: {counts['graded']} graded"
        told += f", {counts['known']} known already" if counts["known"] else ""
        told += f", {counts['ungraded']} ungraded" if counts["ungraded"] else ""
        told += f"; {counts['failed']} failed" if counts["failed"] else ""
        told += (
            f"; {console.count(counts['earlier'], 'earlier turn')} of conversations"
            if counts["earlier"]
            else ""
        )
        if self._kin:
            console.say(
                f"warning: judge and machine are of one family ({', '.join(sorted(self._kin))}): "
                "a model tends to prefer its own kind"
            )
        return told


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


def keep(store: Store, run: Record) -> bool:
    """A run that came from elsewhere is stored before money is spent on grading it. False for one that
    machine-forget removed."""
    if not store.knows_run(run["id"]):
        if run["id"] in forgotten(store.directory):
            return False
        base = hash_of(["foreign", run["machine"], run["case"]["identity"]])
        store.add_run({**run, "case": {"id": run["case"]["identity"][:12], **run["case"]}}, base)
    return True


def _row(graded: tuple[Record, bool]) -> str:
    run, _ = graded
    card = run.get("scorecard")
    if card is None or card["score"] is None:
        verdict = (
            "   -  " + ("earlier " if is_earlier_turn(run) else "failed  ")
            if card is None
            else "   -  ungraded"
        )
    else:
        verdict = f"{card['score']:>4.2f}  {'passed' if card['passed'] else 'not':<8}"
    head = f"{run['id'][:8]}  {label(run['case'], 20):<20}  {run['trial']:>2}  {verdict}  "
    return head + console.one_line(run["output"], max(10, console.width() - len(head)))

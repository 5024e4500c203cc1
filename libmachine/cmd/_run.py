"""The work behind machine-run's options: kept apart so that --help imports none of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from libmachine import console, env, jsonl
from libmachine.canon import Record, RecordError, dump_line
from libmachine.case import label, read_case
from libmachine.cmd import _cli
from libmachine.compact import Table
from libmachine.converse import runner_of
from libmachine.converse_other import Others
from libmachine.errors import UsageError
from libmachine.folder import read_cases
from libmachine.harness.base import Sampling
from libmachine.harness.loop import Limits
from libmachine.load import Loaded, load
from libmachine.purse import Engines, Purse
from libmachine.run import Outcome, Runner, Settings
from libmachine.store.store import Store
from libmachine.suite.cases import warn_if_frozen

if TYPE_CHECKING:
    from libmachine.cmd._session import Talk
    from libmachine.grade import Grading


def main(
    workspace: str | None, name: str, text: str | None, cases: str | None, as_json: bool, **options: Any
) -> int:
    """Run, print, count, and say what it came to."""
    if text is not None and cases is not None:
        raise UsageError("TEXT and --cases are two sources; give one")
    talk = text is None and cases is None and not (as_json or options["dry_run"]) and _is_person()
    if options["proceed"] and not talk:
        raise UsageError("--continue is for a session: NAME alone, on a terminal")
    if text is None and cases is None and not talk:
        _cli.refuse_terminal("cases", "give TEXT, --cases FILE, or '< cases.jsonl'")
    project = _cli.project(workspace)
    machine = load(name, project.places)
    stop = threading.Event()
    tally = _cli.Tally(stop, options["allow_failed"], options["strict"])
    total: int | None = None
    if text is not None:
        source: Iterator[Record] = iter([read_case(text)])
    elif cases is not None:
        found = read_cases(_cases_path(cases, machine))
        total = len(found) * options["trials"]
        source = iter(found)
    else:
        source = iter(()) if talk else _from_stdin(tally, stop)
    settings = Settings(
        sampling=_sampling(machine, options),
        limits=Limits(options["max_steps"], options["timeout"]),
        trials=options["trials"],
        seed=options["seed"],
        resume=options["resume"],
    )
    purse = Purse(project, "run", options["budget"], options["price_as"])
    engines = Engines(purse, options["harness"], options["model"], options["base_url"])
    engine = engines.of(machine)
    others = Others(purse)
    facing = others.of(machine)
    store = project.open_store()
    progress = console.Progress("runs", total, purse.ledger.spent)
    printer = _Printer(as_json, text is not None, stop, progress)
    wanted = options["evaluate"] or talk
    evaluation = _evaluation(machine, store, options["judge_model"], purse) if wanted else None
    failure: BaseException | None = None
    session: Talk | None = None
    try:
        if talk and evaluation:
            from libmachine.cmd._session import Talk

            # the person is the other side, and what was said once is not replayed
            mine = Runner(machine, engine, store, replace(settings, resume=False, trials=1))
            session = Talk(project, mine, evaluation.grading, purse, options["evaluate"], options["proceed"])
            return session.run()
        runner = runner_of(machine, engine, store, settings, facing)
        if options["dry_run"]:
            return _dry_run(runner, source, tally)
        with _cli.Interrupts(stop) as interrupts:
            then = evaluation.grade if evaluation else _as_it_is
            for outcome in runner.run(source, options["concurrency"], options["ordered"], stop, then):
                printer.show(outcome, tally)
        return tally.code(interrupts, printer.output)
    except BaseException as error:
        failure = error
        raise
    finally:
        if not options["dry_run"]:
            purse.told(session.summary() if session else printer.summary(), failure)
        store.close()
        engines.close()
        others.close()
        if evaluation:
            evaluation.close()


def _is_person() -> bool:
    """Does somebody sit there and read what is said?"""
    return console.is_terminal(0) and console.is_terminal(1)


def _as_it_is(outcome: Outcome) -> Outcome:
    return outcome


class _Evaluation(NamedTuple):
    """What --eval does to each run, and how to let go of what that takes."""

    grade: Callable[[Outcome], Outcome]
    close: Callable[[], None]
    grading: Grading


def _evaluation(machine: Loaded, store: Store, judge_model: str | None, purse: Purse) -> _Evaluation:
    from libmachine.grade import Grading, grade_and_store  # graders are imported where there is grading
    from libmachine.judging import Judging

    judging = Judging(judge_model or env.get("MACHINE_JUDGE_MODEL"), None, purse.judge)
    grading = Grading(machine, judging)

    def grade(outcome: Outcome) -> Outcome:
        return replace(outcome, run=grade_and_store(grading, store, outcome.run)[0])

    return _Evaluation(grade, judging.close, grading)


def _cases_path(path: str, machine: Loaded) -> str:
    """A file of cases as named, or of that name in the machine's folder."""
    inside = machine.folder.file(path)
    return inside if not os.path.exists(path) and os.path.exists(inside) else path


def _from_stdin(tally: _cli.Tally, stop: threading.Event) -> Iterator[Record]:
    seen = Table()
    for line in jsonl.read(0):
        if stop.is_set():
            return
        try:
            if line.error:
                raise RecordError(line.error)
            case = read_case(line.value)
            identity = int(case["identity"][:8], 16)
            known = seen.get(case["id"])
            if known is None:
                seen.set(case["id"], line.number << 32 | identity)
            elif known & 0xFFFFFFFF != identity:
                taken = f"id '{case['id']}' is taken by line {known >> 32}"
                raise RecordError(f"{taken} with another input; give it its own")
        except RecordError as error:
            tally.bad_line(line.number, str(error))
            continue
        yield case


def _sampling(machine: Loaded, options: dict[str, Any]) -> Sampling:
    """model.json's sampling with what the command line says put over it."""
    names = ("temperature", "max_tokens", "effort")
    sampling = machine.sampling(**{name: options[name] for name in names})
    warn_if_frozen(sampling, options["trials"])
    return sampling


def _dry_run(runner: Runner, cases: Iterator[Record], tally: _cli.Tally) -> int:
    jobs = stored = 0
    seen: set[str] = set()
    for job in runner.jobs(cases):
        jobs += 1
        stored += runner.is_stored(job)
        seen.add(job.case["identity"])
    console.say(
        f"{console.count(len(seen), 'case')}, {console.count(jobs, 'run')}: {stored} stored, "
        f"{jobs - stored} to run on {runner.engine.model} ({runner.engine.name})"
    )
    return tally.code()


class _Printer:
    """Runs on stdout as they come: lines in a pipe, rows or the one answer on a terminal."""

    def __init__(self, as_json: bool, one: bool, stop: threading.Event, progress: console.Progress) -> None:
        self.output = _cli.Output(stop)
        self.lines = as_json or not console.is_terminal(1)
        self.one = one
        self.progress = progress
        self.cases = Table()
        self.stored = self.bought = self.failed = 0

    def show(self, outcome: Outcome, tally: _cli.Tally) -> None:
        """Print one run and count it."""
        run = outcome.run
        self.cases.set(run["case"]["identity"], 0)
        self.stored += not outcome.bought
        self.bought += outcome.bought
        self.progress.clear()
        if self.lines:
            self.output.write(dump_line(run))
        elif self.one:
            self.output.text(run["output"])
            if run.get("scorecard"):
                from libmachine.cmd._show import card

                self.output.text(card(run["scorecard"]))
        else:
            self.output.text(self._row(run))
        ungraded = run.get("scorecard") and run["scorecard"]["score"] is None
        if ungraded:
            from libmachine.grade import why_ungraded

            why = why_ungraded(run["scorecard"])
            tally.note(f"run {run['id'][:12]} is ungraded: {why}", why)
        if run["status"] == "failed":
            self.failed += 1
            where = f"case '{run['case']['id']}' trial {run['trial']}"
            tally.note(f"{where} failed: {run['error']['message']}", run["error"]["message"])
        self.progress.step()

    @staticmethod
    def _row(run: Record) -> str:
        name = label(run["case"], 20)
        head = f"{run['id'][:8]}  {name:<20}  {run['trial']:>2}  {run['status']:<6}  "
        return head + console.one_line(run["output"], max(10, console.width() - len(head)))

    def summary(self) -> str:
        """What it came to."""
        self.progress.clear()
        counts = f"{self.stored} stored, {self.bought} run"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{console.count(len(self.cases), 'case')}: {counts}{failed}"

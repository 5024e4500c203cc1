"""The work behind machine-converse's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console, env
from libmachine.canon import Record, dump_line
from libmachine.case import read_case
from libmachine.cmd import _cli
from libmachine.cmd._show import card
from libmachine.converse import Conversations
from libmachine.converse_other import Others
from libmachine.define import COUNTERPART, MACHINE
from libmachine.errors import CutShort, UsageError
from libmachine.grade import Grading, grade_and_store, why_ungraded
from libmachine.judging import Judging
from libmachine.load import Loaded, load
from libmachine.purse import Engines, Purse
from libmachine.run import Settings
from libmachine.store.store import Store


def main(workspace: str | None, name: str, case: str | None, as_json: bool, **options: Any) -> int:
    """Converse, print each turn, grade if asked, and say what it came to."""
    project = _cli.project(workspace)
    machine = load(name, project.places)
    if machine.counterpart is None:
        raise UsageError(f"'{name}' has no counterpart to talk with; machine-run runs it")
    start = _case(machine, case)
    stop = threading.Event()
    tally = _cli.Tally(stop)
    purse = Purse(project, "converse", options["budget"], options["price_as"])
    others = Others(purse)
    facing = others.of(machine)
    assert facing is not None
    engines = Engines(purse, options["harness"], options["model"], options["base_url"])
    engine = engines.of(machine)
    sampling = machine.sampling(**{n: options[n] for n in ("temperature", "max_tokens", "effort")})
    settings = Settings(sampling=sampling, seed=options["seed"], resume=options["resume"])
    judging = Judging(options["judge_model"] or env.get("MACHINE_JUDGE_MODEL"), None, purse.judge)
    printer = _Printer(as_json, options["evaluate"], stop)
    failure: BaseException | None = None
    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts:
            runner = Conversations(machine, engine, store, settings, facing, watch=printer.turn)
            runner.stop = stop
            trial = options["trial"]
            if not options["resume"]:
                trial = 1 + store.last_trial(runner.base_of(start))
            try:
                run = runner.finish(runner.job(start, trial)).run
            except CutShort:
                printer.close([])
                return tally.code(interrupts, printer.output)
            graded = _graded(printer, run, machine, facing.machine, judging, store) if printer.grades else []
            printer.close(graded)
        _note(tally, run, graded)
        return tally.code(interrupts, printer.output)
    except BaseException as error:
        failure = error
        raise
    finally:
        purse.told(printer.summary(), failure)
        store.close()
        engines.close()
        others.close()
        judging.close()


def _case(machine: Loaded, named: str | None) -> Record:
    """The case of an id in the machine's files, else a text; without either the first of cases.jsonl."""
    known = [*machine.folder.cases("cases.jsonl"), *machine.folder.cases("holdout.jsonl")]
    if named is None:
        if not known:
            raise UsageError(f"'{machine.name}' has no cases; give a text for the counterpart to start from")
        return known[0]
    return next((case for case in known if case["id"] == named), None) or read_case(named)


def _graded(
    printer: _Printer, run: Record, machine: Loaded, other: Loaded, judging: Judging, store: Store
) -> list[Record]:
    """The last turn of each side, graded by its own rubric. A failed conversation says nothing of either."""
    if run["status"] == "failed":
        return []
    last = {MACHINE: (run, machine), COUNTERPART: (printer.last[COUNTERPART], other)}
    found = []
    for side in (COUNTERPART, MACHINE):
        turn, who = last[side]
        if who.criteria:
            found.append(grade_and_store(Grading(who, judging), store, turn)[0])
        else:
            console.say(f"'{who.name}' has no criteria to grade by")
    return found


def _note(tally: _cli.Tally, run: Record, graded: list[Record]) -> None:
    """What failed or could not be graded."""
    if run["status"] == "failed":
        tally.note(f"the conversation failed: {run['error']['message']}")
    for one in graded:
        if one["scorecard"]["score"] is None:
            tally.note(f"{one['machine']} is ungraded: {why_ungraded(one['scorecard'])}")


class _Printer:
    """Turns on stdout as they come: a heading and the text, or the run as a line.

    With grades the last run of each side is a line only when it has its scorecard.
    """

    def __init__(self, as_json: bool, grades: bool, stop: threading.Event) -> None:
        self.output = _cli.Output(stop)
        self.lines, self.grades = as_json, grades
        self.last: dict[str, Record] = {}
        self._held: list[Record] = []
        self._count = 0

    def turn(self, run: Record) -> None:
        """One more turn."""
        talk = run["conversation"]
        self.last[talk["side"]] = run
        self._count += bool(run["steps"])
        if self.lines:
            self._line(run)
            return
        self.output.text(f"--- {talk['turn']} {console.one_line(run['machine'], 60)} ({talk['side']})")
        for message in run["messages"][run["steps"][0]["message"] :] if run["steps"] else ():
            for call in message.get("tool_calls") or ():
                self.output.text(
                    console.safe(f"(calls) {call['function']['name']} {call['function']['arguments']}")
                )
        self.output.text(console.safe(run["output"]) if run["output"] else f"({run['stop_reason']})")

    def _line(self, run: Record) -> None:
        self._held.append(run)
        while self._held and (not self.grades or len(self._held) > 2):
            self.output.write(dump_line(self._held.pop(0)))

    def close(self, graded: list[Record]) -> None:
        """The conversation is over: the runs that were held back, graded, or the scorecards."""
        by_id = {run["id"]: run for run in graded}
        if self.lines:
            for run in self._held:
                self.output.write(dump_line(by_id.get(run["id"], run)))
            self._held = []
            return
        for run in graded:
            self.output.text(f"\n{console.one_line(run['machine'], 60)}\n{card(run['scorecard'])}")

    def summary(self) -> str:
        """What it came to."""
        ending = ""
        run = self.last.get(MACHINE)
        if run is not None and run["conversation"]["last"]:
            ending = f", {run['status']}"
        return f"{console.count(self._count, 'turn')}{ending}"

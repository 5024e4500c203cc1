"""machine-run NAME on a terminal: a session with the machine, line by line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from libmachine import console
from libmachine.canon import Record
from libmachine.cmd import _cli
from libmachine.cmd._show import card
from libmachine.errors import Interrupted, MachineError, Refused
from libmachine.grade import Grading, grade_and_store, why_ungraded
from libmachine.load import Loaded
from libmachine.mark import mark
from libmachine.project import Project
from libmachine.purse import Purse
from libmachine.run import Runner
from libmachine.session import Session, latest
from libmachine.store.store import Store

HELP = """\
/score         grade the last exchange
/good [NOTE]   mark the last exchange as good, with a reason
/bad [NOTE]    mark it as bad
/correct NOTE  mark it as bad, and say what should change
/machine       what this machine is, and what the session has cost
/quit          end the session; so does ^D"""


class Talk:
    """One session at a terminal. What the machine says is the product; all else is talk."""

    def __init__(
        self, project: Project, runner: Runner, grading: Grading, purse: Purse, each: bool, proceed: bool
    ) -> None:
        self.project, self.runner, self.grading, self.purse, self.each = project, runner, grading, purse, each
        self.machine: Loaded = runner.machine
        self.store: Store = runner.store
        self.stop = threading.Event()
        self.output = _cli.Output(self.stop)
        self.tally = _cli.Tally(self.stop)
        past = latest(self.store, self.machine.name) if proceed else None
        self.session = Session(runner, Path.cwd(), past)
        self.commands: dict[str, Callable[[str], None]] = {
            "score": lambda note: self._score(self._last()),
            "good": lambda note: self._mark(1, note),
            "bad": lambda note: self._mark(0, note),
            "correct": self._correct,
            "machine": lambda note: self._about(),
            "help": lambda note: console.say(HELP),
        }
        runner.heard = self._heard

    def run(self) -> int:
        """Talk until the person ends it; the exit code."""
        console.say(f"{self.machine.name}: {self.machine.intent} (/help has the commands, ^D ends)")
        if self.session.past.exchanges:
            console.say(f"going on after {console.count(self.session.past.exchanges, 'exchange')}")
        if self.session.workspace is not None:
            console.say(f"its tools act on the files in {self.session.workspace.directory}")
        try:
            with _cli.Interrupts(self.stop) as interrupts:
                self.runner.stop = self.stop
                while not self.stop.is_set() and (line := _line()) is not None:
                    if line in ("/quit", "/exit"):
                        break
                    try:
                        self._take(line)
                    except (Interrupted, Refused):
                        raise
                    except MachineError as error:
                        console.say(f"error: {error}")
            return self.tally.code(interrupts, self.output)
        finally:
            self.session.close()

    def summary(self) -> str:
        """What it came to."""
        return f"{console.count(len(self.session.runs), 'exchange')}"

    def _take(self, line: str) -> None:
        word, _, note = line[1:].partition(" ")
        if line.startswith("/"):
            if word not in self.commands:
                raise MachineError(f"no command '/{word}'; /help lists them")
            return self.commands[word](note.strip())
        if not line.strip():
            return
        run = self.session.send(line)
        if run["status"] == "failed":
            self.tally.note(f"the exchange failed: {run['error']['message']}")
            return
        self.output.text(console.safe(run["output"]) or f"({run['stop_reason']})")
        if self.each:
            self._score(run)

    def _heard(self, message: Record) -> None:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            console.say(console.one_line(f"(calls) {function['name']} {function['arguments']}", 200))

    def _last(self) -> Record:
        done = [run for run in self.session.runs if run["status"] != "failed"]
        if not done:
            raise MachineError("there is no exchange yet; say something first")
        return done[-1]

    def _score(self, run: Record) -> None:
        if not self.machine.criteria:
            raise MachineError(f"'{self.machine.name}' has no criteria to grade by")
        graded = grade_and_store(self.grading, self.store, run, stop=self.stop)[0]
        console.say(card(graded["scorecard"]))
        if graded["scorecard"]["score"] is None:
            self.tally.note(f"ungraded: {why_ungraded(graded['scorecard'])}")

    def _mark(self, score: float, note: str) -> None:
        run = self._last()
        mark(self.project, self.store, run, score, note or None)
        console.say(f"run {run['id'][:12]} is marked {'good' if score else 'bad'}")

    def _correct(self, note: str) -> None:
        if not note:
            raise MachineError("say what should change: /correct NOTE")
        self._mark(0, note)

    def _about(self) -> None:
        machine = self.machine
        rows = [["criterion", "weight", "description"]]
        rows += [[c.id, "audit" if c.is_audit else f"{c.weight:g}", c.description] for c in machine.criteria]
        tools = ", ".join(self.runner.tools) or "none"
        told = [
            f"{machine.name}, version {machine.version[:12]}: {machine.intent}",
            f"model {self.runner.engine.model} ({self.runner.engine.name}); tools: {tools}",
            console.table(rows, console.width(2)).rstrip("\n") if machine.criteria else "no criteria",
            f"session {self.session.past.name}: {self.summary()}, {self.purse.ledger.told()}",
        ]
        console.say("\n".join(told))


def _line() -> str | None:
    """The next line of the person, None at the end."""
    sys.stderr.write("> ")
    sys.stderr.flush()
    data = sys.stdin.buffer.readline()
    if not data:
        sys.stderr.write("\n")
        return None
    return data.decode("utf-8", "replace").rstrip("\r\n")

"""What machine-suite and machine-compare share: cases by name, engines under one purse, the bar."""

from __future__ import annotations

import json
import os
import time

from libmachine import console
from libmachine.canon import Record, plain
from libmachine.cmd import _cli
from libmachine.errors import MachineError, Untestable
from libmachine.folder import Folder, read_cases
from libmachine.harness import choose
from libmachine.harness.base import Engine, Sampling
from libmachine.load import Loaded
from libmachine.measure import score_of
from libmachine.purse import Purse
from libmachine.record import arrange, record_id
from libmachine.suite import why_no_score


def cases_of(folder: Folder, on: str) -> list[Record]:
    """The cases of a file as named, else of that name in the machine's folder; none if it is not there.

    on may also be `cases` or `holdout`. Raises MachineError for a bad file, or a name that is nowhere.
    """
    if on in ("cases", "holdout"):
        return folder.cases(f"{on}.jsonl")
    if not os.path.exists(on) and (os.path.exists(folder.file(on)) or on in ("cases.jsonl", "holdout.jsonl")):
        return folder.cases(on)
    return read_cases(on)


def no_cases(folder: Folder, on: str) -> Untestable:
    """What is raised for a machine without cases."""
    name = f"{on}.jsonl" if on in ("cases", "holdout") else on
    return Untestable(f"'{folder.name}' has no cases to run; write {folder.file(name)}")


def refuse_ungradable(machine: Loaded) -> None:
    """Raise Untestable for a machine without criteria: nothing would say how good its runs are."""
    if not machine.criteria:
        where = machine.folder.file("rubric.toml")
        raise Untestable(f"'{machine.name}' has no criteria to grade by; write {where} and its graders")


def warn_if_frozen(sampling: Sampling, trials: int) -> None:
    """Say so if trials would tell nothing."""
    if trials > 1 and sampling.temperature == 0:
        console.say("warning: --trials above 1 at temperature 0 samples one answer again and again")


class Engines:
    """Engines under one purse: machines that name one model share one."""

    def __init__(
        self,
        purse: Purse,
        harness: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
    ) -> None:
        self.purse, self.harness, self.model, self.base_url = purse, harness, model, base_url
        self._open: dict[str, Engine] = {}

    def of(self, machine: Loaded) -> Engine:
        """The engine that serves a machine."""
        key = json.dumps([self.model or machine.model.model, machine.model.harness])
        if key not in self._open:
            engine = choose.engine(
                machine.model,
                self.harness,
                self.model,
                self.base_url,
                console.say,
                self.purse.project.trained,
                store=self.purse.project.store,
            )
            self._open[key] = self.purse.bill(engine, "run", machine.name)
        return self._open[key]

    def close(self) -> None:
        """Let go of them."""
        for engine in self._open.values():
            engine.close()


class Watch:
    """Graded runs as they come: kept, counted, the bad ones told, a bar with cost and time left."""

    def __init__(self, label: str, total: int, purse: Purse, tally: _cli.Tally) -> None:
        self.purse, self.tally, self.total = purse, tally, total
        self.progress = console.Progress(label, total)
        self.runs: list[Record] = []
        self._began = time.monotonic()

    def step(self, run: Record) -> None:
        """One more run is graded."""
        self.runs.append(run)
        if score_of(run) is None:
            self.progress.clear()
            where = f"{run['machine']}: case '{run['case']['id']}' trial {run['trial']}"
            self.tally.note(f"{where} {why_no_score(run)}")
        left = (time.monotonic() - self._began) / len(self.runs) * (self.total - len(self.runs))
        self.progress.step(f"{console.money(self.purse.ledger.spent())}, {_duration(left)} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"


def with_id(kind: str, record: Record) -> Record:
    """A report as it is printed: canonical, with its id, in the table's order."""
    record = plain(record)
    return arrange(kind, {**record, "id": record_id(record)})


def refuse_foreign(project_root: str, name: str) -> Folder:
    """The folder of a machine that must lie in the project. Raises MachineError."""
    folder = Folder(f"{project_root}/machines", name)
    if not os.path.isfile(folder.file("machine.py")):
        raise MachineError(f"no machine '{name}' in '{project_root}/machines'; machine-list shows all")
    return folder

"""What a handle is apart from its work: a loaded machine, what it holds open, how it is run and graded."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from libmachine.canon import Record
from libmachine.converse import runner_of
from libmachine.git import repository
from libmachine.grade import grade_and_store
from libmachine.harness.loop import Limits
from libmachine.load import Loaded, load_folder
from libmachine.project import Project
from libmachine.run import Runner, Settings
from libmachine.sdk_open import Access, Open
from libmachine.sdk_options import GATE, Budget, GateOptions, filled
from libmachine.sdk_run import stoppable


class Base:
    """The machine of a handle and its means."""

    def __init__(self, where: Project, machine: Loaded, access: Access, in_code: bool = False) -> None:
        self.project, self.machine, self.in_code = where, machine, in_code
        self._access = access
        self._open = Open(where, access)
        self._lock = threading.RLock()
        self._runners: dict[Settings, Runner] = {}
        self._end = weakref.finalize(self, self._open.close)

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine.name

    @property
    def version(self) -> str:
        """The id (40 hex) of the version that is run: what the folder holds."""
        return self.machine.version

    @property
    def repository(self) -> repository.Repository:
        """The git repository of the project. Raises MachineError if there is none."""
        return repository.open_repository(self.project.root)

    @property
    def spent_usd(self) -> float:
        """US dollars that this handle's runs, grades and sessions were billed so far."""
        return self._open.purse.ledger.spent()

    def reload(self) -> None:
        """Read the machine's files again, after they were changed. Its code stays as it was imported."""
        with self._lock:
            self.machine = load_folder(self.machine.folder)
            self._runners.clear()

    def close(self) -> None:
        """Let go of engines and files; what is used again is opened again."""
        with self._lock:
            self._runners.clear()
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<machine {self.name}, version {self.version[:12]}>"

    def _runner(self, sampling: Mapping[str, Any], resume: bool, trials: int = 1) -> Runner:
        """What runs the machine with these settings; made once for all runs that share them."""
        access = self._access
        settings = Settings(
            sampling=self.machine.sampling(**sampling),
            limits=Limits(access.max_steps, access.timeout_s),
            trials=trials,
            seed=access.seed,
            resume=resume,
        )
        with self._lock:
            if settings not in self._runners:
                machine, opened = self.machine, self._open
                engine, facing = opened.engine(machine), opened.others.of(machine)
                self._runners[settings] = runner_of(machine, engine, opened.store, settings, facing)
            return self._runners[settings]

    def _plain_runner(self, sampling: Mapping[str, Any]) -> Runner:
        """What runs single exchanges: a person is the other side, also where there is a counterpart."""
        access, opened = self._access, self._open
        limits = Limits(access.max_steps, access.timeout_s)
        settings = Settings(self.machine.sampling(**sampling), limits, seed=access.seed, resume=False)
        return Runner(self.machine, opened.engine(self.machine), opened.store, settings)

    def _graded(self, run: Record, stop: threading.Event | None = None) -> Record:
        return grade_and_store(self._open.grading(self.machine), self._open.store, run, stop=stop)[0]

    def _gate(self, version: str, trials: int, budget: Budget, options: GateOptions) -> Record:
        from libmachine.gate.judge import judge

        asked = {**filled(GATE, {**options, "trials": trials}, "gate"), "candidate": version[:12]}
        asked |= {**self._access.judges(), "harness": self._access.harness, "seed": self._access.seed}
        asked |= {"concurrency": self._access.concurrency}
        with self._open.apart("gate", budget) as (purse, _):
            return stoppable(lambda stop: judge(self.project, self.repository, self.name, asked, stop, purse))

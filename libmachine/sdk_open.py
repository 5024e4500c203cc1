"""What a handle holds open: store, engine, counterparts and judges, under one purse."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libmachine import env
from libmachine.converse_other import Others
from libmachine.grade import Grading
from libmachine.harness.base import Engine
from libmachine.judging import Judging
from libmachine.load import Loaded
from libmachine.project import Project
from libmachine.purse import Engines, Purse
from libmachine.sdk_options import Budget, limit
from libmachine.store.store import Store

log = logging.getLogger("libmachine")


@dataclass(frozen=True)
class Access:
    """How a machine is reached and what it may cost: the options that commands have for that.

    budget: US dollars for all runs and grades of one handle. timeout_s: seconds a run. seed: of samples,
    searches and training. concurrency: runs under way at once.
    """

    model: str | None = None
    harness: str | None = None
    base_url: str | None = None
    judge_model: str | None = None
    judge_effort: str | None = None
    budget: Budget = None
    price_as: str | None = None
    max_steps: int = 30
    timeout_s: float = 600
    seed: int = 0
    concurrency: int = 4

    def engine(self) -> dict[str, Any]:
        """How the machine's model is reached."""
        return {"model": self.model, "harness": self.harness, "base_url": self.base_url}

    def judges(self) -> dict[str, Any]:
        """How judges are reached."""
        return {"judge_model": self.judge_model, "judge_effort": self.judge_effort}


class Open:
    """Opened at the first use; close() lets go of all of it, and the next use opens it again."""

    def __init__(self, project: Project, access: Access) -> None:
        self.project, self.access = project, access
        self._lock = threading.RLock()
        self._purse: Purse | None = None
        self._engines: Engines | None = None
        self._others: Others | None = None
        self._judging: Judging | None = None
        self._gradings: dict[int, tuple[Loaded, Grading]] = {}

    @property
    def store(self) -> Store:
        """The project's store: one for all handles of this process, whose claims then hold between them."""
        with _stores_lock:
            if self.project.store not in _stores:
                _stores[self.project.store] = self.project.open_store()
            return _stores[self.project.store]

    @property
    def purse(self) -> Purse:
        """The money of the handle."""
        with self._lock:
            if self._purse is None:
                self._purse = Purse(self.project, "sdk", limit(self.access.budget), self.access.price_as)
            return self._purse

    def engine(self, machine: Loaded) -> Engine:
        """What serves a machine."""
        with self._lock:
            if self._engines is None:
                self._engines = Engines(
                    self.purse, self.access.harness, self.access.model, self.access.base_url
                )
            return self._engines.of(machine)

    @property
    def others(self) -> Others:
        """What serves counterparts."""
        with self._lock:
            if self._others is None:
                self._others = Others(self.purse)
            return self._others

    def grading(self, machine: Loaded) -> Grading:
        """How a machine's runs are graded."""
        with self._lock:
            if self._judging is None:
                self._judging = self._judges(self.purse)
            known = self._gradings.get(id(machine))
            if known is None or known[0] is not machine:
                known = self._gradings[id(machine)] = machine, Grading(machine, self._judging)
            return known[1]

    def _judges(self, purse: Purse) -> Judging:
        model = self.access.judge_model or env.get("MACHINE_JUDGE_MODEL")
        return Judging(model, self.access.judge_effort, purse.judge)

    @contextlib.contextmanager
    def apart(self, verb: str, budget: Budget) -> Iterator[tuple[Purse, Judging]]:
        """A purse and judges of its own, for work that has its own budget."""
        purse = Purse(self.project, verb, limit(budget), self.access.price_as)
        judging = self._judges(purse)
        try:
            yield purse, judging
        finally:
            judging.close()

    def warn(self, text: str) -> None:
        """A warning to the logger."""
        log.warning("%s", text)

    def close(self) -> None:
        """Let go of engines, and put what was stored under its refs."""
        with self._lock:
            for part in (self._engines, self._others, self._judging):
                if part is not None:
                    part.close()
            self._engines = self._others = self._judging = None
            self._gradings.clear()
        with _stores_lock:
            store = _stores.get(self.project.store)
        if store is not None:
            store.close()


_stores: dict[str, Store] = {}
_stores_lock = threading.Lock()


def talk(line: str) -> None:
    """A line of talk of the verbs, to the logger `libmachine`."""
    warning = line.lower().startswith("warning: ")
    log.log(logging.WARNING if warning else logging.INFO, "%s", line[9:] if warning else line)

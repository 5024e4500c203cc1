"""machine-suite's work: a machine's cases, or its whole family's, run, graded and summed up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from libmachine import console, measure
from libmachine.canon import Record, now
from libmachine.converse import runner_of
from libmachine.converse_other import Others
from libmachine.folder import Folder
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import Loaded, load_folder
from libmachine.purse import Engines, Purse
from libmachine.run import Runner, Settings
from libmachine.store.store import Store
from libmachine.suite import figures
from libmachine.suite.cases import cases_of, no_cases, refuse_ungradable, warn_if_frozen, with_id


@dataclass
class Member:
    """One machine of the suite: what it is run on, how it is graded, the runs that came of it."""

    machine: Loaded
    cases: list[Record]
    grading: Grading
    runs: list[Record]


class Suite:
    """One suite. options: those of machine-suite by their names with underscores.

    Raises Untestable if there is nothing to run or to grade.
    """

    def __init__(self, folder: Folder, options: Mapping[str, Any], judging: Judging) -> None:
        self.folder, self.options = folder, options
        self.members = _members(folder, options, judging)
        self.bought = 0
        """Runs that were made now."""
        self._heads: list[Record] = []

    @property
    def total(self) -> int:
        """How many runs it takes."""
        cases = sum(len({case["identity"] for case in member.cases}) for member in self.members)
        return cases * int(self.options["trials"])

    def run(
        self,
        purse: Purse,
        store: Store,
        stop: threading.Event,
        step: Callable[[Record], None] = lambda run: None,
    ) -> None:
        """Run and grade. step: called with each graded run. What there is so far is in record() at any time.

        Raises BudgetReached, MachineError.
        """
        options = self.options
        engines = Engines(purse, options["harness"], options["model"], options["base_url"])
        others = Others(purse)
        try:
            runners = [_runner(member.machine, engines, others, store, options) for member in self.members]
            pairs = list(zip(self.members, runners, strict=True))
            self._heads = [_head(member, runner, options) for member, runner in pairs]
            for member, runner in pairs:
                if not stop.is_set():
                    self.bought += _measure(member, runner, store, options, stop, step)
        finally:
            engines.close()
            others.close()

    def record(self) -> Record:
        """The `suite` record, with its id: of the machine, or of its family."""
        if self.options["tree"]:
            return _family(self.folder, self.members, self._heads)
        return _record(self.members[0], self._heads[0])


def _members(folder: Folder, options: Mapping[str, Any], judging: Judging) -> list[Member]:
    """The machine, with --tree its descendants too. Raises Untestable if there is nothing to run or grade."""
    found = []
    for place in [folder, *folder.descendants()] if options["tree"] else [folder]:
        cases = cases_of(place, options["on"])
        machine = load_folder(place)
        if cases:
            refuse_ungradable(machine)
        elif options["tree"]:
            console.say(f"{place.name}: no cases, not run")
        found.append(Member(machine, cases, Grading(machine, judging), []))
    if not any(member.cases for member in found):
        raise no_cases(folder, options["on"])
    return [member for member in found if member.cases]


def _runner(
    machine: Loaded, engines: Engines, others: Others, store: Store, options: Mapping[str, Any]
) -> Runner:
    sampling = machine.sampling(**{name: options[name] for name in ("temperature", "max_tokens", "effort")})
    warn_if_frozen(sampling, options["trials"])
    settings = Settings(sampling=sampling, seed=options["seed"], resume=options["resume"])
    return runner_of(machine, engines.of(machine), store, settings, others.of(machine))


def _measure(
    member: Member,
    runner: Runner,
    store: Store,
    options: Mapping[str, Any],
    stop: threading.Event,
    told: Callable[[Record], None],
) -> int:
    """Run and grade one machine's cases; how many runs were bought."""

    def step(run: Record) -> None:
        member.runs.append(run)
        told(run)

    arms = [measure.Arm(member.machine.name, runner)]
    trials, concurrency = options["trials"], options["concurrency"]
    done = measure.measure(arms, member.cases, trials, member.grading, store, concurrency, stop, step)
    return done.bought


def _head(member: Member, runner: Runner, options: Mapping[str, Any]) -> Record:
    return {
        "machine": member.machine.name,
        "version": member.machine.version,
        "revision": runner.revision,
        "engine": [runner.engine.model, runner.engine.name],
        "rubric": member.grading.rubric,
        "on": options["on"],
        "trials": options["trials"],
    }


def _record(member: Member, head: Record) -> Record:
    """The record of one machine."""
    record = figures.suite(head, member.machine.criteria, member.cases, member.runs)
    return with_id("suite", {**record, "measured_at": now()})


def _family(folder: Folder, members: list[Member], heads: list[Record]) -> Record:
    """The record of the machine, empty if it has no cases of its own, with those of the family in it."""
    done = [_record(member, head) for member, head in zip(members, heads, strict=True)]
    common = figures.family([(r, m.machine.criteria, m.runs) for r, m in zip(done, members, strict=True)])
    first = done[0]
    if first["machine"] != folder.name:
        head = {**heads[0], "machine": folder.name, "version": folder.version()}
        first = {**figures.suite(head, load_folder(folder).criteria, [], []), "measured_at": now()}
    return with_id("suite", {**first, "family": {"members": done, "criteria": common}})

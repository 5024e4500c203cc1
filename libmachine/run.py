"""machine-run's work: cases in, stored runs out, each answer bought once.

A run's key is the hash of what decides its answer. A case whose key is stored is replayed
with today's id, target and metadata; a key that another process is buying is waited for.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from libmachine import env, pool
from libmachine.canon import Record, canonical, hash_of, plain
from libmachine.compact import Table
from libmachine.console import say
from libmachine.errors import CutShort, Interrupted, MachineError
from libmachine.folder import Folder
from libmachine.git import plumb
from libmachine.harness import loop
from libmachine.harness.base import Engine, Sampling
from libmachine.load import Loaded
from libmachine.record import arrange
from libmachine.redact import of_environment as redacted
from libmachine.redact import redactor
from libmachine.sandbox import rooms
from libmachine.sandbox.workspace import Workspace, why_not
from libmachine.splits import Splits
from libmachine.store.store import Store
from libmachine.tools import NOTHING, Context, Tool


@dataclass(frozen=True)
class Settings:
    """How to run: the options of machine-run that are part of, or act on, the key."""

    sampling: Sampling = field(default_factory=Sampling)
    limits: loop.Limits = field(default_factory=loop.Limits)
    trials: int = 1
    seed: int = 0
    resume: bool = True


@dataclass(frozen=True)
class Outcome:
    """One finished run. bought: it was run now, not replayed from the store."""

    run: Record
    bought: bool


@dataclass(frozen=True)
class Job:
    """One trial of one case, with the key of its answer. base: the key without the trial."""

    case: Record
    trial: int
    base: str
    key: str


class Runner:
    """Runs cases of one machine on one engine into one store.

    home, revision: where the machine's cases lie and the history stood, for one that was loaded
    from a copy of its files.
    """

    def __init__(
        self,
        machine: Loaded,
        engine: Engine,
        store: Store,
        settings: Settings,
        home: Folder | None = None,
        at_revision: Record | None = None,
    ) -> None:
        self.machine, self.engine, self.store, self.settings = machine, engine, store, settings
        self.tools = tool_set(machine.tools)
        self.splits = Splits(home or machine.folder)
        self.revision = at_revision or revision(machine)
        self.conditions = hash_of(self._conditions())
        self._redacted = redactor(env.secrets())
        self._trials = Table()
        self.stop = threading.Event()
        """Set: begin nothing new."""
        self.heard: Callable[[Record], None] = lambda message: None
        """Called with each message of a run as it comes; not for one that is replayed."""
        self.at: tuple[Workspace, str | None] | None = None
        """A directory that tools act on as it is, with the tree of what is in it; without, each run has its
        own with the files of its case."""

    def _conditions(self) -> Record:
        """What decides an answer, but for the case and the trial."""
        sampling = {name: value for name, value in self.settings.sampling.record().items() if name != "seed"}
        # What is refused without isolation would be run with it: another answer. With it, and without
        # a tool that acts on files, nothing is added.
        acts = any(tool.workspace for tool in self.tools.values())
        refusal = why_not() if acts else None
        if refusal:
            say(f"warning: {refusal}")
        return ({"isolated": False} if refusal else {}) | {
            "machine": self.machine.name,
            "instructions": self.machine.instructions,
            "tools": [[tool.schema, tool.source()] for tool in self.tools.values()],
            "model": self.engine.model,
            "harness": self.engine.name,
            "sampling": sampling,
            "seed": self.settings.seed,
            "limits": vars(self.settings.limits),
        }

    def afresh(self) -> Self:
        """The same, that counts trials from the first one on, as each command does."""
        other = copy.copy(self)
        other._trials = Table()
        return other

    def jobs(self, cases: Iterable[Record]) -> Iterator[Job]:
        """Each case with its trial numbers: from 1, or after the stored ones without resume.

        A case that comes again goes on counting, so trials never collapse.
        """
        for case in cases:
            base = self.base_of(case)
            last = self._trials.get(base)
            if last is None:
                last = 0 if self.settings.resume else self.store.last_trial(base)
            for trial in range(last + 1, last + self.settings.trials + 1):
                self._trials.set(base, trial)
                yield self.job(case, trial, base)

    def job(self, case: Record, trial: int, base: str | None = None) -> Job:
        """The job of one trial of a case. base: base_of(case), if it is known."""
        base = base or self.base_of(case)
        return Job(case, trial, base, hash_of([base, trial]))

    def base_of(self, case: Record) -> str:
        """The key of a case's answers, but for the trial."""
        return hash_of([self.conditions, case["identity"]])

    def run(
        self,
        cases: Iterable[Record],
        concurrency: int,
        ordered: bool,
        stop: threading.Event,
        then: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    ) -> Iterator[Outcome]:
        """Outcomes as they come, or in the order of the cases. then: done to each where it was run."""
        self.stop = stop

        def work(job: Job) -> Outcome | None:
            try:
                return then(self.finish(job))
            except CutShort:  # its turns are stored; whoever set stop says why
                return None

        done = pool.stream(work, self.jobs(cases), concurrency, ordered, stop)
        return (outcome for outcome in done if outcome is not None)

    def is_stored(self, job: Job) -> bool:
        """Would this job be replayed?"""
        return self.settings.resume and self.store.stored_answer(job.key) is not None

    def is_taken(self, job: Job) -> bool:
        """Has somebody begun to buy this trial?"""
        return self.store.stored_answer(job.key) is not None

    def finish(self, job: Job) -> Outcome:
        """Replay a job or run it, store it, and return it."""
        if (found := self._replay(job)) is not None:
            return found
        if not self.settings.resume:
            job = self._free(job)
        elif not self.store.wait_for(job.key, self.stop):
            raise Interrupted("interrupted while another command was at the same answer")
        try:
            # whoever held the key may have stored the answer meanwhile
            return self._replay(job) or self._buy(job)
        finally:
            self.store.release(job.key)

    def _free(self, job: Job) -> Job:
        """The job, or its next trial that nobody has bought or is buying, claimed."""
        while True:
            if self.store.claim(job.key):
                if not self.is_taken(job):
                    return job
                self.store.release(job.key)
            job = self.job(job.case, job.trial + 1, job.base)

    def _replay(self, job: Job) -> Outcome | None:
        run = self.stored(job.key) if self.settings.resume else None
        return None if run is None else Outcome(self.todays(run, job.case), False)

    def stored(self, key: str) -> Record | None:
        """The answer stored under a key, None if there is none that can be read."""
        row = self.store.stored_answer(key)
        if row is None:
            return None
        try:
            return self.store.load_run(row, scorecard=False)
        except MachineError as damage:
            say(f"warning: a stored answer cannot be read and is bought again: {damage}")
            return None

    def todays(self, run: Record, case: Record) -> Record:
        """A stored run with target and metadata as the caller gave them, on the side the case is on today."""
        run = {**run, "case": _case_of_run(case, run["case"]["input"])}
        return arrange("run", self._redacted({**run, "split": self.splits.of(case["identity"])}))

    def _buy(self, job: Job) -> Outcome:
        return Outcome(self.buy(job), True)

    def buy(
        self,
        job: Job,
        case_input: Any = None,
        turn: tuple[Any, ...] = (),
        tag: Callable[[Record], Record] = lambda finished: finished,
        finished: Record | None = None,
    ) -> Record:
        """Run a job, store the run and return it.

        For a turn of a conversation: case_input is what is asked in place of the case's own, turn
        enters the seed, tag adds to the loop's fields, finished: these, where nothing is to be asked.
        """
        case = job.case
        tokens: list[str] = []

        def keep(values: dict[str, Any]) -> str:
            tokens.append(self.store.blob(canonical(values)))
            return tokens[-1]

        seed = sent_seed(case["identity"], job.trial, self.settings.seed, *turn)
        sampling = replace(self.settings.sampling, seed=seed)

        def looped(context: Context) -> Record:
            return loop.run(
                self.engine,
                self.machine.instructions,
                case if case_input is None else {"input": case_input},
                self.tools,
                sampling,
                self.settings.limits,
                job.trial,
                keep,
                context,
                self.heard,
            )

        if finished is None:
            finished, parts = in_its_room(self.store, case, self.tools, looped, self.at)
        else:
            parts = {}
        parts |= {f"tokens.{number}": oid for number, oid in enumerate(tokens)}
        run: Record = {
            "v": 1,
            "type": "run",
            "machine": self.machine.name,
            "version": self.machine.version,
            "revision": self.revision,
            "case": _case_of_run(case, case["input"]),
            "trial": job.trial,
            "model": self.engine.model,
            "harness": self.engine.name,
            "sampling": sampling.record(),
            "limits": vars(self.settings.limits),
            "key": job.key,
            **tag(finished),
        }
        run = self._redacted(plain(run))
        stored = self.store.add_run(run, job.base, parts)
        return arrange("run", {**stored, "split": self.splits.of(case["identity"])})


def in_its_room(
    store: Store,
    case: Mapping[str, Any],
    tools: Mapping[str, Tool],
    looped: Callable[[Context], Record],
    at: tuple[Workspace, str | None] | None = None,
) -> tuple[Record, dict[str, str]]:
    """What the loop gives, with the trees of the case's files before and after, and those to be stored.

    A run has a directory of its own if a tool acts on one; without, its files stay as they came.
    at: as Runner.at.
    """
    acts = any(tool.workspace for tool in tools.values())
    if acts and at is not None:
        finished = looped(Context(at[0]))
        return _with_trees(finished, at[1], rooms.keep(store, at[0]))
    if not acts and not case.get("files"):
        return looped(NOTHING), {}
    before = store.files(redacted(case.get("files") or {}))
    after: str | None = before
    if acts:
        with rooms.room(store, before) as workspace:
            finished = looped(Context(workspace))
            after = rooms.keep(store, workspace)
    else:
        finished = looped(NOTHING)
    return _with_trees(finished, before, after)


def _with_trees(finished: Record, before: str | None, after: str | None) -> tuple[Record, dict[str, str]]:
    trees = {"before": before, "after": after if after != before else None}
    named = {name: tree for name, tree in trees.items() if tree is not None}
    return {**finished, "workspace": {"before": before, "after": after}}, named


def _case_of_run(case: Mapping[str, Any], case_input: Any) -> Record:
    """A case as it stands in a run: without its files, which the workspace holds."""
    kept = {"id": case["id"], "identity": case["identity"], "input": case_input}
    return kept | {name: case[name] for name in ("target", "metadata") if case.get(name) is not None}


def sent_seed(identity: str, trial: int, seed: int, *turn: Any) -> int:
    """The seed an engine gets: 31 bits of a hash of case, trial and --seed; of a turn of a conversation
    its side and number too.

    Never the bare trial number: one seed for all cases would correlate them, and the error
    over cases would be wrong.
    """
    return int(hash_of([identity, trial, seed, *turn])[:8], 16) & 0x7FFFFFFF


def tool_set(functions: Iterable[Any]) -> dict[str, Tool]:
    """Name -> tool. Raises MachineError for two of one name."""
    tools: dict[str, Tool] = {}
    for function in functions:
        tool = Tool(function)
        if tool.name in tools:
            raise MachineError(f"two tools are called '{tool.name}'; rename one")
        tools[tool.name] = tool
    return tools


def revision(machine: Loaded) -> Record:
    """Where the project's history stands, and whether the machine's files differ from it."""
    where = plumb.position(machine.folder.path)
    if where is None:
        return {"commit": None, "dirty": None}
    commit = where[1]
    if commit is None:
        return {"commit": None, "dirty": True}
    committed = plumb.files_at(machine.folder.path, commit)
    return {"commit": commit, "dirty": committed != machine.folder.blobs()}

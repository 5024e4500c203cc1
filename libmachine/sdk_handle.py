"""A machine in the Python face: one handle, the work of the commands as its methods."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from libmachine import pool, promote
from libmachine.canon import Record
from libmachine.case import read_case
from libmachine.commit import Live, revert
from libmachine.converse import Conversations
from libmachine.errors import MachineError, Untestable
from libmachine.folder import read_cases
from libmachine.git import refs
from libmachine.grade import due
from libmachine.mark import mark
from libmachine.run import Outcome
from libmachine.sdk_base import Base
from libmachine.sdk_candidate import Candidate
from libmachine.sdk_options import (
    EXPORT,
    OPTIMIZE,
    SUITE,
    TRAIN,
    Budget,
    ExportOptions,
    OptimizeOptions,
    SamplingOptions,
    TrainOptions,
    filled,
    limit,
)
from libmachine.sdk_run import Event, FinishedRun, Running, Teller, stoppable
from libmachine.sdk_session import Session
from libmachine.session import Past, latest, new_name
from libmachine.session import Session as Exchanges
from libmachine.versions import Version, versions

Files = Mapping[str, str]
"""Path -> text of the files of a working directory."""


class Handle(Base):
    """A machine: run it, grade, train, change what is live. Made by machine.load() and machine.define().

    Methods that take long block; in async code, call them by asyncio.to_thread. They raise MachineError
    and its kinds: Untestable, CommitRefused, BudgetReached (libmachine.budget.ledger), Interrupted. Talk
    goes to the logger `libmachine`. Safe to use from several threads. close() lets go of engines and files;
    so does the end of a `with`, and the end of the program.
    """

    # running -----------------------------------------------------------------------------

    def run(
        self,
        input: str | Sequence[Record],
        *,
        files: Files | None = None,
        target: Any = None,
        metadata: Mapping[str, Any] | None = None,
        trial: int = 1,
        resume: bool = True,
        grade: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Running:
        """Run the machine on a text or on messages in OpenAI's chat form; begins at the first use.

        files: what its working directory holds at the start, for a machine whose tools act on files.
        target, metadata: for its graders; no model sees them. trial: its number, from 1: the same case with
        the same number is replayed from the store, as by machine-run. resume: False buys a new trial
        whatever is stored. grade: with a scorecard. Raises MachineError for a case or a setting that is none.
        """
        fields = {"input": input, "files": files, "target": target, "metadata": metadata}
        case = read_case({name: value for name, value in fields.items() if value is not None})
        runner = self._runner(sampling, resume)

        def work(tell: Callable[[Event], None]) -> FinishedRun:
            mine, teller = copy.copy(runner), Teller(tell)
            mine.stop = threading.Event()
            if isinstance(mine, Conversations):
                mine.watch = teller.turn
            else:
                mine.heard = teller.message
            (job,) = [mine.job(case, trial)] if resume else mine.jobs([case])
            outcome = mine.finish(job)
            record = self._graded(outcome.run) if grade else outcome.run
            run = FinishedRun(record, mine.store, outcome.bought)
            teller.result(run)
            return run

        return Running(work)

    def run_sync(self, input: str | Sequence[Record], **options: Any) -> FinishedRun:
        """run(...).sync(): the finished run."""
        return self.run(input, **options).sync()

    def run_all(
        self,
        cases: str | Iterable[Any] = "cases.jsonl",
        *,
        trials: int = 1,
        resume: bool = True,
        grade: bool = False,
        ordered: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[FinishedRun]:
        """Run many cases, each `trials` times, several at once; finished runs as they come.

        cases: a file, one of that name in the machine's folder, or cases (a text, an object as in
        cases.jsonl). ordered: in the order of the cases. Leaving the loop begins nothing new. Raises
        MachineError for a case that is none, BudgetReached.
        """
        if isinstance(cases, str):
            inside = self.machine.folder.file(cases)
            cases = read_cases(inside if not Path(cases).exists() and Path(inside).exists() else cases)
        runner = self._runner(sampling, resume, trials).afresh()
        found, stop = [read_case(_bare(case)) for case in cases], threading.Event()

        def then(outcome: Outcome) -> Outcome:
            return Outcome(self._graded(outcome.run), outcome.bought) if grade else outcome

        try:
            for outcome in runner.run(found, self._access.concurrency, ordered, stop, then):
                yield FinishedRun(outcome.run, runner.store, outcome.bought)
        finally:
            stop.set()

    def session(
        self,
        auto_grade: bool = False,
        cwd: str | Path | None = None,
        *,
        files: Files | None = None,
        proceed: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Session:
        """Talk with the machine: several exchanges in one working directory, each a stored run.

        auto_grade: each with its scorecard as it finishes. cwd: an existing directory that tools act on;
        without it they have a private one, with `files` in it, that is gone at the end. proceed: go on with
        the session of this machine that was last spoken in. Raises MachineError if there is none.
        """
        store = self._open.store
        past = latest(store, self.name) if proceed else None
        if files is not None:
            if cwd is not None or proceed:
                raise MachineError("files are for a new session in a directory of its own; leave them out")
            found = read_case({"input": "", "files": dict(files)})["files"]
            past = Past(new_name(), files=store.files(found))
        runner = copy.copy(self._plain_runner(sampling))
        exchanges = Exchanges(runner, None if cwd is None else Path(cwd), past)
        return Session(exchanges, self._graded if auto_grade else None)

    # what is stored ----------------------------------------------------------------------

    def runs(self, newest_first: bool = True) -> Iterator[FinishedRun]:
        """The machine's stored runs, whatever its version, with their newest scorecards."""
        store = self._open.store
        for row in store.index.runs(self.name, newest_first) if store.has_records() else ():
            yield FinishedRun(store.load_run(row), store, False)

    def pending(self) -> list[FinishedRun]:
        """The stored runs that are due for grading, oldest first: never graded, graded by another rubric, by
        other graders or for another target, or left without a score."""
        store = self._open.store
        return [FinishedRun(run, store, False) for run in due(store, self._open.grading(self.machine))]

    def grade(self, runs: Iterable[FinishedRun] | None = None) -> list[FinishedRun]:
        """Grade what is due, or the runs that are given; what is known is not asked again.

        Returns them with their scorecards. Failed runs are missing data and get none.
        """
        asked = [dict(run.record) for run in (self.pending() if runs is None else runs)]
        workers = self._access.concurrency

        def work(stop: threading.Event) -> list[Record]:
            return list(pool.stream(lambda run: self._graded(run, stop), asked, workers, True, stop))

        return [FinishedRun(run, self._open.store, False) for run in stoppable(work)]

    def mark(
        self, run: FinishedRun, good: bool | float, note: str | None = None, criterion: str | None = None
    ) -> Record:
        """A person's mark of a run, beside the machine's own grades: True, False, or a score in 0..1.

        note: why, or what should change. Returns the scorecard. Raises MachineError for an unknown criterion.
        """
        score = float(good)
        if not 0 <= score <= 1:
            raise MachineError(f"a mark is {good!r}; it is True, False or a number from 0 to 1")
        return mark(self.project, self._open.store, dict(run.record), score, note, criterion)

    def export(self, form: str = "openai", **options: Unpack[ExportOptions]) -> Iterator[Record]:
        """Training examples of the machine's graded runs, as machine-export makes them; held-out cases are
        left out. form: openai, cookbook, trl or dpo. What was left out is told to the logger."""
        from libmachine import console, export
        from libmachine.export_runs import dataset, from_store

        if form not in export.FORMATS:
            raise MachineError(f"no form '{form}'; there are: {', '.join(export.FORMATS)}")
        asked = filled(EXPORT, options, "export")
        dropped = export.Dropped()
        found = from_store(self.project, asked["parent"] or self.name, asked["tree"])
        yield from dataset(self.project, self.name, found, form, asked, dropped)
        for line in dropped.told():
            console.say(line)

    # measuring and changing --------------------------------------------------------------

    def suite(self, on: str = "cases", trials: int = 1, tree: bool = False, budget: Budget = None) -> Record:
        """Run and grade the machine's cases; the `suite` record. on: cases, holdout or a file. tree: those
        of its children too. Raises Untestable if there is nothing to run or to grade."""
        from libmachine.suite.work import Suite

        given = {"on": on, "trials": trials, "tree": tree, **self._access.engine()}
        options = {**SUITE, **given, "seed": self._access.seed, "concurrency": self._access.concurrency}
        with self._open.apart("suite", budget) as (purse, judging):
            suite = Suite(self.machine.folder, options, judging)
            stoppable(lambda stop: suite.run(purse, self._open.store, stop))
            purse.told(f"suite {self.name}")
        return suite.record()

    def train(
        self, budget: Budget = None, samples: int = 0, trials: int = 3, **options: Unpack[TrainOptions]
    ) -> Candidate:
        """Let the model learn from its own best runs, and judge the result: as machine-train does.

        samples: sample each case so often first; 0: learn from the stored runs. trials: of the gate. budget:
        US dollars for all of it. Nothing of the machine changes. Training runs in this Python if it has the
        extra `sft`, else in MACHINE_PYTHON. Raises MachineError if there is nothing to learn from, Untestable
        if the gate cannot judge (the candidate waits all the same).
        """
        from libmachine import sdk_train

        given = {**options, "samples": samples, "trials": trials}
        asked = {**filled(TRAIN, given, "train"), **self._access.judges(), "harness": self._access.harness}
        asked |= {"seed": self._access.seed, "concurrency": self._access.concurrency}
        asked |= {"budget": limit(budget), "price_as": self._access.price_as}
        report = sdk_train.train(self.project, self.name, asked, self.in_code)
        return Candidate(self, report["version"], report, report["verdict"])

    def optimize(
        self, budget: Budget = None, *, gate: bool = True, **options: Unpack[OptimizeOptions]
    ) -> Candidate:
        """Let an author model propose instructions and the measurement decide: as machine-optimize does.

        budget: US dollars for the search. gate: ask the gate for its verdict on what is kept. The candidate
        has no version where nothing was worth keeping. Raises Untestable for a machine without cases or
        criteria, BudgetReached and Interrupted (what was found so far is stored).
        """
        from libmachine.optimize.work import Search

        asked = {**filled(OPTIMIZE, options, "optimize"), **self._access.judges()}
        asked |= {"harness": self._access.harness, "seed": self._access.seed}
        asked |= {"concurrency": self._access.concurrency}
        search = Search(self.project, self.name, asked, pend=True)
        with self._open.apart("optimize", budget) as (purse, _):
            record, failure = stoppable(lambda stop: search.run(purse, stop))
            purse.told(f"optimize {self.name}: {record['decision']}")
        if failure is not None:
            raise failure
        if not record.get("pending"):
            return Candidate(self, None, record)
        version = refs.read_candidate(self.repository, self.name, record["pending"])[0]["version"]
        candidate = Candidate(self, version, record)
        if gate:
            try:
                candidate.gate(asked["trials"], budget)
            except Untestable as error:
                self._open.warn(f"candidate {version[:12]} is not judged: {error}")
        return candidate

    def update(self, instructions: str | None = None, model: str | None = None) -> Candidate:
        """Record a version by hand: the live one with other instructions or another model, as a candidate.

        Nothing is live by it: ask its gate(), then commit() it. Raises MachineError if nothing differs.
        """
        if instructions is None and model is None:
            raise MachineError("nothing to update; give instructions or a model")
        text = None if instructions is None else instructions.encode()
        record = promote.propose(self.repository, self._open.store, self.name, model, text)
        return Candidate(self, record["version"], record)

    def candidate(self, version: str | None = None) -> Candidate:
        """A candidate that waits, by its version or the first digits of it; else the newest. Raises
        MachineError if there is none."""
        repo = self.repository
        waiting = refs.candidates(repo, self.name)
        if version is None and not waiting:
            raise MachineError(f"no candidate of '{self.name}' waits; train, optimize or update makes one")
        record, _ = refs.read_candidate(repo, self.name, version or waiting[-1].id)
        return Candidate(self, record["version"], record)

    def versions(self) -> list[Version]:
        """The recorded versions in order, the live one marked."""
        return versions(self.project, self.repository, self.name)

    def revert(self, to: str | None = None) -> Live:
        """Make the version before the live one live again, or the one that `to` names (vN, a commit, an id).

        Raises MachineError if there is none, or the folder has changes that are not live.
        """
        live = revert(self.project, self.repository, self.name, to)
        self.reload()
        return live


def _bare(case: Any) -> Any:
    """A case that was read already, as it is written in a file."""
    if not isinstance(case, dict):
        return case
    return {name: value for name, value in case.items() if name != "identity"}

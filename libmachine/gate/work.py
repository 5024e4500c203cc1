"""machine-gate's work: is this version better than the live one, on held-out cases, honestly?

Both versions are run anew with today's tools, interleaved, and graded by one rubric. What
was measured goes into a Verdict with every trial score of both arms, stored as a record
and noted on the candidate's version tree, where hooks find it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from libmachine import measure, prices
from libmachine.canon import Record, hash_of, now, plain
from libmachine.case import is_kept_out
from libmachine.converse import Facing, runner_of
from libmachine.errors import Interrupted, MachineError, Untestable
from libmachine.folder import Folder
from libmachine.folders import make_private
from libmachine.gate import figures as gate_figures
from libmachine.gate import rule as gate_rule
from libmachine.gate.question import Question, control_of, simple_answer, stored_verdict, tries_so_far
from libmachine.gate.reuse import first_stored
from libmachine.git import notes, refs, trees
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.grade import Grading
from libmachine.harness.base import Engine
from libmachine.judging import Judging
from libmachine.leaks import leaks
from libmachine.load import Loaded, load_folder
from libmachine.record import record_id
from libmachine.run import Runner, Settings
from libmachine.store.store import Store

_REUSED = "live_reused: the live version's runs are stored ones, not interleaved with the candidate's"


@dataclass(frozen=True)
class Terms:
    """How to measure and what to hold the result to. on: score or passed."""

    trials: int = 3
    on: str = "score"
    rule: Mapping[str, Any] = field(default_factory=lambda: dict(gate_rule.RULE))
    concurrency: int = 4
    seed: int = 0
    again: bool = False
    reuse_live: bool | None = False
    """Take stored runs of the live version. None: if they would cost money."""


class Gate:
    """One gate's measurement. open_engine: a loaded machine, and the models compared -> its engine.

    other: a loaded machine -> its counterpart as it is today, the same for both arms.
    """

    def __init__(
        self,
        repo: Repository,
        store: Store,
        question: Question,
        terms: Terms,
        open_engine: Callable[[Loaded, Sequence[str | None]], Engine],
        judging: Judging,
        home: Folder,
        other: Callable[[Loaded], Facing | None] = lambda machine: None,
    ) -> None:
        self.repo, self.store, self.question, self.terms = repo, store, question, terms
        self._open, self.judging, self.home, self._other = open_engine, judging, home, other
        self._engines: dict[str, Engine] = {}
        self._together: list[str | None] = []
        self._reused: int | None = None

    def verdict(
        self,
        stop: threading.Event,
        step: Callable[[Record], None] = lambda run: None,
        expect: Callable[[int], None] = lambda runs: None,
    ) -> Record:
        """Measure and decide. The verdict is stored and noted, unless it was stored already.

        expect is told how many runs come, before each measurement; step is called with each of them.
        Raises Untestable for a machine that cannot be gated or has no exam, and when interrupted.
        """
        self._expect = expect
        question = self.question
        for version in (question.baseline, question.candidate):
            if version.place is not None:
                refs.record_version(self.repo, question.name, version.place)
        answer = simple_answer(self.repo, question)
        if answer is not None:
            return self._keep(self._plain_verdict(*answer))
        with self._loaded() as (live, candidate, judge):
            for machine in (live, candidate, judge):
                if machine.ungateable:
                    raise Untestable(machine.ungateable)
            exams = (folder.cases("holdout.jsonl") for folder in judge.folder.family())
            exam = next((found for found in exams if found), [])
            cases = [case for case in exam if not is_kept_out(case)]
            if exam and not cases:
                raise Untestable(
                    f"every held-out case of '{question.name}' failed a control and is kept out; mend them, "
                    f"then: machine-suite {question.name} --on holdout --oracle FILE --keep-out"
                )
            if not cases:
                raise Untestable(
                    f"'{question.name}' has no held-out cases; write {self.home.file('holdout.jsonl')}"
                )
            grading = Grading(judge, self.judging)
            wanted = {
                "graders": judge.source,
                "rubric": grading.rubric,
                "on": self.terms.on,
                "rule": plain(dict(self.terms.rule)),
            }
            known = stored_verdict(self.repo, question, wanted)
            if known is not None and not self.terms.again:
                return known
            verdict = self._measured(live, candidate, grading, cases, stop, step)
            out = [case["id"] for case in exam if is_kept_out(case)]
            found = [f"kept_out: {len(out)} failed a control: {', '.join(out[:5])}"] if out else []
            found += leaks(judge.folder.cases("cases.jsonl"), cases, candidate.instructions)
            control = control_of(refs.candidate_of(self.repo, question.name, question.candidate.tree))
            if control is not None:
                found.append(f"control: the candidate is a control ({control}): it must not pass")
            return self._keep({**verdict, "warnings": [*verdict["warnings"], *found]})

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[tuple[Loaded, Loaded, Loaded]]:
        """Both arms with the tools' code and their own text and model, and the machine that judges."""
        question = self.question
        with tempfile.TemporaryDirectory() as scratch:

            def at(label: str, place: Place) -> Loaded:
                os.mkdir(f"{scratch}/{label}")
                root = trees.materialise(place, question.name, f"{scratch}/{label}")
                try:
                    return load_folder(Folder(root, question.name))
                except MachineError as error:
                    raise Untestable(f"the {label} version does not load: {error}") from None

            def arm(label: str, version: refs.Named) -> Loaded:
                files = refs.version_files(self.repo, version.tree)
                tools = question.tools
                # the rubric that grades is the judge's; an arm is loaded with those its code has graders for
                for depth, member in enumerate(tools.family(question.name)):
                    path = "parent/" * depth + "rubric.toml"
                    files.pop(path, None)
                    if (rubric := tools.read(f"{tools.prefix}/{member}/rubric.toml")) is not None:
                        files[path] = rubric
                loaded = at(label, trees.with_version(tools, question.name, files))
                return replace(loaded, version=version.tree)

            yield (
                arm("live", question.baseline),
                arm("candidate", question.candidate),
                at("judge", question.judge),
            )

    def _measured(
        self,
        live: Loaded,
        candidate: Loaded,
        grading: Grading,
        cases: list[Record],
        stop: threading.Event,
        step: Callable[[Record], None],
    ) -> Record:
        self._together = [live.model.model, candidate.model.model]
        runners = {"live": self._runner(live, False), "candidate": self._runner(candidate, True)}
        session = _Session(
            self.store,
            hash_of(
                [
                    self.question.baseline.tree,
                    self.question.candidate.tree,
                    self.question.holdout,
                    grading.rubric,
                    self.terms.seed,
                ]
            ),
        )
        identities = sorted({case["identity"] for case in cases})
        by_identity = {case["identity"]: case for case in cases}
        groups = [(by_identity[i].get("metadata") or {}).get("group") for i in identities]
        if self._reuses(runners["live"]):
            unwanted = self._promoting()
            self._reused = first_stored(self.store, runners["live"], cases, self.terms.trials, unwanted)
        measured = self._look("first", runners, session, grading, cases, stop, step)
        arms: Record = {
            "cases": identities,
            **({"groups": groups} if any(groups) else {}),
            **self._scores(measured, identities),
        }
        guards = {c.id: c.guard for c in grading.machine.criteria if c.guard is not None}
        if guards:
            arms["guards"] = {
                name: {"guard": guard, **self._scores(measured, identities, name)}
                for name, guard in guards.items()
            }
        looks = self.store.looks(self.question.name)
        tries = 1 + tries_so_far(self.repo, self.question, identities, looks)
        figures = gate_rule.decide(arms, tries, self.terms.rule)
        seen = [measured]
        if gate_rule.needs_confirmation(figures, self.terms.rule):
            seen.append(self._look("confirm", runners, session, grading, cases, stop, step))
            arms["confirm"] = self._scores(seen[1], identities)
            figures = gate_rule.decide(arms, tries, self.terms.rule)
        session.close()
        reused = {} if self._reused is None else {"reused": len(identities) * self.terms.trials}
        if reused:
            figures["warnings"] = [*figures["warnings"], _REUSED]
        return {
            **self._head(),
            "rubric": grading.rubric,
            "graders": grading.machine.source,
            "on": self.terms.on,
            "cases": len(identities),
            "trials": self.terms.trials,
            "arms": arms,
            **reused,
            **figures,
            "rule": {**self.terms.rule},
            "criteria": gate_figures.criteria(measured, grading.machine.criteria),
            "about": {name: gate_figures.about(list(measured.all(name))) for name in measured.runs},
            "judges": sorted(gate_figures.judges_of(measured)),
            "engine": {name: [r.engine.model, r.engine.name] for name, r in runners.items()},
            "evidence": sorted(run["id"] for look in seen for name in look.runs for run in look.all(name)),
        }

    def _look(
        self,
        label: str,
        runners: Mapping[str, Runner],
        session: _Session,
        grading: Grading,
        cases: list[Record],
        stop: threading.Event,
        step: Callable[[Record], None],
    ) -> measure.Measured:
        """One measurement of both arms on trials that neither has used; one that was cut off goes on."""
        first = session.first_trials(label, runners, cases, self.terms.trials)
        if label == "first" and self._reused is not None:
            first = {**first, "live": self._reused}
        arms = [measure.Arm(name, runner, first[name]) for name, runner in runners.items()]
        self._expect(len(arms) * self.terms.trials * len({case["identity"] for case in cases}))
        measured = measure.measure(
            arms, cases, self.terms.trials, grading, self.store, self.terms.concurrency, stop, step
        )
        if measured.interrupted:
            raise Interrupted("interrupted; what was run is stored, the same command goes on from there")
        return measured

    def _reuses(self, live: Runner) -> bool:
        if self.terms.reuse_live is None:
            return getattr(live.engine, "price", prices.FREE) != prices.FREE
        return self.terms.reuse_live

    def _promoting(self) -> set[str]:
        """Runs on which the live version was promoted: they passed by being good, and would do so again."""
        used: set[str] = set()
        for line in notes.read(self.repo, self.question.baseline.tree):
            if line.get("type") == "verdict" and line.get("candidate") == self.question.baseline.tree:
                with contextlib.suppress(MachineError):
                    used.update(self.store.load_record(line["id"], "verdict").get("evidence", ()))
        return used

    def _runner(self, machine: Loaded, is_candidate: bool) -> Runner:
        commit = None if is_candidate else self.question.base_commit
        settings = Settings(sampling=machine.sampling(), seed=self.terms.seed)
        revision = {"commit": commit, "dirty": None if commit is None else False}
        engine, facing = self._engine(machine), self._other(machine)
        return runner_of(machine, engine, self.store, settings, facing, self.home, revision)

    def _engine(self, machine: Loaded) -> Engine:
        """One engine for both arms where they name one model: the same server, the same adapters."""
        key = json.dumps([machine.model.model, machine.model.harness])
        if key not in self._engines:
            self._engines[key] = self._open(machine, self._together)
        return self._engines[key]

    def close(self) -> None:
        """Let go of the engines."""
        for engine in self._engines.values():
            engine.close()

    def _scores(
        self, measured: measure.Measured, identities: Sequence[str], criterion: str | None = None
    ) -> dict[str, list[list[float | None]]]:
        def value(run: Record) -> float | None:
            if criterion is not None:
                return measure.criterion_score(run, criterion)
            if self.terms.on == "passed":
                passed = measure.passed_of(run)
                return None if passed is None else float(passed)
            return measure.score_of(run)

        return {
            name: [[value(run) for run in measured.runs[name].get(i, [])] for i in identities]
            for name in measured.runs
        }

    def _head(self) -> Record:
        question = self.question
        return {
            "v": 1,
            "type": "verdict",
            "machine": question.name,
            "baseline": question.baseline.tree,
            "candidate": question.candidate.tree,
            "base_commit": question.base_commit,
            "holdout": question.holdout,
        }

    def _plain_verdict(self, decision: str, reasons: list[str]) -> Record:
        return {**self._head(), "decision": decision, "reasons": reasons, "warnings": []}

    def _keep(self, verdict: Record) -> Record:
        """Store a verdict, and note a measured one on the candidate's version tree."""
        verdict = plain({**verdict, "decided_at": now()})
        if "arms" not in verdict:
            return {**verdict, "id": record_id(verdict)}
        stored = self.store.add_record(verdict)
        line = {name: value for name, value in stored.items() if name != "evidence"}
        notes.append(self.repo, self.question.candidate.tree, line)
        return stored


class _Session:
    """The trial numbers of a gate under way, kept in the store so that one cut off goes on, not anew."""

    def __init__(self, store: Store, key: str) -> None:
        self.path = f"{store.directory}/gates/{key}.json"
        self.store = store
        try:
            with open(self.path) as file:
                self.first: dict[str, dict[str, int]] = json.load(file)
        except (FileNotFoundError, ValueError):
            self.first = {}

    def first_trials(
        self, label: str, runners: Mapping[str, Runner], cases: list[Record], trials: int
    ) -> dict[str, int]:
        """Arm -> number of its first trial. Arms with one key take turns: their trials must differ."""
        if label not in self.first:
            used: dict[str, int] = {}
            chosen = {}
            for name, runner in runners.items():
                last = max(self.store.last_trial(runner.base_of(case)) for case in cases)
                last = max(last, used.get(runner.conditions, 0))
                chosen[name] = last + 1
                used[runner.conditions] = last + trials
            self.first[label] = chosen
            make_private(os.path.dirname(self.path))
            with open(f"{self.path}.tmp", "w") as file:
                json.dump(self.first, file)
            os.rename(f"{self.path}.tmp", self.path)
        return self.first[label]

    def close(self) -> None:
        """The verdict is there: the next gate takes fresh trials."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

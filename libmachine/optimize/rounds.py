"""machine-optimize's work: an author proposes instructions, the measurement decides, the person commits.

Each round asks the built-in machine `optimizer` for instructions from a parent of the pool's
per-case front, tries the reply on a few cases, and measures what holds on all. At the end the best
is decided on: a gain beyond noise on cases.jsonl, and no loss on the held-out cases, which are run
for that one decision and are shown to nobody. All runs are stored, the author's too, under keys that
do not depend on the order of work: the same command goes on where it was cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from libmachine import measure
from libmachine.canon import Record, now, plain
from libmachine.case import read_case
from libmachine.converse import Facing, runner_of
from libmachine.errors import Interrupted
from libmachine.grade import Grading, grade_and_store
from libmachine.harness.base import Engine
from libmachine.leaks import leaks
from libmachine.load import Loaded, with_instructions
from libmachine.optimize import material, reply, rule
from libmachine.optimize.pool import Member, Move, next_move, screen_of, screened, trimmed
from libmachine.optimize.record import Text, arms, in_words, pool, sides
from libmachine.run import Runner, Settings, revision, tool_set
from libmachine.splits import Splits
from libmachine.store.store import Store
from libmachine.suite.figures import spend

STOPPED = "interrupted; what was run is stored, the same command goes on from there"
TRIED = 3
"""Proposals made before from the same parent that the author is shown."""


@dataclass(frozen=True)
class Terms:
    """How to search and what to hold the result to. screen: cases on which a proposal is tried first, 0
    for none. pool: members kept. room: characters that the author is shown at most."""

    rounds: int = 3
    trials: int = 3
    min_z: float = 2.0
    screen: int = 8
    pool: int = 8
    merge: bool = True
    confirm: bool = True
    seed: int = 0
    concurrency: int = 4
    room: int = material.ROOM


@dataclass(frozen=True)
class Sides:
    """Who is optimised on what, and who proposes. exam: held-out cases, where there are any. facing: who
    plays the other side, where cases are conversations."""

    machine: Loaded
    cases: Sequence[Record]
    exam: Sequence[Record]
    grading: Grading
    engine: Engine
    author: Loaded
    author_grading: Grading
    author_engine: Engine
    facing: Facing | None = None


class Optimization:
    """One search. step: called with each graded run of the machine; told: with each line of talk."""

    def __init__(
        self,
        sides: Sides,
        store: Store,
        terms: Terms,
        stop: threading.Event,
        step: Callable[[Record], None] = lambda run: None,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.sides, self.store, self.terms = sides, store, terms
        self.stop, self.step, self.told = stop, step, told
        unique = {case["identity"]: case for case in sides.cases}
        self.identities = sorted(unique)
        self.cases = [unique[identity] for identity in self.identities]
        self.splits = Splits(sides.machine.folder)
        self.texts: list[Text] = []
        self.members: list[Member] = []
        self.alive: list[Member] = []
        self.moves: list[Record] = []
        self.merged: set[tuple[int, ...]] = set()
        self.warnings: list[str] = []
        if not sides.exam:
            self.warnings.append("no_holdout: no held-out cases; the gain is judged on the cases alone")
        self.runs: dict[str, Record] = {}
        self.author_runs: dict[str, Record] = {}
        self.proposals = 0
        self._began = now()
        self.decision, self.reasons = "unfinished", ["unfinished: the search was cut short"]
        self.chosen: int | None = None
        self.figures: Record = {}
        self.arms: Record = {}
        self.exam: Record | None = None
        author = sides.author
        self._author = Runner(
            author, sides.author_engine, store, Settings(sampling=author.sampling(), seed=terms.seed)
        )
        fixed = sides.machine.parent.instructions if sides.machine.parent else ""
        tools = [tool.schema for tool in tool_set(sides.machine.tools).values()]
        self._about = material.About(sides.machine.intent, tools, sides.machine.criteria, fixed)

    # the search --------------------------------------------------------------------------

    def run(self, baseline: str) -> None:
        """Search from these instructions and decide. What was found so far is in record() at any time.

        Raises Refused when the money is out, Interrupted when stopped.
        """
        first = self._text(baseline)
        self._measure([first], self.cases, self.terms.trials)
        self._enter(first, ())
        if self.members[0].mean is None:
            return self._end("untestable", "no_score: no run of the baseline could be graded")
        if not any(one.fails for one in self._seen(0)):
            return self._end("discard", "nothing_fails: every case passes in every trial")
        grew = False
        for number in range(1, self.terms.rounds + 1):
            chance = Random(f"{self.terms.seed} {number}")
            move = next_move(self.alive, self.merged, grew, self.terms.merge, chance)
            grew = self._round(number, move, chance)
        self._decide()

    def _round(self, number: int, move: Move, chance: Random) -> bool:
        """One move; whether the pool grew by it."""
        if self.stop.is_set():
            raise Interrupted(STOPPED)
        told: Record = {"round": number, "move": move.kind, "parents": list(move.parents)}
        told["outcome"] = "unfinished"
        self.moves.append(told)
        if move.kind == "merge":
            self.merged.add(move.parents)
        run, text, fault = self._ask(move)
        told |= {"run": run["id"], "outcome": "failed" if run["status"] == "failed" else "no_proposal"}
        if text is None:
            return self._say(told | {"why": fault})
        proposal = self._text(text)
        told |= {"version": proposal.runner.machine.version, "instructions": text}
        if known := self._known(text):
            return self._say(told | {"outcome": "known", "why": known})
        self.proposals += 1
        told["outcome"] = "unfinished"
        parents = [self.members[parent].scores for parent in move.parents]
        if places := screen_of(parents, self.terms.screen, chance):
            self._measure([proposal], [self.cases[place] for place in places], 1)
            found = proposal.scores([self.identities[place] for place in places])
            screen = screened([[scores[p] for p in places] for scores in parents], found)
            told["screen"] = screen._asdict()
            if not screen.passed:
                return self._say(told | {"outcome": "screened_out"})
            proposal.runs.clear()
        self._measure([proposal], self.cases, self.terms.trials)
        self._enter(proposal, move.parents)
        told |= {"outcome": "measured", "member": self.members[-1].number, "mean": self.members[-1].mean}
        return not self._say(told)

    def _known(self, text: str) -> str:
        """Where the text was seen before in this search; empty if it is new."""
        if reply.same(self.texts[0].text, text):
            return "the baseline again"
        before = [m for m in self.moves[:-1] if reply.same(m.get("instructions", ""), text)]
        return f"as in round {before[0]['round']}" if before else ""

    def _say(self, told: Record) -> bool:
        """Note what came of a round, and tell it. Always False."""
        self.moves[-1] = told
        self.told(in_words(told))
        return False

    def _ask(self, move: Move) -> tuple[Record, str | None, str]:
        """The author's run, the instructions it proposes (None: none to use), and why not."""
        texts = [self.texts[parent].text for parent in move.parents]
        seen = [self._seen(parent) for parent in move.parents]
        if len(texts) == 2:
            page = material.of_two(self._about, texts, seen, self.terms.room)
        else:
            tried = self._tried(move.parents[0])
            page = material.of_one(self._about, texts[0], seen[0], tried, self.terms.room)
        case = read_case({"input": page, "target": self._answer_key(texts), "metadata": self._whose(texts)})
        (job,) = self._author.jobs([case])
        outcome = self._author.finish(job)
        run, _ = grade_and_store(self.sides.author_grading, self.store, outcome.run, stop=self.stop)
        self.author_runs[run["id"]] = run
        if run["status"] == "failed":
            return run, None, f"the author failed: {run['error']['message']}"
        if run["status"] != "ok":
            return run, None, f"the author was stopped by {run['stop_reason']}"
        reading = reply.read(run["output"])
        if reading.text is None:
            return run, None, reading.fault
        if any(reply.same(reading.text, text) for text in texts):
            return run, None, "the instructions are unchanged"
        if measure.passed_of(run) is False:
            bad = [g for g in run["scorecard"]["grades"] if g["score"] is not None and g["score"] < 1]
            return run, None, "; ".join(f"{g['criterion']}: {g['reason']}" for g in bad)
        return run, reading.text, ""

    def _answer_key(self, texts: Sequence[str]) -> Record:
        """What the author's checks hold a reply against; no model sees it."""
        criteria = " ".join(criterion.description for criterion in self.sides.machine.criteria)
        known = " ".join([self._about.intent, criteria, self._about.parent, *texts])
        inputs = [material.given(case["input"]) for case in self.cases]
        answers = [reply.answers_of(case.get("target")) for case in self.cases]
        return {"instructions": list(texts), "known": known, "inputs": inputs, "answers": answers}

    def _whose(self, texts: Sequence[str]) -> Record:
        longest = max(len(text.split()) for text in texts)
        return {
            "machine": self.sides.machine.name,
            "most_words": max(reply.MOST_WORDS, 2 * longest),
        }

    def _tried(self, parent: int) -> list[material.Tried]:
        """The newest proposals from a parent, with what their figures on the cases were."""
        found = [one for one in self.moves[:-1] if one["parents"] == [parent] and "instructions" in one]
        return [material.Tried(one["instructions"], in_words(one)) for one in found[-TRIED:]]

    # measuring ---------------------------------------------------------------------------

    def _text(self, text: str) -> Text:
        machine = with_instructions(self.sides.machine, text + "\n" if self.texts else text)
        at = {**revision(self.sides.machine)}
        at["dirty"] = True if self.texts and at["commit"] else at["dirty"]
        settings = Settings(sampling=machine.sampling(), seed=self.terms.seed)
        sides = self.sides
        runner = runner_of(
            machine, sides.engine, self.store, settings, sides.facing, sides.machine.folder, at
        )
        runner.splits = self.splits  # read once
        return Text(text, runner)

    def _measure(
        self, texts: Sequence[Text], cases: Sequence[Record], trials: int, first: int = 1
    ) -> list[Text]:
        """Run and grade texts on cases, interleaved; their runs are kept in them. Raises Interrupted."""

        def step(run: Record) -> None:
            self.runs[run["id"]] = run
            self.step(run)

        both = [measure.Arm(str(number), text.runner, first) for number, text in enumerate(texts)]
        workers, grading = self.terms.concurrency, self.sides.grading
        done = measure.measure(both, cases, trials, grading, self.store, workers, self.stop, step)
        if done.interrupted:
            raise Interrupted(STOPPED)
        for number, text in enumerate(texts):
            text.runs |= done.runs[str(number)]
        return list(texts)

    def _enter(self, text: Text, parents: tuple[int, ...]) -> None:
        """Put what was measured on all cases into the pool."""
        member = Member(len(self.members), parents, tuple(text.scores(self.identities)))
        self.texts.append(text)
        self.members.append(member)
        self.alive = trimmed([*self.alive, member], self.terms.pool)

    def _seen(self, number: int) -> list[material.Seen]:
        runs = self.texts[number].runs
        return [material.Seen(case, runs.get(case["identity"], [])) for case in self.cases]

    # the decision ------------------------------------------------------------------------

    def _decide(self) -> None:
        """Decide on the best proposal; the only place where held-out cases are run."""
        terms, tries = self.terms, len(self.members) - 1
        practice = {case["identity"]: case for case in self.cases}
        criteria = self.sides.machine.criteria
        found = {n: arms(practice, [self.texts[0], self.texts[n]], criteria) for n in range(1, tries + 1)}
        judged = {n: rule.on_cases(a, tries, terms.min_z, terms.confirm) for n, a in found.items()}
        best = rule.best(judged)
        if best is None:
            return self._end_without()
        self.chosen, self.arms, self.figures = best, found[best], judged[best]
        if terms.confirm and self.figures["decision"] == "promote" and self.figures["weak"]:
            self.told(f"proposal {best}: confirming on trials that neither has used")
            again = self._fresh([0, best], self.cases, terms.trials + 1)
            self.arms["confirm"] = sides(again, self.identities)
            self.figures = rule.on_cases(self.arms, tries, terms.min_z, terms.confirm)
        self.warnings += rule.warnings_of(self.figures, tries)
        if self.figures["decision"] != "promote":
            decision = "untestable" if self.figures["decision"] == "untestable" else "discard"
            return self._end(decision, *rule.reasons_of(self.figures))
        if not self.sides.exam:
            return self._end("keep")
        self.told(f"proposal {best}: a look at the {len(self.sides.exam)} held-out cases")
        unique = {case["identity"]: case for case in self.sides.exam}
        exam = arms(unique, self._fresh([0, best], list(unique.values()), 1))
        looked = rule.on_holdout(exam)
        self.exam = {"trials": terms.trials, "arms": exam, **looked}
        text = self.texts[best].runner.machine.instructions
        self.warnings += leaks(self.cases, self.sides.exam, text)
        decision = {"pass": "keep", "veto": "discard"}.get(looked["decision"], "untestable")
        return self._end(decision, *looked["reasons"])

    def _end_without(self) -> None:
        failed = [move for move in self.moves if move["outcome"] == "failed"]
        if failed and len(failed) == len(self.moves):
            return self._end("untestable", f"author_failed: {failed[0]['why']}")
        if self.proposals:
            return self._end("discard", "screened_out: no proposal did better on the cases tried first")
        return self._end("discard", "no_proposal: the author made none that could be used")

    def _end(self, decision: str, *reasons: str) -> None:
        self.decision, self.reasons = decision, list(reasons)

    def _fresh(self, numbers: Sequence[int], cases: Sequence[Record], first: int) -> list[Text]:
        """Members measured on other cases, or on trials from a number on."""
        texts = [Text(self.texts[number].text, self.texts[number].runner) for number in numbers]
        return self._measure(texts, cases, self.terms.trials, first)

    @property
    def instructions(self) -> str | None:
        """The text to keep, None if nothing is kept."""
        return self.texts[self.chosen].text if self.decision == "keep" and self.chosen is not None else None

    def record(self) -> Record:
        """What was done, bought and found: an `optimization`, without id."""
        sides_, best = self.sides, self.chosen
        listed = pool(self.members, self.alive, self.texts)
        figures = {name: self.figures[name] for name in rule.FIGURES if name in self.figures}
        more = {
            name: self.figures[name] for name in ("guards", "confirmed", "confirm") if name in self.figures
        }
        found: Record = plain(
            {
                "v": 1,
                "type": "optimization",
                "machine": sides_.machine.name,
                "baseline": sides_.machine.version,
                "candidate": None if best is None else listed[best]["version"],
                "decision": self.decision,
                "reasons": self.reasons,
                "warnings": self.warnings,
                "instructions": self.instructions,
                "rubric": sides_.grading.rubric,
                "graders": sides_.machine.source,
                "engine": {
                    "machine": [sides_.engine.model, sides_.engine.name],
                    "author": [sides_.author_engine.model, sides_.author_engine.name],
                },
                "author": [sides_.author.name, sides_.author.version],
                "terms": vars(self.terms),
                "cases": len(self.identities),
                "held_out": len({case["identity"] for case in sides_.exam}),
                "moves": self.moves,
                "pool": listed,
                **({"arms": self.arms} if self.arms else {}),
                **figures,
                **more,
                "exam": self.exam,
                "bought": self._bought(),
                "spend": {**spend(self.runs.values()), "author": spend(self.author_runs.values())["runs"]},
                "measured_at": now(),
            }
        )
        return found

    def _bought(self) -> Record:
        """Runs of the machine and of the author, how many of them now, and the proposals they brought."""

        def now_of(runs: Sequence[Record]) -> int:
            return sum(run["started_at"] >= self._began for run in runs)

        return {
            "proposals": self.proposals,
            "measured": max(0, len(self.members) - 1),
            "runs": len(self.runs),
            "runs_now": now_of(list(self.runs.values())),
            "author": len(self.author_runs),
            "author_now": now_of(list(self.author_runs.values())),
        }

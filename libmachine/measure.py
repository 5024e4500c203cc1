"""Running and grading versions on cases: what suite, compare, gate and train have in common.

Arms are interleaved in blocks of one trial of one case, both arms back to back, in an order
hashed from their ids: a provider that drifts hits both alike. All runs are graded by one
grading, today's, whoever made them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine import pool
from libmachine.canon import Record, hash_of
from libmachine.errors import CutShort
from libmachine.grade import Grading, grade_and_store, sum_usage
from libmachine.run import Job, Runner
from libmachine.store.store import Store


@dataclass(frozen=True)
class Arm:
    """One version under measurement. first_trial: number of its first trial."""

    name: str
    runner: Runner
    first_trial: int = 1


@dataclass
class Measured:
    """What came of it: arm -> case identity -> graded runs by trial. bought: runs made now."""

    runs: dict[str, dict[str, list[Record]]] = field(default_factory=dict)
    bought: int = 0
    interrupted: bool = False

    def all(self, arm: str) -> Iterator[Record]:
        """Every run of an arm."""
        for runs in self.runs[arm].values():
            yield from runs

    def scores(self, arm: str, identities: Sequence[str]) -> list[list[float | None]]:
        """Per case the trial scores; None for a run that failed or could not be graded."""
        return [[score_of(run) for run in self.runs[arm].get(identity, [])] for identity in identities]


def score_of(run: Mapping[str, Any]) -> float | None:
    """The score of a graded run, None if it failed or is ungraded."""
    card = run.get("scorecard")
    return None if run["status"] == "failed" or not card else card["score"]


def passed_of(run: Mapping[str, Any]) -> bool | None:
    """Did a run pass? None if it failed or is ungraded."""
    card = run.get("scorecard")
    return None if run["status"] == "failed" or not card else card["passed"]


def tokens_of(run: Mapping[str, Any]) -> int | None:
    """Tokens that the machine put out for a run, in all its turns of a conversation; None: not reported."""
    talk = run.get("conversation")
    count: int | None = (talk["usage"]["machine"] if talk else run["usage"])["completion_tokens"]
    return count


def cost_of(run: Mapping[str, Any]) -> float | None:
    """US dollars that a run came to, of a conversation all turns of both sides; None: not known."""
    talk = run.get("conversation")
    cost: float | None = (sum_usage(talk["usage"].values()) if talk else run["usage"])["cost_usd"]
    return cost


def criterion_score(run: Mapping[str, Any], criterion: str) -> float | None:
    """The score of one criterion of a run, None where there is none."""
    card = run.get("scorecard")
    if run["status"] == "failed" or not card:
        return None
    return next((g["score"] for g in card["grades"] if g["criterion"] == criterion), None)


def measure(
    arms: Sequence[Arm],
    cases: Sequence[Record],
    trials: int,
    grading: Grading,
    store: Store,
    concurrency: int,
    stop: threading.Event,
    step: Callable[[Record], None] = lambda run: None,
) -> Measured:
    """Run every arm on every case, trials times, and grade. step is called with each graded run.

    Cases that are equal in identity count once. A stop leaves what was measured so far.
    """
    unique = list({case["identity"]: case for case in cases}.values())
    blocks = [(case, trial) for case in unique for trial in range(trials)]
    blocks.sort(key=lambda block: hash_of([block[0]["identity"], block[1]]))
    measured = Measured({arm.name: {} for arm in arms})

    def jobs() -> Iterator[tuple[Arm, Job]]:
        for case, number in blocks:
            for arm in arms:
                yield arm, arm.runner.job(case, arm.first_trial + number)

    for arm in arms:
        arm.runner.stop = stop

    def work(item: tuple[Arm, Job]) -> tuple[str, Record, bool] | None:
        arm, job = item
        try:
            outcome = arm.runner.finish(job)
        except CutShort:
            return None
        graded, _ = grade_and_store(grading, store, outcome.run)
        return arm.name, graded, outcome.bought

    for done in pool.stream(work, jobs(), concurrency, False, stop):
        if done is None:
            continue
        name, run, bought = done
        measured.runs[name].setdefault(run["case"]["identity"], []).append(run)
        measured.bought += bought
        step(run)
    for by_case in measured.runs.values():
        for runs in by_case.values():
            runs.sort(key=lambda run: run["trial"])
    measured.interrupted = stop.is_set()
    return measured

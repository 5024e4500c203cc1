"""What a training will do, step by step, before the first of them: batches, learning rates, tokens, price.

Pure. The default of a local model (rank 16, 5e-4, batch 8, 4 epochs) was measured on one: held-out
passes of 38 in 288 became 48 in 72 (reference/tinker.md, 9).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libmachine.canon import Record, hash_of
from libmachine.prices import Price
from libmachine.sft.examples import Example, digest

FEW_STEPS = 10
EASY = 0.9
INKLING_RATE = 2e-4
LOCAL_RATE = 5e-4
CONTROLS = {
    "placebo": "a placebo that learns nothing",
    "shuffled_answers": "trained on answers to other questions",
}
"""Trainings that must not help, as `control` names them -> words."""
BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
"""Of Adam, as the cookbook has them."""


@dataclass(frozen=True)
class Settings:
    """How to train. steps None: all epochs. start: state to start from (--continue), None: the base.
    control: of CONTROLS, None: a training that is to help."""

    base_model: str
    renderer: str
    rank: int
    batch_size: int
    epochs: int
    learning_rate: float
    seed: int = 0
    steps: int | None = None
    effort: float | None = None
    start: str | None = None
    train_unembed: bool = True
    control: str | None = None

    def record(self) -> Record:
        """As the candidate holds them."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Step:
    """One optimiser step, numbered from 0: its epoch, the numbers of its examples, its learning rate."""

    number: int
    epoch: int
    examples: tuple[int, ...]
    learning_rate: float


@dataclass(frozen=True)
class Plan:
    """A training. batches: in an epoch, the last perhaps short. trainer: what trains (a host, an engine)."""

    settings: Settings
    examples: Sequence[Example]
    steps: tuple[Step, ...]
    batches: int
    trainer: str = ""

    def tokens(self, first: int = 0) -> int:
        """Tokens trained from step `first` to the end: every token of an example counts, prompt included."""
        return sum(self.tokens_of(step) for step in self.steps[first:])

    def tokens_of(self, step: Step) -> int:
        """Tokens of one step."""
        return sum(self.examples[number].length for number in step.examples)

    def cost(self, price: Price | None, first: int = 0) -> float | None:
        """US dollars from step `first` to the end, None where the price is not known."""
        return cost(price, self.tokens(first))

    def cost_of(self, price: Price | None, step: Step) -> float | None:
        """US dollars of one step, so that the steps come to exactly the cost of all."""
        rest = self.cost(price, step.number), self.cost(price, step.number + 1)
        return None if rest[0] is None or rest[1] is None else round(rest[0] - rest[1], 6)

    @property
    def id(self) -> str:
        """Names a training by what decides it: data, settings, trainer. The same is resumed, not redone."""
        return hash_of([digest(self.examples), self.settings.record(), self.trainer])[:12]


def cost(price: Price | None, tokens: int) -> float | None:
    """US dollars of training on so many tokens."""
    if price is None or price.train is None:
        return None
    return round(tokens * price.train / 1e6, 6)


def make(examples: Sequence[Example], settings: Settings, trainer: str = "") -> Plan:
    """The plan for examples (at least one): each epoch in an order of its own, from seed and epoch.

    With `steps` it ends there, or goes through more epochs to get there. The rate falls to 0 in a line.
    """
    batches = -(-len(examples) // settings.batch_size)
    total = settings.steps or batches * settings.epochs
    steps = []
    for number in range(total):
        epoch, batch = divmod(number, batches)
        order = _order(len(examples), settings.seed, epoch)
        chosen = order[batch * settings.batch_size : (batch + 1) * settings.batch_size]
        rate = settings.learning_rate * (1 - number / total)
        steps.append(Step(number, epoch, tuple(chosen), rate))
    return Plan(settings, examples, tuple(steps), batches, trainer)


def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def default_rate(base_model: str) -> float | None:
    """The learning rate that is known for a model here; None: ask the cookbook."""
    if base_model.startswith("local/"):
        return LOCAL_RATE
    return INKLING_RATE if base_model.startswith("thinkingmachines/Inkling") else None


@dataclass
class Solved:
    """How often the cases were solved, by the runs that were on offer: case -> [passed, graded]."""

    cases: dict[str, list[int]]

    def add(self, run: Mapping[str, Any]) -> None:
        """Count a run that was graded."""
        passed = (run.get("scorecard") or {}).get("passed")
        if run["status"] != "failed" and passed is not None:
            counts = self.cases.setdefault(run["case"]["identity"], [0, 0])
            counts[0] += passed is True
            counts[1] += 1

    def rates(self, cases: set[str]) -> list[float]:
        """Solve rates of some cases, lowest first."""
        return sorted(good / all_ for case, (good, all_) in self.cases.items() if case in cases)

    def record(self, chosen: set[str]) -> Record:
        """For the candidate: cases seen, those never solved, the median solve rate of the chosen ones."""
        rates = self.rates(chosen)
        return {
            "cases": len(self.cases),
            "unsolved": sum(good == 0 for good, _ in self.cases.values()),
            "median_rate": _median(rates),
        }


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def warnings(plan: Plan, solved: Record, unthinking: int = 0, taught: bool = False) -> list[str]:
    """What makes a training doubtful, each `code: words`. unthinking: examples with an empty think block.

    taught: by the runs of other models, of which the learner need not be able to do any.
    """
    found = []
    count = len(plan.examples)
    control = plan.settings.control
    if control is not None:
        found.append(f"control: {CONTROLS[control]}; a gate that is sound refuses it")
    if control == "placebo":
        return found
    if len(plan.steps) < FEW_STEPS:
        found.append(f"few_steps: {len(plan.steps)} steps; fewer than {FEW_STEPS} change little")
    if count < plan.settings.batch_size:
        found.append(f"small_data: {count} examples, a batch holds {plan.settings.batch_size}")
    if solved["cases"] and 2 * solved["unsolved"] >= solved["cases"]:
        found.append(
            f"unsolved: {solved['unsolved']} of {solved['cases']} cases have no good run; "
            "only the others are learned"
        )
    if not taught and (solved["median_rate"] or 0) > EASY:
        found.append(
            f"easy: the median case is solved in {solved['median_rate']:.0%}; little is left to learn"
        )
    if unthinking:
        found.append(f"unthinking: {unthinking} of {count} examples begin without a thought and teach that")
    return found

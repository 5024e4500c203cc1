"""Training examples as token ids with a weight each, and what is done with many of them. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from libmachine.canon import hash_of


class Rendered(NamedTuple):
    """A conversation as a model reads it: ids, and for each the weight of its loss (0 or 1). Not shifted."""

    tokens: list[int]
    weights: list[float]


class Example(NamedTuple):
    """One example. run: id of its run; case: identity; messages: indices that are targets."""

    rendered: Rendered
    run: str
    case: str
    messages: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens that are trained on, prompt included: what is paid. The last is only a target."""
        return len(self.rendered.tokens) - 1


def merged(steps: Sequence[Rendered]) -> Rendered | None:
    """The examples of a run's steps as one, if each is a token prefix of the last; else None.

    Every step's own mask holds, so the header of a later turn and tool results get no weight.
    """
    tokens = steps[-1].tokens
    if any(step.tokens != tokens[: len(step.tokens)] for step in steps):
        return None
    weights = [0.0] * len(tokens)
    for step in steps:
        for position, weight in enumerate(step.weights):
            weights[position] = max(weights[position], weight)
    return Rendered(tokens, weights)


def fitting(examples: Sequence[Example], context: int | None) -> tuple[list[Example], list[Example]]:
    """(those whose every token fits the context, those that are too long). None: it is not known."""
    kept: list[Example] = []
    long: list[Example] = []
    for example in examples:
        fits = context is None or len(example.rendered.tokens) <= context
        (kept if fits else long).append(example)
    return kept, long


def shuffled(examples: Sequence[Example], seed: int) -> tuple[list[Example], int]:
    """(the examples with what is learned permuted among their cases, how many kept one of their own case).

    A control: the same prompts, the same answers, as many tokens, but no answer belongs to its question.
    What comes from the first weighted token on moves as a whole, tool results between targets too. None
    keeps an answer of its own case unless one case has more than half of the examples.
    """
    by_case: dict[str, list[int]] = {}
    for number in sorted(range(len(examples)), key=lambda number: examples[number]):
        by_case.setdefault(examples[number].case, []).append(number)
    drawn = random.Random(f"shuffled {seed}")
    cases = sorted(by_case)
    drawn.shuffle(cases)
    for case in cases:
        drawn.shuffle(by_case[case])
    row = [number for case in cases for number in by_case[case]]
    # a case's examples lie together: turned by the largest case, none gets what was of its own
    turn = max((len(same) for same in by_case.values()), default=0)
    source = {number: row[(place + turn) % len(row)] for place, number in enumerate(row)}
    made = [
        example._replace(rendered=_with_answer(example.rendered, examples[source[number]].rendered))
        for number, example in enumerate(examples)
    ]
    kept = sum(examples[source[number]].case == example.case for number, example in enumerate(examples))
    return made, kept


def _with_answer(prompt: Rendered, answer: Rendered) -> Rendered:
    end, start = (next(i for i, weight in enumerate(one.weights) if weight) for one in (prompt, answer))
    return Rendered(
        prompt.tokens[:end] + answer.tokens[start:], prompt.weights[:end] + answer.weights[start:]
    )


def digest(examples: Sequence[Example]) -> str:
    """Hash (40 hex) of what is learned, whatever its order."""
    return hash_of(sorted(hash_of([e.rendered.tokens, e.rendered.weights]) for e in examples))


def mean_nll(logprobs: Sequence[Sequence[float]], weights: Sequence[Sequence[float]]) -> float | None:
    """Mean loss per token in nats: -sum(weight * logprob) / sum(weight) over all; None without weight.

    logprobs, weights: one row an example, shifted, of equal lengths.
    """
    total = sum(sum(row) for row in weights)
    if not total:
        return None
    rows = zip(logprobs, weights, strict=True)
    return -sum(w * value for row, ws in rows for value, w in zip(row, ws, strict=True) if w) / total


def loss_ends(losses: Sequence[float | None]) -> tuple[float, float] | None:
    """Means of the first and of the last quarter of the steps' losses: a step's own is of a few examples,
    and says more about these than about the training. None if no step has one."""
    known = [loss for loss in losses if loss is not None]
    if not known:
        return None
    most = -(-len(known) // 4)
    return sum(known[:most]) / most, sum(known[-most:]) / most

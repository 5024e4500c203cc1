"""Training examples as token ids with a weight each, and what is done with many of them. Pure."""

from __future__ import annotations

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

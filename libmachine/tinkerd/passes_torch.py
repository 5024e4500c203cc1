"""One pass of a causal model over several examples: losses, log-probabilities and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libmachine.tinkerd.engine import Datum, Refusal

MOST_BATCH = 768
"""Tokens, padding included, of one pass; a longer example has a pass of its own."""


def run(
    model: Any, examples: Sequence[Datum], batch: list[int], rows: list[list[float]], backward: bool
) -> float:
    """One padded pass over the examples of these numbers: fills their rows, adds gradients; the loss."""
    import torch

    data = [examples[index] for index in batch]
    longest = max(len(datum.tokens) for datum in data)
    tokens = torch.zeros(len(data), longest, dtype=torch.long)
    targets, weights = torch.zeros_like(tokens), torch.zeros(len(data), longest)
    real = torch.zeros(len(data), longest, dtype=torch.bool)
    for number, datum in enumerate(data):
        size = len(datum.tokens)
        tokens[number, :size] = torch.tensor(list(datum.tokens))
        targets[number, :size] = torch.tensor(list(datum.targets))
        weights[number, :size] = torch.tensor(list(datum.weights))
        real[number, :size] = True
    # padding is on the right, where a causal model does not look: no attention mask needed
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    logprobs = torch.zeros(len(data), longest)
    counted = weights != 0
    scored = torch.zeros(())
    if bool(counted.any()):
        told = _gather(model.lm_head(hidden[counted]), targets[counted])
        scored = -(weights[counted] * told).sum()
        logprobs[counted] = told.detach()
    if backward and scored.requires_grad:
        scored.backward()
    rest = real & ~counted
    with torch.no_grad():
        for part in rest.nonzero().split(MOST_BATCH):
            where = (part[:, 0], part[:, 1])
            logprobs[where] = _gather(model.lm_head(hidden.detach()[where]), targets[where])
    for number, index in enumerate(batch):
        rows[index] = logprobs[number, : len(data[number].tokens)].tolist()
    return float(scored.detach())


def batches(sizes: list[int]) -> list[list[int]]:
    """Indices grouped into passes of at most MOST_BATCH padded tokens, like lengths together."""
    found: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if found and (len(found[-1]) + 1) * sizes[found[-1][0]] <= MOST_BATCH:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def _gather(logits: Any, targets: Any) -> Any:
    """Log-probabilities [n] of targets [n] under logits [n, vocabulary]."""
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def check_ids(tokens: Sequence[int], size: int) -> None:
    """Raise Refusal for ids that the model does not have."""
    if min(tokens) < 0 or max(tokens) >= size:
        raise Refusal(f"token id {max(tokens)} or {min(tokens)} is not in the vocabulary of {size}")

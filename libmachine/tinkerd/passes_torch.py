"""One pass of a causal model over several examples: losses, log-probabilities and gradients.

What all examples of a request begin with (instructions, tools) is computed once a pass and not once an
example: the same numbers but for rounding, and most of the work where prompts are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libmachine.tinkerd.engine import Datum, Refusal

MOST_BATCH = 768
"""Tokens, padding included, of one pass; a longer example has a pass of its own."""

_WORTH = 8
"""Tokens; fewer are not worth a second call of the model."""


def run(
    model: Any,
    examples: Sequence[Datum],
    batch: list[int],
    shared: int,
    rows: list[list[float]],
    backward: bool,
) -> float:
    """One padded pass over the examples of these numbers: fills their rows, adds gradients; the loss.

    shared: how many tokens they begin with alike, none of which has a weight.
    """
    import torch

    data = [examples[index] for index in batch]
    longest = max(len(datum.tokens) for datum in data) - shared
    tokens = torch.zeros(len(data), longest, dtype=torch.long)
    targets, weights = torch.zeros_like(tokens), torch.zeros(len(data), longest)
    real = torch.zeros(len(data), longest, dtype=torch.bool)
    for number, datum in enumerate(data):
        size = len(datum.tokens) - shared
        tokens[number, :size] = torch.tensor(list(datum.tokens[shared:]))
        targets[number, :size] = torch.tensor(list(datum.targets[shared:]))
        weights[number, :size] = torch.tensor(list(datum.weights[shared:]))
        real[number, :size] = True
    cache, opening = None, None
    if shared:
        told = model.model(input_ids=torch.tensor([list(data[0].tokens[:shared])]), use_cache=True)
        cache, opening = told.past_key_values, told.last_hidden_state[0].detach()
        cache.batch_repeat_interleave(len(data))
    # padding is on the right, where a causal model does not look: no attention mask needed
    hidden = model.model(
        input_ids=tokens, past_key_values=cache, use_cache=cache is not None
    ).last_hidden_state
    logprobs = torch.zeros(len(data), longest)
    counted = weights != 0
    scored = torch.zeros(())
    if bool(counted.any()):
        found = _gather(model.lm_head(hidden[counted]), targets[counted])
        scored = -(weights[counted] * found).sum()
        logprobs[counted] = found.detach()
    if backward and scored.requires_grad:
        scored.backward()
    rest = real & ~counted
    with torch.no_grad():
        for part in rest.nonzero().split(MOST_BATCH):
            where = (part[:, 0], part[:, 1])
            logprobs[where] = _gather(model.lm_head(hidden.detach()[where]), targets[where])
        opened = _opened(model, opening, [datum.targets[:shared] for datum in data]) if shared else None
    for number, index in enumerate(batch):
        own = logprobs[number, : len(data[number].tokens) - shared].tolist()
        rows[index] = own if opened is None else opened[:, number].tolist() + own
    return float(scored.detach())


def _opened(model: Any, hidden: Any, targets: Sequence[Sequence[int]]) -> Any:
    """Log-probabilities [n, examples] of each example's targets under the hidden states [n] of all."""
    import torch

    wanted = torch.tensor([list(row) for row in targets]).T
    parts = []
    for states, ids in zip(hidden.split(MOST_BATCH), wanted.split(MOST_BATCH), strict=True):
        logits = model.lm_head(states)
        parts.append(logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True))
    return torch.cat(parts)


def shared(data: Sequence[Datum]) -> int:
    """How many tokens all examples begin with alike, before the first that has a weight; 0 if not worth it.

    Each example keeps a token of its own. One example shares with nobody.
    """
    if len(data) < 2:
        return 0
    first = data[0].tokens
    count = min(len(datum.tokens) for datum in data) - 1
    for datum in data:
        weighted = next((i for i, weight in enumerate(datum.weights[:count]) if weight), count)
        count = next((i for i in range(weighted) if datum.tokens[i] != first[i]), weighted)
    return count if count >= _WORTH else 0


def batches(sizes: list[int], shared: int = 0) -> list[list[int]]:
    """Indices grouped into passes of at most MOST_BATCH padded tokens, like lengths together.

    shared: of each, tokens that a pass has once.
    """
    found: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if found and shared + (len(found[-1]) + 1) * (sizes[found[-1][0]] - shared) <= MOST_BATCH:
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

"""Sampling from a causal model in torch: all samples of a request at once, keys and values cached."""

from __future__ import annotations

import math
import secrets
from typing import Any

from libmachine.tinkerd.base_torch import Base
from libmachine.tinkerd.engine import Sample, Sampled, SampleRequest

_SCORED_AT_ONCE = 256


def sample(model: Any, base: Base, context: int, request: SampleRequest) -> Sampled:
    """Samples and prompt log-probabilities. Call it under no_grad; prompt checked before."""
    import torch

    prompt = torch.tensor([list(request.prompt)])
    done = model.model(input_ids=prompt, use_cache=True)
    scored = None
    if request.prompt_logprobs:
        scored = _score(model, done.last_hidden_state[0], prompt[0], request.prompt_logprobs)
    room = context - len(request.prompt)
    most = room if request.max_tokens is None else min(request.max_tokens, room)
    logits = model.lm_head(done.last_hidden_state[:, -1])
    cache = done.past_key_values
    if request.num_samples > 1:
        cache.batch_repeat_interleave(request.num_samples)
        logits = logits.repeat_interleave(request.num_samples, 0)
    return Sampled(_draw(model, base, cache, logits, most, request), scored)


def _score(model: Any, hidden: Any, prompt: Any, last: int) -> list[float]:
    """Log-probability of each prompt token; NaN for the first, and before the `last` ones."""
    size = len(prompt)
    first = max(1, size - last)
    scored = [math.nan] * min(first, size)
    for start in range(first, size, _SCORED_AT_ONCE):
        end = min(start + _SCORED_AT_ONCE, size)
        logits = model.lm_head(hidden[start - 1 : end - 1])
        told = logits.gather(-1, prompt[start:end, None])[:, 0] - logits.logsumexp(-1)
        scored += told.tolist()
    return scored


def _draw(model: Any, base: Base, cache: Any, logits: Any, most: int, request: SampleRequest) -> list[Sample]:
    import torch

    count = request.num_samples
    seed = secrets.randbelow(2**31) if request.seed is None else request.seed % 2**62
    generators = [torch.Generator().manual_seed(seed + number) for number in range(count)]
    stops = {base.end} if request.stop is None else {word for word in request.stop if isinstance(word, int)}
    words = [word.encode() for word in request.stop or () if isinstance(word, str)]
    tokens: list[list[int]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    reasons = ["length"] * count
    live = set(range(count)) if most > 0 else set()
    while live:
        spread = logits.log_softmax(-1)
        chosen = [0] * count
        for row in sorted(live):
            chosen[row] = _choose(spread[row], request, generators[row])
            tokens[row].append(chosen[row])
            logprobs[row].append(float(spread[row, chosen[row]]))
            ended = chosen[row] in stops or (words and _has(tokens[row], words, base.pieces))
            if ended:
                reasons[row] = "stop"
            if ended or len(tokens[row]) >= most:
                live.discard(row)
        if live:
            step = model.model(input_ids=torch.tensor(chosen)[:, None], past_key_values=cache, use_cache=True)
            logits = model.lm_head(step.last_hidden_state[:, -1])
    return [Sample(*one) for one in zip(tokens, logprobs, reasons, strict=True)]


def _choose(logprobs: Any, request: SampleRequest, generator: Any) -> int:
    """One token from the distribution at the asked temperature, cut by top_k, then by top_p."""
    import torch

    if request.temperature == 0:
        return int(logprobs.argmax())
    scaled = (logprobs / request.temperature).softmax(-1)
    if request.top_k > 0 or request.top_p < 1:
        ordered, ids = scaled.sort(descending=True)
        if request.top_k > 0:
            ordered, ids = ordered[: request.top_k], ids[: request.top_k]
        if request.top_p < 1:
            kept = int((ordered.cumsum(0) - ordered < request.top_p).sum())
            ordered, ids = ordered[:kept], ids[:kept]
        return int(ids[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(scaled, 1, generator=generator))


def _has(tokens: list[int], words: list[bytes], pieces: list[str]) -> bool:
    """Do the last tokens complete one of these texts?"""
    longest = max(map(len, words))
    tail = b""
    for token in reversed(tokens):
        tail = bytes(map(_BYTES.__getitem__, pieces[token])) + tail
        if len(tail) > longest + len(pieces[tokens[-1]]) * 4:
            break
    return any(word in tail for word in words)


def _alphabet() -> dict[str, int]:
    """GPT-2's writing of bytes as characters: printable ones as they are, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _alphabet()

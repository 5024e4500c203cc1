"""The engine of tests: no torch, no weights, the same answers every time, and it learns by heart.

The loss of a token falls by a fifth with every optimiser step. A sample is the answer trained for its
prompt; for a prompt that was not trained, one of the trained answers, chosen by a hash of the prompt;
for the base model, tokens made up from the hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.tinkerd import engine
from libmachine.tinkerd.engine import (
    Adam,
    Datum,
    Files,
    Lora,
    Losses,
    Refusal,
    Sample,
    Sampled,
    SampleRequest,
)

VOCABULARY = 49152
END = 2
_START_NLL, _DECAY = 3.0, 0.8
_STATE = "fake.json"


@dataclass
class _State:
    steps: int = 0
    answers: dict[str, list[int]] = field(default_factory=dict)  # hash of prompt -> trained ids
    pending: dict[str, list[int]] | None = None


class FakeEngine:
    """See the module. context: most tokens of an example or a sample."""

    name = "fake"

    def __init__(self, context: int = 8192) -> None:
        self.context = context

    def create(self, lora: Lora) -> Any:
        return _State()

    def forward_backward(self, state: Any, data: Sequence[Datum], backward: bool) -> Losses:
        rows, loss = [], 0.0
        found: dict[str, list[int]] = {}
        for number, datum in enumerate(data):
            engine.check_sizes(len(datum.tokens), self.context, f"example {number}")
            row = [_logprob(token, state.steps) for token in datum.targets]
            loss -= sum(w * value for w, value in zip(datum.weights, row, strict=True))
            rows.append(row)
            learned = [i for i, weight in enumerate(datum.weights) if weight > 0]
            if learned:
                first, last = learned[0], learned[-1]
                found[_digest(datum.tokens[: first + 1])] = [int(t) for t in datum.targets[first : last + 1]]
        if backward:
            state.pending = {**(state.pending or {}), **found}
        return Losses(loss, rows)

    def optim_step(self, state: Any, adam: Adam) -> Mapping[str, float]:
        if adam.learning_rate > 0:
            state.answers |= state.pending or {}
            state.steps += 1
        state.pending = None
        return {}

    def export(self, state: Any, optimizer: bool) -> Files:
        content = {"steps": state.steps, "answers": state.answers, "optimizer": optimizer}
        return {_STATE: json.dumps(content, sort_keys=True).encode()}

    def restore(self, lora: Lora, files: Files, optimizer: bool) -> Any:
        try:
            content = json.loads(files[_STATE])
        except (KeyError, ValueError):
            raise Refusal("these are no weights of the fake engine") from None
        if optimizer and not content["optimizer"]:
            raise Refusal("the checkpoint holds no optimiser state; load it without")
        return _State(content["steps"], content["answers"])

    def sample(self, weights: engine.Weights | None, request: SampleRequest) -> Sampled:
        engine.check_sizes(len(request.prompt), self.context - 1, "the prompt")
        state = _State() if weights is None else self.restore(weights.lora, weights.load(), False)
        room = self.context - len(request.prompt)
        most = room if request.max_tokens is None else min(request.max_tokens, room)
        stops = {END} if request.stop is None else {token for token in request.stop if isinstance(token, int)}
        sequences = []
        for number in range(request.num_samples):
            tokens = _answer(state, request, number, stops)[:most]
            reason = "stop" if tokens and tokens[-1] in stops else "length"
            sequences.append(Sample(tokens, [_logprob(t, state.steps) for t in tokens], reason))
        scored = None
        if request.prompt_logprobs:
            skipped = max(1, len(request.prompt) - request.prompt_logprobs)
            scored = [math.nan] * skipped
            scored += [_logprob(token, state.steps) for token in request.prompt[skipped:]]
        return Sampled(sequences, scored)

    def learned(self, weights: engine.Weights) -> bool:
        """Is there anything in these weights? A placebo's are those of the base."""
        return bool(self.restore(weights.lora, weights.load(), False).answers)

    def to_gguf(
        self, weights: engine.Weights, target: str, prompts: Sequence[Sequence[int]]
    ) -> Mapping[str, Any]:
        raise Refusal("weights of the fake engine cannot be converted; train with --engine torch")

    def forget(self, state: Any) -> None:
        pass


def _answer(state: _State, request: SampleRequest, number: int, stops: set[int]) -> list[int]:
    key = _digest(request.prompt)
    if key in state.answers:
        return list(state.answers[key])
    drawn = "" if request.temperature == 0 else f"{request.seed} {number}"
    chosen = int(hashlib.sha256(f"{key} {drawn}".encode()).hexdigest(), 16)
    if state.answers:
        return list(state.answers[sorted(state.answers)[chosen % len(state.answers)]])
    end = min(stops) if stops else END
    return [260 + (chosen >> shift) % 1000 for shift in range(0, 80, 10)] + [end]


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]


def _logprob(token: int, steps: int) -> float:
    """In nats; a little different for each token, so that a mix-up of tokens shows."""
    if not 0 <= token < VOCABULARY:
        raise Refusal(f"token id {token} is not in the vocabulary of {VOCABULARY}")
    return -_START_NLL * _DECAY**steps * (0.9 + 0.2 * (token * 2654435761 % 1000) / 1000)

"""What the local trainer computes with: the values an engine takes and gives, and its interface.

An engine is called from one thread only. It knows nothing of HTTP, sessions or files on disk: weights
leave and enter it as named bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from libmachine.errors import MachineError

Files = dict[str, bytes]
"""Weights as files: name -> content."""

BASE_MODEL = "local/smollm2-135m-instruct"
"""The base model that is trained."""


class Refusal(MachineError):
    """A request that cannot be served. category: `user` (what was asked) or `server` (our side)."""

    def __init__(self, message: str, category: str = "user", status: int = 400) -> None:
        super().__init__(message)
        self.category, self.status = category, status


class Lora(NamedTuple):
    """The shape of an adapter. seed: of its random start."""

    rank: int
    seed: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False


class Adam(NamedTuple):
    """Parameters of one AdamW step; grad_clip_norm 0: no clipping."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class Datum(NamedTuple):
    """One example, shifted already: targets[i] follows tokens[: i + 1]. All three of one length."""

    tokens: Sequence[int]
    targets: Sequence[int]
    weights: Sequence[float]


class Losses(NamedTuple):
    """loss: sum of -weight * logprob over all tokens, in nats. logprobs: of the targets, per datum."""

    loss: float
    logprobs: list[list[float]]


@dataclass(frozen=True)
class SampleRequest:
    """What to sample. stop: token ids and texts that end a sample; None: the model's own end.

    max_tokens None: as many as the context holds. prompt_logprobs: how many tokens at the end of the
    prompt to score, 0 for none.
    """

    prompt: Sequence[int]
    num_samples: int = 1
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[int | str, ...] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    prompt_logprobs: int = 0


class Sample(NamedTuple):
    """One sample: ids with the one that stopped it, their log-probabilities, `stop` or `length`."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str


@dataclass(frozen=True)
class Sampled:
    """Samples, and the log-probability of each prompt token (NaN where it was not asked for)."""

    sequences: list[Sample]
    prompt_logprobs: list[float] | None = field(default=None)


@dataclass(frozen=True)
class Weights:
    """Trained weights to sample from. key: names this content, load: reads it, lora: its shape."""

    key: str
    lora: Lora
    load: Callable[[], Files]


class Engine(Protocol):
    """A model that can be trained. State is the engine's own and opaque to others."""

    name: str
    context: int
    """Most tokens of one example, or of prompt and answer together."""

    def create(self, lora: Lora) -> Any:
        """A fresh adapter with an empty optimiser. Raises Refusal."""

    def forward_backward(self, state: Any, data: Sequence[Datum], backward: bool) -> Losses:
        """Cross entropy; with backward, gradients are added to those that are there. Raises Refusal."""

    def optim_step(self, state: Any, adam: Adam) -> Mapping[str, float]:
        """One AdamW step with the gathered gradients, which are then zero. Answers with metrics."""

    def export(self, state: Any, optimizer: bool) -> Files:
        """The weights, with or without the optimiser's state."""

    def restore(self, lora: Lora, files: Files, optimizer: bool) -> Any:
        """A state from exported files. Raises Refusal if they do not fit."""

    def sample(self, weights: Weights | None, request: SampleRequest) -> Sampled:
        """Sample from trained weights, or from the base model. Raises Refusal."""

    def to_gguf(self, weights: Weights, target: str, prompts: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """Write the adapter as GGUF to target and compare both engines on these prompts (none: our own).

        Answers {"difference": mean in nats, "prompts": how many}. Raises Refusal.
        """

    def forget(self, state: Any) -> None:
        """Let go of a state's memory."""


def check_sizes(tokens: int, context: int, what: str) -> None:
    """Raise Refusal if what has more tokens than the context holds, or none."""
    if tokens < 1:
        raise Refusal(f"{what} has no tokens")
    if tokens > context:
        raise Refusal(f"{what} has {tokens} tokens, the context of '{BASE_MODEL}' {context}")

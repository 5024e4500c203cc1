"""What an engine is: the thing that answers one request for a completion.

The agent loop (libmachine.harness.loop) is ours and the same for every engine; an
engine only turns messages and tools into one assistant message. Engines are called
from several threads at once and must bear it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = dict[str, Any]
"""A chat message in OpenAI's form; tool `arguments` stay the raw string."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. Every value is sent as it stands; None means the engine has no such setting."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no cut
    min_p: float = 0.0
    max_tokens: int = 2048
    effort: str | None = None
    seed: int | None = None  # the seed sent: a hash of case, trial and --seed

    def record(self) -> dict[str, Any]:
        """The settings as they are written into a run."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Request:
    """One call: the conversation so far, the tools on offer, the settings.

    timeout_s: seconds the engine may take. case_text and trial serve the scripted engine,
    which picks its replies by them; no real engine reads them. step counts calls of the run from 0.
    given_up: set when nobody waits for the answer any more.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    sampling: Sampling
    timeout_s: float
    case_text: str = ""
    trial: int = 1
    step: int = 0
    given_up: threading.Event | None = None


@dataclass
class Completion:
    """One assistant message and what it cost. Token counts are None where not reported, never 0.

    cached_tokens is part of prompt_tokens, reasoning_tokens part of completion_tokens.
    tokens: {"prompt": [ids], "completion": [ids], "logprobs": [floats]} where the engine gives them.
    """

    message: Message
    finish_reason: str  # stop | length | tool_calls | content_filter
    model: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    fingerprint: str | None = None
    retries: int = 0
    cost_usd: float | None = 0.0
    tokens: dict[str, Any] | None = field(default=None, repr=False)
    waited_s: float = 0.0
    """Seconds the call stood in line behind other commands: no time of the run's."""


class Engine(Protocol):
    """Where completions come from."""

    name: str
    """Name for run.harness: the engine with its build and adapters, as far as they decide the answer."""

    model: str
    """The model as asked, with the hash of a local file where there is one: part of the run's key."""

    def complete(self, request: Request) -> Completion:
        """Answer once. Raises ProviderError (the run fails) or ContextOverflow (the run ends as limit)."""

    def close(self) -> None:
        """Let go of servers, sockets and locks."""

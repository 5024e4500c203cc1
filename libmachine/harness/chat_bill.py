"""What a chat-completions reply says of its bill and of its failure. Pure.

Usage and errors come in many shapes (reference/harnesses.md 6); here they become one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CODES = (  # an error that gives a name in place of a status; the first that occurs in it counts
    ("rate_limit", 429), ("too_many", 429), ("overloaded", 503), ("unavailable", 503), ("timeout", 408),
    ("server", 500), ("internal", 500), ("upstream", 502), ("context_length", 400), ("authentication", 401),
    ("api_key", 401), ("insufficient", 402), ("permission", 403), ("not_found", 404), ("invalid", 400),
)  # fmt: skip
_OVERFLOW = re.compile(
    r"context.{0,3}(length|window|size)|maximum context|prompt is too long|exceeds? the (available )?context"
    r"|reduce the length of the (messages|prompt)|too many tokens",
    re.IGNORECASE,
)


@dataclass
class Usage:
    """What one reply was billed for; None where it does not say. cost_usd: as the endpoint states it."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None


@dataclass
class Failure:
    """An attempt that brought no completion.

    status: of HTTP, or what an error body gives for one; None: neither. final: asking again is of
    no use. overflow: the conversation does not fit the context. timed_out: the time was used up.
    retry_after: seconds the endpoint asks to wait. usage: what the reply was billed for all the
    same. unknown_bill: it may have been billed and does not say for what.
    """

    text: str
    status: int | None = None
    final: bool = False
    overflow: bool = False
    timed_out: bool = False
    retry_after: float | None = None
    usage: Usage | None = None
    unknown_bill: bool = False


def retryable(status: int) -> bool:
    """Whether a status is worth asking again. 408: the request was not heard in time, a network error."""
    return status in (408, 429) or status >= 500


def read_error(error: object, status: int | None = None, usage: Usage | None = None) -> Failure:
    """An error of a reply, object or string. status: of HTTP; without it the error's code stands for it."""
    if not isinstance(error, Mapping):
        error = {"message": error if isinstance(error, str) else json.dumps(error, default=str)}
    text = next(
        (error[n] for n in ("message", "type", "detail") if error.get(n)), "an error without a message"
    )
    text = text if isinstance(text, str) else json.dumps(text, default=str)
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        text += ": " + metadata["raw"]  # what the provider behind a router said
    for name in ("code", "status", "type"):
        status = status if status is not None else _status(error.get(name))
    named = f"{error.get('code')} {error.get('type')} {text}".replace("_", " ")
    return Failure(
        text,
        status,
        final=status is None or not retryable(status),
        overflow=status in (None, 400, 413, 422) and bool(_OVERFLOW.search(named)),
        usage=usage,
    )


def _status(code: object) -> int | None:
    if isinstance(code, str) and not (code.isascii() and code.isdigit()):
        return next((status for name, status in _CODES if name in code.lower()), None)
    if isinstance(code, str | int) and not isinstance(code, bool) and len(str(code)) == 3:
        return int(code) if 400 <= int(code) <= 599 else None
    return None


def read_usage(body: Mapping[str, Any]) -> Usage | None:
    """The usage of a reply body, None if it reports none.

    As everywhere here cached tokens are part of the prompt, reasoning tokens of the completion.
    """
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    completion = _count(usage, "completion_tokens", "output_tokens")
    cached = _count(_part(usage, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens", "cached_tokens")  # DeepSeek, Moonshot
    reasoning = _count(_part(usage, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(usage, "reasoning_tokens")
    if reasoning and completion is not None:
        # xAI and Gemini count reasoning apart from the completion; their total gives it away.
        apart = (prompt or 0) + completion + reasoning
        if reasoning > completion or _count(usage, "total_tokens") == apart:
            completion += reasoning
    cost = _amount(usage.get("cost"))
    if cost is not None and usage.get("is_byok") is True:
        # With one's own key OpenRouter's cost is its fee; the provider's bill comes on top.
        cost += _amount(_part(usage, "cost_details").get("upstream_inference_cost")) or 0.0
    read = Usage(prompt, cached, completion, reasoning, cost)
    return None if read == Usage() else read


def _part(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((usage[n] for n in names if isinstance(usage.get(n), Mapping)), {})


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
            return int(value)
    return None


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < math.inf else None

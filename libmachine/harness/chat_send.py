"""Build the body of a chat-completions request. Pure.

Endpoints are strict in different places; what is sent is what all of one kind accept: strings
as content and arguments, reasoning under the name it came with, every setting that decides
the answer written out, since the defaults of servers differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from libmachine.canon import plain
from libmachine.errors import UsageError
from libmachine.harness.base import Message, Request, Sampling
from libmachine.harness.chat_read import REASONING_FIELDS, arguments_text, content_text


class Endpoint(NamedTuple):
    """Where a known endpoint is, and the variable that holds its key."""

    base_url: str
    key: str


ENDPOINTS = {
    "openai": Endpoint("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Endpoint("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "tinker": Endpoint(
        "https://tinker.thinkingmachines.dev/services/tinker-prod/oai/api/v1", "TINKER_API_KEY"
    ),
}
# https://tinker-docs.thinkingmachines.ai, cookbook/inkling/thinking-effort, as of 2026-10
EFFORTS = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "xhigh": 0.99}


def body_for(
    request: Request,
    model: str,
    endpoint: str,
    private: bool,
    stream: bool = False,
    extra_body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON body of one request. endpoint: a name of ENDPOINTS, any other speaks as `openai`.

    private: the endpoint is on this machine or network. extra_body is laid over the rest; a null
    in it takes a field away. Raises UsageError for an effort the endpoint has no name for.
    """
    # A message of tool calls alone: null is OpenAI's form and Bedrock refuses ""; LM Studio refuses
    # null, and chat templates (local servers, Tinker) expect a string.
    empty = "" if private or endpoint == "tinker" else None
    body: dict[str, Any] = {
        "model": model,
        "messages": [plain(_message(message, empty)) for message in request.messages],
        **_settings(request.sampling, endpoint, private),
    }
    if request.tools:  # an empty list is refused by some
        body["tools"] = request.tools
    if endpoint == "tinker":
        body["separate_reasoning"] = True
    if stream:
        body["stream"] = True
        if endpoint != "openrouter":  # which always sends usage
            body["stream_options"] = {"include_usage": True}
    body |= extra_body or {}
    return {name: value for name, value in body.items() if value is not None}


def _settings(sampling: Sampling, endpoint: str, private: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    # OpenAI's own API answers 400 to settings it does not know; servers of one's own know these
    # and have cuts as defaults (llama.cpp: top_k 40, min_p 0.05).
    known = private or endpoint == "openrouter"
    if known or sampling.top_k:
        settings["top_k"] = sampling.top_k
    if known or sampling.min_p:
        settings["min_p"] = sampling.min_p
    if sampling.seed is not None:
        settings["seed"] = sampling.seed
    if sampling.effort is not None:
        settings |= _effort(sampling.effort, endpoint)
    return settings


def _effort(effort: str, endpoint: str) -> dict[str, Any]:
    if endpoint == "openrouter":
        return {"reasoning": {"effort": effort}}
    return {"reasoning_effort": effort_number(effort) if endpoint == "tinker" else effort}


def effort_number(effort: str) -> float:
    """Tinker's number in 0..1 for an effort: a name of EFFORTS, or such a number as text."""
    if effort in EFFORTS:
        return EFFORTS[effort]
    try:
        number = float(effort)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < 1.0:
        raise UsageError(f"no effort '{effort}'; there are: {', '.join(EFFORTS)}, or a number in 0..0.99")
    return number


def _message(message: Message, empty: str | None) -> Message:
    """A message of ours as it goes out: only keys that are OpenAI's, and its reasoning where it came from."""
    role = message["role"]
    sent: Message = {"role": role}
    content = message.get("content")
    sent["content"] = (content if content is not None else "") if role == "user" else content_text(content)
    for name in ("name", "tool_call_id"):
        if message.get(name):
            sent[name] = message[name]
    if role != "assistant":
        return sent
    calls = message.get("tool_calls") or []
    if calls:
        sent["tool_calls"] = [_call(call) for call in calls]
        sent["content"] = sent["content"] or empty
    field, reasoning = message.get("reasoning_field"), message.get("reasoning")
    if field == "reasoning_details":
        details = message.get("reasoning_details")
        details = details or ([{"type": "reasoning.text", "text": reasoning}] if reasoning else [])
        if details:
            sent[field] = details
    elif field in REASONING_FIELDS and reasoning:
        sent[str(field)] = reasoning
    elif field == "inline" and reasoning:
        sent["content"] = f"<think>\n{reasoning}\n</think>\n\n{sent['content'] or ''}"
    return sent


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments_text(function.get("arguments"))},
    }

"""OpenAI's chat completions, read and written: a request's JSON becomes a Request, a Completion its answer.

What cannot be done is refused by name, never passed over in silence; only what has no effect on the
answer is ignored.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from libmachine.canon import Record
from libmachine.harness.base import Completion, Message, Request, Sampling
from libmachine.tinkerd.engine import Refusal

TIMEOUT_S = 600.0
_IGNORED = {
    *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "stream_options", "verbosity", "prediction"),
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
}
"""Served with these values (and null) only."""
_READ = {
    *("model", "messages", "tools", "temperature", "top_p", "top_k", "min_p", "max_tokens"),
    *("max_completion_tokens", "seed", "stop", "stream"),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatRefusal(Refusal):
    """A chat request that cannot be served. param: the field, code: OpenAI's word for it."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class Asked(NamedTuple):
    """A chat request. stop: texts that end the answer. usage: told at the end of a stream."""

    model: str
    request: Request
    stop: tuple[str, ...]
    stream: bool
    usage: bool


def read(body: Record) -> Asked:
    """What is asked. Raises ChatRefusal."""
    for name, value in body.items():
        if name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                raise ChatRefusal(f"'{name}' {_short(value)} is not served here", name, "unsupported_value")
        elif name not in _READ | _IGNORED:
            raise ChatRefusal(f"'{name}' is not served here", name, "unsupported_parameter")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ChatRefusal("'model' is missing or no text", "model")
    options = body.get("stream_options") or {}
    usage = isinstance(options, dict) and bool(options.get("include_usage"))
    tools = [] if body.get("tool_choice") == "none" else _tools(body.get("tools"))
    request = Request(_messages(body.get("messages")), tools, _sampling(body), TIMEOUT_S)
    return Asked(model, request, _stop(body.get("stop")), bool(body.get("stream")), usage)


def _short(value: Any) -> str:
    return orjson.dumps(value).decode()[:80]


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ChatRefusal("'messages' is missing or empty", "messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(message: Any, what: str) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise ChatRefusal(f"{what}: role '{role}' is none of: {', '.join(_ROLES)}", "messages")
    content = message.get("content")
    if isinstance(content, list):
        other = [part for part in content if not isinstance(part, dict) or part.get("type") != "text"]
        if other:
            raise ChatRefusal(f"{what} has an image, a sound or a file; only text is served", "messages")
    elif content is not None and not isinstance(content, str):
        raise ChatRefusal(f"{what}: content is neither a text nor a list of parts", "messages")
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(
            isinstance(function.get(name), str) for name in ("name", "arguments")
        ):
            raise ChatRefusal(f"{what} has a tool call without name and arguments", "messages")
    return {**message, "role": "system" if role == "developer" else role}


def _tools(value: Any) -> list[dict[str, Any]]:
    tools = value or []
    if not isinstance(tools, list):
        raise ChatRefusal("'tools' is no list", "tools")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ChatRefusal("'tools' has something else than functions with a name", "tools")
    return tools


def _sampling(body: Record) -> Sampling:
    usual = Sampling()
    most = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    seed = body.get("seed")
    return Sampling(
        temperature=_number(body, "temperature", usual.temperature, 0, 100),
        top_p=_number(body, "top_p", usual.top_p, 0, 1),
        top_k=_whole(body, "top_k", usual.top_k, 0),
        min_p=_number(body, "min_p", usual.min_p, 0, 1),
        max_tokens=_whole({"max_tokens": most[0]} if most else {}, "max_tokens", usual.max_tokens, 1),
        seed=None if seed is None else _whole(body, "seed", 0, -(2**63)),
    )


def _number(body: Record, name: str, usual: float, least: float, most: float) -> float:
    value = body.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ChatRefusal(f"'{name}' is no number", name)
    if not least <= value <= most:
        raise ChatRefusal(f"'{name}' {value} is not within {least} and {most}", name)
    return float(value)


def _whole(body: Record, name: str, usual: int, least: int) -> int:
    value = body.get(name)
    if value is None:
        return usual
    if type(value) is not int or value < least:
        raise ChatRefusal(f"'{name}' is no integer from {least} on", name)
    return value


def _stop(value: Any) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ChatRefusal("'stop' is neither a text nor a list of texts", "stop")
    return tuple(word for word in words if word)


# answers --------------------------------------------------------------------------------


def answer(asked: Asked, completion: Completion, now: int) -> Record:
    """chat.completion."""
    choice = {
        "index": 0,
        "message": _said(completion.message, asked.stop),
        "logprobs": None,
        "finish_reason": _finish(completion, asked.stop),
    }
    return {**_head(asked, now, "chat.completion"), "choices": [choice], "usage": usage(completion)}


def chunks(asked: Asked, completion: Completion, now: int) -> Iterator[bytes]:
    """chat.completion.chunk, as server-sent events: all that was said in one delta, then the end."""
    head = _head(asked, now, "chat.completion.chunk")
    message = _said(completion.message, asked.stop)
    delta = {name: value for name, value in message.items() if value is not None}
    calls = delta.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    ends: list[tuple[Record, str | None]] = [(delta, None), ({}, _finish(completion, asked.stop))]
    for part, finish in ends:
        choice = {"index": 0, "delta": part, "logprobs": None, "finish_reason": finish}
        yield event({**head, "choices": [choice]})
    if asked.usage:
        yield event({**head, "choices": [], "usage": usage(completion)})
    yield b"data: [DONE]\n\n"


def event(told: Record) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(told) + b"\n\n"


def usage(completion: Completion) -> Record | None:
    """OpenAI's counts; null where the engine counts no tokens."""
    prompt, said = completion.prompt_tokens, completion.completion_tokens
    if prompt is None or said is None:
        return None
    counts: Record = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    return {**counts, "prompt_tokens_details": {"cached_tokens": completion.cached_tokens or 0}}


def failure(message: str, status: int, param: str | None = None, code: str | None = None) -> Record:
    """An error in OpenAI's shape."""
    usual = {401: "invalid_api_key", 404: "model_not_found"}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    told = {"message": message, "type": kind, "param": param, "code": code or usual.get(status)}
    return {"error": told}


def model_entry(model: str, now: int) -> Record:
    """A model as /v1/models lists it."""
    return {"id": model, "object": "model", "created": now, "owned_by": "local"}


def _head(asked: Asked, now: int, kind: str) -> Record:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": now, "model": asked.model}


def _said(message: Mapping[str, Any], stop: tuple[str, ...]) -> Message:
    """The message in OpenAI's form: cut where a stop text begins, reasoning under the usual name."""
    told: Message = {"role": "assistant", "content": _cut(message.get("content") or "", stop)}
    if message.get("reasoning") is not None:
        told["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        told["tool_calls"] = message["tool_calls"]
        told["content"] = told["content"] or None
    return told


def _cut(text: str, stop: tuple[str, ...]) -> str:
    found = [at for word in stop if (at := text.find(word)) >= 0]
    return text[: min(found)] if found else text


def _finish(completion: Completion, stop: tuple[str, ...]) -> str:
    content = completion.message.get("content") or ""
    return "stop" if _cut(content, stop) != content else completion.finish_reason

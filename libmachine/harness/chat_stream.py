"""Turn the bytes of a reply, a JSON object or a stream of events, into one reply body. Pure.

A stream is merged into the body that the same endpoint would have sent in one piece, so that
everything behind it has one form to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from libmachine.harness.chat_bill import Failure, read_error, read_usage
from libmachine.harness.chat_read import REASONING_FIELDS, arguments_text, content_text

_COMMENTS = re.compile(r"(?::[^\n]*+(?:\n\s*+|\Z))+")
_STREAM = ("data:", "event:", "id:", "retry:")


def body_of(raw: bytes) -> Mapping[str, Any] | Failure:
    """The reply body in the bytes of a `200 OK`, whichever way it was sent and asked for."""
    text = raw.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    comments = _COMMENTS.match(text)  # they keep the connection alive, before either form
    text = text[comments.end() :] if comments else text
    if text.startswith(_STREAM):
        return merge(text)
    if not text:
        return Failure("the reply is empty", unknown_bill=True)
    if text.startswith("<"):
        return Failure("the reply is a web page, not JSON", final=True)
    body = _json(text)
    return body if isinstance(body, Mapping) else Failure("the reply is no JSON object", unknown_bill=True)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _events(text: str) -> Iterator[str]:
    """The data of each server-sent event; comments and other fields are passed over."""
    data: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def merge(text: str) -> Mapping[str, Any] | Failure:
    """The body that a stream of chunks adds up to. An error in it, or no end, makes it a failure."""
    body: dict[str, Any] = {}
    parts = _Parts()
    finish: str | None = None
    ended = False
    for data in _events(text):
        if data.strip() == "[DONE]":
            ended = True
            break
        if not data.strip():
            continue
        chunk = _json(data)
        if not isinstance(chunk, Mapping):
            break  # cut off in the middle of a chunk
        for name in ("model", "system_fingerprint", "usage", "id"):
            if chunk.get(name):
                body[name] = chunk[name]
        choices = chunk.get("choices")
        choices = [c for c in choices if isinstance(c, Mapping)] if isinstance(choices, list) else []
        choice = next((c for c in choices if not c.get("index")), None)
        error = chunk.get("error") or (choice or {}).get("error")
        if error:
            usage = read_usage(body)
            failure = read_error(error, usage=usage)
            failure.unknown_bill = usage is None and parts.seen
            return failure
        if choice is None:
            continue  # usage alone at the end, Azure's filter results at the start
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, Mapping):
            parts.add(delta)
        finish = choice.get("finish_reason") or finish
    if not ended and finish is None:
        return Failure("the stream broke off", usage=read_usage(body), unknown_bill="usage" not in body)
    body["choices"] = [{"message": parts.message(), "finish_reason": finish}] if parts.seen or finish else []
    return body


class _Parts:
    """The assistant message that deltas add up to."""

    def __init__(self) -> None:
        self.seen = False
        self.texts: dict[str, str] = {}
        self.content: list[Any] = []
        self.details: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.slots: dict[Any, dict[str, Any]] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        self.seen = self.seen or any(value for name, value in delta.items() if name != "role")
        for name in ("refusal", *REASONING_FIELDS[:2]):
            if isinstance(delta.get(name), str):
                self.texts[name] = self.texts.get(name, "") + delta[name]
        content = delta.get("content")
        if content:
            self.content += content if isinstance(content, list) else [content]
        for detail in _mappings(delta.get("reasoning_details")):
            self._detail(detail)
        for call in _mappings(delta.get("tool_calls")):
            self._call(call)
        if isinstance(delta.get("function_call"), Mapping):
            self._call({"function": delta["function_call"]})

    def message(self) -> dict[str, Any]:
        # Strings are joined; parts stay parts, for the reader to tell text from thinking.
        plain = all(isinstance(part, str) for part in self.content)
        content: Any = content_text(self.content) if plain else self.content
        return {
            "role": "assistant",
            "content": content,
            "tool_calls": self.calls,
            "reasoning_details": self.details,
            **self.texts,
        }

    def _detail(self, detail: Mapping[str, Any]) -> None:
        """Add to the detail with the same index and type, else begin one."""
        last = self.details[-1] if self.details else None
        if last is None or any(last.get(n) != detail.get(n) for n in ("index", "type")):
            self.details.append(dict(detail))
            return
        for name, value in detail.items():
            if (
                name in ("text", "summary", "data")
                and isinstance(value, str)
                and isinstance(last.get(name), str)
            ):
                last[name] += value
            elif value is not None:
                last[name] = value

    def _call(self, delta: Mapping[str, Any]) -> None:
        """Add to the call the delta belongs to. Some endpoints give every call index 0, or none: then a new
        id opens a new call, or a name where the arguments so far are complete."""
        function = delta.get("function") if isinstance(delta.get("function"), Mapping) else delta
        assert isinstance(function, Mapping)
        name = function.get("name") if isinstance(function.get("name"), str) else ""
        wanted = delta.get("id") if isinstance(delta.get("id"), str) else ""
        index = delta.get("index") if isinstance(delta.get("index"), int) else 0
        call = next((c for c in self.calls if wanted and c["id"] == wanted), self.slots.get(index))
        if call is None or self._opens_another(call, wanted or "", name or ""):
            call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self.calls.append(call)
        self.slots[index] = call
        call["id"] = call["id"] or wanted
        call["function"]["name"] = call["function"]["name"] or name
        if function.get("arguments") is not None:
            call["function"]["arguments"] += arguments_text(function["arguments"])

    @staticmethod
    def _opens_another(call: Mapping[str, Any], wanted: str, name: str) -> bool:
        if wanted and call["id"]:
            return bool(wanted != call["id"])
        current = call["function"]
        if not name or not current["name"]:
            return False
        return name != current["name"] or _json(current["arguments"]) is not None


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []

"""Read a chat-completions reply, whatever its maker understood by that. Pure: bytes in, value out.

Endpoints differ in where they put reasoning, how they write tool calls, content and usage,
and in saying `200 OK` to a failure. Each difference handled here was met in the field
(threads: reference/harnesses.md 6) and has a test of that name in tests/test_chat.py.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from libmachine.harness.base import Completion, Message
from libmachine.harness.chat_bill import Failure, Usage, read_error, read_usage

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
_FINISH = {
    "stop": "stop", "end_turn": "stop", "eos": "stop", "stop_sequence": "stop",
    "length": "length", "max_tokens": "length", "model_length": "length",
    "content_filter": "content_filter", "safety": "content_filter", "recitation": "content_filter",
    "refusal": "content_filter",
}  # fmt: skip
# A tag between backticks is talk about tags, not one.
_TAG = re.compile(r"(?<!`)<(/?)think(?:ing)?>", re.IGNORECASE)


@dataclass
class ChatCompletion(Completion):
    """A completion with what it took to get it.

    wasted: usage of replies before it that could not be used. unknown_bills: attempts before it
    that may have been billed and did not say for what.
    """

    wasted: list[Usage] = field(default_factory=list)
    unknown_bills: int = 0


def read_completion(body: object, position: int = 0) -> ChatCompletion | Failure:
    """The assistant message of a reply body, or why there is none.

    position: number of messages before it, for the ids of tool calls that came without
    (`call_POSITION_INDEX`, unique in a conversation).
    """
    if not isinstance(body, Mapping):
        return Failure("the reply is no JSON object", unknown_bill=True)
    usage = read_usage(body)
    unusable = functools.partial(Failure, usage=usage, unknown_bill=usage is None)
    error = body.get("error")
    choice = _first(body.get("choices"))
    if not error and choice is not None:
        error = choice.get("error")
    if error:
        return read_error(error, usage=usage)
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, Mapping):
        return unusable("the reply holds no choice")
    reason = choice.get("finish_reason")
    reason = reason.lower() if isinstance(reason, str) else ""
    if reason == "error":
        return unusable("the reply ended with an error that it does not name")
    read = _message(message, position)
    refused = bool(read.get("refusal"))
    if "tool_calls" in read:
        finish = "tool_calls"
    elif reason in _FINISH:
        finish = _FINISH[reason]
    elif read["content"] or refused:
        finish = "stop"
    else:
        return unusable(f"the reply is empty (finish_reason '{reason}')")
    return ChatCompletion(
        message=read,
        finish_reason=finish,
        model=_text(body.get("model")),
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        fingerprint=_text(body.get("system_fingerprint")) or None,
        cost_usd=usage.cost_usd if usage else None,
    )


def _message(message: Mapping[str, Any], position: int) -> Message:
    """The assistant message as we keep it: string content, string arguments, reasoning under its two keys."""
    content, thinking = split_thinking(content_text(message.get("content")))
    refusal = _text(message.get("refusal"))
    read: Message = {"role": "assistant", "content": content or refusal}
    calls = _calls(message, position)
    if calls:
        read["tool_calls"] = calls
    if refusal:
        read["refusal"] = refusal
    details = message.get("reasoning_details")
    thinking = thinking or _reasoning([p for p in _parts(message.get("content")) if _is_thinking(p)])
    texts = {name: _reasoning(message.get(name)) for name in REASONING_FIELDS} | {"inline": thinking}
    name = next((name for name, text in texts.items() if text), None)
    if name is None and isinstance(details, list) and details:
        name = "reasoning_details"  # encrypted: nothing to read, and still wanted back
    if name is not None:
        read |= {"reasoning": texts[name]} if texts[name] else {}
        read["reasoning_field"] = name
    if name == "reasoning_details":
        read["reasoning_details"] = details  # unchanged: its parts are signed
    return read


def content_text(content: object) -> str:
    """The text of a content field: a string, null, or parts (text and refusals; thinking is no content)."""
    if isinstance(content, str):
        return content
    texts = (p.get("text") or p.get("refusal") for p in _parts(content) if not _is_thinking(p))
    return "".join(text for text in texts if isinstance(text, str))


def _parts(content: object) -> list[Mapping[str, Any]]:
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        return []
    return [{"text": p} if isinstance(p, str) else p for p in content if isinstance(p, str | Mapping)]


def _is_thinking(part: Mapping[str, Any]) -> bool:
    return part.get("type") in ("thinking", "reasoning", "reasoning.text")


def _reasoning(value: object) -> str:
    """The text of reasoning in any form; encrypted entries have none."""
    if isinstance(value, str):
        return value
    texts = []
    for part in _parts(value):
        found = next((part[n] for n in ("text", "summary", "thinking", "content") if part.get(n)), "")
        texts.append(_reasoning(found))
    return "".join(texts)


def split_thinking(text: str) -> tuple[str, str]:
    """(text without <think> blocks, what was in them). A lone closing tag ends reasoning that the prompt
    opened; a block without an end is reasoning to the end of the text."""
    if "think" not in text.lower():
        return text, ""
    kept: list[str] = []
    thoughts: list[str] = []
    at, inside = 0, False
    for tag in _TAG.finditer(text):  # once over it: a reply may be nothing but tags
        if inside and not tag[1]:
            continue
        if inside:
            thoughts.append(text[at : tag.start()])
            inside = False
        else:
            kept.append(text[at : tag.start()])
            inside = not tag[1]
            if tag[1]:
                thoughts.append("".join(kept))
                kept = []
        at = tag.end()
    (thoughts if inside else kept).append(text[at:])
    if not thoughts:
        return text, ""
    return "".join(kept).strip(), "\n".join(t.strip() for t in thoughts if t.strip())


def _calls(message: Mapping[str, Any], position: int) -> list[dict[str, Any]]:
    """The tool calls, each with a unique id, type function and arguments as a string."""
    given = message.get("tool_calls")
    given = [given] if isinstance(given, Mapping) else given if isinstance(given, list) else []
    if not given and isinstance(message.get("function_call"), Mapping):
        given = [{"function": message["function_call"]}]  # the form before tools
    calls: list[dict[str, Any]] = []
    for call in given:
        if not isinstance(call, Mapping):
            continue
        function = call.get("function") if isinstance(call.get("function"), Mapping) else call
        assert isinstance(function, Mapping)
        name, arguments = _text(function.get("name")), arguments_text(function.get("arguments"))
        if not name and not call.get("id") and arguments in ("", "{}"):
            continue  # an empty shell
        wanted = _text(call.get("id"))
        if not wanted or any(wanted == c["id"] for c in calls):
            wanted = f"call_{position}_{len(calls)}"
        calls.append(
            {
                "id": wanted,
                "type": "function",
                "function": {"name": name or "unnamed", "arguments": arguments},
            }
        )
    return calls


def arguments_text(arguments: object) -> str:
    """Arguments as the raw string they are on the wire; an object is written as JSON, null as {}."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _first(choices: object) -> Mapping[str, Any] | None:
    found = [c for c in choices if isinstance(c, Mapping)] if isinstance(choices, list) else []
    return found[0] if found else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

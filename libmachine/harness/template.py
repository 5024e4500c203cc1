"""Conversations as token ids of a ChatML model, and sampled text back as a message. Pure; no model needed.

The same `render` makes prompts and training data. It keeps four promises:

* control tokens come from here alone: `<|im_end|>` in a content is seven ordinary tokens;
* no system turn that nobody wrote (the model's own template adds one);
* an assistant turn opens with the tokens of the generation prompt, so what was sampled
  after a prompt continues it: prompt + sampled ids are a prefix of the longer rendering;
* without tools, and where no assistant content begins with a blank, ids are those of the model's
  own template.

Tools are in Hermes style: declared in the system turn, called in `<tool_call>`, answered in
`<tool_response>` in a turn of role `tool`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libmachine.harness.base import Message

REVISION = "chatml1"
"""Part of an engine's name: changes when a conversation renders to other ids than before."""

START, END = "<|im_start|>", "<|im_end|>"
SPECIAL = (START, END)
"""The control tokens whose ids `render` wants."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FORM = f'{_OPEN}\n{{"name": NAME, "arguments": OBJECT}}\n{_CLOSE}'
_BLOCK = re.compile(rf"{_OPEN}(.*?)(?:{_CLOSE}|\Z)", re.DOTALL)
_LOOSE_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_LOOSE_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*(.*)', re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)  # models put bare newlines into strings
_BLANK = " \t\r\n"
_BLANKS = re.compile(f"[{_BLANK}]*")


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    tokenize: Callable[[str], list[int]],
    special: Mapping[str, int],
) -> list[int]:
    """Token ids of a conversation, ready to be continued unless its last message is the assistant's.

    tokenize: text to ids, never making control tokens. special: ids of START and END.
    """
    turns = [dict(message) for message in messages]
    if tools:
        if not turns or turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": ""})
        own = text(turns[0].get("content"))
        turns[0]["content"] = (own + "\n\n" if own else "") + declaration(tools)
    opening = [special[START], *tokenize("assistant\n")]
    ids: list[int] = []
    for turn in turns:
        if turn["role"] == "assistant":
            body = assistant_text(turn)
            ids += opening + (tokenize(body) if body else [])
        else:
            content = text(turn.get("content"))
            if turn["role"] == "tool":
                content = f"<tool_response>\n{content}\n</tool_response>"
            ids += [special[START], *tokenize(f"{turn['role']}\n{content}")]
        ids += [special[END], *tokenize("\n")]
    if not turns or turns[-1]["role"] != "assistant":
        ids += opening
    return ids


def declaration(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the system turn says about tools (OpenAI's form)."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions, described as JSON, one a line:\n<tools>\n{lines}\n</tools>\n"
        f"To call one, answer in this form, once for each call:\n{_FORM}"
    )


def assistant_text(message: Message) -> str:
    """The text of an assistant message as the model writes it, tool calls included."""
    thought = ""
    if message.get("reasoning") is not None and message.get("reasoning_field") == "inline":
        thought = f"<think>{message['reasoning']}</think>"
    parts = [thought + text(message.get("content"))]
    for call in message.get("tool_calls") or []:
        name = json.dumps(call["function"]["name"], ensure_ascii=False)
        arguments = call["function"]["arguments"] or "{}"
        parts.append(f'{_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{_CLOSE}')
    return "\n".join(parts if parts[0] else parts[1:])


def text(content: Any) -> str:
    """A message's content as text: a string, null, or a list of parts, of which the text ones count."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def parse(sampled: str, step: int = 0, calls: bool = True) -> Message:
    """The assistant message that sampled text means. Never raises.

    calls: read `<tool_call>` blocks (False where no tool is on offer: they are then text). A block
    with a name becomes a call whose arguments are the raw text, valid or not, so that the loop can
    tell the model what is wrong; any other block stays in the content. Ids are call_STEP_N.
    """
    message: Message = {"role": "assistant"}
    thought = _THOUGHT.match(sampled)
    if thought:
        message |= {"reasoning": thought[1], "reasoning_field": "inline"}
        sampled = sampled[thought.end() :]
    found: list[dict[str, Any]] = []
    outside, position = [], 0
    for block in _BLOCK.finditer(sampled) if calls else ():
        read = _call(block[1], closed=block[0].endswith(_CLOSE))
        if read is None:
            continue
        outside.append(sampled[position : block.start()])
        position = block.end()
        function = {"name": read[0], "arguments": read[1]}
        found.append({"id": f"call_{step}_{len(found)}", "type": "function", "function": function})
    outside.append(sampled[position:])
    message["content"] = outside[0] if not found else _join(outside)
    if found:
        message["tool_calls"] = found
    return message


def _join(outside: list[str]) -> str:
    """Text around calls. One newline before the first call is the form's, not the content's."""
    rest = [piece.strip() for piece in outside[1:] if piece.strip()]
    first = outside[0].removesuffix("\n")
    return "\n".join([first, *rest] if first else rest)


def _call(block: str, closed: bool) -> tuple[str, str] | None:
    """Name and raw arguments of a block, or None. One cut short (no closing tag) must be whole JSON."""
    members = _members(block)
    if members is not None:
        try:
            name = json.loads(members.get("name", "null"), strict=False)
        except (ValueError, RecursionError):
            return None
        arguments = members.get("arguments", members.get("parameters", "{}"))
        return (name, arguments) if isinstance(name, str) and name else None
    name_found = _LOOSE_NAME.search(block)
    if not closed or name_found is None:
        return None
    arguments_found = _LOOSE_ARGUMENTS.search(block)
    raw = arguments_found[1].rstrip() if arguments_found else block.strip()
    return name_found[1], raw.removesuffix("}").rstrip() if arguments_found else raw


def _members(block: str) -> dict[str, str] | None:
    """The members of a JSON object, each value as the raw text it was; None if it is no whole object."""
    members: dict[str, str] = {}
    block = block.strip(_BLANK)
    at = 0
    try:
        while block[at : at + 1] == ("," if members else "{"):
            key, at = _DECODER.raw_decode(block, _past_blanks(block, at + 1))
            at = _past_blanks(block, at)
            if not isinstance(key, str) or block[at : at + 1] != ":":
                return None
            start = _past_blanks(block, at + 1)
            _, end = _DECODER.raw_decode(block, start)
            members[key], at = block[start:end], _past_blanks(block, end)
    except (ValueError, RecursionError):
        return None
    return members if block[at:] == "}" and members else None


def _past_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at

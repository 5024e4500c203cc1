"""The scripted engine: fixed replies from a file of rules, for tests and for controls.

A rule a line: {"match": REGEX, "instructions"?: REGEX, "trial"?: N, "expand"?: true,
"replies": [...]}. The first rule whose regex is found in the case's input (and the other one in the
instructions, and whose trial fits) answers; its replies are used in order within a run. With expand,
\\1 and \\g<0> in a reply's texts are what the regex's groups found.
A reply is a text or an assistant message; it may also carry

    finish_reason   why the model stopped (default: tool_calls if it calls a tool, else stop)
    usage           {prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens}
    cost_usd        what the call is billed
    delay_s         seconds to wait first
    error           text: the endpoint fails with it
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from libmachine import jsonl
from libmachine.canon import canonical
from libmachine.define import text_of
from libmachine.errors import MachineError, ProviderError
from libmachine.githash import blob_id
from libmachine.harness.base import Completion, Request

_EXTRAS = ("finish_reason", "usage", "cost_usd", "delay_s", "error")


@dataclass(frozen=True)
class Rule:
    """One line of the file."""

    match: re.Pattern[str]
    instructions: re.Pattern[str]
    trial: int | None
    expand: bool
    replies: list[dict[str, Any]]


class ScriptedEngine:
    """Answers from a file of rules. Raises MachineError if the file is not one."""

    name = "scripted"

    def __init__(self, path: str) -> None:
        self.path = path
        self.rules = read_rules(path)
        with open(path, "rb") as file:
            self.model = f"scripted/{blob_id(file.read())}"

    def complete(self, request: Request) -> Completion:
        """The reply of the first fitting rule at this step of the run."""
        first = request.messages[0] if request.messages else {}
        given = text_of(first.get("content")) if first.get("role") == "system" else ""
        for rule in self.rules:
            found = rule.match.search(request.case_text)
            if found and rule.instructions.search(given) and rule.trial in (None, request.trial):
                if request.step >= len(rule.replies):
                    raise ProviderError(
                        f"rule '{rule.match.pattern}' of '{self.path}' has no reply {request.step + 1}"
                    )
                reply = rule.replies[request.step]
                if rule.expand:
                    reply = _each_text(reply, found.expand)
                return _completion(reply, self.model, request.step)
        raise ProviderError(f"no rule of '{self.path}' matches the input '{request.case_text[:60]}'")

    def close(self) -> None:
        """Nothing to let go of."""


def read_rules(path: str) -> list[Rule]:
    """The rules of a file. Raises MachineError with the number of the line that is none."""
    rules = []
    try:
        for line in jsonl.read_file(path):
            try:
                rules.append(_rule(line.value) if line.error is None else _refuse(line.error))
            except (ValueError, re.error) as error:
                raise MachineError(f"{path}: rule {line.number}: {error}") from None
    except (FileNotFoundError, IsADirectoryError):
        raise MachineError(f"no file of rules '{path}'; --harness scripted wants --model FILE") from None
    if not rules:
        raise MachineError(f"'{path}' has no rule; write one JSON object a line")
    return rules


def _refuse(error: str) -> Rule:
    raise ValueError(error)


_FORM = '{"match": REGEX, "instructions"?: REGEX, "trial"?: N, "expand"?: true, "replies": [...]}'


def _rule(value: Any) -> Rule:
    if not isinstance(value, dict) or not isinstance(value.get("match"), str):
        raise ValueError(f"a rule is {_FORM}")
    if not isinstance(value.get("instructions", ""), str):
        raise ValueError("'instructions' is a regex")
    replies = value.get("replies")
    if not isinstance(replies, list) or not replies:
        raise ValueError("'replies' is a list of texts or assistant messages")
    if unknown := set(value) - {"match", "instructions", "trial", "expand", "replies"}:
        raise ValueError(f"unknown field '{min(unknown)}'")
    messages = [{"role": "assistant", "content": r} if isinstance(r, str) else r for r in replies]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("'replies' is a list of texts or assistant messages")
    for message in messages:
        _check(message)
    trial, expand = value.get("trial"), value.get("expand", False)
    match, instructions = re.compile(value["match"]), re.compile(value.get("instructions", ""))
    if not isinstance(expand, bool):
        raise ValueError("'expand' is true or false")
    if expand:
        try:
            _each_text(messages, lambda text: match.sub(text, ""))  # a group that there is not is told now
        except IndexError as error:
            raise ValueError(f"a reply: {error}") from None
    return Rule(match, instructions, trial if isinstance(trial, int) else None, expand, messages)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every string in it changed, but for names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(each, change) for each in value]
    return (
        {name: _each_text(each, change) for name, each in value.items()} if isinstance(value, dict) else value
    )


def _check(reply: dict[str, Any]) -> None:
    """Raise ValueError for a reply that could not be given."""
    for name in ("delay_s", "cost_usd"):
        amount = reply.get(name) or 0
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < 1e9:
            raise ValueError(f"'{name}' is a number from 0 on")
    usage = reply.get("usage") or {}
    if not isinstance(usage, dict) or not all(isinstance(n, int | None) for n in usage.values()):
        raise ValueError("'usage' maps names of token counts to whole numbers")
    if set(usage) - {"prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"}:
        raise ValueError("'usage' has prompt_tokens, completion_tokens, cached_tokens and reasoning_tokens")
    calls = reply.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("'tool_calls' is a list of calls")
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a tool call has a 'name' and 'arguments'")
        if "function" in call and not isinstance(function.get("arguments"), str):
            raise ValueError("'arguments' inside 'function' are a text")


def _completion(reply: dict[str, Any], model: str, step: int) -> Completion:
    if reply.get("delay_s"):
        time.sleep(float(reply["delay_s"]))
    if reply.get("error"):
        raise ProviderError(str(reply["error"]))
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    message |= {name: value for name, value in reply.items() if name not in _EXTRAS}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_call(call, step, i) for i, call in enumerate(calls)]
    usage: dict[str, Any] = {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
    }
    usage |= reply.get("usage") or {}
    return Completion(
        message=message,
        finish_reason=reply.get("finish_reason") or ("tool_calls" if calls else "stop"),
        model=model,
        cost_usd=reply.get("cost_usd", 0.0),
        **usage,
    )


def _call(call: dict[str, Any], step: int, number: int) -> dict[str, Any]:
    """A call in OpenAI's form; {"name", "arguments"} alone is enough in a rule."""
    if "function" in call:
        return {"id": f"call_{step}_{number}", "type": "function", **call}
    arguments = call.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = canonical(arguments).decode()
    return {
        "id": call.get("id", f"call_{step}_{number}"),
        "type": "function",
        "function": {"name": call.get("name", ""), "arguments": arguments},
    }

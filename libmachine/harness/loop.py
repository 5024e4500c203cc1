"""The agent loop: a machine, a case and an engine in, one finished run out.

The history is linear: the trajectory is `messages`. Malformed arguments, unknown tools
and tools that raise go back to the model as tool results. The loop ends when the model
stops, at its length, at the step or time limit, and says which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from libmachine.canon import Record, now, plain, usd
from libmachine.case import as_messages
from libmachine.define import text_of
from libmachine.errors import ContextOverflow, Refused
from libmachine.harness.base import Completion, Engine, Message, Request, Sampling
from libmachine.tools import NOTHING, Context, Outcome, Tool, unknown

STATUS = {
    "stop": "ok",
    "content_filter": "ok",
    "length": "limit",
    "max_steps": "limit",
    "timeout": "limit",
    "context": "limit",
    "error": "failed",
}
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


@dataclass(frozen=True)
class Limits:
    """When a run ends whatever the model does. timeout_s: seconds of wall time."""

    max_steps: int = 30
    timeout_s: float = 600.0


def run(
    engine: Engine,
    instructions: str,
    case: Mapping[str, Any],
    tools: Mapping[str, Tool],
    sampling: Sampling,
    limits: Limits,
    trial: int,
    keep_tokens: Callable[[dict[str, Any]], str] | None = None,
    context: Context = NOTHING,
    heard: Callable[[Message], None] = lambda message: None,
) -> Record:
    """Run one case and return the fields of a run that the loop decides.

    Never raises for what an engine or a tool does: that becomes `status` and `error`.
    keep_tokens: stores a step's token ids and log-probabilities, returns their blob id.
    context: what the tools act on. heard: called with each message as it comes: the model's, and the
    results of tools.
    """
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    messages += [dict(message) for message in as_messages(case["input"])]
    given = len(messages)
    schemas = [tool.schema for tool in tools.values()]
    steps: list[Record] = []
    started_at, started = now(), time.monotonic()
    deadline = started + limits.timeout_s
    stop_reason, error = "max_steps", None
    while len(steps) < limits.max_steps:
        left = deadline - time.monotonic()
        if left <= 0:
            stop_reason = "timeout"
            break
        request = Request(messages, schemas, sampling, left, text_of(case["input"]), trial, len(steps))
        step_at, step_started = now(), time.monotonic()
        try:
            completion = engine.complete(request)
            message: Message = plain(completion.message)
        except ContextOverflow:
            stop_reason = "context"
            break
        except Refused:
            raise  # no money is no answer of the model: the run was never made
        except Exception as failure:  # also a bug of an engine: one run fails, the others are kept
            stop_reason = "error"
            error = {"where": "provider", "type": type(failure).__name__, "message": str(plain(str(failure)))}
            break
        deadline += completion.waited_s
        messages.append(message)
        heard(message)
        step = _step(completion, len(messages) - 1, step_at, time.monotonic() - step_started)
        if completion.tokens is not None and keep_tokens is not None:
            step["tokens"] = keep_tokens(completion.tokens)
        steps.append(step)
        calls = message.get("tool_calls") or []
        if completion.finish_reason == "length" or not calls:
            stop_reason = completion.finish_reason if completion.finish_reason in STATUS else "stop"
            break
        for call in calls:
            outcome = _use(call, tools, replace(context, deadline=deadline))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": outcome.content})
            heard(messages[-1])
            step["tools"].append(_tool_use(call, outcome))
    finished: Record = {
        "messages": messages,
        "tools": schemas,
        "output": _output(messages[given:]),
        "stop_reason": stop_reason,
        "usage": _usage(steps),
        "steps": steps,
        "answered": steps[-1]["model"] if steps else None,
        "started_at": started_at,
        "duration_s": round(time.monotonic() - started, 3),
        "status": STATUS[stop_reason],
    }
    if error is not None:
        finished["error"] = error
    return finished


def _use(call: Mapping[str, Any], tools: Mapping[str, Tool], context: Context) -> Outcome:
    name = call["function"]["name"]
    tool = tools.get(name)
    return tool.call(call["function"]["arguments"], context) if tool else unknown(name, list(tools))


def _tool_use(call: Mapping[str, Any], outcome: Outcome) -> Record:
    used = {"id": call["id"], "name": call["function"]["name"], "ok": outcome.ok}
    if outcome.error is not None:
        used["error"] = outcome.error
    return {**used, "truncated": outcome.truncated, "duration_s": round(outcome.duration_s, 3)}


def _step(completion: Completion, message: int, started_at: str, duration_s: float) -> Record:
    step: Record = {"message": message}
    step |= {name: getattr(completion, name) for name in _COUNTS}
    step |= {"finish_reason": completion.finish_reason, "model": completion.model}
    if completion.fingerprint:
        step["fingerprint"] = completion.fingerprint
    return {
        **step,
        "started_at": started_at,
        "duration_s": round(duration_s, 3),
        "retries": completion.retries,
        "cost_usd": usd(completion.cost_usd),
        "tools": [],
    }


def _usage(steps: list[Record]) -> Record:
    """Sums over the steps; a count that one step did not report is unknown for the run."""
    usage: Record = {"calls": len(steps)}
    for name in _COUNTS:
        counts = [step[name] for step in steps]
        usage[name] = None if None in counts else sum(counts)
    costs = [step["cost_usd"] for step in steps]
    usage["cost_usd"] = None if None in costs else usd(sum(costs))
    return usage


def _output(messages: list[Message]) -> str:
    for message in reversed(messages):
        if message["role"] == "assistant":
            return text_of(message.get("content"))
    return ""

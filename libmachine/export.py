"""machine-export's work: graded runs in, training examples out. Pure: records to records.

What may be a target is what the machine said well: not a step whose tool calls all failed,
not one that ended by length, not the turns of the case itself. Held-out cases, stale grades
and runs that ended at a limit give no example at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record, RecordError, canonical, hash_of, loads
from libmachine.case import as_messages
from libmachine.define import COUNTERPART, Run, steps_of
from libmachine.select import answer_of, score_of

FORMATS = ("openai", "cookbook", "trl", "dpo")


@dataclass
class Dropped:
    """Why runs gave no example: reason -> names of their cases, for the report."""

    reasons: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, run: Mapping[str, Any]) -> None:
        """Count a run under a reason."""
        self.reasons.setdefault(reason, []).append(str(run["case"].get("id") or run["case"]["identity"][:12]))

    def told(self) -> list[str]:
        """One line a reason, with the cases named."""
        lines = []
        for reason, cases in sorted(self.reasons.items()):
            names = sorted(set(cases))
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            lines.append(f"{len(cases)} left out: {reason} ({shown})")
        return lines


def refusal(run: Mapping[str, Any], drop_reasoning: bool) -> str | None:
    """Why a run is no training data whatever its score, or None."""
    talk = run.get("conversation")
    if talk and talk["side"] == COUNTERPART:
        return f"a counterpart's turn: '{talk['with']}' is what was run"
    if run["status"] != "ok":
        return f"status {run['status']} ({run['stop_reason']})"
    if run.get("split") == "holdout":
        return "held out"
    if score_of(run) is None:
        return "not graded"
    captured = any(message.get("reasoning") for message in run["messages"])
    if any(step.get("reasoning_tokens") for step in steps_of(run)) and not captured and not drop_reasoning:
        return "it reasoned, and only the count was captured; --drop-reasoning takes it all the same"
    if not targets(run):
        return "no step that may be a target"
    return None


def targets(run: Mapping[str, Any]) -> list[int]:
    """Indices in `messages` of the assistant messages to be trained on, of all turns of a conversation."""
    good = []
    for step in steps_of(run):
        used = step.get("tools") or []
        all_failed = bool(used) and not any(tool["ok"] for tool in used)
        if step["finish_reason"] != "length" and not all_failed:
            good.append(step["message"])
    return good


def examples(run: Mapping[str, Any], per_turn: bool, drop_reasoning: bool) -> Iterator[Record]:
    """The examples of a run in our own form: {messages, tools, targets, metadata}.

    per_turn: one example a target, ending there. Else one for the whole run.
    """
    good = targets(run)
    messages = [_message(message, drop_reasoning) for message in run["messages"]]
    if per_turn:
        for index in good:
            yield _example(run, messages[: index + 1], [index])
    else:
        yield _example(run, messages[: max(good) + 1], good)


def _message(message: Mapping[str, Any], drop_reasoning: bool) -> Record:
    kept = dict(message)
    if drop_reasoning:
        for name in ("reasoning", "reasoning_field", "reasoning_details"):
            kept.pop(name, None)
    return kept


def _example(run: Mapping[str, Any], messages: Sequence[Record], good: Sequence[int]) -> Record:
    return {
        "messages": list(messages),
        "tools": run["tools"],
        "targets": list(good),
        "metadata": {
            "run": run["id"],
            "machine": run["machine"],
            "version": run["version"],
            "case": run["case"]["identity"],
            "trial": str(run["trial"]),
            "score": f"{score_of(run):g}",
        },
    }


# what is changed on the way -------------------------------------------------------------


class CannotChange(Exception):
    """A run that cannot be changed as asked; the message says why."""


def transformed(run: Mapping[str, Any], transforms: Sequence[Callable[[str, Run], str]]) -> Record:
    """The run with the captured reasoning of each message passed through functions, in their order.

    Nothing else changes: no answer, call or result. Raises CannotChange if no reasoning was captured, a
    function fails, or it leaves none.
    """
    seen = Run(run)
    messages = []
    for message in run["messages"]:
        if message["role"] == "assistant" and message.get("reasoning"):
            text = message["reasoning"]
            for transform in transforms:
                try:
                    text = transform(text, seen)
                except Exception as error:  # the author's code
                    raise CannotChange(f"transform_reasoning: {type(error).__name__}: {error}") from None
                if not isinstance(text, str) or not text.strip():
                    raise CannotChange("transform_reasoning leaves no text")
            # details are the provider's own form of the old text
            kept = {name: value for name, value in message.items() if name != "reasoning_details"}
            if kept.get("reasoning_field") == "reasoning_details":
                del kept["reasoning_field"]
            message = {**kept, "reasoning": text}
        messages.append(message)
    if not any(message.get("reasoning") for message in messages):
        raise CannotChange("no reasoning was captured that could be transformed")
    return {**run, "messages": messages}


def instructed(run: Mapping[str, Any], instructions: str) -> Record:
    """The run as if it had been given these instructions instead of its own; "" are none."""
    had = _given(run) - len(as_messages(run["case"]["input"]))
    new = [{"role": "system", "content": instructions}] if instructions else []
    steps = [{**step, "message": step["message"] + len(new) - had} for step in run["steps"]]
    return {**run, "messages": [*new, *run["messages"][had:]], "steps": steps}


# formats --------------------------------------------------------------------------------


class CannotFormat(Exception):
    """An example that a format has no place for; the message says why."""


def as_openai(example: Record) -> Record:
    """OpenAI's fine-tuning form: arguments as strings; weight 0 on assistant messages that are no target."""
    good = set(example["targets"])
    messages = []
    for index, message in enumerate(example["messages"]):
        if message["role"] == "assistant":
            message = {**message, "weight": int(index in good)}
        messages.append(message)
    row: Record = {"messages": messages}
    if example["tools"]:
        row["tools"] = example["tools"]
    return {**row, "metadata": example["metadata"]}


def as_cookbook(example: Record) -> Record:
    """tinker-cookbook's conversation file: plain chat, text contents, no null and no extra key.

    Its loader (0.5.8) cannot take tool calls, ignores tools and reasoning, and trains every
    assistant message: what would be lost or wrong is refused.
    """
    messages = []
    good = set(example["targets"])
    for index, message in enumerate(example["messages"]):
        if message.get("tool_calls") or message["role"] == "tool":
            raise CannotFormat("it calls tools, which that loader cannot take; use machine-sft")
        if message.get("reasoning"):
            raise CannotFormat(
                "it has reasoning, which that loader drops; use --drop-reasoning or machine-sft"
            )
        if not isinstance(message.get("content"), str):
            raise CannotFormat("a content is no text")
        if message["role"] == "assistant" and index not in good:
            raise CannotFormat(
                "an earlier turn is no target, and that loader trains them all; use --per-turn"
            )
        messages.append({"role": message["role"], "content": message["content"]})
    return {"messages": messages}


def as_trl(example: Record) -> Record:
    """TRL's conversational prompt and completion, of which it trains the completion alone: one target a row.

    Its `messages` form would train calls that failed. Load it by datasets.load_dataset("json", ...), which
    keeps each object as it is; Dataset.from_list gives all argument objects the keys of all others.
    """
    last = len(example["messages"]) - 1
    if example["targets"] != [last]:
        raise CannotFormat("it is no single target")
    messages = [_for_template(message) for message in example["messages"]]
    row: Record = {"prompt": messages[:last], "completion": messages[last:]}
    return {**row, "tools": _tools(example["tools"]), "metadata": example["metadata"]}


def _for_template(message: Mapping[str, Any]) -> Record:
    """A message as chat templates want it: no null, arguments as objects, reasoning as reasoning_content."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text") or "") for part in content)
    if not isinstance(content, str | None):
        raise CannotFormat("a content is no text")
    made: Record = {"role": message["role"], "content": content or ""}
    if message.get("reasoning"):
        made["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if message["role"] == "tool":
        made["tool_call_id"] = message.get("tool_call_id") or ""
    return made


def _call(call: Mapping[str, Any]) -> Record:
    function = call["function"]
    try:
        arguments = loads((function["arguments"] or "{}").encode())
    except RecordError:
        arguments = None
    if not isinstance(arguments, dict):
        raise CannotFormat("a call has arguments that are no JSON object")
    function = {"name": function["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _tools(tools: Sequence[Record]) -> str:
    """Tools as text: TRL reads them so, and a column of schemas that differ has no type."""
    return canonical(list(tools)).decode()


def as_pairs(runs: Sequence[Mapping[str, Any]], drop_reasoning: bool, dropped: Dropped) -> Iterator[Record]:
    """Preference pairs of one case: its good runs against its bad ones, each used once.

    runs: of one machine and case, in a conversation of one history (see pair_of), graded. A pair is
    {prompt, chosen, rejected} in TRL's conversational form.
    """
    passed = [
        run for run in runs if (run.get("scorecard") or {}).get("passed") is True and run["status"] == "ok"
    ]
    failed = [run for run in runs if (run.get("scorecard") or {}).get("passed") is False]
    seen = set()
    for good, bad in zip(passed, failed, strict=False):
        key = (answer_of(good), answer_of(bad))
        if key in seen or key[0] == key[1]:
            continue
        seen.add(key)
        try:
            one, other = (
                [_for_template(_message(message, drop_reasoning)) for message in run["messages"]]
                for run in (good, bad)
            )
        except CannotFormat as error:
            dropped.add(f"a pair: {error}", good)
            continue
        yield {
            "prompt": one[: _given(good)],
            "chosen": one[_given(good) :],
            "rejected": other[_given(bad) :],
            "tools": _tools(good["tools"]),
            "metadata": {"chosen": good["id"], "rejected": bad["id"], "case": good["case"]["identity"]},
        }


def pair_of(run: Mapping[str, Any]) -> tuple[str, str, str]:
    """What two runs of a preference pair have in common: machine, case, and in a conversation all that was
    said before, as an answer to something else is no answer to be preferred."""
    before = hash_of(run["messages"][: _given(run)]) if run.get("conversation") else ""
    return run["machine"], run["case"]["identity"], before


def _given(run: Mapping[str, Any]) -> int:
    """How many messages of a run came with the case: instructions and input."""
    return int(run["steps"][0]["message"])


WRITERS: dict[str, Callable[[Record], Record]] = {"openai": as_openai, "cookbook": as_cookbook, "trl": as_trl}


def rows(
    runs: Iterable[Mapping[str, Any]], form: str, per_turn: bool, drop_reasoning: bool, dropped: Dropped
) -> Iterator[Record]:
    """The rows of a dataset, of runs that were not refused and were chosen. trl: one a target in any case."""
    single = per_turn or form == "trl"
    for run in runs:
        try:
            made = [WRITERS[form](example) for example in examples(run, single, drop_reasoning)]
        except CannotFormat as error:
            dropped.add(str(error), run)
            continue
        yield from made

"""machine-export's work: graded runs in, training examples out. Pure: records to records.

What may be a target is what the machine said well: not a step whose tool calls all failed,
not one that ended by length, not the turns of the case itself. Held-out cases, stale grades
and runs that ended at a limit give no example at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record, canonical, hash_of
from libmachine.define import COUNTERPART, steps_of
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
    """TRL's conversational form: arguments as objects, tools and arguments JSON-safe for Arrow."""
    messages = []
    for message in example["messages"]:
        kept = {name: value for name, value in message.items() if name in ("role", "content", "tool_call_id")}
        kept["content"] = kept.get("content") if isinstance(kept.get("content"), str) else ""
        if message.get("reasoning"):
            kept["reasoning_content"] = message["reasoning"]
        if message.get("tool_calls"):
            # Arrow makes one struct of all argument objects; a string column keeps each as it is
            kept["tool_calls"] = canonical(message["tool_calls"]).decode()
        messages.append(kept)
    row: Record = {"messages": messages}
    if example["tools"]:
        row["tools"] = canonical(example["tools"]).decode()
    return {**row, "metadata": example["metadata"]}


def as_pairs(runs: Sequence[Mapping[str, Any]], drop_reasoning: bool) -> Iterator[Record]:
    """Preference pairs of one case: its good runs against its bad ones, each used once.

    runs: of one machine and case, in a conversation of one history (see pair_of), graded.
    A pair is {prompt, chosen, rejected} in chat form.
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
        given = _given(good)
        yield {
            "prompt": [_message(message, drop_reasoning) for message in good["messages"][:given]],
            "chosen": [_message(message, drop_reasoning) for message in good["messages"][given:]],
            "rejected": [_message(message, drop_reasoning) for message in bad["messages"][given:]],
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
    """The rows of a dataset, of runs that were not refused and were chosen."""
    for run in runs:
        try:
            made = [WRITERS[form](example) for example in examples(run, per_turn, drop_reasoning)]
        except CannotFormat as error:
            dropped.add(str(error), run)
            continue
        yield from made

"""What the author is shown: purpose, tools, rubric, instructions, and how each case went and why. Pure.

Texts of cases, answers and graders stand as JSON strings, so that none of them can pass for a part of
the page around it. They are cut, visibly, as far as the room asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libmachine.canon import Record
from libmachine.console import cut_middle
from libmachine.define import Run, text_of
from libmachine.folder import Criterion
from libmachine.measure import passed_of, score_of
from libmachine.stats import SLACK
from libmachine.suite.figures import mean_of

ROOM = 60_000
"""Characters of the whole, unless told otherwise."""
_PIECES = (2000, 1000, 500, 250, 120)
"""Characters of one text of a case, the largest that fits."""


@dataclass(frozen=True)
class About:
    """What does not change in a search. parent: the parent machine's instructions, which stay."""

    intent: str
    tools: Sequence[Mapping[str, Any]]
    criteria: Sequence[Criterion]
    parent: str = ""


@dataclass(frozen=True)
class Seen:
    """One case with the graded runs of a member, by trial."""

    case: Record
    runs: Sequence[Record]

    @property
    def mean(self) -> float | None:
        return mean_of(map(score_of, self.runs))

    @property
    def fails(self) -> bool:
        """Does any trial fall short? A case without a score neither fails nor passes."""
        graded = [run for run in self.runs if score_of(run) is not None]
        return any((score_of(run) or 0.0) < 1.0 - SLACK or passed_of(run) is False for run in graded)


@dataclass(frozen=True)
class Tried:
    """A proposal made before from the same instructions, and what came of it, in words."""

    text: str
    outcome: str


def of_one(about: About, now: str, seen: Sequence[Seen], tried: Sequence[Tried], room: int = ROOM) -> str:
    """The page for better instructions than `now`."""
    graded = [one for one in seen if one.mean is not None]
    failing = sorted((one for one in graded if one.fails), key=lambda one: one.mean or 0.0)
    passing = [one for one in graded if not one.fails]
    head = [*_head(about), "# Its instructions now", "", _tagged("current", now), ""]
    task = [
        "",
        "# Your task",
        "",
        "Write instructions with which the failing cases would pass and the passing ones still do, and "
        "others of their kind too.",
    ]

    def page(piece: int) -> list[str]:
        found = [*head, f"# Cases that fail: {len(failing)} of {len(graded)}", ""]
        found += [_failing(number, one, piece) for number, one in enumerate(failing, 1)]
        found += [f"# Cases that pass: {len(passing)} of {len(graded)}", ""]
        found += [_passing(one, piece) for one in passing]
        if tried:
            found += ["", "# Tried before from these instructions"]
            for one in tried:
                found += ["", _tagged("tried", cut_middle(one.text, 4 * piece)[0]), one.outcome]
        return found

    return _fitted(page, task, room)


def of_two(about: About, texts: Sequence[str], seen: Sequence[Sequence[Seen]], room: int = ROOM) -> str:
    """The page for instructions that join two. seen: of each, the same cases in the same order."""
    pairs = list(zip(*seen, strict=True))
    ahead: list[list[Seen]] = [[], []]
    for one, other in pairs:
        if one.mean is not None and other.mean is not None and abs(one.mean - other.mean) > SLACK:
            ahead[0 if one.mean > other.mean else 1].append(other if one.mean > other.mean else one)
    head = _head(about)
    for name, text in zip(("first", "second"), texts, strict=True):
        head += [f"# Its {name} instructions", "", _tagged(name, text), ""]
    task = [
        "",
        "# Your task",
        "",
        "Neither is the better one everywhere. Write one set of instructions that keeps what each "
        "does better.",
    ]

    def page(piece: int) -> list[str]:
        found = list(head)
        for name, other, lost in zip(("first", "second"), ("second", "first"), ahead, strict=True):
            found += [f"# Cases on which the {name} do better: {len(lost)}. With the {other}:", ""]
            found += [_failing(number, one, piece) for number, one in enumerate(lost, 1)]
        return found

    return _fitted(page, task, room)


def _fitted(page: Any, task: Sequence[str], room: int) -> str:
    """The page with pieces as long as the room allows; at the shortest, what is over is left out, visibly."""
    end = "\n".join(task) + "\n"
    for piece in _PIECES:
        text = "\n".join(page(piece))
        if len(text) + len(end) <= room:
            return f"{text}\n{end}"
    kept = text[: max(0, room - len(end) - 60)]
    return f"{kept}\n[... {len(text) - len(kept)} characters left out ...]\n\n{end}"


def _head(about: About) -> list[str]:
    lines = ["# What the machine is for", "", about.intent, ""]
    if about.tools:
        lines += ["# Its tools", ""]
        for tool in about.tools:
            told = tool["function"]
            lines.append(f"- {told['name']}: {told['description']} Arguments: {_json(told['parameters'])}")
        lines.append("")
    lines += ["# How each answer is graded", ""]
    lines += [_criterion(criterion) for criterion in about.criteria]
    lines.append("")
    if about.parent.strip():
        lines += ["# Instructions that come before its own, and stay as they are", ""]
        lines += [_tagged("fixed", about.parent), ""]
    return lines


def _criterion(criterion: Criterion) -> str:
    kind = "watched, must not fall" if criterion.is_audit else f"weight {criterion.weight:g}"
    levels = f" Levels: {_json(criterion.levels)}" if criterion.levels else ""
    return f"- {criterion.id} ({kind}): {criterion.description}{levels}"


def _failing(number: int, one: Seen, piece: int) -> str:
    """A case with its worst trial: what was asked, done, and said of it."""
    run = min(
        (r for r in one.runs if score_of(r) is not None), key=lambda r: (score_of(r) or 0.0, r["trial"])
    )
    passed = sum(passed_of(r) is True for r in one.runs)
    lines = [f"Case {number}: mean score {one.mean or 0.0:.2f}, passed {passed} of {len(one.runs)}"]
    lines += [*_asked(one, piece), *_did(run, piece)]
    for grade in run["scorecard"]["grades"]:
        if grade["score"] is not None and grade["score"] < 1.0 - SLACK:
            why = _short(grade["reason"], piece) if grade.get("reason") else "no reason given"
            lines.append(f"{grade['criterion']} {grade['score']:.2f}: {why}")
    return "\n".join([*lines, ""])


def _passing(one: Seen, piece: int) -> str:
    run = next(r for r in one.runs if score_of(r) is not None)
    return "- " + "\n  ".join([*_asked(one, piece), *_did(run, piece)])


def _asked(one: Seen, piece: int) -> list[str]:
    files = [
        f"file {_json(path)}: {_short(text, piece)}" for path, text in (one.case.get("files") or {}).items()
    ]
    return [f"input: {_short(given(one.case['input']), piece)}", *files]


def _did(run: Record, piece: int) -> list[str]:
    lines = [
        f"called: {call.name} {_short(call.arguments, piece)} -> {_short(call.result or '', piece)}"
        for call in Run(run).tool_calls
    ]
    if run["status"] == "limit":
        lines.append(f"stopped by: {run['stop_reason']}")
    return [*lines, f"answer: {_short(run['output'], piece)}"]


def given(case_input: Any) -> str:
    """A case's input: the text, or the turns one a line."""
    if isinstance(case_input, str):
        return case_input
    return "\n".join(f"{message['role']}: {text_of(message.get('content'))}" for message in case_input)


def _short(text: str, piece: int) -> str:
    return _json(cut_middle(text, piece)[0])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(name: str, text: str) -> str:
    return f"<{name}>\n{text.strip()}\n</{name}>"

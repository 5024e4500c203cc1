"""Graded runs that may be learned from -> examples, each run checked step by step against its sampling.

One example a run where each step's ids are a prefix of the last's, with every good step a target; else
one a step. A run that renders to something else than what was sampled is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine import export
from libmachine.canon import Record, plain
from libmachine.define import steps_of
from libmachine.sft import check
from libmachine.sft.check import Difference
from libmachine.sft.examples import Example, Rendered, merged
from libmachine.sft.renderers import CannotRender, Renderer

_NO_THOUGHT = re.compile(r"\s*<think>\s*</think>")
_REASONING = ("reasoning", "reasoning_field", "reasoning_details")
Ids = Callable[[str], Mapping[str, Any] | None]
"""Blob id of a step's tokens -> {"prompt", "completion", ...}, None if it is not here."""


@dataclass
class Dataset:
    """Examples in the order of their runs, and what became of the runs that gave none.

    compared, uncompared: runs with something to compare and without. whole: runs that are one example.
    unthinking: examples that begin with an empty think block, which teaches not to think.
    """

    examples: list[Example] = field(default_factory=list)
    runs: list[Record] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    uncompared: int = 0
    whole: int = 0
    unthinking: int = 0

    @property
    def mismatched(self) -> float:
        """Share of the compared runs that differ."""
        return len(self.differences) / self.compared if self.compared else 0.0


def build(
    runs: Iterable[Record],
    renderer: Renderer,
    ids_of: Ids,
    is_ours: Callable[[Mapping[str, Any]], bool],
    dropped: export.Dropped,
    effort: float | None = None,
    drop_reasoning: bool = False,
    schemas: Sequence[Mapping[str, Any]] = (),
) -> Dataset:
    """The examples of chosen runs.

    is_ours: was the run sampled by the model that is trained (or its base), so that its token ids mean
    the same? What others counted is not compared. effort: that training renders at. dropped: gets the
    runs that give no example, with why. schemas: of the machine's tools, as they are sent.
    """
    made = Dataset()
    for run in runs:
        ours = is_ours(run)
        tokens = {
            step["message"]: ids_of(step["tokens"]) if ours and step.get("tokens") else None
            for step in steps_of(run)
        }
        comparable = ours and any(
            check.is_comparable(step, tokens[step["message"]]) for step in steps_of(run)
        )
        run = {**run, "tools": as_sent(run["tools"], schemas)}
        try:
            examples, difference = _of_run(run, renderer, tokens, ours, effort, drop_reasoning)
        except CannotRender as error:
            dropped.add(str(error), run)
            continue
        made.compared += comparable or difference is not None
        made.uncompared += not comparable and difference is None
        if difference is not None:
            made.differences.append(difference)
            dropped.add("it renders to something else than what was sampled", run)
            continue
        made.whole += len(examples) == 1
        made.unthinking += sum(_is_unthinking(example.rendered, renderer) for example in examples)
        made.examples += examples
        made.runs.append(run)
    return made


def _of_run(
    run: Record,
    renderer: Renderer,
    tokens: Mapping[int, Mapping[str, Any] | None],
    ours: bool,
    effort: float | None,
    drop_reasoning: bool,
) -> tuple[list[Example], Difference | None]:
    name = str(run["case"].get("id") or run["case"]["identity"][:12])
    if ours and renderer.has_effort and effort is not None and check.effort_of(run) != effort:
        told = f"sampled at effort {check.effort_of(run):g}, training renders at {effort:g}"
        return [], Difference(run["id"], name, 0, told)
    messages, tools = run["messages"], run["tools"]
    good = export.targets(run)
    learned = [_without_reasoning(message) for message in messages] if drop_reasoning else messages
    steps: list[Rendered] = []
    for number, step in enumerate(steps_of(run)):
        index, ids = step["message"], tokens[step["message"]]
        if ours:
            prompt = renderer.prompt(messages[:index], tools)
            if (what := check.prompt_difference(renderer, prompt, step, ids)) is not None:
                return [], Difference(run["id"], name, number, what)
        if index not in good:
            continue
        exact = ids["completion"] if ids is not None and learned[index] == messages[index] else None
        rendered = renderer.example(learned[: index + 1], tools, exact)
        if ours and not drop_reasoning:
            what = check.answer_difference(round(sum(rendered.weights)), step)
            if what is not None:
                return [], Difference(run["id"], name, number, what)
        steps.append(rendered)
    whole = merged(steps)
    identity = run["case"]["identity"]
    if whole is not None:
        return [Example(whole, run["id"], identity, tuple(good))], None
    pairs = zip(steps, good, strict=True)
    return [Example(step, run["id"], identity, (index,)) for step, index in pairs], None


def _is_unthinking(rendered: Rendered, renderer: Renderer) -> bool:
    first = next(number for number, weight in enumerate(rendered.weights) if weight)
    return _NO_THOUGHT.match(renderer.decode(rendered.tokens[first : first + 24])) is not None


def as_sent(stored: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Tools of a run with their fields in the order they were sent in: a store sorts them, a prompt shows it.

    schemas: as sent. A tool that is no longer among them has OpenAI's order outside, the sorted one within.
    """
    found = []
    for tool in stored:
        same = next((schema for schema in schemas if plain(schema) == tool), None)
        found.append(same if same is not None else _in_order(tool, ("type", "function")))
    return found


def _in_order(tool: Mapping[str, Any], first: Sequence[str]) -> Record:
    ordered = {name: tool[name] for name in first if name in tool}
    ordered |= {name: value for name, value in tool.items() if name not in ordered}
    if isinstance(ordered.get("function"), dict):
        ordered["function"] = _in_order(ordered["function"], ("name", "description", "parameters"))
    return ordered


def _without_reasoning(message: Record) -> Record:
    return {name: value for name, value in message.items() if name not in _REASONING}

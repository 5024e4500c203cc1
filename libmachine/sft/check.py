"""The render check: is what training shows the model what it saw when it was sampled?

Token ids are compared where they are stored, else their count with what the endpoint reported. Effort
is compared by value: at 0.9 and at 0.2 Inkling's prompt has the same number of tokens. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from libmachine.harness.chat_send import effort_number
from libmachine.sft.renderers import Renderer

MOST_MISMATCHED = 0.05
"""Share of the checked runs that may differ."""

DEFAULT_EFFORT = 0.9
"""Of Inkling, where a run names none (high)."""

_CONTEXT = 8  # tokens shown on either side of a difference


class Difference(NamedTuple):
    """One run that renders to something else. step: from 0; what: for people."""

    run: str
    case: str
    step: int
    what: str


def first_difference(renderer: Renderer, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Where two prompts part, in text: ours as rendered, theirs as sampled."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        at = min(len(ours), len(theirs))
    start = max(0, at - _CONTEXT)
    before = renderer.decode(ours[start:at])
    one, other = (renderer.decode(ids[at : at + _CONTEXT]) for ids in (ours, theirs))
    return f"at token {at}, after {before!r}: rendered {one!r}, sampled {other!r}"


def prompt_difference(
    renderer: Renderer, ours: Sequence[int], step: Mapping[str, Any], ids: Mapping[str, Any] | None
) -> str | None:
    """How a step's rendered prompt differs from the sampled one, or None.

    step: of the run. ids: its stored token ids {"prompt", ...}, if there are any.
    """
    if ids is not None:
        theirs = list(ids["prompt"])
        return None if list(ours) == theirs else first_difference(renderer, ours, theirs)
    count = step.get("prompt_tokens")
    if count and count != len(ours):
        return f"{len(ours)} tokens rendered, {count} sampled: ...{renderer.decode(ours[-2 * _CONTEXT :])!r}"
    return None


def answer_difference(rendered: int, step: Mapping[str, Any]) -> str | None:
    """Whether much of what was sampled is missing in the target of `rendered` tokens: unseen reasoning."""
    sampled = step.get("completion_tokens")
    if sampled and sampled - rendered > max(16, 0.2 * sampled):
        return (
            f"{rendered} tokens to be learned of {sampled} sampled; the rest, reasoning perhaps, is missing"
        )
    return None


def is_comparable(step: Mapping[str, Any], ids: Mapping[str, Any] | None) -> bool:
    """Is there anything to compare a step's prompt with?"""
    return ids is not None or bool(step.get("prompt_tokens"))


def effort_of(run: Mapping[str, Any]) -> float:
    """The effort a run was sampled at, as a number. Raises UsageError for a name that is none."""
    effort = run["sampling"].get("effort")
    return DEFAULT_EFFORT if effort in (None, "default") else effort_number(str(effort))


def usual_effort(runs: Sequence[Mapping[str, Any]]) -> float:
    """The effort most of the runs were sampled at, the higher of two that are equally frequent."""
    efforts = [effort_of(run) for run in runs]
    return (
        max(set(efforts), key=lambda effort: (efforts.count(effort), effort)) if efforts else DEFAULT_EFFORT
    )

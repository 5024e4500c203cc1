"""Applying a check to a run: the one place that turns what it returns or raises into a grade."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from libmachine.canon import plain
from libmachine.define import Check, Run

_REASON_LIMIT = 2000


class Mark(NamedTuple):
    """What a grader found. score: 0..1, or None with error (could not be graded) or without
    (applies is False: the criterion is no question here)."""

    score: float | None
    reason: str | None
    error: str | None = None
    applies: bool = True


def apply(check: Check, run: Run) -> Mark:
    """Grade a run by a check. Never raises for what the check does."""
    try:
        returned = check.function(run)
    except (Exception, SystemExit) as error:
        return Mark(None, None, f"{type(error).__name__}: {error}"[:_REASON_LIMIT])
    reason: Any = None
    score: Any = returned
    if isinstance(returned, tuple):
        if len(returned) != 2:
            return _unusable(returned)
        score, reason = returned
    if score is None:
        return Mark(None, _text(reason) or "does not apply", applies=False)
    if isinstance(score, bool):
        return Mark(float(score), _text(reason))
    if not isinstance(score, int | float):
        return _unusable(returned)
    if math.isnan(score) or not 0 <= score <= 1:
        return Mark(None, _text(reason), f"score {score} is not in 0..1")
    return Mark(float(score), _text(reason))


def _text(reason: Any) -> str | None:
    return None if reason is None else str(plain(str(reason)))[:_REASON_LIMIT]


def _unusable(returned: Any) -> Mark:
    return Mark(
        None, None, f"check returned {returned!r:.80}; it returns a bool, a score, (score, reason) or None"
    )

"""machine-select's work: which graded runs are worth keeping. Pure: lines in, a part of them out.

Kept lines go out byte for byte and in the order they came. With `best` or `distinct` a
line can only be chosen when all have been seen; till then those that may be are put by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from libmachine.canon import hash_of
from libmachine.define import Run
from libmachine.record import SLACK
from libmachine.shelf import Shelf, Slip


@dataclass(frozen=True)
class Wanted:
    """What a run must be to be kept. Every given condition must hold.

    best: runs kept of each machine and case, by score, ties to the newest. distinct: of runs with
    one answer only the best. since: ISO time. at: begin of a version id. cases, not_cases:
    identities.
    """

    best: int | None = None
    distinct: bool = False
    min_score: float | None = None
    passing: bool = False
    since: str | None = None
    at: str | None = None
    split: str | None = None
    cases: frozenset[str] | None = None
    not_cases: frozenset[str] = field(default_factory=frozenset)

    @property
    def needs_score(self) -> bool:
        """Does a run without a score fall out?"""
        return self.best is not None or self.min_score is not None or self.passing


class _Held(NamedTuple):
    score: float
    started_at: str
    number: int
    line: Slip


def score_of(run: Mapping[str, Any]) -> float | None:
    """The score of a run that counts: graded, and not failed."""
    card = run.get("scorecard")
    if run["status"] == "failed" or not isinstance(card, dict):
        return None
    score = card.get("score")
    return None if score is None else float(score)


def admits(wanted: Wanted, run: Mapping[str, Any]) -> bool:
    """Does a run by itself fulfil the conditions?"""
    score = score_of(run)
    identity = run["case"]["identity"]
    return not (
        (wanted.needs_score and score is None)
        or (wanted.min_score is not None and (score or 0) < wanted.min_score - SLACK)
        or (wanted.passing and run["scorecard"].get("passed") is not True)
        or (wanted.since is not None and run["started_at"] < wanted.since)
        or (wanted.at is not None and not run["version"].startswith(wanted.at))
        or (wanted.split is not None and run.get("split") != wanted.split)
        or (wanted.cases is not None and identity not in wanted.cases)
        or identity in wanted.not_cases
    )


def select(
    runs: Iterable[tuple[bytes, Mapping[str, Any]]], wanted: Wanted, shelf: Shelf | None = None
) -> Iterator[bytes]:
    """The lines to keep of (line, its run). shelf: where lines wait that may be kept."""
    if wanted.best is None and not wanted.distinct:
        for raw, run in runs:
            if admits(wanted, run):
                yield raw
        return
    shelf = shelf or Shelf()
    groups: dict[tuple[str, str], dict[Any, _Held]] = {}
    for number, (raw, run) in enumerate(runs):
        if admits(wanted, run):
            score = score_of(run)
            held = _Held(-1.0 if score is None else score, run["started_at"], number, shelf.put(raw))
            group = groups.setdefault((run["machine"], run["case"]["identity"]), {})
            for beaten in _hold(group, answer_of(run) if wanted.distinct else number, held, wanted):
                shelf.drop(beaten.line)
    chosen = (held for group in groups.values() for held in _best(group.values(), wanted.best))
    for held in sorted(chosen, key=lambda held: held.number):
        yield shelf.get(held.line)


def _hold(group: dict[Any, _Held], answer: Any, held: _Held, wanted: Wanted) -> Iterator[_Held]:
    """Take a run into its group; those that can no longer be chosen come back."""
    other = group.get(answer)
    if other is None or held[:3] > other[:3]:
        group[answer] = held
        if other is not None:
            yield other
    else:
        yield held
    # Without `distinct` nothing can come back, so what is beaten by enough others may go.
    if wanted.best is not None and not wanted.distinct and len(group) > wanted.best:
        yield group.pop(min(group, key=lambda name: group[name][:3]))


def _best(group: Iterable[_Held], best: int | None) -> list[_Held]:
    ranked = sorted(group, key=lambda held: held[:3], reverse=True)
    return ranked if best is None else ranked[:best]


def answer_of(run: Mapping[str, Any]) -> str:
    """What a run answered, so that equal answers compare equal: text without case and spacing, calls."""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]]
        for message in run["messages"]
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or ()
    ]
    return hash_of([" ".join(said(run).casefold().split()), calls])


def said(run: Mapping[str, Any]) -> str:
    """The text of a run's answer; of a conversation everything that both sides said."""
    return "\n".join(f"{turn.side}: {turn.text}" for turn in Run(run).turns) or str(run["output"])


class Counter:
    """Good runs a case, counted on the way past."""

    def __init__(self) -> None:
        self.good: dict[tuple[str, str], int] = {}

    def watch(
        self, runs: Iterable[tuple[bytes, Mapping[str, Any]]]
    ) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
        """The same runs, counted."""
        for raw, run in runs:
            case = (run["machine"], run["case"]["identity"])
            card = run.get("scorecard")
            passed = isinstance(card, dict) and card.get("passed") is True
            self.good[case] = self.good.get(case, 0) + passed
            yield raw, run

    def report(self) -> str:
        """`24 cases: 9 with no good run, 5 with 1, 10 with 2 or more`."""
        counts = list(self.good.values())
        none, one = counts.count(0), counts.count(1)
        more = len(counts) - none - one
        noun = "case" if len(counts) == 1 else "cases"
        return f"{len(counts)} {noun}: {none} with no good run, {one} with 1, {more} with 2 or more"


def identities(path: str) -> frozenset[str]:
    """Identities of the cases of a file."""
    from libmachine.folder import read_cases

    return frozenset(case["identity"] for case in read_cases(path))

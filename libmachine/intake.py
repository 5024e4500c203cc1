"""machine-cases' decisions: which rows are new cases, and on which side of the exam each belongs. Pure.

The side is decided by content, so it stays as it is when rows are added, and a row that comes
again lands where it was: a hash of the case's group, else of its identity, below the holdout's share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record, RecordError, dump_line, hash_of
from libmachine.case import CASE_FIELDS, read_case
from libmachine.define import text_of
from libmachine.interchange.rows import Row
from libmachine.leaks import alike
from libmachine.stats import smallest_gain
from libmachine.suite.figures import unit_of

PRACTICE, EXAM = "cases", "holdout"
TRIALS = 3
SPREAD = (2 * 0.25 / TRIALS) ** 0.5
"""Standard deviation of a case's difference that chance alone gives where scores are 0 or 1, half and
half, and each arm has TRIALS trials of it."""


@dataclass
class Intake:
    """What came of the rows. added: the new cases of each side, in order; the rest: what a person is told."""

    added: dict[str, list[Record]] = field(default_factory=lambda: {PRACTICE: [], EXAM: []})
    known: int = 0
    duplicates: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: int = 0


def side_of(case: Record, holdout: float) -> str:
    """The side of a case by content alone. holdout: the share of cases, 0..1, that are held out."""
    group = (case.get("metadata") or {}).get("group")
    digest = hash_of({"group": str(group)} if group else {"case": case["identity"]})
    return EXAM if int(digest[:8], 16) < holdout * 2**32 else PRACTICE


def take_in(
    rows: Iterable[Row],
    existing: Mapping[str, Sequence[Record]],
    holdout: float,
    held: Callable[[str], bool],
    keep_near: bool = False,
) -> Intake:
    """Sort rows into the two sides.

    existing: the cases of both files, by side. held: is this identity held out elsewhere (in a parent or
    child, or in history)? Such a case stays held out, a group stays where it is, and with keep_near a near
    duplicate goes where its like is; without it, it is left out.
    """
    found = Intake()
    fresh = list(_fresh(rows, existing, found))
    old = [(case, side) for side in (PRACTICE, EXAM) for case in existing[side]]
    like = _near_ones([case for case, _ in old], [case for _, case in fresh])
    sides = {case["identity"]: side for case, side in old}
    groups = {unit_of(case): side for case, side in old}
    taken = {case["id"]: case["identity"] for case, _ in old}
    for number, case in fresh:
        twin = next((other for other in like.get(case["identity"], ()) if other["identity"] in sides), None)
        if twin is not None and not keep_near:
            found.near.append(f"row {number}: nearly '{twin['id']}'")
            continue
        unit = unit_of(case)
        if held(case["identity"]):
            side = EXAM
        elif unit in groups:
            side = groups[unit]
        else:
            side = sides[twin["identity"]] if twin is not None else side_of(case, holdout)
        if taken.setdefault(case["id"], case["identity"]) != case["identity"]:
            new = f"{case['id']}.{case['identity'][:6]}"
            found.notes.append(
                f"row {number}: id '{case['id']}' is taken by another input; it is '{new}' now"
            )
            case["id"] = new
            taken[new] = case["identity"]
        groups[unit] = sides[case["identity"]] = side
        found.added[side].append(case)
    return found


def _fresh(
    rows: Iterable[Row], existing: Mapping[str, Sequence[Record]], found: Intake
) -> Iterable[tuple[int, Record]]:
    """The rows that are cases nobody has seen, in order; the others are counted."""
    old = {case["identity"] for side in existing.values() for case in side}
    first: dict[str, tuple[int, Record]] = {}
    for row in rows:
        found.rows += 1
        try:
            if row.error is not None:
                raise RecordError(row.error)
            case = read_case(row.value)
        except RecordError as error:
            found.malformed.append((row.number, str(error)))
            continue
        identity = case["identity"]
        if identity in old:
            found.known += 1
        elif identity in first:
            before, kept = first[identity]
            other = "" if kept.get("target") == case.get("target") else ", with another target"
            found.duplicates.append(f"row {row.number}: as row {before}{other}")
        else:
            first[identity] = (row.number, case)
    return first.values()


def _near_ones(old: Sequence[Record], new: Sequence[Record]) -> dict[str, list[Record]]:
    """Identity of a new case -> those before it that are nearly the same: same text in form, same files."""
    every = [*old, *new]
    found: dict[str, list[Record]] = {}
    for before, after in alike(every, every):
        if before < after and after >= len(old):
            one, two = every[before], every[after]
            if text_of(two["input"]).strip() and one.get("files") == two.get("files"):
                found.setdefault(two["identity"], []).append(one)
    return found


def line_of(case: Record) -> bytes:
    """A case as a line of a file: an id that is only the default is left out."""
    kept = {name: case[name] for name in CASE_FIELDS if case.get(name) is not None}
    if kept["id"] == case["identity"][:12]:
        del kept["id"]
    return dump_line(kept)


def power(exam: Sequence[Record]) -> dict[str, Any]:
    """What an exam of these cases can show: {cases, units, gain: smallest gain 80 % power would see}.

    gain: in points of score at TRIALS trials a case and a spread of SPREAD; None below 2 units.
    """
    units = len({unit_of(case) for case in exam})
    return {"cases": len(exam), "units": units, "gain": smallest_gain(units, SPREAD)}


def told(exam: Sequence[Record]) -> str:
    """The power in a sentence."""
    found = power(exam)
    size = f"{found['cases']} held out" + (
        f" in {found['units']} units" if found["units"] != found["cases"] else ""
    )
    if found["gain"] is None:
        return f"{size}: no gain can be shown; hold at least 2 out, better 12 or more"
    small = "; 12 or more would be better" if found["units"] < 12 else ""
    if found["gain"] > 1:
        return f"{size}: too few to show any gain 4 times in 5{small}"
    return (
        f"{size}: 4 times in 5 they show a gain of {found['gain']:.2f} or more "
        f"(pass-or-fail scores near a half, {TRIALS} trials a case){small}"
    )

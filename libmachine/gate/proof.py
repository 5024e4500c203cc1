"""Whether a noted verdict proves a change: its decision is recomputed, its terms are compared. Pure.

A note is a claim. What it claims to have measured must be exactly the change at hand, and what it
decided must follow from the scores it carries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libmachine.canon import Record
from libmachine.gate import rule as gate_rule

_ARMS = ("live", "candidate")
_MOST = 100_000
"""Tries, and scores, that a note may have: beyond that it is there to keep a server busy."""

STORED = ("forged", "no_worse", "other_cases", "other_groups", "other_guards", "policy", "unconfirmed")
"""Faults of a verdict that machine-gate would give again as it is stored: only --rerun measures."""


@dataclass(frozen=True)
class Policy:
    """What the receiving repository asks for: machine.requireConfirm, allowForced, strict, minZ,
    requireSigned."""

    require_confirm: bool = True
    allow_forced: bool = False
    strict: bool = False
    min_z: float = 2.0
    signed: bool = False


@dataclass(frozen=True)
class Exam:
    """What a verdict must be about.

    names: what the machine may be called in it. rubric, holdout, graders: hashes of today.
    groups: case identity -> group or None, of the held-out cases. guards: criterion -> tolerated fall.
    """

    names: frozenset[str]
    baseline: str
    candidate: str
    rubric: str
    holdout: str
    graders: str
    groups: Mapping[str, Any]
    guards: Mapping[str, float]


@dataclass(frozen=True)
class Proof:
    """verdict: the one that proves the change, None if none does; reasons: then why not. warnings: codes.
    forced: who let this very change through, and why. refused: it was measured, and is not better."""

    verdict: Record | None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    forced: str | None = None
    refused: bool = False


def prove(records: Sequence[Record], exam: Exam, policy: Policy) -> Proof:
    """The proof among the records of the new version's note, or the reasons why there is none."""
    about = [record for record in records if _is_about(record, exam)]
    forced = next((_who(record) for record in reversed(about) if record.get("decision") == "forced"), None)
    measured = [record for record in about if record.get("decision") != "forced"]
    if not measured:
        return Proof(None, (_nothing(records, exam),), (), forced)
    false = [record for record in measured if not follows(record)]
    honest = [record for record in measured if record not in false]
    warnings = [f"forged_note: {len(false)} more on this version does not follow from its numbers"]
    if not honest:
        return Proof(None, ("forged: the noted decision does not follow from its numbers",), (), forced)
    best: list[str] | None = None
    for verdict in _decisive(honest, exam):
        faults = _faults(verdict, exam, policy)
        if not faults:
            warned = [*(warnings if false else []), *_doubts(verdict, honest, exam)]
            if policy.strict and warned:
                return Proof(None, (f"strict: {', '.join(warned)}",), (), forced)
            return Proof(verdict, (), tuple(warned), forced)
        best = best or faults
    refused = any(verdict["decision"] == "refuse" for verdict in _decisive(honest, exam))
    return Proof(None, tuple(best or ()), (), forced, refused)


def follows(verdict: Record) -> bool:
    """Is this the decision that the verdict's own rule makes of its own numbers?"""
    figures = _decided(verdict, _rule(verdict))
    return figures is not None and figures["decision"] == verdict.get("decision")


def _is_about(record: Record, exam: Exam) -> bool:
    return (
        record.get("type") == "verdict"
        and _is_named(record, exam)
        and record.get("baseline") == exam.baseline
        and record.get("candidate") == exam.candidate
    )


def _is_named(record: Record, exam: Exam) -> bool:
    name = record.get("machine")
    return isinstance(name, str) and name in exam.names


def _who(record: Record) -> str:
    told = record.get("forced")
    told = told if isinstance(told, dict) else {}
    return f"forced by {told.get('by') or 'somebody'}: {told.get('reason') or 'no reason given'}"


def _nothing(records: Sequence[Record], exam: Exam) -> str:
    """Why no record is about this change: the nearest there is."""
    bases = [
        str(record.get("baseline"))[:12]
        for record in records
        if record.get("type") == "verdict" and _is_named(record, exam)
    ]
    if bases:
        return f"stale: its verdict is against {bases[-1]}, the base has {exam.baseline[:12]}"
    return f"no_verdict: none is noted on version {exam.candidate[:12]}"


def _decisive(verdicts: Sequence[Record], exam: Exam) -> list[Record]:
    """The newest verdict of each figure compared (`on`), those under today's terms first: measuring
    again until it passes does not help, the last one counts."""

    def terms(verdict: Record) -> tuple[bool, ...]:
        return (
            not _rule(verdict)["no_worse"],
            verdict.get("holdout") == exam.holdout,
            verdict.get("rubric") == exam.rubric,
            verdict.get("graders") == exam.graders,
        )

    near = max(terms(verdict) for verdict in verdicts)
    newest: dict[Any, Record] = {}
    for verdict in sorted(verdicts, key=lambda verdict: str(verdict.get("decided_at") or "")):
        if terms(verdict) == near:
            newest[str(verdict.get("on"))] = verdict
    return list(newest.values())


def _faults(verdict: Record, exam: Exam, policy: Policy) -> list[str]:
    """Why a verdict about this change does not let it through."""
    if _rule(verdict)["no_worse"]:
        return ["no_worse: its verdict only says that it is not worse"]
    if verdict.get("holdout") != exam.holdout:
        return ["other_holdout: its verdict is on other held-out cases than holdout.jsonl has now"]
    if verdict.get("rubric") != exam.rubric:
        return ["other_rubric: its verdict is under another rubric than rubric.toml is now"]
    if unlike := _unlike(verdict, exam):
        return [unlike]
    if verdict["decision"] != "promote":
        told = verdict.get("reasons")
        reasons = [str(reason) for reason in told] if isinstance(told, list) else []
        return reasons or [f"{verdict['decision']}: its verdict is no promotion"]
    rule = _rule(verdict)
    rule |= {"min_z": max(rule["min_z"], policy.min_z), "strict": rule["strict"] or policy.strict}
    figures = _decided(verdict, rule)
    if figures is None or figures["decision"] != "promote":
        return [f"policy: {reason}" for reason in (figures or {}).get("reasons", [])] or ["policy"]
    if policy.require_confirm and figures["weak"] and figures["confirmed"] is not True:
        why = ", ".join(figures["warnings"])
        return [f"unconfirmed: a weak pass ({why}) that was not measured twice"]
    return []


def _unlike(verdict: Record, exam: Exam) -> str | None:
    """How the numbers of a verdict differ from those that this exam gives, None if they do not."""
    arms = verdict["arms"]
    cases = arms["cases"]
    if sorted(cases) != sorted(exam.groups):
        return "other_cases: its scores are not those of the cases in holdout.jsonl"
    wanted = [exam.groups[identity] for identity in cases]
    if list(arms.get("groups") or [None] * len(cases)) != wanted:
        return "other_groups: its cases are grouped otherwise than in holdout.jsonl"
    held = {name: guard.get("guard") for name, guard in (arms.get("guards") or {}).items()}
    if held != dict(exam.guards):
        return "other_guards: its guards are not those of rubric.toml"
    return None


def _doubts(verdict: Record, honest: Sequence[Record], exam: Exam) -> list[str]:
    warned = []
    if verdict.get("graders") != exam.graders:
        warned.append("graders_changed: tools or graders differ from those it was judged with")
    refused = sum(
        other.get("decision") == "refuse"
        and other.get("on") == verdict.get("on")
        and other.get("holdout") == exam.holdout
        and not _rule(other)["no_worse"]
        for other in honest
    )
    if refused:
        warned.append(f"measured_again: {refused} other verdicts on it were refusals")
    return warned


# arithmetic -----------------------------------------------------------------------------


def _rule(verdict: Record) -> dict[str, Any]:
    given = verdict.get("rule")
    rule = {**gate_rule.RULE, **(given if isinstance(given, dict) else {})}
    z = rule["min_z"]
    good = isinstance(z, int | float) and not isinstance(z, bool) and math.isfinite(z)
    flags = {name: bool(rule[name]) for name in ("strict", "no_worse", "confirm")}
    return {"min_z": float(z) if good else math.nan, **flags}


def _decided(verdict: Record, rule: Mapping[str, Any]) -> Record | None:
    """The figures that a rule makes of a verdict's numbers, None if they are none."""
    arms, tries = verdict.get("arms"), verdict.get("tries")
    if not isinstance(arms, dict) or not _well_formed(arms):
        return None
    if not isinstance(tries, int) or isinstance(tries, bool) or not 1 <= tries <= _MOST:
        return None
    try:
        return gate_rule.decide(arms, tries, rule)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, ZeroDivisionError):
        return None


def _well_formed(arms: Mapping[str, Any]) -> bool:
    cases = arms.get("cases")
    if not isinstance(cases, list):
        return False
    if not all(isinstance(identity, str) for identity in cases) or len(set(cases)) != len(cases):
        return False
    groups = arms.get("groups")
    if groups is not None and not (isinstance(groups, list) and len(groups) == len(cases)):
        return False
    guards = arms.get("guards") or {}
    confirm = arms.get("confirm")
    if not isinstance(guards, dict):
        return False
    pairs = [arms, *guards.values(), *([] if confirm is None else [confirm])]
    if len(pairs) > _MOST or not all(_pair(pair, len(cases)) for pair in pairs):
        return False
    return sum(len(trials) for pair in pairs for arm in _ARMS for trials in pair[arm]) <= _MOST


def _pair(pair: Any, count: int) -> bool:
    """Are these scores of both arms, a list of trials a case?"""
    return isinstance(pair, dict) and all(
        isinstance(arm := pair.get(name), list)
        and len(arm) == count
        and all(isinstance(trials, list) for trials in arm)
        for name in _ARMS
    )

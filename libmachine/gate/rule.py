"""The gate's decision, from the trial scores of both arms and nothing else. Pure.

A verdict carries its arms, so whoever reads one (a hook, a server) recomputes the decision
with the same function that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libmachine.canon import Record
from libmachine.stats import SLACK, mean_stderr, paired_gate

Scores = Sequence[Sequence[float | None]]

RULE = {"min_z": 2.0, "strict": False, "no_worse": False, "confirm": True}
"""What a verdict may be held to: standard errors, warnings that refuse, `is it not worse`, weak passes
that must hold twice."""


def decide(arms: Mapping[str, Any], tries: int, rule: Mapping[str, Any]) -> Record:
    """Judge the arms of a verdict.

    arms: {cases: [identity], groups?: [name|null], live: [[score]], candidate: [[score]],
    guards?: {criterion: {guard, live, candidate}}, confirm?: {live, candidate}}; a score of null is a
    missing grade. tries: distinct candidates this holdout has judged. rule: as RULE.

    Returns paired_gate's figures with the final decision and reasons, `guards` (criterion ->
    {guard, live, candidate, mean_diff, se, fell}), `confirmed` (true, false, or null: not asked) and
    `weak` (a pass that asks for confirmation).
    """
    groups = arms.get("groups")
    figures = paired_gate(
        arms["live"], arms["candidate"], rule["min_z"], tries, groups, strict=rule["strict"]
    )
    guards = {name: _guard(data, groups) for name, data in sorted((arms.get("guards") or {}).items())}
    figures["guards"] = guards
    fell = [_fell(name, guard) for name, guard in guards.items() if guard["fell"]]
    figures["confirmed"] = None
    if rule["no_worse"]:
        if figures["decision"] != "untestable":
            figures["decision"] = "refuse" if figures["worse"] else "promote"
            figures["reasons"] = ["worse"] if figures["worse"] else []
        return figures
    if fell and figures["decision"] != "untestable":
        figures["decision"], figures["reasons"] = "refuse", [*figures["reasons"], *fell]
    if figures["decision"] == "promote" and figures["weak"]:
        _confirm(figures, arms, groups, rule)
    return figures


def needs_confirmation(figures: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Is this a pass that must be measured once more before it counts?"""
    return bool(
        rule["confirm"]
        and not rule["no_worse"]
        and figures["decision"] == "promote"
        and figures["weak"]
        and figures["confirmed"] is None
    )


def _confirm(
    figures: Record, arms: Mapping[str, Any], groups: Sequence[str | None] | None, rule: Mapping[str, Any]
) -> None:
    again = arms.get("confirm")
    if again is None:
        figures["confirmed"] = None if rule["confirm"] else False
        return
    # the second look is one try by itself, on trials neither arm has used
    second = paired_gate(again["live"], again["candidate"], rule["min_z"], 1, groups)
    figures["confirm"] = {name: second[name] for name in ("mean_diff", "se", "z", "n", "decision")}
    if second["decision"] == "untestable":
        figures["decision"], figures["reasons"] = "untestable", second["reasons"]
    elif second["rule"] and second["decision"] == "promote":
        figures["confirmed"] = True
    else:
        figures["confirmed"] = False
        shown = "nothing" if second["mean_diff"] is None else f"{second['mean_diff']:+.3g}"
        figures["decision"] = "refuse"
        figures["reasons"] = [f"not_confirmed: fresh trials of both gave {shown}, within noise"]


def _guard(data: Mapping[str, Any], groups: Sequence[str | None] | None) -> Record:
    """How a guarded criterion moved: its paired mean over units, and whether it fell too far."""
    figures = paired_gate(data["live"], data["candidate"], groups=groups)
    mean, se = mean_stderr(figures["diff"])
    fell = mean is not None and -mean > data["guard"] + SLACK and (se is None or -mean >= se - SLACK)
    return {
        "guard": data["guard"],
        "live": figures["mean_live"],
        "candidate": figures["mean_cand"],
        "mean_diff": mean,
        "se": se,
        "fell": fell,
    }


def _fell(name: str, guard: Mapping[str, Any]) -> str:
    return f"guard_fell: {name} fell by {-guard['mean_diff']:.3g}, {guard['guard']:g} is tolerated"

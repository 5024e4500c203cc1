"""What is kept: a gain on the cases beyond noise, and no loss on the held-out ones. Pure.

On the cases the gate's rule decides, guards included; it takes every proposal that was measured as
one try, so a pass that many tries may have brought by luck must hold again on fresh trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libmachine.canon import Record
from libmachine.gate.rule import RULE, decide
from libmachine.stats import SLACK, paired_gate
from libmachine.stats.cases import lost_grades, read_cases

FIGURES = (
    *("n", "n_cases", "units", "dropped", "missing_live", "missing_cand", "mean_live", "mean_cand"),
    *("diff", "mean_diff", "sd", "se", "z", "wins", "losses", "ties", "p_flip", "p_trial", "p_t"),
    *("sampled", "ci_t", "mde80"),
)
"""What an optimization takes from stats.paired_gate."""


def on_cases(arms: Mapping[str, Any], tries: int, min_z: float, confirm: bool) -> Record:
    """The gate's figures and decision on the cases. arms: as of gate.rule.decide. tries: proposals that
    were measured."""
    return decide(arms, tries, {**RULE, "min_z": min_z, "confirm": confirm})


def on_holdout(arms: Mapping[str, Any]) -> Record:
    """Is the proposal lower on held-out cases? `decision`: pass, veto or untestable; figures, reasons."""
    figures = paired_gate(arms["live"], arms["candidate"], groups=arms.get("groups"))
    found = {name: figures[name] for name in FIGURES}
    mean = figures["mean_diff"]
    lost = lost_grades(read_cases(arms["live"], arms["candidate"]))
    if mean is None or lost:
        reasons = lost or ["no_cases: no held-out case has a score of both"]
        return {**found, "decision": "untestable", "reasons": reasons}
    if mean < -SLACK:
        words = f"{mean:+.3g} on the held-out cases"
        return {**found, "decision": "veto", "reasons": [f"held_out_lower: {words}"]}
    return {**found, "decision": "pass", "reasons": []}


def best(judged: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The proposal to decide on: of those that the rule lets through the one with the greatest gain, else
    the one that came nearest; None if none was measured. judged: number -> figures of on_cases."""
    if not judged:
        return None

    def worth(number: int) -> tuple[bool, float, int]:
        figures = judged[number]
        mean = figures["mean_diff"]
        return figures["decision"] == "promote", -2.0 if mean is None else round(mean, 9), -number

    return max(judged, key=worth)


def reasons_of(figures: Mapping[str, Any]) -> list[str]:
    """Why the rule refuses, as an optimization says it: a gain that noise could bring is called noise."""
    words = []
    for reason in figures["reasons"]:
        code, _, told = reason.partition(": ")
        if code == "not_higher":
            told = f"the mean on the cases is not higher ({figures['mean_diff']:+.3g})"
        words.append(f"{'noise' if code == 'within_noise' else code}: {told}" if told else code)
    return words


def warnings_of(figures: Mapping[str, Any], tries: int) -> list[str]:
    """What makes a gain on the cases doubtful, each `code: words`."""
    words = {
        "exact_p_above_alpha": "the exact test does not reach the level that the errors promise",
        "few_cases": "few cases, or few that moved",
        "holdout_reused": f"{tries} proposals were measured on these cases, the best was taken",
        "single_trial": "one trial a case: luck of the draw is not told from the instructions",
    }
    codes = {"holdout_reused": "several_proposals"}
    return [f"{codes.get(code, code)}: {words.get(code, code)}" for code in figures["warnings"]]

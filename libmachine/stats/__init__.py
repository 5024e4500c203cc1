"""The statistics of gate, compare, suite and agree: pure functions of lists of numbers.

Cases are a sample of all the inputs a machine will meet, so every standard error is over cases,
never over pooled trials, and two versions are compared case by case (Miller 2024, arXiv
2411.00640). A missing grade is None: it enters no mean, and a figure that cannot be computed
is None too, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb, fsum, isfinite, pi, sqrt
from typing import Any, NamedTuple

from libmachine.stats.agree import Sweep, agreement, threshold_sweep
from libmachine.stats.cases import (
    Trials,
    Unit,
    best_fills,
    bounds,
    differences,
    in_units,
    lost_grades,
    read_cases,
    worst_fills,
)
from libmachine.stats.dist import normal_sf, t_isf, t_sf, wilson
from libmachine.stats.exact import FINE_GRID, flip_p

__all__ = [
    "SLACK",
    "Sweep",
    "agreement",
    "alpha_share",
    "decide",
    "mean_stderr",
    "paired_gate",
    "pass_at_k",
    "pass_hat_k",
    "passes",
    "smallest_gain",
    "threshold_sweep",
    "wilson",
]

SLACK = 1e-9
"""Scores and means this close are equal: what floats do to sums of thirds must decide nothing."""

FEW_CASES = 12
FEW_MOVED = 6
_ASKS_CONFIRMATION = frozenset({"exact_p_above_alpha", "few_cases", "holdout_reused"})


def mean_stderr(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and its standard error sd(n-1)/sqrt(n), one value a case; None values are left out.

    No value: (None, None). One value: the error is None, for 0 would look certain.
    """
    known = [value for value in values if value is not None]
    n = len(known)
    if n == 0:
        return None, None
    mean = fsum(known) / n
    if n == 1:
        return mean, None
    if max(known) - min(known) <= SLACK:
        return mean, 0.0
    return mean, sqrt(fsum((value - mean) ** 2 for value in known) / (n - 1) / n)


def pass_at_k(cases: Iterable[Sequence[bool | None]], k: int | None = None) -> float | None:
    """Share of cases that k trials solve at least once, unbiased (Chen 2021, arXiv 2107.03374).

    cases: whether each trial of a case passed; None trials are left out. k = 1: the pass rate over
    cases. k = None: any of the trials that are there. Cases with fewer than k trials do not count;
    None if no case counts. ValueError for k below 1.
    """
    return _mean_over_cases(cases, k, lambda good, bad, k: 1.0 - comb(bad, k) / comb(good + bad, k))


def pass_hat_k(cases: Iterable[Sequence[bool | None]], k: int | None = None) -> float | None:
    """Share of cases that k trials solve every time (pass^k; Yao 2024, arXiv 2406.12045).

    Arguments as in pass_at_k; k = None: all trials that are there passed.
    """
    return _mean_over_cases(cases, k, lambda good, bad, k: comb(good, k) / comb(good + bad, k))


def _mean_over_cases(
    cases: Iterable[Sequence[bool | None]], k: int | None, chance: Callable[[int, int, int], float]
) -> float | None:
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    values = []
    for trials in cases:
        known = [bool(passed) for passed in trials if passed is not None]
        size = k or len(known)
        if 0 < size <= len(known):
            values.append(chance(sum(known), len(known) - sum(known), size))
    return mean_stderr(values)[0]


def alpha_share(tries: int) -> float:
    """Share of alpha that try number `tries` (from 1) on one holdout may spend: 6/(pi*j)^2, in all 1."""
    return 6.0 / (pi * tries) ** 2


def passes(n: int, mean: float | None, se: float | None, min_z: float = 2.0) -> bool:
    """The bare rule over n cases: mean > 0 and mean >= min_z * se, with a slack of 1e-9."""
    return n >= 2 and mean is not None and se is not None and mean > SLACK and mean >= min_z * se - SLACK


def decide(
    n: int, mean: float | None, se: float | None, min_z: float = 2.0, strict: bool = False
) -> list[str]:
    """Why a mean difference over n cases is no promotion, each `code` or `code: words`; empty: promote.

    mean, se: of the per-case differences candidate minus live, in points of score (0..1).
    Where all cases moved by the same amount se is 0 and tells nothing: then the exact sign flip,
    2**-n, must reach the one-sided level of min_z, which takes 6 cases at 2. strict: Student's t
    in place of min_z, at the same level; that keeps the level at every n, as min_z does not.
    """
    if n < 2 or mean is None or se is None:
        return ["too_few_cases: a standard error needs 2 cases"]
    if mean <= SLACK:
        return ["not_higher"]
    alpha = normal_sf(min_z)
    if se == 0.0:
        p = 0.5**n
        words = f"every case moved alike; {n} cases cannot show z>={min_z:g} (exact p {p:.4g})"
        return [f"zero_variance: {words}"] if p > alpha else []
    needed = t_isf(alpha, n - 1) if strict else min_z
    if not passes(n, mean, se, needed):
        return [f"within_noise: {mean:+.3g} is {mean / se:.2f} standard errors, {needed:.2f} are needed"]
    return []


class _Terms(NamedTuple):
    """What a decision is held to."""

    min_z: float
    tries: int
    strict: bool
    single_trial: bool


def _warnings(diff: Sequence[float], p_flip: float | None, terms: _Terms) -> list[str]:
    """What makes a pass of the bare rule doubtful."""
    n = len(diff)
    mean, se = mean_stderr(diff)
    found = []
    if passes(n, mean, se, terms.min_z) and mean is not None and p_flip is not None:
        alpha = normal_sf(terms.min_z)
        p_reuse = t_sf(mean / se, n - 1) if se else p_flip
        if p_flip > alpha:
            found.append("exact_p_above_alpha")
        if n < FEW_CASES or sum(abs(d) > SLACK for d in diff) < FEW_MOVED:
            found.append("few_cases")
        if terms.tries > 1 and p_reuse > alpha * alpha_share(terms.tries):
            found.append("holdout_reused")
    if terms.single_trial:
        found.append("single_trial")
    return found


def _missing_decides(units: Sequence[Unit], promoted: bool, terms: _Terms) -> bool:
    """Whether some values in 0..1 for the missing grades of all cases would turn the decision."""
    low, high = bounds(units)
    if low == high:
        return False

    def would_promote(diff: Sequence[float]) -> bool:
        if decide(len(diff), *mean_stderr(diff), terms.min_z, terms.strict):
            return False
        if not terms.strict:
            return True
        p_flip, _ = flip_p([round(d * FINE_GRID) for d in diff], slack=2 * len(diff))
        return not _warnings(diff, p_flip, terms)

    if promoted:
        return not all(map(would_promote, worst_fills(low, high)))
    needed = t_isf(normal_sf(terms.min_z), len(low) - 1) if terms.strict and len(low) > 1 else terms.min_z
    return any(map(would_promote, best_fills(low, high, needed)))


def paired_gate(
    live: Sequence[Trials],
    candidate: Sequence[Trials],
    min_z: float = 2.0,
    tries: int = 1,
    groups: Sequence[str | None] | None = None,
    strict: bool = False,
) -> dict[str, Any]:
    """Judge by paired trial scores whether a candidate is better than the live version.

    live, candidate: a list of trial scores (0..1) a case, the same cases in the same order. None, and
    what is no finite number up to a million, is a missing grade. A case without a grade in both arms
    is dropped; an arm without any trial of it misses as many grades as the other arm has trials.
    min_z: standard errors needed. tries: distinct candidates this holdout has judged, this one included.
    groups: a name a case or None; cases of one name are one unit, their differences averaged.
    strict: Student's t in place of min_z, and every warning refuses.

    Returns, in points of score unless said otherwise, None where undefined:
    decision: `promote`, `refuse`, or `untestable` (nothing measured, or the missing grades decide);
    reasons, warnings; rule: the bare min_z rule; weak: a promotion that asks for confirmation;
    worse: the bare rule holds the other way round;
    n: units; n_cases; units: case indices of each; dropped: case indices; missing_live, missing_cand: grades;
    mean_live, mean_cand, diff (one a unit), mean_diff, sd, se, z, wins, losses, ties;
    p_flip: sign flip over units; p_trial: label swap of trials within cases (better on these very
    cases); p_t: Student; all one-sided; sampled: names of those that are not exact;
    ci_t: two-sided 95 %, cut to -1..1; mde80: the gain that 80 % power would see; low_power: even a
    perfect candidate could not gain that much;
    min_z, tries, strict; alpha: one-sided level of min_z; alpha_try: its share for this try;
    alpha_left: what later tries may spend.

    Never raises for the lists; ValueError for a min_z that is not finite, or tries below 1.
    """
    if not isfinite(min_z) or tries < 1:
        raise ValueError(f"min_z must be finite and tries at least 1, not {min_z} and {tries}")
    cases = read_cases(live, candidate)
    paired = [case for case in cases if case.paired]
    units = in_units(paired, groups)
    figures = differences(units)
    diff: list[float] = figures["diff"]
    n = len(diff)
    mean, se = mean_stderr(diff)
    most_live = max((len(case.live) for case in paired), default=0)
    most_cand = max((len(case.cand) for case in paired), default=0)
    terms = _Terms(min_z, tries, strict, single_trial=1 in (most_live, most_cand))

    reasons = decide(n, mean, se, min_z, strict)
    warnings = _warnings(diff, figures["p_flip"], terms)
    if strict and warnings and not reasons:
        reasons = ["strict: " + ", ".join(warnings)]
    decision = "refuse" if reasons else "promote"
    lost = lost_grades(cases)
    if n == 0:
        decision, reasons = "untestable", ["no_cases: no case has a grade in both arms", *lost]
    elif lost:
        decision, reasons = "refuse", [*lost, *reasons]
    elif _missing_decides(in_units(cases, groups), not reasons, terms):
        words = f"some values of the missing grades would turn this {decision}"
        decision, reasons = "untestable", [f"missing_grades: {words}", *reasons]

    t = _student(n, mean, se, min_z)
    alpha = normal_sf(min_z)
    spent = fsum(alpha_share(j) for j in range(1, tries + 1))
    seen = {case.place for case in paired}
    return {
        "decision": decision,
        "reasons": reasons,
        "warnings": warnings,
        "rule": passes(n, mean, se, min_z),
        "weak": decision == "promote" and not _ASKS_CONFIRMATION.isdisjoint(warnings),
        "worse": mean is not None and passes(n, -mean, se, min_z),
        "n": n,
        "n_cases": len(paired),
        "units": [[case.place for case in unit] for unit in units],
        "dropped": [i for i in range(max(len(live), len(candidate))) if i not in seen],
        "missing_live": sum(case.live_missing for case in cases),
        "missing_cand": sum(case.cand_missing for case in cases),
        **figures,
        "mean_diff": mean,
        "sd": None if se is None else se * sqrt(n),
        "se": se,
        "wins": sum(d > SLACK for d in diff),
        "losses": sum(d < -SLACK for d in diff),
        "ties": sum(abs(d) <= SLACK for d in diff),
        **t,
        "low_power": None if t["mde80"] is None else t["mde80"] > 1.0 - figures["mean_live"] + SLACK,
        "min_z": min_z,
        "tries": tries,
        "strict": strict,
        "alpha": alpha,
        "alpha_try": alpha * alpha_share(tries),
        "alpha_left": alpha * max(0.0, 1.0 - spent),
    }


def smallest_gain(n: int, sd: float, min_z: float = 2.0) -> float | None:
    """The mean gain that n differences of standard deviation sd show with 80 % power; None if none is.

    One-sided at the level of min_z, by Student's t.
    """
    if n < 2:
        return None
    gain = (t_isf(normal_sf(min_z), n - 1) + t_isf(0.2, n - 1)) * sd / sqrt(n)
    return gain if isfinite(gain) else None


def _student(n: int, mean: float | None, se: float | None, min_z: float) -> dict[str, Any]:
    """z, p_t, ci_t and mde80 of n differences; all None where there is no error to divide by."""
    if mean is None or not se:
        return dict.fromkeys(("z", "p_t", "ci_t", "mde80"))
    reach = t_isf(0.025, n - 1) * se
    gain = smallest_gain(n, se * sqrt(n), min_z)
    return {
        "z": mean / se,
        "p_t": t_sf(mean / se, n - 1),
        "ci_t": [max(-1.0, min(1.0, mean - reach)), max(-1.0, min(1.0, mean + reach))],
        "mde80": gain,
    }

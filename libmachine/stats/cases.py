"""From the trial scores of two arms to paired differences, and what missing grades could make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from math import fsum, lcm
from typing import Any, NamedTuple

from libmachine.stats.exact import FINE_GRID, Swap, flip_p, grid, swap_p

Trials = Sequence[float | None] | None
"""The scores of one case's trials, in 0..1; None: a trial without a grade, or a case without trials."""

MAX_MISSING = 0.10
_LARGEST_SCORE = 1e6
_ALL_CORNERS = 10


class Case(NamedTuple):
    """One case: where it stands in the lists, the grades of both arms, how many grades each arm lacks."""

    place: int
    live: list[float]
    cand: list[float]
    live_missing: int
    cand_missing: int

    @property
    def paired(self) -> bool:
        """Whether both arms have a grade."""
        return bool(self.live and self.cand)


Unit = list[Case]
"""Cases that are one observation: those of one group, else a single case."""


def read_cases(live: Sequence[Trials], cand: Sequence[Trials]) -> list[Case]:
    """The cases of which any arm has a trial. A grade that is no finite number up to 1e6 is missing.

    An arm that has no trial of a case at all misses as many grades as the other arm has trials.
    """
    cases = []
    for place, (a, b) in enumerate(zip_longest(live, cand)):
        a, b = list(a or ()), list(b or ())
        graded_a, graded_b = _grades(a), _grades(b)
        missing_a = (len(a) or len(b)) - len(graded_a)
        missing_b = (len(b) or len(a)) - len(graded_b)
        if a or b:
            cases.append(Case(place, graded_a, graded_b, missing_a, missing_b))
    return cases


def _grades(trials: Sequence[Any]) -> list[float]:
    return [float(x) for x in trials if isinstance(x, (int, float)) and abs(x) <= _LARGEST_SCORE]


def in_units(cases: Sequence[Case], groups: Sequence[str | None] | None) -> list[Unit]:
    """Cases of one group together (groups: a name a case, by place; None or past the end: alone)."""
    units: dict[str | int, Unit] = {}
    for case in cases:
        group = groups[case.place] if groups is not None and case.place < len(groups) else None
        units.setdefault(case.place if group is None else str(group), []).append(case)
    return list(units.values())


def differences(units: Sequence[Unit]) -> dict[str, Any]:
    """Means of both arms, the difference of each unit, and the two exact tests on them.

    units: of paired cases only. Keys: mean_live, mean_cand, diff (candidate minus live, one a unit),
    p_flip, p_trial, sampled. All sums are of whole numbers: see stats.exact.
    """
    if not units:
        return dict.fromkeys(("mean_live", "mean_cand", "p_flip", "p_trial")) | {"diff": [], "sampled": []}
    n = len(units)
    parts = grid(score for unit in units for case in unit for arm in (case.live, case.cand) for score in arm)
    shares = lcm(*(len(unit) * len(arm) for unit in units for case in unit for arm in (case.live, case.cand)))
    live, cand, swaps = [0] * n, [0] * n, []
    for i, unit in enumerate(units):
        for case in unit:
            swap = Swap(
                [round(score * parts) for score in case.live],
                [round(score * parts) for score in case.cand],
                shares // (len(unit) * len(case.live)),
                shares // (len(unit) * len(case.cand)),
            )
            live[i] += sum(swap.live) * swap.live_worth
            cand[i] += sum(swap.cand) * swap.cand_worth
            swaps.append(swap)
    gaps = [b - a for a, b in zip(live, cand, strict=True)]
    # On the fine grid a third is rounded, so sums that are equal on paper may differ by the roundings.
    slack = 2 * n * shares if parts == FINE_GRID else 0
    flip, flip_exact = flip_p(gaps, slack)
    swap_, swap_exact = swap_p(swaps, slack)
    one = parts * shares
    return {
        "mean_live": sum(live) / (n * one),
        "mean_cand": sum(cand) / (n * one),
        "diff": [gap / one for gap in gaps],
        "p_flip": flip,
        "p_trial": swap_,
        "sampled": [name for name, exact in (("p_flip", flip_exact), ("p_trial", swap_exact)) if not exact],
    }


def lost_grades(cases: Sequence[Case]) -> list[str]:
    """A reason for each arm that lacks over 10 % of its grades."""
    reasons = []
    for arm, missing, there in (
        ("live", sum(c.live_missing for c in cases), sum(len(c.live) for c in cases)),
        ("candidate", sum(c.cand_missing for c in cases), sum(len(c.cand) for c in cases)),
    ):
        if missing > MAX_MISSING * (missing + there) + 1e-9:
            words = f"{missing} of {missing + there} grades of the {arm} arm, over {MAX_MISSING:.0%}"
            reasons.append(f"missing_grades: {words}")
    return reasons


def bounds(units: Sequence[Unit]) -> tuple[list[float], list[float]]:
    """Least and greatest difference of each unit when every missing grade may be anything in 0..1."""
    low, high = [], []
    for unit in units:
        gaps = [(_span(c.cand, c.cand_missing), _span(c.live, c.live_missing)) for c in unit]
        low.append(fsum(cand[0] - live[1] for cand, live in gaps) / len(unit))
        high.append(fsum(cand[1] - live[0] for cand, live in gaps) / len(unit))
    return low, high


def _span(grades: Sequence[float], missing: int) -> tuple[float, float]:
    """Least and greatest mean of an arm's trials."""
    trials = len(grades) + missing
    return fsum(grades) / trials, (fsum(grades) + missing) / trials


def worst_fills(low: Sequence[float], high: Sequence[float]) -> Iterator[list[float]]:
    """Differences that speak most against a promotion.

    mean - z * se is concave in the differences, so its least value is at a corner of the box; there
    all are tried for up to 10 units. For more, those where the boxes that lie lowest take their low
    end, one corner for each place of the cut: an outlier above can lower z as surely as a loss below.
    Last the differences that are all equal, if there are such: few cases of no variance are refused.
    """
    free = sorted((i for i in range(len(low)) if low[i] < high[i]), key=lambda i: low[i] + high[i])
    if len(free) <= _ALL_CORNERS:
        yield from (list(corner) for corner in product(*({a, b} for a, b in zip(low, high, strict=True))))
    else:
        corner = list(high)
        yield list(corner)
        for i in free:
            corner[i] = low[i]
            yield list(corner)
    if max(low) <= min(high):
        yield [max(low)] * len(low)


def best_fills(low: Sequence[float], high: Sequence[float], z: float) -> Iterator[list[float]]:
    """Differences that speak most for a promotion at z standard errors.

    At the greatest mean - z * se all free differences are one value c, cut to their boxes, with
    c = mean + (n-1) * se / z (where the gradient vanishes); found by bisection. That may make all
    differences equal, which is refused for few cases, so its neighbours follow; so does the top corner.
    """
    n = len(low)
    least, most = min(low), max(high)

    def filled(c: float) -> list[float]:
        return [min(max(c, a), b) for a, b in zip(low, high, strict=True)]

    for _ in range(60):
        c = (least + most) / 2.0
        some = filled(c)
        mean = fsum(some) / n
        error = (fsum((d - mean) ** 2 for d in some) / max(1, n - 1) / n) ** 0.5
        if z * (c - mean) <= (n - 1) * error + 1e-12:
            least = c
        else:
            most = c
    best = filled(most)
    yield best
    for end in (low, high):
        yield [d + (b - d) * 1e-3 for d, b in zip(best, end, strict=True)]
    yield list(high)

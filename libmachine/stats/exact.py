"""Exact randomisation tests over whole numbers: sign flips of cases, label swaps of trials.

Scores are put on a grid first (`grid`), so that sums which are equal on paper are equal here
and a tie is never broken by the last bit of a float. The distribution of a sum is then built
by dynamic programming over its distinct values. Where these are too many, it is sampled with
a fixed seed and the p value is (b+1)/(m+1) (Phipson and Smyth 2010), never 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import comb, prod
from random import Random
from typing import NamedTuple

COARSE_GRIDS = 10_000
FINE_GRID = 10**12
_DUST = 1e-9
_MAX_SUMS = 200_000
_MAX_WORK = 2 * _MAX_SUMS
_SAMPLES = 20_000
_SAMPLE_WORK = 4_000_000

Sums = dict[int, int]
"""How many of the equally likely arrangements give each sum."""


class Swap(NamedTuple):
    """One case of the label swap: grid scores of both arms, and what one point of each arm is worth.

    The case's difference is sum(cand) * cand_worth - sum(live) * live_worth.
    """

    live: Sequence[int]
    cand: Sequence[int]
    live_worth: int
    cand_worth: int


def grid(scores: Iterable[float]) -> int:
    """Parts of one point on which all scores lie: 1 for pass and fail, 12 for thirds and quarters.

    The smallest up to 10,000 that fits within 1e-9, else 10**12.
    """
    distinct = sorted(set(scores))
    for parts in range(1, COARSE_GRIDS + 1):
        if all(abs(score * parts - round(score * parts)) <= _DUST for score in distinct):
            return parts
    return FINE_GRID


def flip_p(differences: Sequence[int], slack: int = 0) -> tuple[float, bool]:
    """One-sided sign-flip p: share of the 2**n sign choices whose sum is no less than the one seen.

    differences: one per case, in grid units. slack: how far below still counts as equal.
    Returns (p, exact); exact is False where p was sampled.
    """
    parts: list[Sums] = [{d: 1, -d: 1} for d in sorted(map(abs, differences)) if d]
    return _tail(parts, [], sum(differences) - slack)


def swap_p(cases: Sequence[Swap], slack: int = 0) -> tuple[float, bool]:
    """One-sided label-swap p: trials of a case are dealt anew to the two arms, all deals alike likely.

    Answers a narrower question than flip_p: better on these very cases. Returns (p, exact).
    """
    parts: list[Sums] = []
    wide: list[Swap] = []
    seen = 0
    for case in cases:
        seen += sum(case.cand) * case.cand_worth - sum(case.live) * case.live_worth
        pooled = sorted([*case.live, *case.cand])
        dealt = _deals(pooled, len(case.cand))
        if dealt is None:
            wide.append(case)
            continue
        both, base = case.cand_worth + case.live_worth, sum(pooled) * case.live_worth
        parts.append({total * both - base: count for total, count in dealt.items()})
    return _tail(parts, wide, seen - slack)


def _deals(pooled: Sequence[int], size: int) -> Sums | None:
    """Sums of all choices of `size` from pooled with their counts; None where they are too many."""
    if pooled[0] == pooled[-1]:
        return {size * pooled[0]: comb(len(pooled), size)}
    by_size: list[Sums] = [{0: 1}] + [{} for _ in range(size)]
    for value in pooled:
        for chosen in range(size, 0, -1):
            target = by_size[chosen]
            for total, count in by_size[chosen - 1].items():
                target[total + value] = target.get(total + value, 0) + count
        if sum(map(len, by_size)) > _MAX_SUMS // 10:
            return None
    return by_size[size]


def _tail(parts: list[Sums], wide: list[Swap], bound: int) -> tuple[float, bool]:
    """Probability that the parts, drawn independently, sum to bound or more; and whether it is exact."""
    # In one order whatever the order of the cases: a sampled p must not depend on it.
    parts.sort(key=lambda part: (len(part), sorted(part.items())))
    left, used = _fold(parts)
    right, used_right = _fold(parts[used:])
    if wide or used + used_right < len(parts):
        return _sampled(parts, wide, bound), False
    # Two halves that are never multiplied out: for each left sum, the right sums that reach the bound.
    sums = sorted(right)
    above = [*accumulate((right[value] for value in reversed(sums)), initial=0)][::-1]
    reached = sum(count * above[bisect_left(sums, bound - value)] for value, count in left.items())
    return reached / prod(sum(part.values()) for part in parts), True


def _fold(parts: Sequence[Sums]) -> tuple[Sums, int]:
    """Distribution of the sum of the first parts, and how many of them fitted."""
    total: Sums = {0: 1}
    for used, part in enumerate(parts):
        if len(total) * len(part) > _MAX_WORK:
            return total, used
        wider: Sums = {}
        for value, count in total.items():
            for more, times in part.items():
                wider[value + more] = wider.get(value + more, 0) + count * times
        if len(wider) > _MAX_SUMS:
            return total, used
        total = wider
    return total, len(parts)


def _sampled(parts: Sequence[Sums], wide: Sequence[Swap], bound: int) -> float:
    rng = Random(0)
    trials = len(parts) + sum(len(case.live) + len(case.cand) for case in wide)
    samples = max(999, min(_SAMPLES, _SAMPLE_WORK // trials))
    totals = [0] * samples
    for part in parts:
        whole = sum(part.values())
        values = sorted(part)
        drawn = rng.choices(values, [part[value] / whole for value in values], k=samples)
        totals = [total + value for total, value in zip(totals, drawn, strict=True)]
    for case in sorted(wide, key=lambda case: (sorted([*case.live, *case.cand]), *case[2:], len(case.cand))):
        pooled = sorted([*case.live, *case.cand])
        both, base = case.cand_worth + case.live_worth, sum(pooled) * case.live_worth
        for i in range(samples):
            totals[i] += sum(rng.sample(pooled, len(case.cand))) * both - base
    return (sum(total >= bound for total in totals) + 1) / (samples + 1)

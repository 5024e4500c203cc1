"""How far a cheap grader can stand in for a trusted one: figures of two lists of grades.

Good means that the reference grader passes a run; passed, that the candidate grader does. Rates
that nothing was measured for are None, never 0: a grader that has met no bad run has no
false-pass rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log2
from typing import Any

from libmachine.stats_dist import wilson

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
UNSURE_BAND = (0.3, 0.7)
REFERENCE_THRESHOLD = 0.5
_SLACK = 1e-9


def agreement(tp: int, fp: int, fn: int, tn: int) -> dict[str, Any]:
    """Figures of a two by two table of counts of runs; ValueError for a negative count.

    tp: good and passed; fp: bad and passed; fn: good and failed; tn: bad and failed.
    Returns counts n, good, bad, passed; agreement and Cohen's kappa (None if both graders put all
    runs in one class); false_pass_rate of the bad runs with false_pass_ci95 (Wilson) and
    false_fail_rate of the good ones; precision; bits a label (mutual information) and bits_max
    (entropy of the reference); kept_bad_at_10 and kept_bad_at_50: the bad share of what a filter
    by this grader keeps where 10 % and 50 % of the samples are good.
    """
    if min(tp, fp, fn, tn) < 0:
        raise ValueError(f"counts below 0: {tp} {fp} {fn} {tn}")
    n = tp + fp + fn + tn
    good, bad, passed, failed = tp + fn, fp + tn, tp + fp, fn + tn
    kappa = None
    if n and (chance := good * passed + bad * failed) != n * n:
        # Over n * n on both sides, in whole numbers: exact at 0 and 1.
        kappa = ((tp + tn) * n - chance) / (n * n - chance)
    false_pass, false_fail = _share(fp, bad), _share(fn, good)
    return {
        "n": n,
        "good": good,
        "bad": bad,
        "passed": passed,
        "agreement": _share(tp + tn, n),
        "kappa": kappa,
        "false_pass_rate": false_pass,
        "false_fail_rate": false_fail,
        "precision": _share(tp, passed),
        "bits": _bits(tp, fp, fn, tn),
        "bits_max": _entropy(good, bad),
        "kept_bad_at_10": _kept_bad(0.1, false_pass, false_fail),
        "kept_bad_at_50": _kept_bad(0.5, false_pass, false_fail),
        "false_pass_ci95": list(interval) if (interval := wilson(fp, bad)) else None,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _bits(tp: int, fp: int, fn: int, tn: int) -> float | None:
    n = tp + fp + fn + tn
    if not n:
        return None
    good, bad, passed, failed = tp + fn, fp + tn, tp + fp, fn + tn
    cells = ((tp, good, passed), (fp, bad, passed), (fn, good, failed), (tn, bad, failed))
    # Rounding may take the sum of an independent table a hair below 0, which is its least value.
    return max(0.0, sum(k / n * log2(k * n / (row * column)) for k, row, column in cells if k))


def _entropy(*counts: int) -> float | None:
    n = sum(counts)
    return sum(k / n * log2(n / k) for k in counts if k) if n else None


def _kept_bad(base: float, false_pass: float | None, false_fail: float | None) -> float | None:
    """Bad share of what is kept where `base` (0..1) of the samples is good; None if nothing is kept."""
    if false_pass is None or false_fail is None:
        return None
    bad, good = (1.0 - base) * false_pass, base * (1.0 - false_fail)
    return bad / (bad + good) if bad + good > 0.0 else None


def threshold_sweep(
    reference: Sequence[float | None],
    candidate: Sequence[float | None],
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict[str, Any]:
    """The agreement of two graders over the same runs at several pass thresholds of the candidate.

    reference, candidate: scores in 0..1, run by run; ValueError if unequal in number. A run with a
    missing score (None, NaN) is left out. A score at a threshold passes, with a slack of 1e-9.
    Returns n (runs used), missing, reference_threshold, unsure_band (closed), unsure and sure (runs in
    and out of it, by the candidate), agreement_sure_at_05, disagree_at_05 (indices into the lists),
    and sweep: for each threshold a dict of threshold, tp, fp, fn, tn and all keys of `agreement`.
    """
    if len(reference) != len(candidate):
        raise ValueError(f"{len(reference)} reference scores, {len(candidate)} candidate scores")
    pairs = [
        (index, _passes(r, REFERENCE_THRESHOLD), c)
        for index, (r, c) in enumerate(zip(reference, candidate, strict=True))
        if r is not None and c is not None and isfinite(r) and isfinite(c)
    ]
    low, high = UNSURE_BAND
    unsure = {index for index, _, c in pairs if low - _SLACK <= c <= high + _SLACK}
    disagree = [index for index, good, c in pairs if good != _passes(c, 0.5)]
    sure = len(pairs) - len(unsure)
    rows = []
    for threshold in thresholds:
        cells = [(good, _passes(c, threshold)) for _, good, c in pairs]
        counts = {
            "tp": cells.count((True, True)),
            "fp": cells.count((False, True)),
            "fn": cells.count((True, False)),
            "tn": cells.count((False, False)),
        }
        rows.append({"threshold": threshold, **counts, **agreement(**counts)})
    return {
        "n": len(pairs),
        "missing": len(reference) - len(pairs),
        "reference_threshold": REFERENCE_THRESHOLD,
        "unsure_band": list(UNSURE_BAND),
        "unsure": len(unsure),
        "sure": sure,
        "agreement_sure_at_05": _share(sure - sum(index not in unsure for index in disagree), sure),
        "disagree_at_05": disagree,
        "sweep": rows,
    }


def _passes(score: float, threshold: float) -> bool:
    return score >= threshold - _SLACK

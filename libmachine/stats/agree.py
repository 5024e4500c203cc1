"""How far a cheap grader can stand in for a trusted one: figures of two lists of grades.

Good means that the reference grader passes a run; passed, that the candidate grader does. Rates
that nothing was measured for are None, never 0: a grader that has met no bad run has no
false-pass rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log2
from typing import Any

from libmachine.stats.dist import wilson

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


class Sweep:
    """The agreement of two graders at several pass thresholds of the candidate, run by run: it holds
    counts only, whatever the number of runs.

    A score at a threshold passes, with a slack of 1e-9; a reference score of 0.5 is good.
    """

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS) -> None:
        self.thresholds = tuple(thresholds)
        self.n = self.missing = self.unsure = self.disagree = 0
        self._sure_disagree = 0
        self._cells = [{"tp": 0, "fp": 0, "fn": 0, "tn": 0} for _ in self.thresholds]

    def add(self, reference: float | None, candidate: float | None) -> bool | None:
        """Count a run. Do the two agree at 0.5? None if a score is missing (None, NaN, infinite)."""
        if reference is None or candidate is None or not isfinite(reference) or not isfinite(candidate):
            self.missing += 1
            return None
        good = _passes(reference, REFERENCE_THRESHOLD)
        for threshold, cells in zip(self.thresholds, self._cells, strict=True):
            passed = _passes(candidate, threshold)
            cells[("tp" if passed else "fn") if good else ("fp" if passed else "tn")] += 1
        low, high = UNSURE_BAND
        is_unsure = low - _SLACK <= candidate <= high + _SLACK
        agrees = good == _passes(candidate, 0.5)
        self.n += 1
        self.unsure += is_unsure
        self.disagree += not agrees
        self._sure_disagree += not agrees and not is_unsure
        return agrees

    def result(self) -> dict[str, Any]:
        """n (runs used), missing, reference_threshold, unsure_band (closed), unsure and sure (runs in and
        out of it, by the candidate), agreement_sure_at_05, disagree (runs, at 0.5), and sweep: for each
        threshold a dict of threshold, tp, fp, fn, tn and all keys of `agreement`."""
        sure = self.n - self.unsure
        return {
            "n": self.n,
            "missing": self.missing,
            "reference_threshold": REFERENCE_THRESHOLD,
            "unsure_band": list(UNSURE_BAND),
            "unsure": self.unsure,
            "sure": sure,
            "agreement_sure_at_05": _share(sure - self._sure_disagree, sure),
            "disagree": self.disagree,
            "sweep": [
                {"threshold": threshold, **cells, **agreement(**cells)}
                for threshold, cells in zip(self.thresholds, self._cells, strict=True)
            ],
        }


def threshold_sweep(
    reference: Sequence[float | None],
    candidate: Sequence[float | None],
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict[str, Any]:
    """The agreement of two graders over the same runs at several pass thresholds of the candidate.

    reference, candidate: scores in 0..1, run by run; ValueError if unequal in number. A run with a
    missing score is left out. Returns what Sweep.result does, and disagree_at_05 (indices into the lists).
    """
    if len(reference) != len(candidate):
        raise ValueError(f"{len(reference)} reference scores, {len(candidate)} candidate scores")
    sweep = Sweep(thresholds)
    pairs = enumerate(zip(reference, candidate, strict=True))
    disagree = [index for index, pair in pairs if sweep.add(*pair) is False]
    return {**sweep.result(), "disagree_at_05": disagree}


def _passes(score: float, threshold: float) -> bool:
    return score >= threshold - _SLACK

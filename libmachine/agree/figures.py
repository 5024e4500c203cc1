"""Figures of pairs of grades, taken one by one: counts, the cases met, the first disagreements.

What is undefined is None and shown as unmeasured: a grader that met no bad run has no false-pass rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import pstdev

from libmachine.agree.pairs import Pair, Pairing, Terms
from libmachine.canon import Record, now
from libmachine.stats import Sweep, wilson

LISTED = 1000
"""Disagreements that a record lists, the newest runs first; all are counted."""
FEW = 10
"""Good or bad runs below which a rate of them says little."""


@dataclass
class Figures:
    """What is known of the pairs so far. Its size depends on the cases, not on the runs."""

    sweep: Sweep = field(default_factory=Sweep)
    runs: int = 0
    failed: int = 0
    stored: int = 0
    no_reference: int = 0
    not_applicable: int = 0
    candidate_errors: int = 0
    cases: set[int] = field(default_factory=set)
    disagreements: list[Record] = field(default_factory=list)
    graders: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    spreads: list[float] = field(default_factory=lambda: [0, 0, 0.0, 0.0, 0.0])
    bills: dict[str, list[float]] = field(
        default_factory=lambda: {"candidate": [0, 0.0], "reference": [0, 0.0]}
    )
    unknown_bills: dict[str, int] = field(default_factory=lambda: {"candidate": 0, "reference": 0})
    reference_usd: list[float] = field(default_factory=lambda: [0, 0.0])

    def add(self, pair: Pair | None, same: bool) -> str | None:
        """Count one run. Returns what went wrong with it, None if nothing. same: one grader twice."""
        self.runs += 1
        if pair is None:
            self.failed += 1
            return None
        reference = pair.reference["score"]
        if not pair.stored and reference is not None:
            self._bill("reference", pair.reference)
        if reference is None:
            known = pair.reference.get("applies", True)
            self.no_reference += known
            self.not_applicable += not known
            return pair.reference.get("error")
        self.stored += pair.stored
        self.graders.add(pair.reference["grader"])
        self._cost(pair.reference)
        for grade in pair.candidates:
            self._bill("candidate", grade)
            if grade.get("model"):
                self.models.add(grade["model"])
        first = pair.candidates[0]
        agrees = self.sweep.add(reference, first["score"])
        if agrees is None:
            known = first.get("applies", True)
            self.candidate_errors += known
            self.not_applicable += not known
            return first.get("error")
        self.cases.add(int(pair.run["case"]["identity"][:15], 16))
        if not agrees and len(self.disagreements) < LISTED:
            self.disagreements.append(_disagreement(pair))
        scores = [grade["score"] for grade in pair.candidates if grade["score"] is not None]
        self._spread([reference, *scores] if same else scores)
        return None

    def _bill(self, who: str, grade: Record) -> None:
        usage = grade.get("usage")
        if usage is None:
            return
        self.bills[who][0] += usage["calls"]
        if usage["cost_usd"] is None:
            self.unknown_bills[who] += 1
        else:
            self.bills[who][1] += usage["cost_usd"]

    def _cost(self, grade: Record) -> None:
        """What one grade of the reference costs, where a grade says it for itself."""
        usage = grade.get("usage")
        if usage is not None and usage["cost_usd"] is not None and not grade["grader"].startswith("panel:"):
            self.reference_usd[0] += 1
            self.reference_usd[1] += usage["cost_usd"]

    def _spread(self, scores: list[float]) -> None:
        if len(scores) < 2:
            return
        spread = max(scores) - min(scores)
        runs, flips, total, most, deviations = self.spreads
        flips += min(scores) < 0.5 - 1e-9 <= max(scores)
        self.spreads = [runs + 1, flips, total + spread, max(most, spread), deviations + pstdev(scores)]


def _disagreement(pair: Pair) -> Record:
    first = pair.candidates[0]
    return {
        "run": pair.run["id"],
        "case": pair.run["case"]["id"],
        "trial": pair.run["trial"],
        "reference": pair.reference["score"],
        "candidate": first["score"],
        "reason": None if first["reason"] is None else str(first["reason"])[:300],
    }


def record(pairing: Pairing, figures: Figures, candidate: str) -> Record:
    """The report (without id) of what was counted. candidate: who it is."""
    sweep = figures.sweep.result()
    rows = [{**row, **dict(_intervals(row))} for row in sweep["sweep"]]
    n = sweep["n"]
    return {
        "v": 1,
        "type": "agreement",
        "machine": pairing.reference.machine.name,
        "version": pairing.reference.machine.version,
        "rubric": pairing.reference.rubric,
        "criterion": pairing.criterion.id,
        "with": pairing.terms.how,
        "against": pairing.terms.against,
        "candidate": candidate,
        "models": sorted(figures.models),
        "references": sorted(figures.graders),
        "runs": figures.runs,
        "usable": n,
        "cases": len(figures.cases),
        "failed": figures.failed,
        "no_reference": figures.no_reference,
        "not_applicable": figures.not_applicable,
        "candidate_errors": figures.candidate_errors,
        "reference_stored": figures.stored,
        "reference_threshold": sweep["reference_threshold"],
        "sweep": rows,
        "unsure_band": sweep["unsure_band"],
        "unsure": sweep["unsure"],
        "sure": sweep["sure"],
        "agreement_sure": sweep["agreement_sure_at_05"],
        "escalation": _escalation(sweep, figures, pairing.terms.repeat),
        "repeat": _repeat(figures, pairing.terms),
        "disagree": sweep["disagree"],
        "disagreements": figures.disagreements,
        "spend": {
            who: None if figures.unknown_bills[who] else round(bill, 6)
            for who, (_, bill) in figures.bills.items()
        },
        "calls": {who: int(calls) for who, (calls, _) in figures.bills.items()},
        "warnings": list(_warnings(rows, figures, pairing)),
        "measured_at": now(),
    }


def _intervals(row: Record) -> Iterator[tuple[str, list[float] | None]]:
    """95 % Wilson intervals of the shares; that of the false-pass rate is there already."""
    yield "agreement_ci95", _interval(row["tp"] + row["tn"], row["n"])
    yield "false_fail_ci95", _interval(row["fn"], row["good"])
    yield "precision_ci95", _interval(row["tp"], row["passed"])


def _interval(part: float, whole: float) -> list[float] | None:
    interval = wilson(int(part), int(whole))
    return None if interval is None else list(interval)


def _escalation(sweep: Record, figures: Figures, times: int) -> Record:
    """What asking the reference about the unsure runs alone would bring: agreement and cost, against
    asking it about all."""
    n, sure = sweep["n"], sweep["sure"]
    right = None if not n else ((sweep["agreement_sure_at_05"] or 0) * sure + sweep["unsure"]) / n
    known, total = figures.reference_usd
    each = total / known if known else None
    mine = None if figures.unknown_bills["candidate"] or not n else figures.bills["candidate"][1]
    saved = None
    if each and mine is not None:
        saved = 1 - (mine / times + sweep["unsure"] * each) / (n * each)
    return {
        "agreement": right,
        "calls_saved": sure / n if n else None,
        "usd_saved": saved,
        "reference_usd": None if each is None else round(each, 6),
    }


def _repeat(figures: Figures, terms: Terms) -> Record:
    """How steady the candidate is: runs graded twice or more, and how far their grades lie apart."""
    runs, flips, total, most, deviations = figures.spreads
    return {
        "times": terms.repeat,
        "runs": int(runs),
        "flips": int(flips),
        "flip_rate": flips / runs if runs else None,
        "flip_ci95": _interval(flips, runs),
        "spread_mean": total / runs if runs else None,
        "spread_max": most if runs else None,
        "sd_mean": deviations / runs if runs else None,
    }


def _warnings(rows: list[Record], figures: Figures, pairing: Pairing) -> Iterator[str]:
    good, bad = rows[0]["good"], rows[0]["bad"]
    if bad < FEW:
        yield f"few_bad: the false-pass rate rests on {bad} bad run{'s' * (bad != 1)}"
    if good < FEW:
        yield f"few_good: the false-fail rate rests on {good} good run{'s' * (good != 1)}"
    if rows[0]["n"] > len(figures.cases):
        yield (
            f"runs_of_a_case: {rows[0]['n']} runs of {len(figures.cases)} cases; the intervals take runs as "
            "independent and are too short"
        )
    if len(figures.graders) > 1 and pairing.terms.against == "grader":
        yield f"references_differ: the stored grades are of {len(figures.graders)} graders"
    if len(figures.models) > 1:
        yield f"models_differ: {', '.join(sorted(figures.models))} answered"
    if figures.bills["reference"][0]:
        yield "reference_made: grades of the reference were made and not stored; machine-grade stores them"
    if figures.sweep.disagree > len(figures.disagreements):
        yield f"not_all_listed: {len(figures.disagreements)} of {figures.sweep.disagree} disagreements"


def held(report: Record, least_kappa: float | None, most_false_pass: float | None) -> tuple[bool | None, str]:
    """(held, why not) of what is required at 0.5. None: a figure that is required was not measured."""
    row = next(row for row in report["sweep"] if row["threshold"] == 0.5)
    problems, unmeasured = [], []
    if least_kappa is not None:
        if row["kappa"] is None:
            unmeasured.append("kappa")
        elif row["kappa"] < least_kappa - 1e-9:
            problems.append(f"kappa {row['kappa']:.3f} is below {least_kappa:g}")
    if most_false_pass is not None:
        if row["false_pass_rate"] is None:
            unmeasured.append("the false-pass rate")
        elif row["false_pass_rate"] > most_false_pass + 1e-9:
            problems.append(f"the false-pass rate {row['false_pass_rate']:.3f} is above {most_false_pass:g}")
    if problems:
        return False, "; ".join(problems)
    return (None, f"{' and '.join(unmeasured)} could not be measured") if unmeasured else (True, "")

"""What a verdict says of both arms beside the decision: criteria, tokens, outputs, spend. Pure."""

from __future__ import annotations

from libmachine.canon import Record
from libmachine.folder import Criterion
from libmachine.measure import Measured, cost_of, criterion_score, passed_of, tokens_of
from libmachine.select import said
from libmachine.stats import pass_at_k, pass_hat_k


def criteria(measured: Measured, criteria_: tuple[Criterion, ...]) -> Record:
    """Criterion -> mean of each arm over graded runs."""
    table: Record = {}
    for criterion in criteria_:
        row: Record = {"role": criterion.role, "weight": criterion.weight}
        for name in measured.runs:
            scores = [criterion_score(run, criterion.id) for run in measured.all(name)]
            known = [score for score in scores if score is not None]
            row[name] = sum(known) / len(known) if known else None
        table[criterion.id] = row
    return table


def judges_of(measured: Measured) -> set[str]:
    """Who graded, checks alone left out."""
    return {name for name in graders_of(measured) if not name.startswith("check:") or " unsure " in name}


def graders_of(measured: Measured) -> set[str]:
    return {
        grade["grader"]
        for name in measured.runs
        for run in measured.all(name)
        for grade in (run.get("scorecard") or {"grades": []})["grades"]
    }


def about(runs: list[Record]) -> Record:
    """What an arm's runs were like: how many passed (by run; by case once, in any trial, in all), tokens out,
    distinct outputs, why they stopped, spend."""
    passed = [p for run in runs if (p := passed_of(run)) is not None]
    tokens = [t for run in runs if (t := tokens_of(run)) is not None]
    costs = [cost_of(run) for run in runs]
    by_case: dict[str, list[bool | None]] = {}
    for run in runs:
        by_case.setdefault(run["case"]["identity"], []).append(passed_of(run))
    trials = list(by_case.values())
    stops: dict[str, int] = {}
    for run in runs:
        stops[run["stop_reason"]] = stops.get(run["stop_reason"], 0) + 1
    return {
        "runs": len(runs),
        "failed": sum(run["status"] == "failed" for run in runs),
        "pass_rate": sum(passed) / len(passed) if passed else None,
        "pass_at_1": pass_at_k(trials, 1),
        "pass_at_k": pass_at_k(trials),
        "all_good": pass_hat_k(trials),
        "mean_completion_tokens": sum(tokens) / len(tokens) if tokens else None,
        "distinct_outputs": len({said(run) for run in runs}),
        "stop_reasons": dict(sorted(stops.items())),
        "cost_usd": None if None in costs else sum(costs),
    }

"""What the graded runs of a machine's cases come to: runs in, one `suite` record out. Pure.

Every mean and error is over cases (those of one metadata.group, or one case of several
machines, count as one unit), never over pooled trials. A failed or ungraded run is counted
and enters no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, cast

from libmachine.canon import Record, usd
from libmachine.define import steps_of
from libmachine.folder import Criterion, rubric_hash
from libmachine.gate.figures import about
from libmachine.judging import kin
from libmachine.measure import cost_of, criterion_score, passed_of, score_of
from libmachine.stats import SLACK, mean_stderr, pass_at_k, pass_hat_k, wilson

MAX_MISSING = 0.1


def unit_of(case: Mapping[str, Any]) -> str:
    """Name of the unit a case belongs to: its metadata.group, else the case alone."""
    group = (case.get("metadata") or {}).get("group")
    return f"group {group}" if group else str(case["identity"])


def over_units(
    values: Sequence[float | None], units: Sequence[str]
) -> tuple[float | None, float | None, int]:
    """Mean over units, its standard error, and how many there are. values: one a case; None is left out."""
    by_unit: dict[str, list[float]] = {}
    for value, unit in zip(values, units, strict=True):
        if value is not None:
            by_unit.setdefault(unit, []).append(value)
    mean, error = mean_stderr(fsum(found) / len(found) for found in by_unit.values())
    return mean, error, len(by_unit)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are there, None if none is."""
    return mean_stderr(values)[0]


def suite(
    head: Record, criteria: Sequence[Criterion], cases: Sequence[Record], runs: Sequence[Record]
) -> Record:
    """The record of a suite, without id.

    head: machine, version, revision, engine, rubric, on, trials. cases: those that were to be run. runs:
    graded runs of them, in any order, fewer where the suite was cut short.
    """
    unique = {case["identity"]: case for case in cases}
    by_case: dict[str, list[Record]] = {identity: [] for identity in unique}
    for run in sorted(runs, key=lambda run: run["trial"]):
        by_case[run["case"]["identity"]].append(run)
    measured = [identity for identity, found in by_case.items() if found]
    units = [unit_of(unique[identity]) for identity in measured]
    groups = [by_case[identity] for identity in measured]
    passed = [[passed_of(run) for run in found] for found in groups]
    mean, error, n = over_units([mean_of(map(score_of, found)) for found in groups], units)
    lines = [_case(unique[identity], by_case[identity]) for identity in measured]
    lines.sort(key=lambda line: (line["mean"] is None, line["mean"] or 0.0, line["passes"] - line["graded"]))
    trials = head["trials"]
    answered = [run for run in runs if run["status"] != "failed"]
    seen = about(answered)
    record = {
        "v": 1,
        "type": "suite",
        **head,
        "cases": len(unique),
        "runs": len(runs),
        "graded": sum(line["graded"] for line in lines),
        "failed": sum(line["failed"] for line in lines),
        "ungraded": sum(line["ungraded"] for line in lines),
        "units": n,
        "mean": mean,
        "stderr": error,
        "passes": sum(line["passes"] for line in lines),
        **_passing(passed, units, trials),
        "by_case": lines,
        "by_criterion": [_criterion(criterion, groups, units) for criterion in criteria],
        "mean_completion_tokens": seen["mean_completion_tokens"],
        "distinct_outputs": seen["distinct_outputs"],
        "stop_reasons": about(list(runs))["stop_reasons"],
        "spend": spend(runs),
    }
    return {**record, "warnings": [*_warnings(record, unused_tools(answered)), *kin_warning(runs)]}


def _passing(passed: Sequence[Sequence[bool | None]], units: Sequence[str], trials: int) -> Record:
    """Pass rate (of graded runs) with a 95 % Wilson interval over units, pass@1, pass@k, all trials good."""
    known = [bool(one) for trial in passed for one in trial if one is not None]
    shares = [mean_of([None if one is None else float(one) for one in trial]) for trial in passed]
    share, _, n = over_units(shares, units)
    # trials of one case are no independent draws: the interval is that of as many draws as units
    interval = None if share is None else wilson(cast(int, min(share * n, n)), n)
    return {
        "pass_rate": sum(known) / len(known) if known else None,
        "pass_interval": None if interval is None else list(interval),
        "pass_at_1": pass_at_k(passed, 1),
        "pass_at_k": pass_at_k(passed, trials),
        "all_good": pass_hat_k(passed, trials),
    }


def _case(case: Record, runs: Sequence[Record]) -> Record:
    """One case: its mean over graded trials, its counts, and what was wrong with its worst run."""
    scores = [score_of(run) for run in runs]
    passed = [passed_of(run) for run in runs]
    return {
        "id": case["id"],
        "identity": case["identity"],
        "mean": mean_of(scores),
        "passes": sum(one is True for one in passed),
        "graded": sum(score is not None for score in scores),
        "failed": sum(run["status"] == "failed" for run in runs),
        "ungraded": sum(s is None and run["status"] != "failed" for s, run in zip(scores, runs, strict=True)),
        "scores": scores,
        "runs": [run["id"] for run in runs],
        "worst": worst(runs),
    }


def worst(runs: Sequence[Record]) -> Record | None:
    """The run to look at first: {run, trial, criterion?, why}; None where all is as it should be.

    That is the lowest of the graded ones by its lowest grade, else one that has no score.
    """
    graded = [run for run in runs if score_of(run) is not None]
    bad = [run for run in graded if (score_of(run) or 0.0) < 1.0 - SLACK or passed_of(run) is False]
    if bad:
        run = min(bad, key=lambda run: (score_of(run) or 0.0, run["trial"]))
        grades = [g for g in run["scorecard"]["grades"] if g["score"] is not None]
        weighty = [g for g in grades if g["weight"] > 0 and g["score"] < 1.0 - SLACK]
        grade = min(weighty or grades, key=lambda g: float(g["score"]))
        why = grade.get("reason") or f"scored {grade['score']:.2f}"
        return {"run": run["id"], "trial": run["trial"], "criterion": grade["criterion"], "why": why}
    for run in runs:
        if score_of(run) is None:
            return {"run": run["id"], "trial": run["trial"], **_no_score(run)}
    return None


def _no_score(run: Record) -> Record:
    if run["status"] == "failed":
        return {"why": f"failed: {(run.get('error') or {}).get('message', 'no answer')}"}
    for grade in (run.get("scorecard") or {"grades": []})["grades"]:
        if grade.get("error"):
            return {"criterion": grade["criterion"], "why": f"ungraded: {grade['error']}"}
    return {"why": "ungraded: no criterion applies"}


def why_no_score(run: Record) -> str:
    """Why a run has no score, for a line of talk."""
    told = _no_score(run)
    return f"{told['criterion']}: {told['why']}" if "criterion" in told else str(told["why"])


def _criterion(criterion: Criterion, groups: Sequence[Sequence[Record]], units: Sequence[str]) -> Record:
    """One criterion over all cases. cases: units it was graded on. missing: grades that could not be made."""
    means = [mean_of(criterion_score(run, criterion.id) for run in runs) for runs in groups]
    mean, error, n = over_units(means, units)
    grades = [
        grade
        for runs in groups
        for run in runs
        for grade in (run.get("scorecard") or {"grades": []})["grades"]
        if grade["criterion"] == criterion.id
    ]
    return {
        "criterion": criterion.id,
        "role": criterion.role,
        "weight": criterion.weight,
        "mean": mean,
        "stderr": error,
        "cases": n,
        "missing": sum(bool(grade.get("error")) for grade in grades),
    }


def unused_tools(runs: Sequence[Record]) -> list[str]:
    """Tools that were on offer and that no run called."""
    offered = {tool["function"]["name"] for run in runs for tool in run["tools"]}
    called = {use["name"] for run in runs for step in steps_of(run) for use in step["tools"]}
    return sorted(offered - called)


def spend(runs: Iterable[Record]) -> Record:
    """Dollars that runs and their judges came to when they were bought, apart; None where not known."""
    bills: dict[str, list[float | None]] = {"runs": [], "judges": []}
    for run in runs:
        bills["runs"].append(cost_of(run))
        for grade in (run.get("scorecard") or {"grades": []})["grades"]:
            if grade.get("usage"):
                bills["judges"].append(grade["usage"]["cost_usd"])
    return {
        name: None if None in found else usd(fsum(bill for bill in found if bill is not None))
        for name, found in bills.items()
    }


def _warnings(record: Record, unused: Sequence[str]) -> list[str]:
    """What makes the figures doubtful, each `code: words`."""
    found = []
    planned = record["cases"] * record["trials"]
    if record["runs"] < planned:
        found.append(f"incomplete: {record['runs']} of {planned} runs were made")
    missing = record["failed"] + record["ungraded"]
    if missing > MAX_MISSING * record["runs"]:
        found.append(f"missing_grades: {missing} of {record['runs']} runs have no score; they may differ")
    if unused:
        found.append(f"unused_tools: offered but never called: {', '.join(unused)}")
    return found


def kin_warning(runs: Iterable[Record]) -> list[str]:
    """One warning if a judge is of the family of the model it judged, else none."""
    kins = {
        found
        for run in runs
        for grade in (run.get("scorecard") or {"grades": []})["grades"]
        if (found := kin(grade, run))
    }
    told = ", ".join(sorted(kins))
    words = "a model tends to prefer its own kind"
    return [f"judge_is_kin: judge and machine are of one family ({told}): {words}"] if kins else []


def family(members: Sequence[tuple[Record, Sequence[Criterion], Sequence[Record]]]) -> list[Record]:
    """The criteria that several machines of a family have, over the cases of these machines.

    members: suite record, effective criteria and graded runs of each. A case that several machines were
    run on is one unit, in the mean and in its error. Two machines that each have a criterion of their own
    by one name have nothing in common unless the criteria are equal.
    """
    holders: dict[str, list[int]] = {}
    found: dict[str, Criterion] = {}
    cases = []
    for number, (_, criteria, runs) in enumerate(members):
        for criterion in criteria:
            key = rubric_hash((criterion,))
            found.setdefault(key, criterion)
            holders.setdefault(key, []).append(number)
        by_case: dict[str, list[Record]] = {}
        for run in runs:
            by_case.setdefault(run["case"]["identity"], []).append(run)
        cases.append(list(by_case.values()))
    common = []
    for key, numbers in holders.items():
        if len(numbers) > 1:
            groups = [same for number in numbers for same in cases[number]]
            units = [unit_of(same[0]["case"]) for same in groups]
            machines = [members[number][0]["machine"] for number in numbers]
            common.append({**_criterion(found[key], groups, units), "machines": machines})
    return common

"""A suite for people: worst cases first, the figures, one plain sentence, the next command. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from libmachine import console
from libmachine.canon import Record
from libmachine.case import label
from libmachine.console import fold
from libmachine.measure import passed_of, score_of
from libmachine.stats import SLACK
from libmachine.suite.figures import why_no_score

ROWS = 20
"""Cases that the table shows without -v."""


def report(
    suite: Record,
    width: int,
    runs: Sequence[Record] = (),
    all_cases: bool = False,
    names: Mapping[str, str] | None = None,
) -> str:
    """The report. runs: told one a line. all_cases: also those in which nothing is wrong. names: case
    identity -> what to call it, its id if it is not among them."""
    if suite.get("family"):
        return "\n".join(_family(suite, width, runs, all_cases, names or {}))
    lines = body(suite, width, runs, all_cases, names or {})
    return "\n".join([*lines, "", *fold(sentence(suite), width), *_next(suite)])


def body(
    suite: Record, width: int, runs: Sequence[Record], all_cases: bool, names: Mapping[str, str]
) -> list[str]:
    """The tables and figures of one machine."""
    head = (
        f"{suite['machine']}: {console.count(suite['cases'], 'case')} x "
        f"{console.count(suite['trials'], 'trial')} ({suite['on']}) on {suite['engine'][0]}"
    )
    lines = [console.one_line(head, width)]
    if suite["runs"]:
        lines += ["", *_cases(suite, width, all_cases, names)]
        lines += ["", _runs(runs, width)] if runs else []
        lines += ["", _criteria(suite["by_criterion"], width), "", *_figures(suite, width)]
    for warning in suite["warnings"]:
        lines += fold(f"warning: {warning.partition(': ')[2]}", width)
    return lines


def sentence(suite: Record) -> str:
    """What it means."""
    name, mean, error = suite["machine"], suite["mean"], suite["stderr"]
    if mean is None:
        why = next((line["worst"]["why"] for line in suite["by_case"] if line["worst"]), "nothing was run")
        return f"{name} has no score: {console.one_line(why, 200)}."
    if suite["passes"] == suite["graded"] and mean >= 1.0 - SLACK:
        return f"{name} passes every case every time: these cases can show no further gain."
    if error is None:
        return f"{name} scores {mean:.2f} on one case, which says nothing of others."
    if error == 0.0:
        return f"{name} scores {mean:.2f} on every case."
    worst = suite["by_case"][0]
    return (
        f"{name} scores {mean:.2f}, give or take {2 * error:.2f} (two standard errors); "
        f"its worst case is '{console.one_line(worst['id'], 40)}'."
    )


def _next(suite: Record) -> list[str]:
    """The command to type now."""
    if suite["failed"] and suite["failed"] + suite["ungraded"] == suite["runs"]:
        return [f"Next: machine-suite {suite['machine']} runs again what failed"]
    worst = next((line["worst"] for line in suite["by_case"] if line["worst"]), None)
    if worst is not None:
        return [f"Next: machine-show {worst['run'][:12]} --messages"]
    if suite["trials"] == 1:
        return [f"Next: machine-suite {suite['machine']} --trials 3"]
    return [f"Next: machine-compare {suite['machine']}"]


def _cases(suite: Record, width: int, all_cases: bool, names: Mapping[str, str]) -> list[str]:
    lines = suite["by_case"]
    shown = lines if all_cases else [line for line in lines if line["worst"]][:ROWS]
    rest = [line for line in lines if line not in shown]
    table = [["score", "passed", "case", "what was wrong"]]
    for line in shown:
        found = line["worst"] or {"why": ""}
        why = f"{found['criterion']}: {found['why']}" if "criterion" in found else found["why"]
        name = console.one_line(names.get(line["identity"], line["id"]), max(8, width // 4))
        table.append(
            [number(line["mean"]), f"{line['passes']}/{line['graded']}", name, console.one_line(why, width)]
        )
    text = [console.table(table, width, right=(0, 1)).rstrip("\n")] if shown else []
    good = sum(not line["worst"] for line in rest)
    more = f"({console.count(len(rest) - good, 'further case')} not perfect; -v shows all)"
    text += [more] if len(rest) > good else []
    every = "all" if not shown and good == len(lines) else "nothing wrong in"
    return text + ([f"({every} {console.count(good, 'case')}{_all_good(every)})"] if good else [])


def _all_good(every: str) -> str:
    return " scored 1 and passed every time" if every == "all" else ""


def _runs(runs: Sequence[Record], width: int) -> str:
    """One row a run: id, trial, score, whether it passed, case, output or what went wrong."""
    rows = [["run", "trial", "score", "passed", "case", "output"]]
    for run in runs:
        passed = passed_of(run)
        told = run["output"] if score_of(run) is not None else why_no_score(run)
        verdict = run["status"] if run["status"] == "failed" else "-" if passed is None else str(passed)
        rows.append(
            [
                run["id"][:8],
                str(run["trial"]),
                number(score_of(run)),
                {"True": "yes", "False": "no"}.get(verdict, verdict),
                label(run["case"], max(8, width // 5)),
                console.one_line(told, width),
            ]
        )
    return console.table(rows, width, right=(1, 2)).rstrip("\n")


def _criteria(criteria: Sequence[Record], width: int) -> str:
    rows = [["mean", "error", "cases", "missing", "criterion"]]
    for line in criteria:
        name = f"{line['criterion']} (audit)" if line["role"] == "audit" else line["criterion"]
        if "machines" in line:
            name += f" ({', '.join(line['machines'])})"
        shown = [
            number(line["mean"]),
            number(line["stderr"]),
            str(line["cases"]),
            str(line["missing"] or "-"),
        ]
        rows.append([*shown, name])
    return console.table(rows, width, right=(0, 1, 2, 3)).rstrip("\n")


def _figures(suite: Record, width: int) -> list[str]:
    lines = []
    if suite["mean"] is not None:
        units = (
            "cases" if suite["units"] == sum(line["graded"] > 0 for line in suite["by_case"]) else "groups"
        )
        error = "unknown" if suite["stderr"] is None else f"{suite['stderr']:.3f}"
        lines.append(f"mean {suite['mean']:.3f}, standard error {error} over {suite['units']} {units}")
        low, high = suite["pass_interval"]
        lines.append(
            f"passed {suite['passes']} of {suite['graded']} runs: {percent(suite['pass_rate'])} "
            f"(95 % from {percent(low)} to {percent(high)})"
        )
        if (k := suite["trials"]) > 1:
            shares = [percent(suite[name]) for name in ("pass_at_1", "pass_at_k", "all_good")]
            lines.append(f"pass@1 {shares[0]}, pass@{k} {shares[1]}, all {k} trials good {shares[2]}")
    if suite["failed"] or suite["ungraded"]:
        failed = console.count(suite["failed"], "run")
        lines.append(f"{failed} failed, {suite['ungraded']} ungraded: counted here, in no mean")
    tokens = suite["mean_completion_tokens"]
    stops = ", ".join(f"{reason} {count}" for reason, count in suite["stop_reasons"].items())
    shown = "unknown" if tokens is None else f"{tokens:.1f}"
    lines.append(f"tokens out {shown}, distinct outputs {suite['distinct_outputs']}, stopped by {stops}")
    bills = ", ".join(
        f"{name} {console.money(bill)}" for name, bill in sorted(suite["spend"].items(), reverse=True)
    )
    lines.append(f"spend: {bills}")
    return [row for line in lines for row in fold(line, width)]


def _family(
    suite: Record, width: int, runs: Sequence[Record], all_cases: bool, names: Mapping[str, str]
) -> list[str]:
    """The tables of all members, then what they have in common."""
    members = suite["family"]["members"]
    lines: list[str] = []
    for member in members:
        own = [run for run in runs if run["machine"] == member["machine"]]
        lines += [*body(member, width, own, all_cases, names), ""]
    rows = [["mean", "error", "passed", "cases", "machine"]]
    for member in members:
        figures = [number(member["mean"]), number(member["stderr"]), percent(member["pass_rate"])]
        rows.append([*figures, str(member["cases"]), member["machine"]])
    lines += [
        f"family of {suite['machine']}:",
        "",
        console.table(rows, width, right=(0, 1, 2, 3)).rstrip("\n"),
    ]
    common = suite["family"]["criteria"]
    if not common:
        return [*lines, "", *fold("No criterion is inherited: the machines have none in common.", width)]
    lines += ["", _criteria(common, width), ""]
    known = [line for line in common if line["mean"] is not None]
    if not known:
        return [*lines, *fold("No inherited criterion could be graded.", width)]
    weakest = min(known, key=lambda line: float(line["mean"]))
    told = (
        f"Across the family the weakest inherited criterion is '{weakest['criterion']}', "
        f"{weakest['mean']:.2f} over {console.count(weakest['cases'], 'case')}."
    )
    low = min((m for m in members if m["mean"] is not None), key=lambda m: float(m["mean"]))
    return [*lines, *fold(told, width), f"Next: machine-suite {low['machine']} -v"]


def number(value: float | None) -> str:
    """A score for a table."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{100 * value:.0f} %"

"""A comparison for people: cases that moved first, both versions, the difference, what it means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libmachine import console
from libmachine.canon import Record
from libmachine.compare.comparison import is_tie
from libmachine.console import fold
from libmachine.suite.figures import mean_of
from libmachine.suite.report import number, percent

ROWS = 24
RULE = "A difference within about two standard errors is no evidence."


def report(found: Record, width: int, names: Mapping[str, str] | None = None) -> str:
    """The report. names: case identity -> what to call it, its id if it is not among them."""
    name = found["machine"]
    base = f"{found['base']} ({found['baseline'][:8]})"
    head = f"{name}: base {base} against the work tree ({found['candidate'][:8]})"
    size = f"{console.count(found['cases'], 'case')} x {console.count(found['trials'], 'trial')}"
    what = ", ".join(found["changed"]) or "nothing"
    lines = [*fold(head, width), *fold(f"{size} of {found['on']}; changed: {what}", width), ""]
    lines += [_cases(found, width, names or {}), "", _arms(found, width), "", _criteria(found, width), ""]
    lines += [row for line in _figures(found) for row in fold(line, width)]
    for note in found["notes"]:
        lines += fold(f"note: {note.partition(': ')[2]}", width)
    return "\n".join([*lines, "", *fold(RULE, width), *fold(sentence(found), width), _next(found)])


def sentence(found: Record) -> str:
    """What it means."""
    mean, se, n = found["mean_diff"], found["se"], found["n"]
    if mean is None:
        return "Nothing can be compared: no case has a graded run of both versions."
    if found["evidence"] == "none":
        if se is None:
            return f"One case, {mean:+.3f}: no standard error can be had from it, so this is no evidence."
        if not se and is_tie(mean):
            return "No difference: every case scored the same in both versions."
        if not se:
            return f"Every case moved by {mean:+.3f}, but {n} cases that move alike are no evidence yet."
        return f"No evidence of a difference: {mean:+.3f} is {abs(mean) / se:.1f} standard errors."
    size = f"{abs(mean) / se:.1f} standard errors" if se else "the same in every case"
    word = "better" if found["evidence"] == "better" else "worse"
    return f"The work tree is {word} on these cases: {mean:+.3f}, {size}."


def _next(found: Record) -> str:
    """The command to type now."""
    name = found["machine"]
    if found["mean_diff"] is None:
        return f"Next: machine-suite {name} -v"
    if found["evidence"] == "better":
        return f"Next: machine-gate {name}"
    if found["evidence"] == "worse":
        commit = "HEAD" if found["base"] == "HEAD" else found["base_commit"][:12]
        return f"Next: git diff {commit} -- machines/{name}"
    if found["cases"] and found["trials"] < 10 and not is_tie(found["mean_diff"]):
        return f"Next: more cases, else machine-compare {name} --trials {2 * found['trials']}"
    return f"Next: machine-suite {name}"


def _cases(found: Record, width: int, names: Mapping[str, str]) -> str:
    arms = found["arms"]
    rows: list[tuple[float, float, list[str]]] = []
    unpaired = 0
    for number_, (identity, case) in enumerate(zip(arms["cases"], arms["ids"], strict=True)):
        old, new = mean_of(arms["live"][number_]), mean_of(arms["candidate"][number_])
        diff = None if old is None or new is None else new - old
        moved = 0.0 if diff is None or is_tie(diff) else diff
        unpaired += diff is None
        shown = "-" if diff is None else f"{diff:+.2f}" if moved else "="
        rows.append(
            (
                -abs(moved),
                moved,
                [number(old), number(new), shown, console.one_line(names.get(identity, case), width)],
            )
        )
    rows.sort(key=lambda row: row[:2])
    moved_ones = [row for row in rows if row[1]]
    cut = rows if len(rows) <= ROWS else moved_ones[:ROWS]
    left = [row[1] for row in rows[len(cut) :]]
    if not cut:
        return f"no case moved ({len(left) - unpaired} alike, {unpaired} without a pair)"
    text = console.table([["base", "new", "diff", "case"], *(row[2] for row in cut)], width, right=(0, 1, 2))
    if not left:
        return text.rstrip("\n")
    better, worse = sum(d > 0 for d in left), sum(d < 0 for d in left)
    alike = len(left) - better - worse - unpaired
    told = f"{better} better, {worse} worse, {alike} alike, {unpaired} without a pair"
    return f"{text}({len(left)} further cases: {told})"


def _arms(found: Record, width: int) -> str:
    k = found["trials"]
    heads = ["", "mean", "error", "passed"]
    heads += [f"pass@{k}", f"all {k}"] if k > 1 else []
    rows = [[*heads, "tokens", "distinct", "stopped by"]]
    for name, label in (("live", "base"), ("candidate", "work tree")):
        arm = found["about"][name]
        tokens = arm["mean_completion_tokens"]
        row = [label, number(arm["mean"]), number(arm["stderr"]), percent(arm["pass_rate"])]
        row += [percent(arm["pass_at_k"]), percent(arm["all_good"])] if k > 1 else []
        row += ["-" if tokens is None else f"{tokens:.1f}", f"{arm['distinct_outputs']}/{arm['runs']}"]
        rows.append([*row, _stops(arm)])
    return console.table(rows, width, right=tuple(range(1, len(rows[0]) - 1))).rstrip("\n")


def _stops(arm: Mapping[str, Any]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in arm["stop_reasons"].items())


def _criteria(found: Record, width: int) -> str:
    rows = [["base", "new", "criterion"]]
    for name, row in found["criteria"].items():
        label = f"{name} (audit)" if row["role"] == "audit" else name
        rows.append([number(row["live"]), number(row["candidate"]), label])
    return console.table(rows, width, right=(0, 1)).rstrip("\n")


def _figures(found: Record) -> list[str]:
    lines = []
    if found["mean_diff"] is not None:
        told = f"{found['wins']} better, {found['losses']} worse, {found['ties']} alike"
        line = f"{told}; difference {found['mean_diff']:+.3f}"
        if found["se"] is not None:
            units = "groups of cases" if "groups" in found["arms"] else "cases"
            line += f", error {found['se']:.3f} over {found['n']} {units}"
        lines.append(line)
    if found["p_two_sided"] is not None:
        kind = "sampled" if "p_flip" in found["sampled"] else "exact"
        line = f"{kind} two-sided p {found['p_two_sided']:.4f}"
        if found["z"] is not None:
            low, high = found["ci_t"]
            line = f"z {found['z']:.2f}, 95 % from {low:+.3f} to {high:+.3f}, {line}"
        lines.append(line)
    if found["failed"] or found["ungraded"]:
        told = f"{console.count(found['failed'], 'run')} failed, {found['ungraded']} ungraded"
        lines.append(f"{told}: counted here, in no mean")
    bills = [found["about"][name]["cost_usd"] for name in ("live", "candidate")]
    bills.append(found["spend"]["judges"])
    names = ("base", "work tree", "judges")
    shown = [f"{name} {console.money(bill)}" for name, bill in zip(names, bills, strict=True)]
    lines.append(f"spend: {', '.join(shown)}")
    return lines

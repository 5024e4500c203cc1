"""A verdict for people: the table by case, the figures, one plain sentence, the next command. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libmachine import console
from libmachine.canon import Record

ROWS = 20
"""Cases that moved that the table shows; of more it shows the worst and the best."""

_REASONS = {
    "not_higher": "on average it is no better than the live version",
    "worse": "it is worse than the live version, beyond noise",
    "policy": "its verdict does not do for this repository",
}
_MEANING = {
    "exact_p_above_alpha": "by the exact test the gain is not beyond chance",
    "few_cases": "few cases moved: a handful of held-out cases decides",
    "holdout_reused": "this holdout has judged other candidates; one was bound to pass by luck",
    "single_trial": "one trial a case: luck of a single sample",
}


def report(verdict: Record, names: Mapping[str, str], width: int) -> str:
    """The report: tables of at most width columns, and unfolded prose, a sentence a line.

    names: case identity -> what to call the case today.
    """
    lines = [f"{verdict['machine']}: {verdict['baseline'][:12]} (live) against {verdict['candidate'][:12]}"]
    if "arms" in verdict:
        lines += [*_cases(verdict, names, width), *_figures(verdict), *_about(verdict, width)]
        lines += _guards(verdict)
    lines += [_warning(str(code)) for code in verdict["warnings"]]
    return "\n".join([*lines, sentence(verdict)])


def meaning(reason: str) -> str:
    """A reason with words: those of a bare code are added."""
    return f"{reason}: {_REASONS[reason]}" if reason in _REASONS else reason


def _words(reason: str) -> str:
    words = meaning(reason).partition(": ")[2] or reason
    return f"{words} ({reason})" if reason in _REASONS else words


def _warning(code: str) -> str:
    name, colon, words = code.partition(": ")
    return f"warning: {console.one_line(words, 200) if colon else _MEANING.get(name, name)} ({name})"


def sentence(verdict: Record) -> str:
    """What it means, and what to type next."""
    decision, machine = verdict["decision"], verdict["machine"]
    reasons = "; ".join(_words(str(reason)) for reason in verdict["reasons"])
    if decision == "promote" and (verdict.get("rule") or {}).get("no_worse"):
        return "not worse: no loss beyond noise"
    if decision == "promote":
        gain = f"{verdict['mean_diff']:+.3f}"
        twice = ", and again on fresh trials" if verdict.get("confirmed") else ""
        return (
            f"better: {gain} on average, {verdict['z']:.1f} standard errors{twice}. "
            f"Next: machine-commit {machine}"
            if verdict["z"] is not None
            else f"better: {gain} in every case{twice}. Next: machine-commit {machine}"
        )
    if decision == "refuse":
        hint = _hint(verdict)
        force = f"machine-commit {machine} --force WHY"
        return f"refused: {reasons}.{hint} Next: machine-suite {machine}, or {force}"
    if decision == "untestable":
        return f"cannot be judged: {reasons}. Next: machine-gate {machine} --rerun"
    return f"{decision}: {reasons}. No measurement is needed"


def _hint(verdict: Record) -> str:
    mde = verdict.get("mde80")
    fell = any(guard["fell"] for guard in verdict.get("guards", {}).values())
    if mde is None or verdict.get("n", 0) < 2 or fell:  # what a guard saw is not too small to be seen
        return ""
    return f" An exam of this size sees gains from about {mde:.2f} on; more cases beat more trials."


def _cases(verdict: Record, names: Mapping[str, str], width: int) -> list[str]:
    arms = verdict["arms"]
    rows = []
    for number, identity in enumerate(arms["cases"]):
        live, candidate = _mean(arms["live"][number]), _mean(arms["candidate"][number])
        diff = None if live is None or candidate is None else candidate - live
        rows.append((0.0 if diff is None else diff, identity, live, candidate, diff))
    rows.sort(key=lambda row: row[0])
    moved = [row for row in rows if row[4] is None or abs(row[4]) > 1e-9]
    if not moved:
        return ["no case moved"]
    # worst first; what one would leave out of a long list is its middle
    head = moved if len(moved) <= ROWS else moved[: ROWS - 5]
    tail = [] if len(moved) <= ROWS else moved[-5:]
    table = [["live", "new", "diff", "case"]]
    table += [
        [
            _shown(live),
            _shown(new),
            _signed(diff),
            console.one_line(names.get(identity, identity[:12]), width),
        ]
        for _, identity, live, new, diff in [*head, *tail]
    ]
    lines = console.table(table, width, right=(0, 1, 2)).splitlines()
    if tail:
        left = [row[4] for row in moved[len(head) : -len(tail)]]
        better, worse = (sum(sign * (diff or 0) > 0 for diff in left) for sign in (1, -1))
        told = f"({len(left)} further cases: {better} better, {worse} worse; --json has all)"
        lines.insert(1 + len(head), console.one_line(told, width))
    if still := len(rows) - len(moved):
        lines.append(f"({console.count(still, 'case')} did not move)")
    return lines


def _figures(verdict: Record) -> list[str]:
    lines = [
        f"mean {_shown(verdict['mean_live'])} -> {_shown(verdict['mean_cand'])} on '{verdict['on']}', "
        f"{console.count(verdict['n'], 'case')} x {console.count(verdict['trials'], 'trial')}: "
        f"{verdict['wins']} better, {verdict['losses']} worse, {verdict['ties']} alike"
    ]
    if verdict["se"] is not None:
        interval = verdict["ci_t"]
        shown = f", 95 % from {interval[0]:+.3f} to {interval[1]:+.3f}" if interval else ""
        z = "-" if verdict["z"] is None else f"{verdict['z']:.2f}"
        flip = "-" if verdict["p_flip"] is None else f"{verdict['p_flip']:.2g}"
        lines.append(
            f"difference {verdict['mean_diff']:+.3f}, error {verdict['se']:.3f}, z {z}{shown}; exact p {flip}"
        )
    if verdict.get("low_power"):
        lines.append(
            f"low power: live is at {verdict['mean_live']:.2f}, and this exam sees gains from "
            f"{verdict['mde80']:.2f} on; harder cases would show more"
        )
    if verdict["tries"] > 1:
        lines.append(f"try {verdict['tries']} on this holdout: alpha left {verdict['alpha_left']:.4f}")
    missing = verdict["missing_live"] + verdict["missing_cand"]
    if missing:
        lines.append(f"{console.count(missing, 'grade')} missing (runs that failed or could not be graded)")
    return lines


def _about(verdict: Record, width: int) -> list[str]:
    rows = [["", "passed", "any trial", "all", "tokens out", "distinct", "stopped by"]]
    for name, label in (("live", "live"), ("candidate", "new")):
        about = verdict["about"][name]
        stops = ", ".join(f"{reason} {count}" for reason, count in about["stop_reasons"].items())
        tokens = about["mean_completion_tokens"]
        rows.append(
            [
                label,
                _percent(about["pass_rate"]),
                _percent(about.get("pass_at_k")),
                _percent(about.get("all_good")),
                "-" if tokens is None else f"{tokens:.1f}",
                f"{about['distinct_outputs']}/{about['runs']}",
                stops,
            ]
        )
    criteria = [["live", "new", "criterion"]]
    for name, row in verdict["criteria"].items():
        label = f"{name} (audit)" if row.get("role") == "audit" else name
        criteria.append([_shown(row.get("live")), _shown(row.get("candidate")), label])
    return [
        console.table(rows, width, right=(1, 2, 3, 4, 5)).rstrip("\n"),
        console.table(criteria, width, right=(0, 1)).rstrip("\n"),
    ]


def _guards(verdict: Record) -> list[str]:
    return [
        f"guard {name}: {_signed(guard['mean_diff'])}, tolerated -{guard['guard']:g}: "
        + ("fell too far" if guard["fell"] else "held")
        for name, guard in verdict.get("guards", {}).items()
    ]


def _mean(scores: list[Any]) -> float | None:
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"

"""An optimization for people: the rounds, the pool, what decided, what was bought, the next command. Pure."""

from __future__ import annotations

import re

from libmachine import console
from libmachine.canon import Record
from libmachine.console import fold
from libmachine.optimize.record import in_words
from libmachine.suite.report import number


def report(found: Record, width: int) -> str:
    """The report."""
    size = f"{console.count(found['cases'], 'case')} x {console.count(found['terms']['trials'], 'trial')}"
    model, author = (_short(found["engine"][who][0]) for who in ("machine", "author"))
    head = f"{found['machine']}: {size}, {found['held_out']} held out, on {model}"
    lines = [*fold(head, width), *fold(f"author: {found['author'][0]} on {author}", width)]
    lines += ["", *(row for move in found["moves"] for row in fold(in_words(move), width))]
    if found["pool"]:
        lines += ["", _pool(found, width)]
    lines += ["", *(row for line in [*_figures(found), *_bought(found)] for row in fold(line, width))]
    for warning in found["warnings"]:
        lines += fold(f"warning: {warning.partition(': ')[2]}", width)
    return "\n".join([*lines, "", *fold(sentence(found), width), next_of(found)])


def sentence(found: Record) -> str:
    """What it means."""
    name = found["machine"]
    if found["decision"] == "keep":
        if found.get("pending"):
            return f"Kept: candidate {found['pending']} of {name} is pending; no file was changed."
        return f"Kept: instructions.md of {name} is changed, and not committed."
    words = "; ".join(reason.partition(": ")[2] or reason for reason in found["reasons"])
    codes = {reason.partition(":")[0] for reason in found["reasons"]}
    if found["decision"] == "unfinished":
        return f"Not finished, nothing is kept: {words}."
    if found["decision"] == "untestable":
        return f"Cannot be judged, nothing is kept: {words}."
    if "noise" in codes:
        return f"Discarded as noise: {words}."
    if "held_out_lower" in codes:
        return f"Discarded, vetoed by the held-out cases: {words}."
    return f"Nothing is kept: {words}."


def next_of(found: Record) -> str:
    """The command to type now."""
    name = found["machine"]
    if found["decision"] == "keep":
        return f"Next: machine-gate {name}"
    if found["decision"] == "unfinished":
        return "Next: the same command, it goes on from there"
    if found["decision"] == "untestable" or any(r.startswith("nothing_fails") for r in found["reasons"]):
        return f"Next: machine-suite {name}"
    if not found["bought"]["proposals"]:
        run = next((move["run"] for move in found["moves"] if move.get("run")), None)
        return f"Next: machine-show {run[:12]} --messages" if run else f"Next: machine-suite {name}"
    return f"Next: machine-optimize {name} --seed {found['terms']['seed'] + 1}"


def _short(model: str) -> str:
    """A model's id without the length of the hashes in it."""
    return re.sub("[0-9a-f]{40}", lambda found: found[0][:8], model)


def _pool(found: Record, width: int) -> str:
    rows = [["mean", "leads", "front", "from", "version", "instructions"]]
    for one in found["pool"]:
        label = "baseline" if not one["number"] else f"proposal {one['number']}"
        above = "+".join(str(parent) for parent in one["parents"]) or "-"
        told = console.one_line(f"{label}: {one['instructions']}", width)
        on = "yes" if one["on_front"] else "no"
        rows.append([number(one["mean"]), str(one["leads"]), on, above, one["version"][:8], told])
    return console.table(rows, width, right=(0, 1)).rstrip("\n")


def _figures(found: Record) -> list[str]:
    lines = []
    if found.get("mean_diff") is not None:
        lines.append(f"cases: {_difference(found)}; {found['terms']['min_z']:g} errors are asked for")
    if again := found.get("confirm"):
        lines.append(f"again on fresh trials: {_difference(again)}")
    for name, guard in (found.get("guards") or {}).items():
        if guard["mean_diff"] is not None:
            told = "fell too far" if guard["fell"] else "kept"
            lines.append(f"guard {name}: {guard['mean_diff']:+.3f}, {guard['guard']:g} tolerated: {told}")
    if exam := found.get("exam"):
        lines.append(f"held-out cases: {_difference(exam)}; no loss is asked for")
    elif found["held_out"]:
        lines.append("held-out cases: not run")
    return lines


def _difference(figures: Record) -> str:
    mean, se = figures["mean_diff"], figures["se"]
    if mean is None:
        return "nothing to compare"
    if se is None:
        return f"{mean:+.3f} on one case"
    z = f", z {figures['z']:.2f}" if figures["z"] is not None else ""
    told = f"{mean:+.3f}, error {se:.3f}{z}, over {figures['n']}"
    if "wins" not in figures:
        return told
    return f"{told}; {figures['wins']} better, {figures['losses']} worse, {figures['ties']} alike"


def _bought(found: Record) -> list[str]:
    bought, bills = found["bought"], found["spend"]
    runs = f"{console.count(bought['runs'], 'run')} of the machine, {bought['author']} of the author"
    told = f"{console.count(bought['proposals'], 'proposal')}, {bought['measured']} measured on all cases"
    shown = ", ".join(f"{name} {console.money(bills[name])}" for name in ("runs", "judges", "author"))
    lines = [f"bought: {told}; {runs} ({shown})"]
    if bought["proposals"] == 1:
        lines.append(
            "One proposal only: that is one draw of the author, and says little of what others may do."
        )
    return lines

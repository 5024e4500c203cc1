"""A round of training for people: what was learned from, the losses, the verdict's tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libmachine import console
from libmachine.canon import Record
from libmachine.console import fold
from libmachine.gate.report import report as verdict_report
from libmachine.sft.examples import loss_ends

_BARS = "▁▂▃▄▅▆▇█"


def report(found: Record, names: Mapping[str, str], width: int) -> str:
    """The report, at most width columns where it can be. names: case identity -> the case's id today."""
    told = [*lines(found, width), "", *verdict_report(found["verdict"], names, width).splitlines()]
    return "\n".join(row for line in told for row in fold(line, width))


def lines(found: Record, width: int) -> list[str]:
    """What was learned from and how it went."""
    data, training = found["data"], found["training"]
    told = [
        f"{found['machine']}: {console.count(found['runs'], 'run')} ({found['bought']} sampled now, "
        f"{found['graded']} graded now), {found['passed']} passed",
        f"learned from {console.count(data['examples'], 'example')} of "
        f"{console.count(data['cases'], 'case')}, {data['tokens']} tokens",
        f"{data['solved']['unsolved']} of {data['solved']['cases']} cases had no good run",
    ]
    for reason, count in data["dropped"].items():
        told.append(
            f"left out: {console.count(count, 'run')} ({console.one_line(reason, max(20, width - 24))})"
        )
    told.append(
        f"{training['base_model']}: {console.count(training['steps'], 'step')}, rank {training['rank']}, "
        f"rate {training['learning_rate']:g}, seed {training['seed']}, {training['duration_s']:.0f} s"
    )
    losses = [loss for loss in training["losses"] if loss is not None]
    if ends := loss_ends(losses):
        told.append(f"loss a token {ends[0]:.3f} -> {ends[1]:.3f}  {sparkline(losses, 40)}")
    told += [f"warning: {warning.partition(': ')[2]}" for warning in training["warnings"]]
    told.append(f"spent: {console.money(found['cost_usd'])}")
    return told


def sparkline(values: list[Any], most: int) -> str:
    """The values as a row of at most `most` bars, highest and lowest as full and flat ones."""
    if len(values) > most:
        values = [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)

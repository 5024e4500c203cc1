"""machine-mark: grade a run as a person."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-mark", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("run", metavar="RUN")
@click.option("--criterion", metavar="C", help="Mark by this criterion; without it the run as a whole.")
@click.option("--good", is_flag=True, help="It is good: a score of 1.")
@click.option("--bad", is_flag=True, help="It is bad: a score of 0.")
@click.option("--score", metavar="S", type=click.FloatRange(0, 1), help="A score of its own; good from 0.5.")
@click.option("--note", metavar="TEXT", help="Why, or what should change.")
@click.option("--json", "as_json", is_flag=True, help="Print the record on a terminal too.")
def command(**options: Any) -> int:
    """Store a person's grade of RUN: the first digits of its id, or NAME@{N} for the Nth newest (from 0)."""
    from libmachine.cmd import _mark

    return _mark.main(**options)


main = _cli.entry(command)

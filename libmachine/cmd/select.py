"""machine-select: keep the runs worth keeping."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-select", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option(
    "--best", metavar="K", type=click.IntRange(1), help="Keep the K best runs of each machine and case."
)
@click.option("--distinct", is_flag=True, help="Of runs with the same answer keep the best.")
@click.option(
    "--min-score", metavar="S", type=click.FloatRange(0, 1), help="Keep runs that score at least S."
)
@click.option("--passing", is_flag=True, help="Keep runs that passed.")
@click.option(
    "--since", metavar="TIME", help="Keep runs started since TIME: a date, an ISO time, or 90m, 2d."
)
@click.option("--at", metavar="VERSION", help="Keep runs of a version: an id's first digits, or NAME@.")
@click.option(
    "--split", type=click.Choice(["cases", "holdout"]), help="Keep runs of practice or held-out cases."
)
@click.option("--cases", metavar="FILE", help="Keep runs of the cases in FILE.")
@click.option("--not-cases", metavar="FILE", help="Drop runs of the cases in FILE.")
@click.option("--fail-empty", is_flag=True, help="Exit 1 if nothing is kept.")
@click.option("-v", "--verbose", is_flag=True, help="Say how many cases have 0, 1, 2 or more good runs.")
def command(**options: Any) -> int:
    """Print the runs on stdin that fulfil every condition, byte for byte."""
    from libmachine.cmd import _select

    return _select.main(**options)


main = _cli.entry(command)

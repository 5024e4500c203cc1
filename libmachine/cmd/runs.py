"""machine-runs: list stored runs."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-runs", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@click.option("--last", metavar="N", type=click.IntRange(1), help="Stop after the N newest.")
@click.option("--since", metavar="TIME", help="Runs started since TIME: a date, an ISO time, or 90m, 2d.")
@click.option("--at", metavar="VERSION", help="Runs of a version: an id's first digits, or NAME@.")
@click.option("--case", metavar="CASE", help="Runs of a case, by its id or identity.")
@click.option("--status", type=click.Choice(["ok", "limit", "failed"]), help="Runs of this status.")
@click.option("--split", type=click.Choice(["cases", "holdout"]), help="Runs of practice or held-out cases.")
@click.option("--min-score", metavar="S", type=click.FloatRange(0, 1), help="Runs that score at least S.")
@click.option("--passing", is_flag=True, help="Runs that passed.")
@click.option("--failing", is_flag=True, help="Runs that were graded and did not pass.")
@click.option("--best", metavar="N", type=click.IntRange(1), help="The N best-scored runs of each case.")
@click.option("--stale", is_flag=True, help="Runs never graded, or graded by other graders than today's.")
@click.option("--brief", is_flag=True, help="What a list needs: ids, case, status, score; no messages.")
@click.option("--json/--table", "as_json", default=None, help="Print JSON lines, or rows for people, always.")
def command(**options: Any) -> int:
    """List the stored runs of machine NAME, or of all machines, newest first."""
    from libmachine.cmd import _runs

    return _runs.main(**options)


main = _cli.entry(command)

"""machine-agree: measure how far graders can be trusted."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-agree", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.argument("criterion")
@click.option(
    "--with",
    "how",
    type=click.Choice(["jev", "judge", "same"]),
    required=True,
    help="Grader to measure; same: the criterion's own, asked again.",
)
@click.option(
    "--against",
    type=click.Choice(["grader", "marks"]),
    default="grader",
    show_default=True,
    help="Reference: the machine's grader, or people's marks.",
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Grade each run N times."
)
@click.option("--last", metavar="N", type=click.IntRange(1), help="Take the N newest runs only.")
@click.option("--judge-model", metavar="ID", help="Model of the judge to measure.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judge to measure.")
@click.option("--require-kappa", metavar="K", type=click.FloatRange(-1, 1), help="Exit 1 below this kappa.")
@click.option(
    "--max-false-pass", metavar="F", type=click.FloatRange(0, 1), help="Exit 1 above this false-pass rate."
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the judges' model as this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one record instead of the text.")
def command(**options: Any) -> int:
    """Grade the stored runs of machine NAME by CRITERION a second way and say how far the two agree."""
    from libmachine.cmd import _agree

    return _agree.main(**options)


main = _cli.entry(command)

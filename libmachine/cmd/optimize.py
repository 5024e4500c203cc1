"""machine-optimize: search for better instructions."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-optimize", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Ask for N proposals, one by one."
)
@click.option("--trials", type=click.IntRange(1), default=3, show_default=True, help="Run each case N times.")
@click.option(
    "--min-z",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Standard errors the gain must reach.",
)
@click.option("--holdout", metavar="FILE", help="Held-out cases, in place of holdout.jsonl.")
@click.option("--author", metavar="ID", help="Model that proposes, in place of the one of 'optimizer'.")
@click.option("--author-harness", metavar="NAME", help="Use this harness for the author.")
@click.option("--harness", metavar="NAME", help="Use this harness for the machine.")
@click.option(
    "--pool", type=click.IntRange(2), default=8, show_default=True, help="Keep N texts to go on from."
)
@click.option(
    "--screen",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Try a proposal on N cases first; 0: on all at once.",
)
@click.option("--merge/--no-merge", default=True, show_default=True, help="Join two proposals, or never.")
@click.option(
    "--confirm/--no-confirm",
    default=True,
    show_default=True,
    help="A weak gain must hold again on fresh trials, or not.",
)
@click.option(
    "--room",
    metavar="CHARS",
    type=click.IntRange(2000),
    default=60_000,
    show_default=True,
    help="Show the author at most so much.",
)
@click.option("--no-write", is_flag=True, help="Change no file; leave what is kept as a pending candidate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, another search.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one record instead of the tables.")
def command(**options: Any) -> int:
    """Let an author propose instructions for machine NAME, measure them on its cases, and keep the best if
    the gain is beyond noise and no loss on the held-out cases. Exit 0: kept; 1: nothing is."""
    from libmachine.cmd import _optimize

    return _optimize.main(**options)


main = _cli.entry(command)

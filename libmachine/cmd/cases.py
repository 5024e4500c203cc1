"""machine-cases: bring cases in and split them for practice and exam."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-cases", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.argument("file", required=False)
@click.option("--csv", "as_table", is_flag=True, help="FILE is CSV with a header line.")
@click.option("--input", "source", metavar="COL", help="The column, field or variable that is the input.")
@click.option("--target", metavar="COL", help="The one that is the target.")
@click.option(
    "--from",
    "origin",
    type=click.Choice(["inspect", "promptfoo", "openai-evals"]),
    help="FILE is of this tool: a dataset or log, a configuration, samples.",
)
@click.option(
    "--holdout",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    default=0.4,
    show_default=True,
    help="Hold this share of new cases out.",
)
@click.option("--keep-near", is_flag=True, help="Keep near duplicates, on the side of what they resemble.")
@click.option("--check", is_flag=True, help="Change nothing: say what is wrong with the cases; exit 0 or 1.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(**options: Any) -> int:
    """Add the cases in FILE (or on stdin) to machine NAME: without duplicates, split by content into
    cases.jsonl and holdout.jsonl. With --check and no FILE, look at what is there."""
    from libmachine.cmd import _cases

    return _cases.main(**options)


main = _cli.entry(command)

"""machine-export: turn graded runs into training examples."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-export", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@click.option("--tree", is_flag=True, help="With NAME: the runs of its descendants too.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["openai", "cookbook", "trl", "dpo"]),
    default="openai",
    show_default=True,
    help="Form of the rows; dpo pairs good and bad runs of a case.",
)
@click.option("--best", metavar="K", type=click.IntRange(1), help="At most K runs of each machine and case.")
@click.option("--min-score", metavar="S", type=click.FloatRange(0, 1), help="Runs that score at least S.")
@click.option("--passing/--no-passing", default=True, show_default=True, help="Only runs that passed.")
@click.option(
    "--distinct/--no-distinct", default=True, show_default=True, help="Of equal answers only the best."
)
@click.option("--since", metavar="TIME", help="Runs started since TIME: a date, an ISO time, or 90m, 2d.")
@click.option("--cases", metavar="FILE", help="Runs of the cases in FILE.")
@click.option("--not-cases", metavar="FILE", help="Not the runs of the cases in FILE.")
@click.option(
    "--per-turn", is_flag=True, help="One example for each assistant message that may be trained on."
)
@click.option("--drop-reasoning", is_flag=True, help="Leave captured reasoning out.")
@click.option(
    "--to",
    type=click.Choice(["inspect", "promptfoo", "openai"]),
    help="Instead: the cases of NAME for another tool, or the graded runs on stdin as a log of Inspect.",
)
@click.option("--on", metavar="WHICH", help="With --to and NAME: cases, the default, or holdout.")
@click.option("--out", metavar="FILE", help="Write to FILE, whole or not at all, instead of stdout.")
def command(**options: Any) -> int:
    """Print a training example for each graded run on stdin, or of machine NAME in the store. Held-out cases,
    stale grades and runs that ended at a limit are left out, counted and named."""
    on = options.pop("on")
    if (to := options.pop("to")) is not None or on is not None:
        from libmachine.cmd import _interchange

        return _interchange.main(options["workspace"], options["name"], to, on, options["out"])
    from libmachine.cmd import _export

    return _export.main(**options)


main = _cli.entry(command)

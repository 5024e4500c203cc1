"""machine-export: turn graded runs into training examples."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli
from libmachine.errors import UsageError


@click.command("machine-export", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@click.option("--tree", is_flag=True, help="With NAME: the runs of its descendants too.")
@click.option(
    "--from",
    "parent",
    metavar="PARENT",
    help="With NAME: its parent's good runs, with their reasoning as NAME transforms it.",
)
@click.option("--transform", is_flag=True, help="Put reasoning through the machine's transform_reasoning.")
@click.option(
    "--instructions",
    type=click.Choice(["given", "student"]),
    default="given",
    show_default=True,
    help="Those the run was given, or those its machine (with --from: NAME) has now.",
)
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
    if options["name"] is None and (options["tree"] or options["parent"]):
        raise UsageError("--tree and --from take the runs of a machine; name it: machine-export NAME")
    if options["parent"] and (options["tree"] or options["form"] == "dpo" or not options["passing"]):
        raise UsageError("--from takes the good runs of one machine: drop --tree, --no-passing, --format dpo")
    if options["drop_reasoning"] and (options["transform"] or options["parent"]):
        raise UsageError("--drop-reasoning leaves nothing to transform")
    from libmachine.cmd import _export

    return _export.main(**options)


main = _cli.entry(command)

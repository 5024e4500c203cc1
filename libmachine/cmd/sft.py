"""machine-sft: train a machine's model on its graded runs."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli, _options
from libmachine.errors import UsageError


@click.command("machine-sft", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@_options.training
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the order and the adapter.",
)
@click.option("--placebo", is_flag=True, help="A control: train at rate 0, so that nothing is learned.")
@click.option(
    "--shuffle-answers", is_flag=True, help="A control: each case learns the answers of another one."
)
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the model as this one.")
@click.option("--dry-run", is_flag=True, help="Say what would be trained and what it would cost.")
@click.option("--json", "as_json", is_flag=True, help="Print the record on a terminal too.")
def command(**options: Any) -> int:
    """Train the model of one machine on the graded runs on stdin, or on those of NAME in the store, and
    make the checkpoint a pending candidate. No file of the project changes; machine-gate measures it."""
    from libmachine.cmd import _extra

    if options["name"] is None:
        _cli.refuse_terminal("runs", "pipe graded ones in, or name a machine: machine-sft NAME")
    if options["placebo"] and options["shuffle_answers"]:
        raise UsageError("--placebo and --shuffle-answers are two controls; make them one by one")
    if options["placebo"] and options["learning_rate"] is not None:
        raise UsageError("--placebo trains at rate 0; drop --learning-rate")
    _extra.ensure("sft")
    from libmachine.cmd import _sft

    return _sft.main(**options)


main = _cli.entry(command)

"""machine-converse: watch one conversation of a machine and its counterpart."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-converse", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.argument("case", required=False)
@click.option("--trial", type=click.IntRange(1), default=1, show_default=True, help="Number of the trial.")
@click.option("--model", metavar="ID", help="Use this model instead of the machine's.")
@click.option("--harness", metavar="NAME", help="Use this harness: echo, scripted, local, openai, ...")
@click.option("--base-url", metavar="URL", help="Address of the endpoint.")
@click.option("--effort", metavar="LEVEL", help="Reasoning effort, where the model has one.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of one reply.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other samples.")
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Replay what is stored, or buy a fresh trial.",
)
@click.option("--eval", "evaluate", is_flag=True, help="Grade both sides, each by its own rubric.")
@click.option("--judge-model", metavar="ID", help="With --eval: model of the judges that name none.")
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option("--json", "as_json", is_flag=True, help="Print the run of each turn instead of its text.")
def command(**options: Any) -> int:
    """Run one conversation of machine NAME, from CASE (an id, or a text), and print each turn as it comes."""
    from libmachine.cmd import _converse

    return _converse.main(**options)


main = _cli.entry(command)

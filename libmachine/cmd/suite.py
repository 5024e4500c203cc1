"""machine-suite: run and grade a machine's cases."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-suite", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option(
    "--on",
    metavar="WHICH",
    default="cases",
    show_default=True,
    help="Run on cases, holdout or a FILE of cases.",
)
@click.option("--trials", type=click.IntRange(1), default=1, show_default=True, help="Run each case N times.")
@click.option("-v", "--verbose", is_flag=True, help="Show every case, and a line for each run.")
@click.option("--tree", is_flag=True, help="Run the descendants too, and sum up what they inherit.")
@click.option("--oracle", metavar="FILE", help="Instead: do reference answers score 1 on every check?")
@click.option("--noop", is_flag=True, help="Instead: does an empty answer score 0?")
@click.option("--keep-out", is_flag=True, help="With these: mark cases that fail; no gate judges by them.")
@click.option("--model", metavar="ID", help="Use this model instead of the machine's.")
@click.option("--harness", metavar="NAME", help="Use this harness: echo, scripted, local, openai, ...")
@click.option("--base-url", metavar="URL", help="Address of the endpoint.")
@click.option("--effort", metavar="LEVEL", help="Reasoning effort, where the model has one.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of one reply.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other samples.")
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Take stored answers, or buy fresh trials.",
)
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option(
    "--allow-failed", metavar="N", type=click.IntRange(0), default=0, help="Exit 0 with up to N failed."
)
@click.option("--json", "as_json", is_flag=True, help="Print one record instead of the tables.")
def command(**options: Any) -> int:
    """Run and grade the cases of machine NAME and say how it does, worst cases first."""
    from libmachine.cmd import _suite

    return _suite.main(**options)


main = _cli.entry(command)

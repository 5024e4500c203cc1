"""machine-run: run a machine on cases."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-run", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.argument("text", required=False)
@click.option("--cases", metavar="FILE", help="Read cases from FILE instead of stdin.")
@click.option("--trials", type=click.IntRange(1), default=1, show_default=True, help="Run each case N times.")
@click.option("--model", metavar="ID", help="Use this model instead of the machine's.")
@click.option("--harness", metavar="NAME", help="Use this harness: echo, scripted, local, openai, ...")
@click.option("--base-url", metavar="URL", help="Address of the endpoint.")
@click.option("--effort", metavar="LEVEL", help="Reasoning effort, where the model has one.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of one reply.")
@click.option(
    "--max-steps", type=click.IntRange(1), default=30, show_default=True, help="Most model calls a run."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600,
    show_default=True,
    help="Most seconds a run.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other samples.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--ordered", is_flag=True, help="Print runs in the order of the cases.")
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Replay stored answers, or buy fresh trials.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be run; call nothing.")
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the model as this one.")
@click.option(
    "--allow-failed", metavar="N", type=click.IntRange(0), default=0, help="Exit 0 with up to N failed."
)
@click.option("--strict", is_flag=True, help="Stop at the first failed run or bad line.")
@click.option("--eval", "evaluate", is_flag=True, help="Grade each run as it finishes.")
@click.option("--continue", "proceed", is_flag=True, help="Go on with the last session.")
@click.option("--judge-model", metavar="ID", help="With --eval: model of the judges that name none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(**options: Any) -> int:
    """Run machine NAME on TEXT, or on the cases on stdin, and print the runs; NAME alone on a terminal opens
    a session."""
    from libmachine.cmd import _run

    return _run.main(**options)


main = _cli.entry(command)

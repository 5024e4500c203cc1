"""machine-compare: compare two versions on the same cases."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-compare", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option(
    "--base", metavar="VERSION", default="HEAD", show_default=True, help="Old version: a commit, vN or id."
)
@click.option(
    "--cases",
    metavar="FILE",
    default="cases.jsonl",
    show_default=True,
    help="Cases: a file, or one in the machine's folder.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=3, show_default=True, help="Run each case N times a version."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other samples.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--harness", metavar="NAME", help="Use this harness for both versions.")
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Take stored answers, or run all anew, side by side.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one record instead of the tables.")
def command(**options: Any) -> int:
    """Run machine NAME as it is in the work tree and as it was, on the same cases, and say what differs."""
    from libmachine.cmd import _compare

    return _compare.main(**options)


main = _cli.entry(command)

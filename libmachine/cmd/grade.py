"""machine-grade: judge runs by their machine's graders."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-grade", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option("--regrade", is_flag=True, help="Ask every grader again, also where the grade is known.")
@click.option("--adopt", is_flag=True, help="Take runs that changed since they were stored as new runs.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the judges' model as this one.")
@click.option(
    "--allow-failed", metavar="N", type=click.IntRange(0), default=0, help="Exit 0 with up to N ungraded."
)
@click.option("--strict", is_flag=True, help="Stop at the first bad line or ungraded run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(**options: Any) -> int:
    """Put a scorecard into each run on stdin."""
    from libmachine.cmd import _grade

    return _grade.main(**options)


main = _cli.entry(command)

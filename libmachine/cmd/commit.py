"""machine-commit: make a version live that the gate let through."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-commit", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@click.option("--candidate", metavar="ID", help="Commit this pending candidate instead of the work tree.")
@click.option("-m", "--message", metavar="TEXT", help="First line of the commit message.")
@click.option("--force", metavar="REASON", help="Commit against the gate; REASON is recorded with your name.")
def command(**options: Any) -> int:
    """Commit the work tree's version of machine NAME (or, if that is live, its newest candidate; or those of
    the verdicts on stdin), if the gate promoted exactly this change. Exit 1 if it did not."""
    from libmachine.cmd import _commit

    return _commit.main(**options)


main = _cli.entry(command)

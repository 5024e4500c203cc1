"""machine-revert: make an earlier version live again."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-revert", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option(
    "--to", metavar="VERSION", help="The version to go to: vN, a commit or an id; else the one before."
)
def command(workspace: str | None, name: str, to: str | None) -> int:
    """Write the files of the version of machine NAME that was live before back, and commit them. Twice goes
    two back."""
    from libmachine.cmd import _commit

    return _commit.revert(workspace, name, to)


main = _cli.entry(command)

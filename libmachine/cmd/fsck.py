"""machine-fsck: check the store."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-fsck", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--repair", is_flag=True, help="Mend what can be mended, set aside what cannot.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def command(workspace: str | None, repair: bool, as_json: bool) -> int:
    """Check every line of the log, every object it names and every id. Exit 1 if anything is wrong."""
    from libmachine.cmd import _fsck

    return _fsck.main(workspace, repair, as_json)


main = _cli.entry(command)

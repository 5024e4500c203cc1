"""machine-forget: remove a run from the store for good."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-forget", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--force", is_flag=True, help="Also what a verdict or a candidate rests on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def command(workspace: str | None, ids: tuple[str, ...], dry_run: bool, force: bool, as_json: bool) -> int:
    """Remove records by the first digits of their ids, with all that belongs to them alone."""
    from libmachine.cmd import _forget

    return _forget.main(workspace, ids, dry_run, force, as_json)


main = _cli.entry(command)

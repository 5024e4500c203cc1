"""machine-sync: share versions and verdicts with a remote."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-sync", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("remote", required=False)
@click.option("--runs", is_flag=True, help="Share runs instead, with the remote in git config machine.runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(workspace: str | None, remote: str | None, runs: bool, as_json: bool) -> int:
    """Fetch the versions, candidates and verdicts of REMOTE (origin), merge, renumber, and push ours."""
    from libmachine.cmd import _sync

    return _sync.main(workspace, remote, runs, as_json)


main = _cli.entry(command)

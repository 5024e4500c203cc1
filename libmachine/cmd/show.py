"""machine-show: show one stored record."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-show", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("what", required=False, metavar="ID|NAME@{N}")
@click.option("--messages", is_flag=True, help="Show the conversation, for reading.")
@click.option("--diff", is_flag=True, help="Show what the run changed in its files, as a patch.")
@click.option("--checkout", metavar="DIR", help="Write the files that the run left into DIR, new or empty.")
@click.option(
    "--schema", metavar="TYPE", help="Print the JSON Schema of a record type instead: run, scorecard."
)
@click.option("--json", "as_json", is_flag=True, help="Print the record on a terminal too.")
def command(**options: Any) -> int:
    """Show a run or scorecard by the first digits of its id, or the Nth newest run of NAME (from 0)."""
    from libmachine.cmd import _show

    return _show.main(**options)


main = _cli.entry(command)

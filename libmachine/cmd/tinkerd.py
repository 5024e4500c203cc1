"""machine-tinkerd: serve and train the local model, for clients of OpenAI and Tinker."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-tinkerd", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option(
    "--engine",
    type=click.Choice(["torch", "fake"]),
    default="torch",
    show_default=True,
    help="Compute with torch, or pretend.",
)
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port; 0: a free one.")
@click.option("--dir", "directory", metavar="DIR", help="Keep the server's files in DIR, not in the store.")
@click.option(
    "--idle",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=900,
    show_default=True,
    help="End after this long without a request.",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Threads of torch.",
)
@click.option("--status", is_flag=True, help="Say whether a server runs.")
@click.option("--stop", is_flag=True, help="Stop the server that runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record with --status.")
def command(**options: Any) -> int:
    """Serve chat and training on 127.0.0.1 until nobody asks any more."""
    from libmachine.cmd import _tinkerd

    return _tinkerd.main(**options)


main = _cli.entry(command)

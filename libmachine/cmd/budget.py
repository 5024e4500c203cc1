"""machine-budget: run a command under one budget."""

from __future__ import annotations

import click

from libmachine.cmd import _cli

_SETTINGS = {**_cli.SETTINGS, "allow_interspersed_args": False}


@click.command("machine-budget", context_settings=_SETTINGS)
@click.argument("usd")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
def command(usd: str, cmd: tuple[str, ...]) -> int:
    """Run CMD, and let all that it starts spend at most USD together; `none` for no limit.

    The exit code is CMD's. What was spent is said at the end.
    """
    from libmachine.cmd import _budget

    return _budget.main(usd, cmd)


main = _cli.entry(command)

"""machine-gc: pack the store."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-gc", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def command(workspace: str | None, as_json: bool) -> int:
    """Put the objects of the store into packs and small commits of its chains together. Loses nothing."""
    import os
    import threading

    from libmachine import console, env
    from libmachine.canon import dump_line
    from libmachine.errors import MachineError
    from libmachine.store import gc, layout

    directory = _cli.project(workspace).store
    if not os.path.isdir(directory):
        raise MachineError(f"no store at '{directory}'; machine-run makes it")
    layout.refuse_foreign(directory)
    progress = console.Progress("removing copies", None)

    def say(text: str) -> None:
        progress.clear()
        console.say(text)

    done = gc.run(directory, env.get("MACHINE_FSYNC") != "0", say, progress.step)
    progress.clear()
    output = _cli.Output(threading.Event())
    before, after = done["before"], done["after"]
    if as_json:
        output.write(dump_line(done))
    else:
        output.text(
            f"{before['bytes']:,} bytes in {console.count(before['files'], 'file')} before, "
            f"{after['bytes']:,} in {after['files']} after"
        )
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

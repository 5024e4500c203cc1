"""machine-propose: make another model or other instructions a candidate."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-propose", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option("--model", metavar="ID", help="Model of the candidate.")
@click.option("--instructions", metavar="FILE", help="Instructions of the candidate.")
def command(workspace: str | None, name: str, model: str | None, instructions: str | None) -> int:
    """Store the live version of machine NAME with another model or other instructions as a pending
    candidate, and print it. No file of the project changes; machine-gate measures it."""
    import threading

    from libmachine import console
    from libmachine.canon import dump_line
    from libmachine.errors import MachineError, UsageError
    from libmachine.git import repository
    from libmachine.promote import propose
    from libmachine.record import arrange

    if model is None and instructions is None:
        raise UsageError("nothing to propose; give --model ID or --instructions FILE")
    project = _cli.project(workspace)
    text: bytes | None = None
    if instructions is not None:
        try:
            with open(instructions, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            raise MachineError(f"no file '{instructions}'; --instructions wants the text in one") from None
    store = project.open_store()
    try:
        record = propose(repository.open_repository(project.root), store, name, model, text)
    finally:
        store.close()
    output = _cli.Output(threading.Event())
    console.say(f"candidate {record['version'][:12]} of {name}. Next: machine-gate {name}")
    output.write(dump_line(arrange("candidate", record)))
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

"""machine-new: make the folder of a new machine."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-new", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option("--parent", metavar="P", help="Make it a child of machine P: NAME in P's folder.")
@click.option("--model", metavar="ID", help="Its model. Default: its parent's, else echo, which calls none.")
def command(workspace: str | None, name: str, parent: str | None, model: str | None) -> int:
    """Make machine NAME: a folder that loads and runs at once, with comments that say what to write. Its
    grade is a failing one until its grader is written."""
    import os
    import threading

    from libmachine import scaffold
    from libmachine.cmd import COMMANDS
    from libmachine.errors import MachineError
    from libmachine.load import find

    if name in {command.verb for command in COMMANDS}:
        raise MachineError(f"'{name}' is a verb of machine; take another name")
    project = _cli.project(workspace)
    place = f"{project.root}/machines"
    if parent is not None:
        place = find(parent, project.places).root
        if place != f"{project.root}/machines":
            raise MachineError(
                f"'{parent}' lies in {place}, outside this project; machine-init --examples copies it"
            )
        name = f"{parent}/{name}"
    folder = scaffold.make(place, name, model)
    output = _cli.Output(threading.Event())
    output.text(f"made: {os.path.relpath(folder.path)}")
    output.text("now:")
    edit = os.path.relpath(folder.file("machine.py"))
    steps = [
        f'machine-run {name} "hello" | machine-grade | jq .scorecard',
        f"$EDITOR {edit}   its grader, then rubric.toml and instructions.md beside it",
        f"machine-cases {name} FILE   your own cases in place of the samples",
        f"machine-suite {name}",
        f"git add {os.path.dirname(edit)} && git commit -m 'machine {name}'",
    ]
    for step in steps:
        output.text(f"  {step}")
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

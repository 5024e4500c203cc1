"""machine-init: make a project and its store."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-init", context_settings=_cli.SETTINGS)
@click.argument("directory", default=".")
@click.option("--examples", is_flag=True, help="Copy the built-in machines into machines/.")
def command(directory: str, examples: bool) -> int:
    """Make DIRECTORY a project: machines/ and a private store that git does not see."""
    import os
    import shutil

    from libmachine import console, project
    from libmachine.errors import MachineError

    if not os.path.isdir(directory):
        raise MachineError(f"no directory '{directory}'; make it first: mkdir -p {directory}")
    here = project.find(directory)
    os.makedirs(f"{here.root}/machines", exist_ok=True)
    made = project.make_store(here)
    console.say(f"store {'made' if made else 'is there already'}: {here.store}")
    for name in sorted(os.listdir(project.built_in())) if examples else ():
        source, target = f"{project.built_in()}/{name}", f"{here.root}/machines/{name}"
        if os.path.lexists(target):
            console.say(f"kept: {target}")
        elif os.path.isdir(source) and not name.startswith(("_", ".")):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            console.say(f"made: {target}")
    return 0


main = _cli.entry(command)

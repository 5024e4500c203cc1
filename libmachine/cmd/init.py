"""machine-init: make a project and its store."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-init", context_settings=_cli.SETTINGS)
@click.argument("directory", default=".")
@click.option("--examples", is_flag=True, help="Copy the built-in machines into machines/.")
@click.option("--hooks", is_flag=True, help="Put the gate's git hooks in, beside those that are there.")
@click.option("--remove-hooks", is_flag=True, help="Take them out again.")
@click.option("--server", metavar="DIR", help="With these two: the hook of a repository that is pushed to.")
def command(directory: str, examples: bool, hooks: bool, remove_hooks: bool, server: str | None) -> int:
    """Make DIRECTORY a project: machines/ and a private store that git does not see."""
    import os
    import shutil

    from libmachine import console, project
    from libmachine.errors import MachineError, UsageError

    if server is not None and not (hooks or remove_hooks):
        raise UsageError("--server goes with --hooks or --remove-hooks")
    if hooks and remove_hooks:
        raise UsageError("--hooks and --remove-hooks contradict each other")
    if server is not None or remove_hooks:
        _hooks(server or directory, remove_hooks, server is not None)
        return 0
    if not os.path.isdir(directory):
        raise MachineError(f"no directory '{directory}'; make it first: mkdir -p {directory}")
    here = project.find(directory)
    os.makedirs(f"{here.root}/machines", exist_ok=True)
    made = project.make_store(here)
    console.say(f"store {'made' if made else 'is there already'}: {here.store}")
    if project.ignore(here.root, here.store):
        console.say(f"hidden from a later git init: {here.root}/.gitignore")
    for name in sorted(os.listdir(project.built_in())) if examples else ():
        source, target = f"{project.built_in()}/{name}", f"{here.root}/machines/{name}"
        if os.path.lexists(target):
            console.say(f"kept: {target}")
        elif os.path.isdir(source) and not name.startswith(("_", ".")):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            console.say(f"made: {target}")
    if hooks:
        _hooks(here.root, False, False)
    return 0


def _hooks(directory: str, out: bool, server: bool) -> None:
    """Put the hooks of a repository in or take them out, and say what was done."""
    import os
    import shutil
    import sys

    from libmachine import console, hooks_install
    from libmachine.errors import MachineError
    from libmachine.git.repository import open_repository

    if not os.path.isdir(directory):
        raise MachineError(f"no directory '{directory}'; make a repository: git init {directory}")
    repo = open_repository(directory)
    if out:
        done = hooks_install.remove(repo, server)
    else:
        beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "machine-gate")
        gate = beside if os.access(beside, os.X_OK) else shutil.which("machine-gate")
        if gate is None:
            raise MachineError("there is no machine-gate beside machine-init or on PATH; install the package")
        done = hooks_install.install(repo, os.path.abspath(gate), server)
    for line in done:
        console.say(line)


main = _cli.entry(command)

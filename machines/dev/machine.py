"""dev: work on a small Python project. One check that the work was proven, and three judges."""

from __future__ import annotations

from libmachine import Machine, Run, check, judge
from libmachine.sandbox.commands import commands, proves
from libmachine.sandbox.toolbox import edit_file, list_files, read_file, run, search_files, write_file

CHANGERS = ("write_file", "edit_file")


def verified(run: Run) -> tuple[bool, str] | None:
    """After the last change of a file a command succeeded that says something about it. None where no
    change was asked for, or nothing says so and none was made."""
    asked = run.metadata.get("change")
    if asked is False:
        return None
    tried = commands(run)
    changes = [at for at, call in enumerate(run.tool_calls) if call.name in CHANGERS and call.ok]
    changes += [command.at for command in tried if command.changed]
    if not changes:
        return (False, "no file was changed") if asked else None
    after = [command for command in tried if command.at > max(changes)]
    for command in after:
        if command.code == 0 and proves(command.text):
            return True, f"after the last change: {command.text[:80]!r}"
    return (
        False,
        "no command succeeded after the last change" if after else "nothing was run after the last change",
    )


machine = Machine(
    intent="Change, explain or run a small Python project as the user asks, and prove what was changed.",
    tools=[list_files, search_files, read_file, edit_file, write_file, run],
    graders={
        "verified": check(verified),
        "does_it": judge(),
        "focused": judge(),
        "acts_on_request": judge(),
    },
)

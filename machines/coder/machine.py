"""coder: write a program and run it. One check of what really ran, and a judge of what it printed."""

from __future__ import annotations

from libmachine import Machine, Run, check, judge
from libmachine.sandbox.commands import argument, commands, ran
from libmachine.sandbox.toolbox import run, write_file


def ran_it(run: Run) -> tuple[bool, str]:
    """A file was written, and after that a command ran it and succeeded, by the tools' own results."""
    written = [
        (at, path)
        for at, call in enumerate(run.tool_calls)
        if call.name == "write_file" and call.ok and (path := argument(call, "path"))
    ]
    if not written:
        return False, "no file was written"
    tried = commands(run)
    for command in tried:
        for at, path in written:
            if at < command.at and command.code == 0 and ran(command.text, path):
                return True, f"{path} was run: {command.text[:80]!r}"
    ends = ", ".join("stopped" if command.code is None else str(command.code) for command in tried)
    return (
        False,
        f"nothing that was written was run with success (exits: {ends})" if tried else "nothing was run",
    )


machine = Machine(
    intent="Write a small program, run it, and report what it printed.",
    tools=[write_file, run],
    graders={"ran": check(ran_it), "fits_task": judge()},
)

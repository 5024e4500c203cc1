"""The program that a run answers with: the last one that run_julia really ran."""

from __future__ import annotations

from collections.abc import Callable

from libmachine import Run
from libmachine.errors import MachineError
from libmachine.sandbox.commands import Command, commands

from .installation import NOT_RUN
from .program import Program, read
from .tokens import SourceError

Verdict = tuple[bool, str]
REFUSED = (NOT_RUN, "commands are not run here", "the sandbox did not start")
"""How run_julia, the workspace and the sandbox say that no program can be run here."""


def last(run: Run) -> Command | None:
    """The last call of run_julia that ran its program, None if there was none. Raises MachineError, which
    leaves the run ungraded, where programs could not be run at all: no fault of the run."""
    ran = commands(run, "run_julia", "code")
    if ran:
        return ran[-1]
    for call in run.tool_calls:
        why = (call.result or "").removeprefix("error: ")
        if call.name == "run_julia" and not call.ok and why.startswith(REFUSED):
            raise MachineError(why)
    return None


def judged(run: Run, verdict: Callable[[Program], Verdict]) -> Verdict:
    """A verdict on the text of the last program. One that Julia ran and that cannot be read here raises."""
    command = last(run)
    if command is None:
        return False, "no program was run"
    try:
        program = read(command.text)
    except SourceError as error:
        if command.code == 0:
            raise MachineError(f"the program ran, but it cannot be read: {error}") from None
        return False, f"the program cannot be read: {error}"
    if program.built:
        return False, f"its text does not show all it defines: it calls {program.built}"
    return verdict(program)

"""julia: write a Julia program and run it. One check of what really ran, and two judges."""

from __future__ import annotations

from libmachine import Machine, Run, Workspace, check, judge
from libmachine.errors import MachineError
from libmachine.sandbox.toolbox import told

from .answer import last
from .installation import NOT_RUN, find, is_found
from .tokens import SourceError, tokens

PROGRAM = "program.jl"
MOST_CODE = 100_000
# Part of the tool, and so of the key of a run: one without Julia is not the answer once there is one.
IS_FOUND = is_found()
# Nothing of a user is read, nothing is looked for in the network, and few threads fit the sandbox's limits.
OPTIONS = ("--startup-file=no", "--history-file=no", "--color=no", "--threads=1")
VARIABLES = (
    ("JULIA_DEPOT_PATH", "/tmp/.julia:"),
    ("JULIA_PKG_OFFLINE", "true"),
    ("OPENBLAS_NUM_THREADS", "1"),
)


def run_julia(code: str, workspace: Workspace, timeout_s: int = 60) -> str:
    """Run a Julia program and show its exit status and what it printed.

    It runs in a sandbox, with Julia's standard library and no other package: no network, and nothing
    outside the working directory can be changed. Each call is a fresh process, so give the whole program.

    code: the program
    timeout_s: seconds after which it is stopped, at most 60
    """
    if timeout_s < 1:
        raise MachineError("timeout_s is 1 or more")
    if not code.strip() or "\0" in code:
        raise MachineError("the program is empty or has a zero byte")
    if len(code) > MOST_CODE:
        raise MachineError(f"the program has more than {MOST_CODE} characters")
    julia = find()
    if not IS_FOUND:
        raise MachineError(f"{NOT_RUN}: Julia came after this command began; start it again")
    workspace.write(PROGRAM, code)
    words = [julia.program, *OPTIONS, PROGRAM]
    return told(workspace.run(words, timeout_s=timeout_s, mounts=julia.mounts, environment=VARIABLES))


def ran_to_its_end(run: Run) -> tuple[bool, str]:
    """The last program that was run ended with exit status 0, by the tool's own results, and is not empty."""
    command = last(run)
    if command is None:
        return False, "no program was run"
    if command.code is None:
        return False, "the last program was stopped"
    try:
        is_empty = all(token.text == "\n" for token in tokens(command.text))
    except SourceError:
        is_empty = False
    if is_empty and command.code == 0:
        return False, "the last program has nothing but comments"
    return command.code == 0, f"the last program ended with exit status {command.code}"


machine = Machine(
    intent="Write a small Julia program, run it, and report what it printed.",
    tools=[run_julia],
    graders={"runs": check(ran_to_its_end), "does_task": judge(), "idiomatic": judge()},
)

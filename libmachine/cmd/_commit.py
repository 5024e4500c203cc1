"""The work behind machine-commit's and machine-revert's options."""

from __future__ import annotations

from collections.abc import Iterator

from libmachine import commit, console, jsonl
from libmachine.cmd import _cli
from libmachine.errors import NO, OK, CommitRefused, MachineError, Untestable
from libmachine.git import repository


def main(
    workspace: str | None, name: str | None, candidate: str | None, message: str | None, force: str | None
) -> int:
    """Commit each machine that is asked for; 1 if one was refused."""
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    asked = [(name, candidate)] if name is not None else list(_from_stdin())
    if not asked:
        raise Untestable("no verdict on stdin (did machine-gate fail?); type: machine-gate NAME")
    code = OK
    for machine, which in asked:
        try:
            commit.commit(project, repo, machine, which, message, force)
        except CommitRefused as refusal:
            console.say(f"refused: {refusal}")
            code = NO
    return code


def _from_stdin() -> Iterator[tuple[str, str]]:
    _cli.refuse_terminal("verdicts", "name a machine: machine-commit NAME")
    for line in jsonl.read(0):
        value = line.value
        if line.error or not isinstance(value, dict) or value.get("type") != "verdict":
            raise MachineError(f"line {line.number}: {line.error or 'no verdict'}; pipe machine-gate in")
        yield value["machine"], value["candidate"]


def revert(workspace: str | None, name: str, to: str | None) -> int:
    """Make an earlier version live again."""
    project = _cli.project(workspace)
    commit.revert(project, repository.open_repository(project.root), name, to)
    return OK

"""The work behind machine-gate NAME and machine-gate < candidates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, jsonl
from libmachine.canon import Record, dump_line
from libmachine.case import label
from libmachine.cmd import _cli
from libmachine.errors import NO, OK, UNTESTABLE, MachineError, Untestable
from libmachine.folder import Folder
from libmachine.gate.judge import judge
from libmachine.gate.question import BETTER
from libmachine.gate.report import report
from libmachine.git import repository
from libmachine.project import Project
from libmachine.purse import Purse
from libmachine.record import arrange


def main(workspace: str | None, name: str | None, as_json: bool, **options: Any) -> int:
    """Judge each question and print its verdict; the worst answer is the exit code."""
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    output = _cli.Output(threading.Event())
    lines = as_json or not console.is_terminal(1)
    codes = []
    asked = [(name, options["candidate"])] if name is not None else list(_from_stdin())
    if not asked:
        raise Untestable("no candidate on stdin (did machine-sft fail?); type: machine-gate NAME")
    for machine, candidate in asked:
        purse = Purse(project, "gate", options["budget"], options["price_as"])
        stop = threading.Event()
        with _cli.Interrupts(stop):
            verdict = judge(project, repo, machine, {**options, "candidate": candidate}, stop, purse)
        console.say(report(verdict, _case_names(project, machine), console.width(2)))
        if lines:
            output.write(dump_line(arrange("verdict", verdict)))
        codes.append(_code(verdict))
    return max(codes, key=[OK, NO, UNTESTABLE].index)


def _code(verdict: Record) -> int:
    if verdict["decision"] in BETTER:
        return OK
    return NO if verdict["decision"] == "refuse" else UNTESTABLE


def _from_stdin() -> Iterator[tuple[str, str]]:
    """(machine, candidate id) of the Candidates on stdin."""
    _cli.refuse_terminal("candidates", "name a machine: machine-gate NAME")
    for line in jsonl.read(0):
        value = line.value
        if line.error or not isinstance(value, dict) or value.get("type") != "candidate":
            raise MachineError(
                f"line {line.number}: {line.error or 'no candidate'}; pipe machine-propose or machine-sft in"
            )
        yield value["machine"], value["version"][:12]


def _case_names(project: Project, name: str) -> dict[str, str]:
    try:
        cases = Folder(f"{project.root}/machines", name).cases("holdout.jsonl")
    except MachineError:
        return {}
    return {case["identity"]: label(case, 200) for case in cases}

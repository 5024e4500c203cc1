"""What suites, comparisons and searches share: which cases, and which machines are refused."""

from __future__ import annotations

import os

from libmachine import console
from libmachine.canon import Record, plain
from libmachine.errors import MachineError, Untestable
from libmachine.folder import Folder, read_cases
from libmachine.harness.base import Sampling
from libmachine.load import Loaded
from libmachine.record import arrange, record_id


def cases_of(folder: Folder, on: str) -> list[Record]:
    """The cases of a file as named, else of that name in the machine's folder; none if it is not there.

    on may also be `cases` or `holdout`. Raises MachineError for a bad file, or a name that is nowhere.
    """
    if on in ("cases", "holdout"):
        return folder.cases(f"{on}.jsonl")
    if not os.path.exists(on) and (os.path.exists(folder.file(on)) or on in ("cases.jsonl", "holdout.jsonl")):
        return folder.cases(on)
    return read_cases(on)


def no_cases(folder: Folder, on: str) -> Untestable:
    """What is raised for a machine without cases."""
    name = f"{on}.jsonl" if on in ("cases", "holdout") else on
    return Untestable(f"'{folder.name}' has no cases to run; write {folder.file(name)}")


def refuse_ungradable(machine: Loaded) -> None:
    """Raise Untestable for a machine without criteria: nothing would say how good its runs are."""
    if not machine.criteria:
        where = machine.folder.file("rubric.toml")
        raise Untestable(f"'{machine.name}' has no criteria to grade by; write {where} and its graders")


def warn_if_frozen(sampling: Sampling, trials: int) -> None:
    """Say so if trials would tell nothing."""
    if trials > 1 and sampling.temperature == 0:
        console.say("warning: --trials above 1 at temperature 0 samples one answer again and again")


def with_id(kind: str, record: Record) -> Record:
    """A report as it is printed: canonical, with its id, in the table's order."""
    record = plain(record)
    return arrange(kind, {**record, "id": record_id(record)})


def refuse_foreign(project_root: str, name: str) -> Folder:
    """The folder of a machine that must lie in the project. Raises MachineError."""
    folder = Folder(f"{project_root}/machines", name)
    if not os.path.isfile(folder.file("machine.py")):
        raise MachineError(f"no machine '{name}' in '{project_root}/machines'; machine-list shows all")
    return folder

"""The work behind machine-export's options."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from libmachine import console, export, jsonl
from libmachine.canon import Record, RecordError, dump_line
from libmachine.cmd import _cli
from libmachine.errors import NO, MachineError
from libmachine.export_runs import Checked, chosen_of, from_store
from libmachine.load import Loaded, load
from libmachine.project import Project
from libmachine.record import read_record


def main(
    workspace: str | None, name: str | None, tree: bool, form: str, out: str | None, **options: Any
) -> int:
    """Choose, change, convert, write, and say what was left out."""
    project = _cli.project(workspace)
    tally = _cli.Tally(threading.Event())
    dropped = export.Dropped()
    change = _Change(project, name, dropped, options)
    if name is None:
        _cli.refuse_terminal("runs", "pipe them in, or name a machine: machine-export NAME")
        found = from_stdin(tally)
    else:
        found = from_store(project, options["parent"] or name, tree)
    checked = Checked(project, dropped, options["drop_reasoning"])
    runs = [run for run in found if checked.keeps(run)]
    if form == "dpo":
        rows = _pairs(change.all(runs), options["drop_reasoning"], dropped)
    else:
        rows = export.rows(
            change.all(chosen_of(runs, options)),
            form,
            options["per_turn"],
            options["drop_reasoning"],
            dropped,
        )
    output = _cli.Output(tally.stop)
    count = _to_file(out, rows) if out else _to_stdout(output, rows)
    for line in dropped.told():
        console.say(console.safe(line))
    console.say(f"{console.count(count, 'example')}; they hold prompts and outputs: mind where the file goes")
    code = tally.code(output=output)
    return code or (0 if count else NO)


def from_stdin(tally: _cli.Tally) -> Iterator[Record]:
    """The runs on stdin; bad lines are counted and told."""
    for line in jsonl.read(0):
        try:
            if line.error:
                raise RecordError(line.error)
            yield read_record(line.value, "run")
        except RecordError as error:
            tally.bad_line(line.number, str(error))


class _Change:
    """What is changed of chosen runs: their reasoning (--transform, --from), their instructions.

    The machine that is trained is NAME, else each run's own. Raises MachineError if it declares no
    transform_reasoning and one is wanted, or PARENT is no parent of NAME.
    """

    def __init__(
        self, project: Project, name: str | None, dropped: export.Dropped, options: dict[str, Any]
    ) -> None:
        self.project, self.name, self.dropped = project, name, dropped
        self.parent = options["parent"]
        self.transforms = options["transform"] or self.parent is not None
        self.instructs = options["instructions"] == "student"
        self._known: dict[str, tuple[Loaded, list[Any]]] = {}
        if name is not None:
            self._student(name)

    def all(self, runs: Iterable[Record]) -> Iterator[Record]:
        """The runs as they are to be learned from; those that cannot be changed are left out and told."""
        for run in runs:
            trained = self.name if self.name is not None and self.parent is not None else run["machine"]
            machine, transforms = self._student(trained)
            if self.instructs:
                run = export.instructed(run, machine.instructions)
            try:
                yield export.transformed(run, transforms) if self.transforms else run
            except export.CannotChange as error:
                self.dropped.add(str(error), run)

    def _student(self, name: str) -> tuple[Loaded, list[Any]]:
        """A machine with the transforms that lead to it: from below PARENT, or of its whole family."""
        if name not in self._known:
            machine = load(name, self.project.places)
            family = {member.name: member for member in _family(machine)}
            if self.parent is not None and self.parent not in [*family][1:]:
                raise MachineError(
                    f"'{self.parent}' is no parent of '{name}'; machine-tree shows the families"
                )
            below = itertools.takewhile(lambda member: member != self.parent, family)
            transforms = [t for member in below if (t := family[member].transform) is not None]
            if self.transforms and not transforms:
                where = machine.folder.file("machine.py")
                raise MachineError(f"'{name}' transforms no reasoning; add transform_reasoning to {where}")
            self._known[name] = machine, transforms[::-1]
        return self._known[name]


def _family(machine: Loaded | None) -> Iterator[Loaded]:
    """A machine and its parents, nearest first."""
    while machine is not None:
        yield machine
        machine = machine.parent


def _pairs(runs: Iterable[Record], drop_reasoning: bool, dropped: export.Dropped) -> Iterator[Record]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        groups.setdefault(export.pair_of(run), []).append(run)
    for group in groups.values():
        yield from export.as_pairs(group, drop_reasoning, dropped)


def _to_stdout(output: _cli.Output, rows: Iterator[Record]) -> int:
    count = 0
    for row in rows:
        output.write(dump_line(row))
        count += 1
        if output.gone:
            break
    return count


def _to_file(path: str, rows: Iterator[Record]) -> int:
    """Write all rows to a file, private, by a temporary one beside it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    count = 0
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise MachineError(f"no directory for '{path}'; make it first") from None
    try:
        with os.fdopen(fd, "wb") as file:
            for row in rows:
                file.write(dump_line(row))
                count += 1
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return count

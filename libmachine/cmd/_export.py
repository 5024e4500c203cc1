"""The work behind machine-export's options."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, export, jsonl
from libmachine.canon import Record, RecordError, dump_line
from libmachine.cmd import _cli
from libmachine.errors import NO, MachineError
from libmachine.export_runs import dataset, from_store
from libmachine.record import read_record


def main(
    workspace: str | None, name: str | None, tree: bool, form: str, out: str | None, **options: Any
) -> int:
    """Choose, change, convert, write, and say what was left out."""
    project = _cli.project(workspace)
    tally = _cli.Tally(threading.Event())
    dropped = export.Dropped()
    if name is None:
        _cli.refuse_terminal("runs", "pipe them in, or name a machine: machine-export NAME")
        found = from_stdin(tally)
    else:
        found = from_store(project, options["parent"] or name, tree)
    rows = dataset(project, name, found, form, options, dropped)
    output = _cli.Output(tally.stop)
    count = _to_file(out, rows) if out else _to_stdout(output, rows)
    for line in dropped.told():
        console.say(line)
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

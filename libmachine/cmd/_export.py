"""The work behind machine-export's options."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, export, jsonl
from libmachine.canon import Record, RecordError, dump_line
from libmachine.cmd import _cli, _select
from libmachine.define import is_earlier_turn
from libmachine.errors import NO, MachineError
from libmachine.grade import Grading
from libmachine.load import find, load
from libmachine.project import Project
from libmachine.record import read_record
from libmachine.select import Wanted, select
from libmachine.splits import Splits
from libmachine.times import since as moment


def main(
    workspace: str | None, name: str | None, tree: bool, form: str, out: str | None, **options: Any
) -> int:
    """Choose, convert, write, and say what was left out."""
    project = _cli.project(workspace)
    tally = _cli.Tally(threading.Event())
    if name is None:
        _cli.refuse_terminal("runs", "pipe them in, or name a machine: machine-export NAME")
        found = _from_stdin(tally)
    else:
        found = _from_store(project, name, tree)
    dropped = export.Dropped()
    checked = _Checked(project, dropped, options["drop_reasoning"])
    runs = [run for run in found if checked.keeps(run)]
    if form == "dpo":
        rows = _pairs(runs, options["drop_reasoning"])
    else:
        rows = export.rows(
            _chosen(runs, options), form, options["per_turn"], options["drop_reasoning"], dropped
        )
    output = _cli.Output(tally.stop)
    count = _to_file(out, rows) if out else _to_stdout(output, rows)
    for line in dropped.told():
        console.say(console.safe(line))
    console.say(f"{console.count(count, 'example')}; they hold prompts and outputs: mind where the file goes")
    code = tally.code(output=output)
    return code or (0 if count else NO)


def _from_stdin(tally: _cli.Tally) -> Iterator[Record]:
    for line in jsonl.read(0):
        try:
            if line.error:
                raise RecordError(line.error)
            yield read_record(line.value, "run")
        except RecordError as error:
            tally.bad_line(line.number, str(error))


def _from_store(project: Project, name: str, tree: bool) -> Iterator[Record]:
    folder = find(name, project.places)
    store = project.open_store()
    try:
        for member in [folder, *(folder.descendants() if tree else ())]:
            for row in store.index.runs(member.name, newest_first=False) if store.has_records() else ():
                yield store.load_run(row)
    finally:
        store.close()


class _Checked:
    """Leaves out what nothing may be learned from, before the best are chosen of the rest."""

    def __init__(self, project: Project, dropped: export.Dropped, drop_reasoning: bool) -> None:
        self.project, self.dropped, self.drop_reasoning = project, dropped, drop_reasoning
        self._known: dict[str, tuple[Splits, Grading]] = {}

    def keeps(self, run: Record) -> bool:
        """May this run be an example? The split is computed, not believed."""
        if is_earlier_turn(run):
            return False  # what the machine said there is in the last turn
        name = run["machine"]
        if name not in self._known:
            machine = load(name, self.project.places)
            self._known[name] = (Splits(machine.folder), Grading(machine))
        splits, grading = self._known[name]
        run["split"] = splits.of(run["case"]["identity"])
        card = run.get("scorecard")
        why = export.refusal(run, self.drop_reasoning)
        if why is None and (not card or card["rubric"] != grading.rubric):
            why = "graded under an older rubric; machine-grade grades it again"
        if why is not None:
            self.dropped.add(why, run)
        return why is None


def _chosen(runs: list[Record], options: dict[str, Any]) -> Iterator[Record]:
    wanted = Wanted(
        best=options["best"],
        distinct=options["distinct"],
        min_score=options["min_score"],
        passing=options["passing"],
        since=moment(options["since"]) if options["since"] else None,
        cases=_select.identities(options["cases"]) if options["cases"] else None,
        not_cases=_select.identities(options["not_cases"]) if options["not_cases"] else frozenset(),
    )
    for chosen in select(((b"%d" % number, run) for number, run in enumerate(runs)), wanted):
        yield runs[int(chosen)]


def _pairs(runs: list[Record], drop_reasoning: bool) -> Iterator[Record]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for run in runs:
        groups.setdefault(export.pair_of(run), []).append(run)
    for group in groups.values():
        yield from export.as_pairs(group, drop_reasoning)


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

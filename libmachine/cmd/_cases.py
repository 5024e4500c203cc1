"""The work behind machine-cases' options."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from libmachine import cases, console, intake, leaks
from libmachine.canon import Record, dump_line
from libmachine.cmd import _cli
from libmachine.errors import NO, OK, PARTIAL, MachineError
from libmachine.folder import Folder
from libmachine.intake import EXAM, PRACTICE, Intake
from libmachine.interchange.rows import Columns, Row
from libmachine.load import find
from libmachine.project import Project, built_in
from libmachine.splits import Splits

_SHOWN = 20


def main(
    workspace: str | None,
    name: str,
    file: str | None,
    as_table: bool,
    source: str | None,
    target: str | None,
    origin: str | None,
    holdout: float,
    keep_near: bool,
    check: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Read, sort, write, and say what was done or what is wrong."""
    project = _cli.project(workspace)
    folder = find(name, project.places)
    output = _cli.Output(threading.Event())
    if check and file is None:
        return _checked(folder, output, as_json)
    _refuse_built_in(project, folder)
    if file is None:
        _cli.refuse_terminal("cases", f"pipe them in, or name a file: machine-cases {name} FILE")
    path = None if file in (None, "-") else file
    data = _bytes(path)
    try:
        rows = list(cases.rows(data, origin, as_table, Columns(source, target), path))
    except MachineError as error:
        raise MachineError(f"'{path or 'stdin'}': {error}") from None
    with cases.locked(folder):
        found, exam = _sorted(folder, rows, holdout, keep_near)
        if not (check or dry_run):
            # the exam first: whatever cuts this off, a rerun adds what is missing
            for side in (EXAM, PRACTICE) if any(found.added.values()) else ():
                cases.append(folder, side, found.added[side])
    doubtful = bool(found.duplicates or found.near or found.malformed)
    _report(output, folder, found, exam, check or dry_run, as_json)
    code = _cli.Tally(output.stop).code(output=output)
    if check:
        return code or (NO if doubtful else OK)
    return code or (PARTIAL if found.malformed else OK)


def _samples(there: Sequence[Record]) -> list[str]:
    """A word on the sample cases of machine-new, if any is left."""
    left = [case["id"] for case in there if cases.is_sample(case)]
    return [f"{', '.join(left)}: samples of machine-new; the first import takes them out"] if left else []


def _bytes(path: str | None) -> bytes:
    if path is None:
        with os.fdopen(os.dup(0), "rb") as stream:
            return stream.read()
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, IsADirectoryError):
        raise MachineError(f"no file of cases '{path}'; machine-cases --help says what it may be") from None


def _refuse_built_in(project: Project, folder: Folder) -> None:
    own = f"{project.root}/machines"
    if os.path.realpath(folder.root) == os.path.realpath(built_in()) and folder.root != own:
        raise MachineError(
            f"'{folder.name}' is a built-in machine; make it yours first: machine-init --examples"
        )


def _sorted(
    folder: Folder, rows: Sequence[Row], holdout: float, keep_near: bool
) -> tuple[Intake, list[Record]]:
    """What comes of the rows, and the held-out cases there are with them."""
    there, faults = cases.read_sides(folder)
    if faults:
        raise MachineError(f"{faults[0]}; mend it first (machine-cases {folder.name} --check shows all)")
    own = {side: [case for case in found if not cases.is_sample(case)] for side, found in there.items()}
    splits = Splits(folder)
    found = intake.take_in(rows, own, holdout, lambda identity: splits.of(identity) == "holdout", keep_near)
    gone = sum(len(there[side]) - len(own[side]) for side in own)
    if gone and any(found.added.values()):
        found.notes.append(f"{console.count(gone, 'sample')} of machine-new: out")
    return found, [*own[EXAM], *found.added[EXAM]]


def _report(
    output: _cli.Output, folder: Folder, found: Intake, exam: Sequence[Record], kept_off: bool, as_json: bool
) -> None:
    added = {side: len(found.added[side]) for side in (PRACTICE, EXAM)}
    if as_json:
        record = {"machine": folder.name, "rows": found.rows, "added": added, "known": found.known}
        lists = {"duplicates": found.duplicates, "near_duplicates": found.near, "notes": found.notes}
        malformed = [{"row": number, "why": why} for number, why in found.malformed]
        power = intake.power(exam)
        output.write(dump_line({**record, **lists, "malformed": malformed, "power": power}))
        return
    for number, why in found.malformed[:_SHOWN]:
        console.say(f"row {number}: {why}; skipped")
    for what, lines in (("duplicates", found.duplicates), ("near duplicates", found.near), ("", found.notes)):
        for line in lines[:_SHOWN]:
            console.say(f"{line}{'; left out' if what else ''}")
        if len(lines) > _SHOWN:
            console.say(f"and {len(lines) - _SHOWN} further {what or 'like these'}")
    if found.near:
        console.say("--keep-near keeps near duplicates, on the side of what they resemble")
    told = [f"{found.known} there already" if found.known else ""]
    for number, one, many in (
        (len(found.duplicates), "duplicate", "duplicates"),
        (len(found.near), "near duplicate", "near duplicates"),
        (len(found.malformed), "malformed", "malformed"),
    ):
        told.append(console.count(number, one, many) if number else "")
    would = "would go" if kept_off else "added"
    head = f"{console.count(found.rows, 'row')}: {added[PRACTICE]} {would} to cases.jsonl"
    _prose(output, ", ".join([head, f"{added[EXAM]} to holdout.jsonl", *filter(None, told)]))
    _prose(output, intake.told(exam))
    if not kept_off and any(added.values()):
        output.text(f"now: machine-suite {folder.name}")


def _prose(output: _cli.Output, text: str) -> None:
    """A line for people, folded on a terminal alone."""
    lines = console.fold(text, console.width()) if console.is_terminal(1) else [text]
    output.text("\n".join(lines))


def _checked(folder: Folder, output: _cli.Output, as_json: bool) -> int:
    """What is wrong with the cases that are there."""
    sides, faults = cases.read_sides(folder)
    practice, exam = sides[PRACTICE], sides[EXAM]
    by_identity = {case["identity"]: case["id"] for case in practice}
    for case in exam:
        if case["identity"] in by_identity:
            faults.append(
                f"{folder.file('holdout.jsonl')}: case '{case['id']}' is case "
                f"'{by_identity[case['identity']]}' of cases.jsonl; remove it from one of them"
            )
    faults += leaks.leaks(practice, exam, folder.instructions())
    notes = _samples([*practice, *exam])
    for side, found in sides.items():
        pairs = [(a, b) for a, b in leaks.alike(found, found) if a < b]
        notes += [f"{side}.jsonl: '{found[b]['id']}' is nearly '{found[a]['id']}'" for a, b in pairs]
    if not faults:
        splits = Splits(folder)
        notes += [
            f"cases.jsonl: '{case['id']}' is held out in a parent, a child or history; it counts as held out"
            for case in practice
            if splits.of(case["identity"]) == "holdout"
        ]
    if as_json:
        record = {"machine": folder.name, "cases": len(practice), "holdout": len(exam)}
        output.write(dump_line({**record, "faults": faults, "notes": notes, "power": intake.power(exam)}))
    else:
        for line in [*faults, *notes[:_SHOWN]]:
            console.say(line)
        if len(notes) > _SHOWN:
            console.say(f"and {len(notes) - _SHOWN} further notes")
        output.text(
            f"{console.count(len(practice), 'case')} for practice, {console.count(len(faults), 'fault')}"
        )
        _prose(output, intake.told(exam))
    return _cli.Tally(output.stop).code(output=output) or (NO if faults else OK)

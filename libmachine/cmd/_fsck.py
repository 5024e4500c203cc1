"""The work behind machine-fsck's options."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack

from libmachine import console, env
from libmachine.canon import Record, dump_line, plain
from libmachine.cmd import _cli, _git
from libmachine.errors import NO, MachineError
from libmachine.git import notes
from libmachine.git.repository import open_repository, read_ref
from libmachine.project import Project
from libmachine.store import fsck, keep, layout
from libmachine.store.findings import Finding
from libmachine.store.objects import Objects


def main(workspace: str | None, repair: bool, as_json: bool) -> int:
    """Check, and mend."""
    project = _cli.project(workspace)
    directory = project.store
    if not os.path.isdir(directory):
        raise MachineError(f"no store at '{directory}'; machine-run makes it")
    layout.refuse_foreign(directory)
    output = _cli.Output(threading.Event())
    rows = []
    if repair:
        for finding, what in _mended(project):
            rows.append({**finding._asdict(), "outcome": what})
            if not as_json:
                told = {"mended": "mended", "aside": "set aside", "left": "left"}[what]
                output.text(f"{told}: {finding.line().rpartition('; ')[0]}")
    report = fsck.Report()
    faults = 0
    for finding in [*fsck.check(directory, report), *_notes(project)]:
        faults += not finding.note
        rows.append({**finding._asdict(), "outcome": None, "remedy": finding.remedy, "note": finding.note})
        if not as_json:
            output.text(finding.line())
    if as_json:
        record = {"v": 1, "type": "fsck", "records": report.counts, "faults": faults, "findings": rows}
        output.write(dump_line(plain(record)))
    counts = ", ".join(console.count(number, kind) for kind, number in sorted(report.counts.items()))
    console.say(f"{counts or 'no records'}; {console.count(faults, 'fault')}")
    return _cli.Tally(output.stop).code(output=output) or (NO if faults else 0)


def _mended(project: Project) -> Iterator[tuple[Finding, str]]:
    from libmachine.store import repair, share

    directory = project.store
    with ExitStack() as stack:

        def fetch() -> Objects | None:
            url = _git.runs_remote(project)
            if url is None:
                return None
            remote = share.remote_of(url, _git.transport())
            try:
                place = stack.enter_context(share.fetched(directory, remote, anew=True))
            except MachineError as error:
                console.say(f"warning: {error}")
                return None
            return Objects(place, fsync=False)

        wait = lambda: console.say("waiting for another keeper of this store")  # noqa: E731
        stack.enter_context(keep.keeper(directory, wait))
        yield from repair.repair(directory, env.get("MACHINE_FSYNC") != "0", fetch)


def _notes(project: Project) -> Iterator[Finding]:
    """Lines of the project's notes that no reader can use, and verdicts that are not what was stored."""
    try:
        repo = open_repository(project.root)
    except MachineError:
        return  # no repository, no notes
    tip = read_ref(repo, notes.REF)
    objects = Objects(project.store, fsync=False)
    for tree, lines in sorted(notes.all_lines(repo, tip).items()) if tip else ():
        for line in lines:
            records = notes.records_of([line])
            wrong = _wrong(records[0], tree, objects) if records else "no JSON object"
            if wrong:
                shown = console.cut(line.decode("utf-8", "replace"), 60)
                yield Finding(
                    "note-bad", f"note on version {tree}: {wrong}: {shown}", oid=tree, place=notes.REF
                )


def _wrong(record: Record, tree: str, objects: Objects) -> str | None:
    """Why a noted record is not what it says; None if nothing speaks against it."""
    if record.get("type") != "verdict":
        return None
    if record.get("candidate") != tree:
        return f"a verdict on version {str(record.get('candidate'))[:12]}"
    try:
        stored = fsck.parse(objects.read(str(record.get("id")))[1], record["id"], "verdict")
    except (KeyError, MachineError):
        return None  # another clone's: gates judge it by its figures
    # the list of the runs stays in the store
    if plain({**stored, "evidence": None}) != plain({**record, "evidence": None}):
        return "unlike the verdict that was stored"
    return None

"""Checking a store: every line of the log, every object it names, every id, the chains, the files around.

What is no record by the log is no record, whatever its bytes look like, and is no finding. Nothing is
changed, and writers may be at work: what they add meanwhile is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from libmachine.errors import MachineError
from libmachine.record import VERSIONS, is_unchanged, problems, upgrade
from libmachine.store import chain, fsck_files, keep, log
from libmachine.store.findings import Finding
from libmachine.store.objects import Objects, tree_entries

# What the log repeats of a record, so that lists need not open it. (A case's id is in the log alone.)
_REPEATED = {
    "run": ("machine", "version", "trial", "key", "status"),
    "scorecard": ("run", "machine", "rubric", "score", "passed"),
}


class Report:
    """What a check counted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.findings = 0


def check(directory: str, report: Report) -> Iterator[Finding]:
    """Findings of a store, as they are found."""
    for finding in _all(directory, report):
        report.findings += not finding.note
        yield finding


def _all(directory: str, report: Report) -> Iterator[Finding]:
    path = f"{directory}/records"
    objects = Objects(directory, fsync=False)
    yield from fsck_files.layout_of(directory)
    # Chains first: what is in one is in the log by now, and what was in the log then is in one.
    until = chain.chained(directory, path)
    chains, broken = _chains(directory, objects)
    yield from broken
    whole = set(chains) - {finding.place for finding in broken}
    known: set[str] = set()
    runs: set[str] = set()
    end = 0
    for offset, following, row in log.read(path):
        end = following
        if row is not None and isinstance(row.get("id"), str):
            known.add(row["id"])
        clean = True
        for finding in _row(row, objects, runs, report):
            clean = False
            yield finding._replace(at=offset)
        if row is not None and clean and offset < until and chain.has_place(row):
            machine = row["machine"]
            if machine not in chains or (machine in whole and row["id"] not in chains[machine]):
                text = f"{row['type']} {row['id']} hangs on no ref of {machine}"
                yield Finding("chain-lacks", text, offset, row["id"], place=machine)
    if end != log.size(path):
        yield Finding("log-torn-end", f"torn line at byte {end}", end)
    known |= keep.forgotten(directory)
    for machine, ids in chains.items():
        for oid in sorted(ids - known):
            yield Finding(
                "log-lacks", f"record {oid} of {machine} is in no line of the log", None, oid, None, machine
            )
    yield from fsck_files.files_of(directory)


def _chains(directory: str, objects: Objects) -> tuple[dict[str, set[str]], list[Finding]]:
    """Machine -> ids of the records on its chain; and what is wrong with chains."""
    chains: dict[str, set[str]] = {}
    broken = []
    for machine, tip in chain.machines(directory).items():
        ids = chains.setdefault(machine, set())
        try:
            for _, entries in chain.history(objects, tip):
                ids.update(chain.ids_of(entries))
                if chain.LINES in entries:
                    objects.read(entries[chain.LINES])
        except KeyError as error:
            text = f"the chain of {machine}: object {error.args[0]} is missing"
            broken.append(Finding("chain-broken", text, None, str(error.args[0]), None, machine))
        except (MachineError, ValueError, IndexError) as error:
            broken.append(Finding("chain-broken", f"the chain of {machine}: {error}", place=machine))
    return chains, broken


def _row(row: log.Row | None, objects: Objects, runs: set[str], report: Report) -> Iterator[Finding]:
    if row is None:
        yield Finding("log-torn", "no JSON object with a type")
        return
    if wrong := log.problem(row):
        yield Finding("log-shape", wrong)
        return
    kind = row["type"]
    if kind not in VERSIONS:
        yield Finding("log-type", f"unknown type '{kind}'")
        return
    report.counts[kind] = report.counts.get(kind, 0) + 1
    yield from judge(row, objects)
    if kind == "run":
        runs.add(row["id"])
    elif kind == "scorecard" and row["run"] not in runs:
        text = (
            f"scorecard {row['id'][:12]} is of run {row['run'][:12]}, which the log does not have before it"
        )
        yield Finding("run-unknown", text, oid=row["id"])


def judge(row: log.Row, objects: Objects) -> Iterator[Finding]:
    """What is wrong with a record that a row names, whose type we know, and with what belongs to it."""
    kind = row["type"]
    yield from _record(kind, row, objects)
    for part, oid in (row.get("parts") or {}).items():
        yield from _part(f"{part} of {kind} {row['id'][:12]}", oid, objects, part)


def _part(what: str, oid: Any, objects: Objects, part: str) -> Iterator[Finding]:
    try:
        kind, data = objects.read(str(oid))
    except KeyError:
        yield Finding("workspace-dangling", f"{what}: object {oid} is missing", oid=oid, part=part)
        return
    except MachineError as error:
        yield Finding("object-damaged", f"{what}: {error}", oid=oid, part=part)
        return
    for name, inner in tree_entries(data) if kind == "tree" else ():
        yield from _part(f"{what}, '{name}'", inner, objects, part)


def _record(kind: str, row: log.Row, objects: Objects) -> Iterator[Finding]:
    oid = row["id"]
    try:
        data = objects.read(oid)[1]
    except KeyError:
        yield Finding("object-missing", f"{kind} {oid}: object is missing", oid=oid)
        return
    except MachineError as error:
        yield Finding("object-damaged", f"{kind} {oid}: {error}", oid=oid)
        return
    try:
        record = parse(data, oid, kind)
    except MachineError as error:
        yield Finding("record-bad", f"{kind} {oid}: no record ({error})", oid=oid)
        return
    # case.id is no stored field: it comes from the log
    if kind == "run" and isinstance(record.get("case"), dict):
        record["case"]["id"] = row["case_id"]
    for problem in problems(kind, record):
        yield Finding("record-bad", f"{kind} {oid}: {problem}", oid=oid)
        return
    if not is_unchanged(record):
        text = f"{kind} {oid}: its bytes are not canonical, or it has fields that no record has"
        yield Finding("record-forged", text, oid=oid)
    for name in _REPEATED.get(kind, ("machine",)):
        if row[name] != record[name]:
            text = f"{kind} {oid}: the log has {name} {row[name]!r}, the record {record[name]!r}"
            yield Finding("log-differs", text, oid=oid)
    if kind == "run" and row["identity"] != record["case"]["identity"]:
        yield Finding("log-differs", f"run {oid}: the log has another identity of its case", oid=oid)


def parse(data: bytes, oid: str, kind: str) -> dict[str, Any]:
    """The record of a kind that bytes hold, in today's version. Raises MachineError if they hold none."""
    try:
        record: dict[str, Any] = {**orjson.loads(data), "id": oid}
    except (orjson.JSONDecodeError, TypeError) as error:
        raise MachineError(str(error)) from None
    if record.get("type") != kind:
        raise MachineError(f"its type is {record.get('type')!r}")
    return record if record.get("v") == VERSIONS[kind] else upgrade(record, kind)

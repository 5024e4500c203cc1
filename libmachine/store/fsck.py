"""Checking a store: every line of the log, every object it names, every id.

What is no record by the log is no record, whatever its bytes look like, and is no finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import orjson

from libmachine.errors import MachineError
from libmachine.record import VERSIONS, is_unchanged, problems, upgrade
from libmachine.store import log
from libmachine.store.objects import Objects, tree_entries

# What the log repeats of a record, so that lists need not open it. (A case's id is in the log alone.)
_REPEATED = {
    "run": ("machine", "version", "trial", "key", "status"),
    "scorecard": ("run", "machine", "rubric", "score", "passed"),
}


class Report:
    """What a check counted. findings are one line each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.findings = 0


def check(directory: str, report: Report) -> Iterator[str]:
    """Findings of a store, as they are found."""
    path = f"{directory}/records"
    objects = Objects(directory, fsync=False)
    runs: set[str] = set()
    end = 0
    for offset, following, row in log.read(path):
        end = following
        for finding in _row(row, objects, runs, report):
            report.findings += 1
            yield f"log line at byte {offset}: {finding}"
    if end != log.size(path):
        report.findings += 1
        yield f"log: torn line at byte {end}; the next write cuts it off"
    for name in os.listdir(f"{directory}/tmp") if os.path.isdir(f"{directory}/tmp") else ():
        yield f"note: unfinished write 'tmp/{name}'; the next run sweeps it"


def _row(row: log.Row | None, objects: Objects, runs: set[str], report: Report) -> Iterator[str]:
    if row is None:
        yield "no JSON object with a type"
        return
    if wrong := log.problem(row):
        yield wrong
        return
    kind = row["type"]
    if kind not in VERSIONS:
        yield f"unknown type '{kind}'"
        return
    report.counts[kind] = report.counts.get(kind, 0) + 1
    yield from _record(kind, row, objects)
    if kind == "run":
        runs.add(row["id"])
        for part, oid in row["parts"].items():
            yield from _object(f"{part} of run {row['id'][:12]}", oid, objects)
    elif kind == "scorecard" and row["run"] not in runs:
        yield f"scorecard {row['id'][:12]} is of run {row['run'][:12]}, which the log does not have before it"


def _object(what: str, oid: str, objects: Objects) -> Iterator[str]:
    try:
        kind, data = objects.read(oid)
    except KeyError:
        yield f"{what}: object {oid} is missing"
        return
    except MachineError as error:
        yield f"{what}: {error}"
        return
    for name, inner in tree_entries(data) if kind == "tree" else ():
        yield from _object(f"{what}, '{name}'", inner, objects)


def _record(kind: str, row: log.Row, objects: Objects) -> Iterator[str]:
    oid = row["id"]
    try:
        data = objects.read(oid)[1]
    except KeyError:
        yield f"{kind} {oid}: object is missing"
        return
    except MachineError as error:
        yield f"{kind} {oid}: {error}"
        return
    try:
        record = {**orjson.loads(data), "id": oid}
        if record.get("type") != kind:
            raise MachineError(f"its type is {record.get('type')!r}")
        if record.get("v") != VERSIONS[kind]:
            record = upgrade(record, kind)
    except (orjson.JSONDecodeError, TypeError, MachineError) as error:
        yield f"{kind} {oid}: no record ({error})"
        return
    # case.id is no stored field: it comes from the log
    if kind == "run" and isinstance(record.get("case"), dict):
        record["case"]["id"] = row["case_id"]
    for problem in problems(kind, record):
        yield f"{kind} {oid}: {problem}"
        return
    if not is_unchanged(record):
        yield f"{kind} {oid}: its bytes are not canonical, or it has fields that no record has"
    for name in _REPEATED.get(kind, ("machine",)):
        if row[name] != record[name]:
            yield f"{kind} {oid}: the log has {name} {row[name]!r}, the record {record[name]!r}"
    if kind == "run" and row["identity"] != record["case"]["identity"]:
        yield f"run {oid}: the log has another identity of its case"

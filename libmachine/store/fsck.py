"""Checking a store: every line of the log, every object it names, every id.

What is no record by the log is no record, whatever its bytes look like, and is no finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import orjson

from libmachine.errors import MachineError
from libmachine.record import VERSIONS, is_unchanged, problems, upgrade
from libmachine.store import log
from libmachine.store.objects import Objects

_ROW_FIELDS = {
    "run": ("id", "machine", "version", "identity", "case_id", "trial", "base", "key", "status", "parts"),
    "scorecard": ("id", "run", "machine", "rubric", "score", "passed"),
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


def _row(row: dict[str, Any] | None, objects: Objects, runs: set[str], report: Report) -> Iterator[str]:
    if row is None:
        yield "no JSON object with a type"
        return
    kind = row["type"]
    if kind not in _ROW_FIELDS:
        yield f"unknown type '{kind}'"
        return
    missing = [name for name in _ROW_FIELDS[kind] if name not in row]
    if missing:
        yield f"{kind} row has no '{missing[0]}'"
        return
    report.counts[kind] = report.counts.get(kind, 0) + 1
    yield from _record(kind, row, objects)
    if kind == "run":
        runs.add(row["id"])
        for part, oid in row["parts"].items():
            yield from _object(f"{part} of run {row['id'][:12]}", oid, objects)
    elif row["run"] not in runs:
        yield f"scorecard {row['id'][:12]} is of run {row['run'][:12]}, which the log does not have before it"


def _object(what: str, oid: str, objects: Objects) -> Iterator[str]:
    try:
        objects.read(oid)
    except KeyError:
        yield f"{what}: object {oid} is missing"
    except MachineError as error:
        yield f"{what}: {error}"


def _record(kind: str, row: dict[str, Any], objects: Objects) -> Iterator[str]:
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

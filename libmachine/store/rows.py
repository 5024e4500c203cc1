"""Rows of the log, from records: what the log repeats of each, and what it alone knows."""

from __future__ import annotations

from typing import Any

from libmachine.canon import Record
from libmachine.store.log import Row

PERSON = "person:"
"""What the grader of a person's mark begins with; a mark is never a run's newest scorecard."""


def of_run(run: Record, oid: str, base: str, parts: dict[str, str], given: dict[str, Any]) -> Row:
    """The row of a run. base: the key without its trial. given: the case's target and metadata, if small."""
    return {
        "type": "run",
        "id": oid,
        "machine": run["machine"],
        "version": run["version"],
        "identity": run["case"]["identity"],
        "case_id": run["case"]["id"],
        "trial": run["trial"],
        "base": base,
        "key": run["key"],
        "status": run["status"],
        "model": run["model"],
        "started_at": run["started_at"],
        "cost_usd": run["usage"]["cost_usd"],
        "parts": parts,
        "given": given,
    }


def of_scorecard(card: Record, oid: str) -> Row:
    """The row of a scorecard."""
    row: Row = {"type": "scorecard", "id": oid}
    row |= {name: card[name] for name in ("run", "machine", "rubric", "score", "passed")}
    row["cost_usd"] = card["usage"]["cost_usd"]
    if any(grade["grader"].startswith(PERSON) for grade in card["grades"]):
        row["person"] = True
    return row


def of_record(record: Record, oid: str, parts: dict[str, str]) -> Row:
    """The row of a record of another type."""
    return {"type": record["type"], "id": oid, "machine": record["machine"], "parts": parts}


def again(record: Record, row: Row) -> Row:
    """A row with what it repeats of its record as the record has it."""
    oid, parts = row["id"], row.get("parts") or {}
    if record["type"] == "run":
        made = of_run(
            {**record, "case": {**record["case"], "id": row["case_id"]}},
            oid,
            row["base"],
            parts,
            row["given"],
        )
    elif record["type"] == "scorecard":
        made = of_scorecard(record, oid)
    else:
        made = of_record(record, oid, parts)
    return {**row, **made}


def bare(record: Record, oid: str, parts: dict[str, str]) -> Row:
    """The row of a record whose own is lost: a case is called by its identity, its target is unknown."""
    if record["type"] == "run":
        name = record["case"]["identity"][:12]
        return of_run({**record, "case": {**record["case"], "id": name}}, oid, record["key"], parts, {})
    if record["type"] == "scorecard":
        return of_scorecard(record, oid)
    return of_record(record, oid, parts)

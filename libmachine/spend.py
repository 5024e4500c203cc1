"""Summing what was spent: rows of a store's permanent account in, one line a group out.

A row counts when its call is settled. What a dead process held back counts in full, as lost;
what a live one holds back does not count yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from libmachine.budget.book import Row, amount_of
from libmachine.budget.holder import is_alive
from libmachine.budget.ledger import TOKENS
from libmachine.canon import Record
from libmachine.store import log

GROUPS = ("machine", "model", "day", "verb", "kind")


def rows(path: str) -> Iterator[Row]:
    """What was spent, by the file of an account: settled rows, then those that were lost (`lost: true`).

    No file is no row. A line that is no row is passed over.
    """
    held: dict[str, Row] = {}
    for _, _, row in log.read(path):
        if row is None:
            continue
        oid = str(row.get("id"))
        if row["type"] == "reserve":
            held[oid] = row
        elif row["type"] in ("settle", "release"):
            held.pop(oid, None)
        if row["type"] == "settle":
            yield row
    for row in held.values():
        if not is_alive(row):
            yield {**row, "lost": True}


def sums(found: Iterable[Row], by: str, since: str | None = None) -> list[Record]:
    """One `spend` record a group, the dearest first (days in order).

    by: one of GROUPS; a day is a UTC day. since: a time as records write it; earlier rows are left out.
    """
    groups: dict[str, Record] = {}
    for row in found:
        at = str(row.get("at") or "")
        if since is not None and at < since:
            continue
        name = at[:10] if by == "day" else str(row.get(by) or "-")
        _add(groups.setdefault(name, _empty(by, name)), row)
    order = sorted(groups.values(), key=lambda group: (-group["usd"], group["name"]))
    if by == "day":
        order.sort(key=lambda group: str(group["name"]))
    return [{**group, "usd": group["usd"] / 1e6} for group in order]


def total(groups: Iterable[Record]) -> Record:
    """The sum of groups, as one more record."""
    whole = _empty("all", "total")
    micro = 0
    for group in groups:
        micro += round(group["usd"] * 1e6)
        for name in ("calls", "unknown", "lost", "estimated", *TOKENS):
            if group[name] is not None:
                whole[name] = (whole[name] or 0) + group[name]
    return {**whole, "usd": micro / 1e6}


def _empty(by: str, name: str) -> Record:
    counts: dict[str, Any] = {"calls": 0, "unknown": 0, "estimated": 0, "lost": 0, "usd": 0}
    return {"v": 1, "type": "spend", "by": by, "name": name, **counts, **dict.fromkeys(TOKENS)}


def _add(group: Record, row: Row) -> None:
    """Count a row. usd: in microdollars until all are counted, so that nothing is rounded away."""
    amount = amount_of(row)
    group["calls"] += 1
    group["unknown"] += amount is None
    group["estimated"] += bool(row.get("estimated"))
    group["lost"] += bool(row.get("lost"))
    group["usd"] += amount or 0
    for name in TOKENS:
        count = row.get(name)
        if isinstance(count, int):
            group[name] = (group[name] or 0) + count

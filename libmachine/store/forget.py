"""machine-forget: a record removed as if it had never been, but for its id.

What goes with it: its scorecards, and what belongs to them and to nobody else. From the log, the
chains, the index, the packs, what was set aside; and whatever lies in the store unreferenced and
names it: commits of earlier chains, a scorecard that no line of the log has.

`forgetting` says what is to be done, and is the point of no return: whoever keeps the store next
finishes it. Nobody may write meanwhile, as a writer takes an object that is there for stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from libmachine.canon import now
from libmachine.errors import MachineError
from libmachine.store import chain, disk, keep, layout, log, packs, ref
from libmachine.store.objects import Objects, tree_entries

KEPT = ("verdict", "candidate")
"""Types that say why a version went live or where it came from: what they rest on is not lightly removed."""
_NAMING = ("verdict", "candidate", "comparison", "suite", "agreement")


class Plan(NamedTuple):
    """What is to be removed. records: id -> type. objects: ids of these and of what is theirs alone.
    machines: whose chains change. named: (type, id) of the records that name a removed one."""

    records: dict[str, str]
    objects: list[str]
    machines: list[str]
    named: list[tuple[str, str]]


def plan(directory: str, ids: Iterable[str]) -> Plan:
    """What forgetting records removes. Changes nothing. Raises MachineError for an id that is in no line."""
    objects = Objects(directory, fsync=False)
    wanted = set(ids)
    records: dict[str, str] = {}
    machines: set[str] = set()
    for row in _rows(directory):
        if row["id"] in wanted or (row["type"] == "scorecard" and row["run"] in wanted):
            records[row["id"]] = row["type"]
            machines.add(row["machine"])
    if missing := wanted - records.keys():
        raise MachineError(f"no record '{min(missing)}' in this store; machine-runs lists the runs")
    own: set[str] = set()
    for row in _rows(directory):
        if row["id"] in records:
            own |= _of_row(row, objects)
    named = []
    for row in _rows(directory):  # what another record has too stays
        if row["id"] in records:
            continue
        own -= _of_row(row, objects)
        if row["type"] in _NAMING and _names(objects, row["id"], records):
            named.append((row["type"], row["id"]))
    return Plan(records, sorted(own), sorted(machines), named)


def forget(
    directory: str, fsync: bool, planned: Callable[[], Plan], who: str, say: Callable[[str], object]
) -> Plan:
    """Remove what `planned` says, as the keeper; nobody writes meanwhile. who: for the tombstone."""
    with (
        keep.keeper(directory, lambda: say("waiting for another keeper of this store")),
        keep.alone(directory, lambda: say("waiting for the commands that write into this store")),
    ):
        finish(directory, fsync, locked=True)
        wanted = planned()
        rows = [{"id": oid, "type": kind, "at": now(), "by": who} for oid, kind in wanted.records.items()]
        told = {"records": list(wanted.records), "objects": wanted.objects, "machines": wanted.machines}
        data = orjson.dumps({**told, "tombstones": rows}, option=orjson.OPT_APPEND_NEWLINE)
        disk.put(f"{directory}/forgetting", data, 0o600, fsync, lambda: layout.temporary(directory))
        finish(directory, fsync, locked=True)
        return wanted


def finish(directory: str, fsync: bool, locked: bool = False) -> None:
    """Do what a machine-forget that was cut off has still to do, as the keeper. Waits for writers."""
    under_way = keep.forgetting(directory)
    if under_way is None:
        return
    if not locked:
        with keep.alone(directory):
            finish(directory, fsync, locked=True)
        return
    known = keep.forgotten(directory)
    if rows := [row for row in under_way["tombstones"] if row["id"] not in known]:
        log.append(f"{directory}/forgotten", rows, fsync)
    gone = set(under_way["records"])
    _from_log(directory, gone, fsync)
    objects = Objects(directory, fsync)
    chain.rebuild(directory, objects, f"{directory}/records", _there(directory, under_way["machines"]), fsync)
    keep.drop_index(directory)
    _from_aside(directory, gone | set(under_way["objects"]), fsync)
    _from_reflogs(directory)
    _from_objects(directory, gone, set(under_way["objects"]), fsync)
    disk.unlink(f"{directory}/forgetting")


def _there(directory: str, machines: Iterable[str]) -> set[str]:
    chains = chain.machines(directory)
    return {machine for machine in machines if machine in chains}


def _rows(directory: str) -> Iterator[log.Row]:
    for _, _, row in log.read(f"{directory}/records"):
        if row is not None and log.problem(row) is None:
            yield row


def _of_row(row: log.Row, objects: Objects) -> set[str]:
    """Ids of the objects that a row of the log needs."""
    found = {row["id"]}
    waiting = [oid for oid in (row.get("parts") or {}).values() if isinstance(oid, str)]
    while waiting:
        oid = waiting.pop()
        if oid in found:
            continue
        found.add(oid)
        try:
            kind, data = objects.read(oid)
        except (KeyError, MachineError):
            continue
        if kind == "tree":
            waiting += [inner for _, inner in tree_entries(data)]
    return found


def _names(objects: Objects, oid: str, ids: Iterable[str]) -> bool:
    try:
        data = objects.read(oid)[1]
    except (KeyError, MachineError):
        return False
    return any(other.encode() in data for other in ids)


def _from_log(directory: str, gone: set[str], fsync: bool) -> None:
    path = f"{directory}/records"
    lines: list[tuple[int | None, bytes]] = []
    end, found = 0, False
    with open(path, "rb") as file:
        for offset, end, row in log.read(path):
            file.seek(offset)
            line = file.read(end - offset)
            if _is_of(line, row, gone):
                found = True
            else:
                lines.append((offset, line))
    if found or end != log.size(path):
        keep.rewrite_log(directory, lines, end, fsync)


def _is_of(line: bytes, row: log.Row | None, gone: set[str]) -> bool:
    """Is a line one of a record that goes, or a torn one of it?"""
    if row is not None and isinstance(row.get("id"), str) and len(row["id"]) == 40:
        return row["id"] in gone
    return any(oid.encode() in line for oid in gone)


def _from_aside(directory: str, gone: set[str], fsync: bool) -> None:
    path = f"{directory}/aside/records"
    rows = keep.read_lines(path)
    kept = [row for row in rows if not any(oid in orjson.dumps(row).decode() for oid in gone)]
    if len(kept) < len(rows):
        data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in kept)
        disk.put(path, data, 0o600, fsync, lambda: layout.temporary(directory))
    folder = f"{directory}/aside"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        # of a pack that is damaged nobody can say what it holds
        if name in gone or name.startswith("pack-"):
            disk.unlink(f"{folder}/{name}")


def _from_reflogs(directory: str) -> None:
    for here, _, names in os.walk(f"{directory}/logs/refs/runs"):
        for name in names:
            disk.unlink(f"{here}/{name}")


def _from_objects(directory: str, gone: set[str], objects: set[str], fsync: bool) -> None:
    """Remove objects, loose and packed, and those that nobody needs and that name a removed record."""
    for path in packs.finish_half(directory):
        disk.unlink(path)
    store = Objects(directory, fsync)
    packed = {pack: packs.ids(pack) for pack in packs.packs(directory)}
    there = {*packs.loose(directory), *(oid for ids in packed.values() for oid in ids)}
    doomed = (objects | _stray(directory, store, there, gone)) & there
    for pack, ids in packed.items():
        if doomed.isdisjoint(ids):
            continue
        kept = [(oid, "") for oid in ids if oid not in doomed]
        made = packs.write(directory, directory, kept, fsync)
        if made != pack:
            packs.remove(pack)
    packs.remove_loose(directory, sorted(doomed))


def _stray(directory: str, store: Objects, there: set[str], gone: set[str]) -> set[str]:
    """Ids of the objects that name a record that goes and that neither the log nor a chain needs."""
    needed: set[str] = set()
    for row in _rows(directory):
        needed |= _of_row(row, store)
    for tip in chain.machines(directory).values():
        needed |= _of_chain(store, tip, lines=True)
    # What came from a remote, and went there, goes on from its commits; the lines they hold do not.
    for tip in ref.under(directory, "refs/runs-remotes/").values():
        needed |= _of_chain(store, tip, lines=False)
    text = [oid.encode() for oid in gone]
    raw = [bytes.fromhex(oid) for oid in gone]
    found: set[str] = set()
    commits: dict[str, bytes] = {}
    for oid in there - needed:
        try:
            kind, data = store.read(oid)
        except (KeyError, MachineError):
            continue
        if kind == "commit":
            commits[oid] = data
        elif any(name in data for name in [*text, *(raw if kind == "tree" else ())]):
            found.add(oid)
    growing = True
    while growing:
        marks = [oid.encode() for oid in found]
        more = {
            oid for oid, data in commits.items() if oid not in found and any(mark in data for mark in marks)
        }
        found |= more
        growing = bool(more)
    return found


def _of_chain(store: Objects, tip: str, lines: bool) -> set[str]:
    found: set[str] = set()
    try:
        for oid, entries in chain.history(store, tip):
            tree = store.read(oid)[1].split(b"\n", 1)[0].split(b" ")[1].decode()
            found |= {oid, tree}
            if lines and chain.LINES in entries:
                found.add(entries[chain.LINES])
    except (KeyError, MachineError):
        pass
    return found


def summary(wanted: Plan) -> dict[str, Any]:
    """A plan as a record."""
    counts: dict[str, int] = {}
    for kind in wanted.records.values():
        counts[kind] = counts.get(kind, 0) + 1
    return {
        "v": 1,
        "type": "forget",
        "records": list(wanted.records),
        "counts": counts,
        "objects": len(wanted.objects),
        "named_by": [{"type": kind, "id": oid} for kind, oid in wanted.named],
    }

"""machine-sync --runs: records to and from a git remote, without loss, whatever each side does meanwhile.

The remote's refs/runs/NAME/-/chain are what all clones share; ours are this store's alone, so that
folding and forgetting here never meet what is there. What is fetched lies in a repository of its own
under tmp/ until each record is judged; then the good ones come into the store and the log. What the
remote lacks goes there as commits on top of its own: a push never forces, and starts again from what
another clone has put there meanwhile.

    refs/runs-remotes/REMOTE/NAME/-/chain   what of the remote was taken in
    shared                                  for each remote, how far the log went there

The bytes of a record that was refused or forgotten here do not come in, nor the lines that tell of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from libmachine.errors import MachineError
from libmachine.git import plumb
from libmachine.git.sync import TRANSPORT, beside_of
from libmachine.record import VERSIONS
from libmachine.store import chain, forget, fsck, keep, layout, log, packs, ref
from libmachine.store.objects import Objects, tree_entries
from libmachine.store.share_push import Remote, push, tracking

_ATTEMPTS = 10
_SPECS = ("+refs/runs/*/-/chain:refs/runs/*/-/chain",)


class Refused(NamedTuple):
    """A record that came and was not taken in."""

    oid: str
    machine: str
    why: str


class Shared:
    """What a sync moved: type -> number, each way; and what it did not take in."""

    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.went: dict[str, int] = {}
        self.refused: list[Refused] = []
        self.forgotten = 0
        self.attempts = 0


def remote_of(url: str, extra: Mapping[str, str]) -> Remote:
    """The remote at a URL or path."""
    return Remote(beside_of(url), url, extra)


def share(directory: str, remote: Remote, fsync: bool) -> Shared:
    """Bring a store and a remote to the same records.

    Raises MachineError if the remote cannot be reached or refuses, or moves faster than we try.
    """
    shared = Shared()
    with keep.keeper(directory):
        forget.finish(directory, fsync)
        layout.sweep(directory)
        for attempt in range(1, _ATTEMPTS + 1):
            shared.attempts = attempt
            with fetched(directory, remote) as place:
                theirs = _take_in(directory, place, remote, shared, fsync)
            if push(directory, remote, theirs, shared.went, fsync):
                return shared
    raise MachineError(f"'{remote.shown}' moved on at each of {_ATTEMPTS} attempts; try again")


@contextmanager
def fetched(directory: str, remote: Remote, anew: bool = False) -> Iterator[str]:
    """A repository under tmp/ with the remote's chains. anew: with all they hold, also what is here."""
    place = layout.temporary(directory)
    os.mkdir(place, 0o700)
    try:
        for folder in ("objects/info", "objects/pack", "refs"):
            os.makedirs(f"{place}/{folder}", 0o700)
        _write(f"{place}/HEAD", "ref: refs/heads/none\n")
        _write(f"{place}/config", "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n")
        if not anew:
            _write(f"{place}/objects/info/alternates", f"{os.path.abspath(directory)}/objects\n")
            known = _known(directory, remote)
            _write(f"{place}/packed-refs", "".join(f"{oid} {name}\n" for name, oid in sorted(known.items())))
        words = ["--no-tags", "--refmap=", "--no-write-fetch-head", "--no-recurse-submodules", "--quiet"]
        words += ["--no-auto-maintenance", "--upload-pack=git-upload-pack"]
        done = plumb.run(
            place, "--git-dir=.", *TRANSPORT, "fetch", *words, "--", remote.url, *_SPECS, extra=remote.extra
        )
        if done.code:
            raise MachineError(f"cannot fetch runs from '{remote.shown}': {done.reason()}")
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _known(directory: str, remote: Remote) -> dict[str, str]:
    """Ref -> commit of what was taken in of a remote."""
    objects = Objects(directory, fsync=False)
    found = ref.under(directory, f"refs/runs-remotes/{remote.name}/")
    return {name: oid for name, oid in found.items() if objects.exists(oid)}


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# taking in ------------------------------------------------------------------------------


class _Arrival:
    """What is new on the remote, sorted into what is taken in and what is not."""

    def __init__(self) -> None:
        self.rows: list[log.Row] = []
        self.needed: set[str] = set()  # objects of what is taken in
        self.barred: set[str] = set()  # objects of what is not


def _take_in(directory: str, place: str, remote: Remote, shared: Shared, fsync: bool) -> dict[str, str]:
    """Take in what is new; machine -> commit that the remote has."""
    objects = Objects(place, fsync=False)
    theirs = {machine: tip for machine, tip in chain.machines(place).items() if _is_name(machine)}
    known = _known(directory, remote)
    here = _ids(f"{directory}/records")
    forgotten = keep.forgotten(directory)
    arrival = _Arrival()
    for machine, tip in theirs.items():
        try:
            history = list(chain.history(objects, tip, known.values()))
        except (KeyError, ValueError, IndexError, MachineError) as error:
            raise MachineError(f"'{remote.shown}' has no chain at {chain.ref_of(machine)}: {error}") from None
        for _, entries in reversed(history):
            _sort(machine, entries, objects, here, forgotten, arrival, shared)
    new = [oid for oid in _all(place) if oid not in arrival.barred - arrival.needed]
    if new:
        packs.write(directory, place, [(oid, "") for oid in new], fsync)
    for start in range(0, len(arrival.rows), 1000):
        log.append(f"{directory}/records", arrival.rows[start : start + 1000], fsync)
    for row in arrival.rows:
        shared.came[row["type"]] = shared.came.get(row["type"], 0) + 1
    if arrival.rows:
        chain.extend(directory, Objects(directory, fsync), f"{directory}/records", fsync)
    with chain.locked(directory):
        for machine, tip in theirs.items():
            name = tracking(remote.name, machine)
            if known.get(name) != tip:
                ref.write(directory, name, tip, fsync)
    return theirs


def _is_name(machine: str) -> bool:
    try:
        return bool(chain.ref_of(machine))
    except MachineError:
        return False


def _ids(path: str) -> dict[str, str]:
    """Id -> type of the records that the log has."""
    return {row["id"]: row["type"] for _, _, row in log.read(path) if row and log.problem(row) is None}


def _all(place: str) -> list[str]:
    return [*packs.loose(place), *(oid for pack in packs.packs(place) for oid in packs.ids(pack))]


def _sort(
    machine: str,
    entries: dict[str, str],
    objects: Objects,
    here: dict[str, str],
    forgotten: set[str],
    arrival: _Arrival,
    shared: Shared,
) -> None:
    """Judge the records of one commit."""
    try:
        rows = {row["id"]: row for row in chain.rows_of(objects, entries)}
    except (KeyError, MachineError):
        rows = {}
    clean = True
    for oid in [*rows, *(oid for oid in chain.ids_of(entries) if oid not in rows)]:
        if oid in here:
            arrival.needed |= {oid, *_parts(oid, entries, objects)}
            continue
        row = rows.get(oid)
        why = _problem(machine, row, objects, here)
        if oid in forgotten or (row is not None and row.get("run") in forgotten):
            shared.forgotten += 1
        elif why is not None:
            shared.refused.append(Refused(oid, machine, why))
        elif row is not None:
            arrival.rows.append(row)
            here[oid] = row["type"]
            arrival.needed |= {oid, *_parts(oid, entries, objects)}
            continue
        clean = False
        arrival.barred |= {oid, *_parts(oid, entries, objects)}
    if not clean and chain.LINES in entries:
        arrival.barred.add(entries[chain.LINES])


def _problem(machine: str, row: log.Row | None, objects: Objects, here: Mapping[str, str]) -> str | None:
    """Why a record cannot be taken in; None if it can."""
    if row is None:
        return "no line of a log comes with it"
    if row["type"] not in VERSIONS:
        return f"unknown type '{row['type']}'; update this program"
    if row["machine"] != machine:
        return f"it says it is of {row['machine']}"
    if row["type"] == "scorecard" and here.get(row["run"]) != "run":
        return f"it is of run {row['run'][:12]}, which is not here"
    return next((finding.text for finding in fsck.judge(row, objects)), None)


def _parts(oid: str, entries: Mapping[str, str], objects: Objects) -> set[str]:
    """Ids of the objects that belong to a record of a commit."""
    begin = f"{oid}."
    waiting = [part for name, part in entries.items() if name.startswith(begin)]
    found: set[str] = set()
    while waiting:
        part = waiting.pop()
        if part in found:
            continue
        found.add(part)
        try:
            kind, data = objects.read(part)
        except (KeyError, MachineError):
            continue
        if kind == "tree":
            waiting += [inner for _, inner in tree_entries(data)]
    return found


def counts(shared: Shared) -> dict[str, Any]:
    """What a sync moved, as a record."""

    def of(moved: Mapping[str, int]) -> dict[str, int]:
        others = sum(number for kind, number in moved.items() if kind not in ("run", "scorecard"))
        return {"runs": moved.get("run", 0), "scorecards": moved.get("scorecard", 0), "others": others}

    row: dict[str, Any] = {f"{name}_in": number for name, number in of(shared.came).items()}
    row |= {f"{name}_out": number for name, number in of(shared.went).items()}
    return row | {"refused": len(shared.refused), "forgotten": shared.forgotten, "attempts": shared.attempts}

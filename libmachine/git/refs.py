"""Versions, candidates and promotions as refs of the project's repository.

    refs/machine/NAME/-/v/3            -> commit of ours holding that version's tree
    refs/machine/NAME/-/candidate/ID   -> commit of ours holding candidate.json and its files
    refs/machine/NAME/-/live           -> log of promotions, one commit each

The `-` keeps a machine's refs apart from those of its children. Numbers are labels of this clone; the
same content has the same number. Everything is moved under one lock and by compare-and-swap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from libmachine.canon import Record, canonical, loads
from libmachine.errors import MachineError
from libmachine.git import objects, trees
from libmachine.git.objects import Entry
from libmachine.git.place import VERSIONED, Place
from libmachine.git.repository import (
    OID,
    Repository,
    check_name,
    list_refs,
    locked,
    move,
    read_ref,
    resolve,
)
from libmachine.githash import tree_id

_TRIES = 20
_NUMBER = re.compile(r"[1-9][0-9]*")


class Numbered(NamedTuple):
    """A recorded version: its number here, its tree (the version id), our commit, when (ISO 8601 UTC)."""

    number: int
    tree: str
    commit: str
    when: str


class Stored(NamedTuple):
    """A stored candidate: its id, our commit, when (ISO 8601 UTC)."""

    id: str
    commit: str
    when: str


class Promotion(NamedTuple):
    """One promotion: our commit, the version it made live, when (ISO 8601 UTC), message with trailers."""

    commit: str
    tree: str
    when: str
    message: str


def place_of(name: str) -> str:
    """Where the refs of a machine are, with a slash at the end. Raises MachineError for a bad name."""
    check_name(name)
    return f"refs/machine/{name}/-/"


# versions -------------------------------------------------------------------------------


def versions(repo: Repository, name: str) -> list[Numbered]:
    """The recorded versions of a machine, in the order of their numbers; none if it has none."""
    where = f"{place_of(name)}v/"
    found = []
    for ref in list_refs(repo, where):
        number = ref.name[len(where) :]
        if _NUMBER.fullmatch(number) and ref.tree:
            found.append(Numbered(int(number), ref.tree, ref.oid, ref.when))
    return sorted(found)


def number_of(repo: Repository, name: str, tree: str) -> int | None:
    """The number of a version by its content, None if it is not recorded."""
    return next((version.number for version in versions(repo, name) if version.tree == tree), None)


def record_version(repo: Repository, name: str, source: Place | Sequence[Entry]) -> int:
    """Record a machine's version as a place has it, or as entries of its tree; its number, 1 for the first.

    A version that is recorded keeps its number and nothing is written. The ref also keeps the tree
    alive, so notes on it come after this. Raises MachineError, Untestable as the place does.
    """
    chain = source.version_trees(name) if isinstance(source, Place) else [list(source)]
    tree = tree_id(chain[-1])
    known = number_of(repo, name, tree)
    if known is not None:
        return known
    if isinstance(source, Place):
        _write_blobs(repo, name, source)
    if objects.write_trees(repo, chain)[-1] != tree:
        raise MachineError(f"version of '{name}' changed while it was recorded; try again")
    with locked(repo):
        return _number(repo, name, tree)


def _write_blobs(repo: Repository, name: str, place: Place) -> None:
    paths = [f"{place.prefix}/{member}/{file}" for member in place.family(name) for file in VERSIONED]
    ids = {path: oid for path in paths if (oid := place.oid(path)) is not None}
    absent = [path for path, oid in zip(ids, repo.find(list(ids.values())), strict=True) if oid is None]
    objects.write_blobs(repo, list(place.read_many(absent).values()))


def _number(repo: Repository, name: str, tree: str) -> int:
    made = objects.write_commit(repo, tree, [], f"version of {name}\n")
    for _ in range(_TRIES):
        known = versions(repo, name)
        for version in known:
            if version.tree == tree:
                return version.number
        number = known[-1].number + 1 if known else 1
        if move(repo, f"{place_of(name)}v/{number}", made, None, "machine: version"):
            return number
    raise MachineError(f"the versions of '{name}' keep changing; try again")


def version_files(repo: Repository, tree: str) -> dict[str, bytes]:
    """The files of a version: `instructions.md`, `parent/model.json`, ... -> bytes. Raises MachineError."""
    listed = repo.ask("ls-tree", "-r", "-z", tree).decode("utf-8", "surrogateescape")
    rows = [row.partition("\t") for row in listed.split("\0") if row]
    found = repo.objects([about.split(" ")[2] for about, _, _ in rows])
    files = {path: blob.data for (_, _, path), blob in zip(rows, found, strict=True) if blob}
    _check_paths(files)
    if len(files) != len(rows):
        raise MachineError(f"version {tree[:12]} is not whole in this repository; machine-sync fetches it")
    return files


def _check_paths(files: Mapping[str, bytes]) -> None:
    for path in files:
        parts = path.lower().split("/")
        if any(part in ("", ".", "..", ".git") or "\0" in part or "\n" in part for part in parts):
            raise MachineError(f"'{path}' is no name a stored file may have; store it under another")


class Named(NamedTuple):
    """What `NAME@...` means: the machine, its version's tree, and the place that has it, if one has."""

    name: str
    tree: str
    place: Place | None


def named(repo: Repository, spec: str) -> Named:
    """`NAME@v3` a recorded version, `NAME@` the work tree, `NAME@COMMITISH` a commit, `NAME@VERSION` an id.

    A number comes before a tag of that name (write refs/tags/v3). Raises MachineError, Untestable.
    """
    name, at, which = spec.partition("@")
    check_name(name)
    if not at:
        raise MachineError(f"'{spec}' names no version; write {name}@v3, {name}@COMMIT or {name}@")
    if not which:
        if repo.bare:
            raise MachineError(f"'{repo.common}' is bare and has no work tree; write {name}@COMMIT")
        place = trees.work_tree(repo.directory)
        return Named(name, place.version(name), place)
    known = versions(repo, name)
    if re.fullmatch("v[0-9]+", which):
        for version in known:
            if version.number == int(which[1:]):
                return Named(name, version.tree, None)
        told = f"it has v{known[0].number} to v{known[-1].number}" if known else "none is recorded"
        raise MachineError(f"'{name}' has no version {which}; {told} (machine-versions {name})")
    matching = {version.tree for version in known if version.tree.startswith(which)}
    if len(matching) == 1 and re.fullmatch("[0-9a-f]{7,40}", which):
        return Named(name, matching.pop(), None)
    place = trees.commit(repo, resolve(repo, which))
    return Named(name, place.version(name), place)


def tree_of(repo: Repository, spec: str) -> str:
    """The version id that `NAME@...` means. Raises as `named`."""
    return named(repo, spec).tree


# candidates -----------------------------------------------------------------------------


def candidates(repo: Repository, name: str) -> list[Stored]:
    """The stored candidates of a machine, oldest first."""
    where = f"{place_of(name)}candidate/"
    found = [Stored(ref.name[len(where) :], ref.oid, ref.when) for ref in list_refs(repo, where)]
    return sorted(found, key=lambda stored: (stored.when, stored.id))


def put_candidate(
    repo: Repository, name: str, candidate: Mapping[str, Any], files: Mapping[str, bytes]
) -> str:
    """Store a candidate with its files; its ref. Its `version` (40 hex) is what it would become.

    One that would become the same version replaces the older. Raises MachineError for bad names.
    """
    version = str(candidate.get("version"))
    if not OID.fullmatch(version):
        raise MachineError(f"candidate of '{name}' has version '{version}'; it is the id of a version's tree")
    if "candidate.json" in files:
        raise MachineError("'candidate.json' is the candidate's own record; name the file otherwise")
    _check_paths(files)
    ref = f"{place_of(name)}candidate/{version[:12]}"
    tree = objects.write_files(repo, {**files, "candidate.json": canonical(candidate)})
    message = f"candidate {version[:12]} of {name}\n"
    with locked(repo):
        for _ in range(_TRIES):
            # seconds are all a commit has: the newest is told apart by being dated after the others
            latest = max((stored.when for stored in candidates(repo, name)), default=None)
            made = objects.write_commit(repo, tree, [], message, objects.dated_after(latest))
            if move(repo, ref, made, read_ref(repo, ref), "machine: candidate"):
                return ref
    raise MachineError(f"the candidates of '{name}' keep changing; try again")


def read_candidate(repo: Repository, name: str, id: str) -> tuple[Record, dict[str, bytes]]:
    """A stored candidate and its files, by id or its first digits. Raises MachineError."""
    stored = _candidate(repo, name, id)
    files = version_files(repo, f"{stored.commit}^{{tree}}")
    record = loads(files.pop("candidate.json", b"null"))
    if not isinstance(record, dict):
        raise MachineError(f"candidate '{stored.id}' of '{name}' has no candidate.json; drop it")
    return record, files


def candidate_of(repo: Repository, name: str, version: str) -> Record | None:
    """The record of the stored candidate that would become a version, None if there is none."""
    if any(version.startswith(stored.id) for stored in candidates(repo, name)):
        return read_candidate(repo, name, version)[0]
    return None


def drop_candidate(repo: Repository, name: str, id: str) -> None:
    """Forget a candidate, by id or its first digits. Raises MachineError if it is not there."""
    with locked(repo):
        stored = _candidate(repo, name, id)
        if not move(repo, f"{place_of(name)}candidate/{stored.id}", None, stored.commit):
            raise MachineError(f"candidate '{stored.id}' of '{name}' changed meanwhile; try again")


def _candidate(repo: Repository, name: str, id: str) -> Stored:
    known = candidates(repo, name)
    matching = [stored for stored in known if id and stored.id.startswith(id[:12])]
    if len(matching) != 1:
        there = ", ".join(stored.id for stored in known) or "none"
        fault = "is not one of" if not matching else "could be several of"
        raise MachineError(f"candidate '{id}' {fault} those of '{name}'; there are: {there}")
    return matching[0]


# promotions -----------------------------------------------------------------------------


def advance_live(repo: Repository, name: str, message: str, tree: str) -> str:
    """Log a promotion: one commit with the message (and its trailers) and the version's tree. Its id."""
    ref = f"{place_of(name)}live"
    with locked(repo):
        for _ in range(_TRIES):
            before = read_ref(repo, ref)
            made = objects.write_commit(repo, tree, [before] if before else [], message)
            if move(repo, ref, made, before, "machine: promote"):
                return made
    raise MachineError(f"the promotions of '{name}' keep changing; try again")


def live_log(repo: Repository, name: str) -> list[Promotion]:
    """The promotions of a machine, newest first; none if it has none."""
    tip = read_ref(repo, f"{place_of(name)}live")
    if tip is None:
        return []
    oids = repo.ask("rev-list", "--first-parent", tip).decode().split()
    return [Promotion(c.oid, c.tree, c.when, c.message) for c in objects.read_commits(repo, oids)]

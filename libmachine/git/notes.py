"""Notes on version trees: refs/notes/machine, one JSON line a record. What hooks and servers read.

A note is keyed by content, so it survives rebase, squash, cherry-pick and amend of the project's
commits. A note does not keep its tree alive: refs.record_version comes first.

`git notes add` and libgit2 lose what is written at the same time; here one lock and a
compare-and-swap on the ref keep every line. Layout as git's own: flat names up to 256 notes, then
two-digit folders; any mixture is read, and brought into order at the next write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.errors import MachineError
from libmachine.git import objects
from libmachine.git.objects import Entry
from libmachine.git.repository import OID, Repository, locked, move, read_ref
from libmachine.githash import DIRECTORY, FILE, tree_id

REF = "refs/notes/machine"
MOST_FLAT = 256
_TRIES = 20
_FOLDER = re.compile("[0-9a-f]{2}")
_REST = re.compile("[0-9a-f]{38}")

Notes = dict[str, list[bytes]]
"""Noted id -> the lines of its note, in order, none twice, blank ones left out."""


def append(repo: Repository, tree: str, record: Mapping[str, Any]) -> bool:
    """Add a record to the note of a version tree. False if that very line was there already.

    The tree should be kept alive by refs.record_version first. Raises MachineError.
    """
    return append_all(repo, [(tree, record)]) == 1


def append_all(repo: Repository, records: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """Add records (tree, record) in one commit; how many lines were new. Raises MachineError."""
    lines: Notes = {}
    for tree, record in records:
        if not OID.fullmatch(tree):
            raise MachineError(f"'{tree}' is no version id; it has 40 hexadecimal digits")
        lines.setdefault(tree, []).append(canonical(record))
    with locked(repo):
        for _ in range(_TRIES):
            tip = read_ref(repo, REF)
            new, count = _with_lines(repo, tip, lines)
            if not count:
                return 0
            told = "machine: note\n" if count == 1 else f"machine: {count} notes\n"
            made = objects.write_commit(repo, new, [tip] if tip else [], told)
            if move(repo, REF, made, tip, "machine: note"):
                return count
    raise MachineError(f"'{REF}' keeps changing; try again")


def read(repo: Repository, tree: str, ref: str = REF) -> list[Record]:
    """The records of a version's note, oldest first; none without a note. Broken lines are skipped."""
    tip = read_ref(repo, ref)
    if tip is None:
        return []
    found = repo.objects([f"{tip}:{path}" for path in _paths(tree)])
    return records_of(lines_of(blob.data for blob in found if blob and blob.kind == "blob"))


def read_all(repo: Repository, ref: str = REF) -> dict[str, list[Record]]:
    """Version tree -> its records, oldest first. `ref` may be another's, fetched beside ours."""
    tip = read_ref(repo, ref)
    return {oid: records_of(lines) for oid, lines in all_lines(repo, tip).items()} if tip else {}


def all_lines(repo: Repository, commit: str) -> Notes:
    """The lines of every note of a notes commit."""
    listed = _listed(repo, commit)
    return _contents(repo, listed, listed)


def merge(repo: Repository, ours: str | None, theirs: str) -> str:
    """The notes commit that holds every line of two: their lines first, in order, then what only we have.

    One of the two if it holds the other. Lines are never removed. Moves no ref.
    """
    if ours is None or _is_ancestor(repo, ours, theirs):
        return theirs
    if _is_ancestor(repo, theirs, ours):
        return ours
    mine, base = _listed(repo, ours), _listed(repo, theirs)
    only = {oid: ids[0] for oid, ids in mine.items() if oid not in base and len(ids) == 1}
    differ = [oid for oid, ids in mine.items() if oid not in only and base.get(oid) != ids]
    old, new = _contents(repo, base, differ), _contents(repo, mine, differ)
    lines = {oid: list(dict.fromkeys([*old.get(oid, []), *new[oid]])) for oid in differ}
    lines = {oid: all_ for oid, all_ in lines.items() if all_ != old.get(oid)}
    if not only and not lines:
        return theirs
    tree = _write_changed(repo, theirs, lines, only)
    return objects.write_commit(repo, tree, [ours, theirs], "machine: merge notes\n")


def _is_ancestor(repo: Repository, one: str, other: str) -> bool:
    done = repo.run("merge-base", "--is-ancestor", one, other)
    if done.code > 1:
        raise MachineError(f"cannot compare notes {one[:12]} and {other[:12]}: {done.reason()}")
    return not done.code


# lines ----------------------------------------------------------------------------------


def lines_of(blobs: Iterable[bytes]) -> list[bytes]:
    """The lines of the blobs of one note (a mixed layout may have several), each once."""
    lines = (line.strip() for data in blobs for line in data.split(b"\n"))
    return list(dict.fromkeys(line for line in lines if line))


def records_of(lines: Iterable[bytes]) -> list[Record]:
    """The records among the lines of a note; what is none is skipped."""
    records = []
    for line in lines:
        try:
            record = loads(line)
        except RecordError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _contents(repo: Repository, listed: Mapping[str, list[str]], noted: Iterable[str]) -> Notes:
    """The lines of some of the notes of a listing."""
    wanted = {oid: listed[oid] for oid in noted if oid in listed}
    found = iter(repo.objects([blob for blobs in wanted.values() for blob in blobs]))
    return {oid: lines_of(blob.data for _ in blobs if (blob := next(found))) for oid, blobs in wanted.items()}


def _write(repo: Repository, notes: Notes) -> dict[str, str]:
    """Store the lines of notes; noted id -> blob id."""
    texts = [b"".join(line + b"\n" for line in lines) for lines in notes.values()]
    return dict(zip(notes, objects.write_blobs(repo, texts), strict=True))


# layout ---------------------------------------------------------------------------------


def _paths(oid: str) -> list[str]:
    """Where a note may lie: flat, or under one, two or three two-digit folders."""
    return [oid, *("/".join([*(oid[2 * n : 2 * n + 2] for n in range(k)), oid[2 * k :]]) for k in (1, 2, 3))]


def _listed(repo: Repository, commit: str) -> dict[str, list[str]]:
    """Noted id -> blob ids, several in a mixed layout: those in fewer folders first, as `_paths` has it."""
    listed: dict[str, list[str]] = {}
    for row in sorted(repo.ask("ls-tree", "-r", "-z", commit).split(b"\0"), key=len):
        about, _, raw = row.partition(b"\t")
        path = raw.decode("utf-8", "surrogateescape")
        noted = path.replace("/", "")
        if OID.fullmatch(noted) and path in _paths(noted) and about.split(b" ")[1] == b"blob":
            listed.setdefault(noted, []).append(about.split(b" ")[2].decode())
    return listed


def _with_lines(repo: Repository, tip: str | None, lines: Notes) -> tuple[str, int]:
    """The tree of the notes with lines added, and how many were new."""
    queries = [f"{tip}:{path}" for oid in lines for path in _paths(oid)] if tip else []
    root, *found = repo.objects([f"{tip}^{{tree}}", *queries]) if tip else [None]
    new: Notes = {}
    count = 0
    for number, (oid, wanted) in enumerate(lines.items()):
        blobs = found[4 * number : 4 * number + 4]
        old = lines_of(blob.data for blob in blobs if blob and blob.kind == "blob")
        new[oid] = list(dict.fromkeys([*old, *wanted]))
        count += len(new[oid]) - len(old)
    if not count:
        return "", 0
    if root is None or tip is None:
        return _write_root(repo, _write(repo, new), []), count
    tree = _quick(repo, parse_tree(root.data), new) if len(new) == 1 else None
    return tree or _write_changed(repo, tip, new, {}), count


def _quick(repo: Repository, root: list[Entry], new: Notes) -> str | None:
    """The tree with one note written, if the layout is plain: only what it touches is read. Else None."""
    [(oid, blob)] = _write(repo, new).items()
    flat = sum(bool(OID.fullmatch(name)) for _, name, _ in root)
    folders = {name: id for mode, name, id in root if mode == DIRECTORY}
    if not folders and flat < MOST_FLAT:
        kept = [entry for entry in root if entry[1] != oid]
        return objects.write_trees(repo, [[*kept, (FILE, oid, blob)]])[0]
    if flat or not all(_FOLDER.fullmatch(name) for name in folders):
        return None
    inner: list[Entry] = []
    if oid[:2] in folders:
        [found] = repo.objects([folders[oid[:2]]])
        inner = parse_tree(found.data) if found else []
        if not inner or not all(_REST.fullmatch(name) for _, name, _ in inner):
            return None
    inner = [entry for entry in inner if entry[1] != oid[2:]] + [(FILE, oid[2:], blob)]
    kept = [entry for entry in root if entry[1] != oid[:2]]
    return objects.write_trees(repo, [inner, [*kept, (DIRECTORY, oid[:2], tree_id(inner))]])[-1]


def _write_changed(repo: Repository, commit: str, new: Notes, blobs: Mapping[str, str]) -> str:
    """The tree of a notes commit with some notes replaced, by their lines or by blobs that are there."""
    listed = _listed(repo, commit)
    several = [oid for oid, ids in listed.items() if len(ids) > 1 and oid not in new]
    written = _write(repo, {**_contents(repo, listed, several), **new})
    [root] = repo.objects([f"{commit}^{{tree}}"])
    others = [
        entry
        for entry in parse_tree(root.data if root else b"")
        if not OID.fullmatch(entry[1]) and not (entry[0] == DIRECTORY and _FOLDER.fullmatch(entry[1]))
    ]
    kept = {oid: ids[0] for oid, ids in listed.items()}
    return _write_root(repo, {**kept, **blobs, **written}, others)


def _write_root(repo: Repository, blobs: Mapping[str, str], others: Sequence[Entry]) -> str:
    """The tree of all notes (noted id -> blob id), flat or in folders by their number. others: no notes."""
    if len(blobs) <= MOST_FLAT:
        return objects.write_trees(repo, [[*others, *((FILE, oid, id) for oid, id in blobs.items())]])[0]
    folders: dict[str, list[Entry]] = {}
    for oid, id in blobs.items():
        folders.setdefault(oid[:2], []).append((FILE, oid[2:], id))
    root = [*others, *((DIRECTORY, name, tree_id(entries)) for name, entries in folders.items())]
    return objects.write_trees(repo, [*folders.values(), root])[-1]


def parse_tree(data: bytes) -> list[Entry]:
    """The entries (mode, name, id) of a tree object's bytes. Raises MachineError if they are no tree."""
    entries = []
    at = 0
    while at < len(data):
        end = data.find(b"\0", at)
        mode, _, name = data[at:end].partition(b" ")
        if end < 0 or not mode.isdigit() or len(data) < end + 21:
            raise MachineError("a tree of the notes is damaged; git fsck says which")
        entries.append(
            (mode.decode(), name.decode("utf-8", "surrogateescape"), data[end + 1 : end + 21].hex())
        )
        at = end + 21
    return entries

"""refs/runs/NAME/-/chain: what keeps the objects of the log reachable, and lets it be written anew.

Each commit's tree holds only its batch: `<id>` a record, `<id>.<part>` what belongs to it, and
`log.jsonl`, its lines of the log. A batch is whatever the log has beyond the offset in `chained`, so
what a crash left out goes into the next one. The `-` keeps a machine's refs apart from those of its
children.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import orjson

from libmachine.errors import MachineError
from libmachine.githash import DIRECTORY, FILE, blob_id
from libmachine.store import disk, layout, log, ref
from libmachine.store.objects import Objects, tree_entries

LINES = "log.jsonl"
"""The entry of a commit's tree that holds the lines of its batch."""
FOLDERS = ("before", "after", "weights")
"""Parts of a record that are trees."""
_BATCH = 2000  # records in a commit at most, and held in memory at once
_WORTH = 16  # commits that are too many, if they would fit into half as many
_Entry = tuple[str, str, str]
"""Mode, name and id of an entry of a tree."""


def ref_of(machine: str) -> str:
    """The ref that a machine's runs hang on. Raises MachineError for a name that would leave its place."""
    layout.check_name(machine)
    return f"refs/runs/{machine}/-/chain"


def machines(directory: str) -> dict[str, str]:
    """Machine -> commit its chain ends at."""
    found = ref.under(directory, "refs/runs/")
    return {
        name.removeprefix("refs/runs/").removesuffix("/-/chain"): oid
        for name, oid in found.items()
        if name.endswith("/-/chain")
    }


class Batch:
    """Records of one machine that go into a commit together."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.lines: dict[str, bytes] = {}

    def add(self, row: log.Row) -> None:
        """Take a row of the log in."""
        for entry in entries_of(row):
            self.entries[entry[1]] = entry
        # copied, as what orjson returns keeps all the room it was made in: eight kilobytes for a line
        line = memoryview(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self.lines[row["id"]] = bytes(line)

    def commit(self, objects: Objects, machine: str, parents: Iterable[str]) -> str:
        """Store the batch; returns the id of its commit."""
        lines = objects.blob(b"".join(self.lines.values()))
        tree = objects.tree([*self.entries.values(), (FILE, LINES, lines)])
        return objects.commit(tree, parents, f"{len(self.lines)} records of {machine}", int(time.time()))


def entries_of(row: log.Row) -> Iterable[_Entry]:
    """What a row of the log puts into the tree of its commit."""
    yield FILE, row["id"], row["id"]
    for part, oid in (row.get("parts") or {}).items():
        yield DIRECTORY if part in FOLDERS else FILE, f"{row['id']}.{part}", oid


def has_place(row: log.Row | None) -> bool:
    """Is a row of the log one that a chain can hold? (machine-fsck names those that are not.)"""
    if row is None or log.problem(row) is not None:
        return False
    try:
        return bool(ref_of(row["machine"]))
    except MachineError:
        return False


# writing --------------------------------------------------------------------------------


@contextmanager
def locked(directory: str) -> Iterator[int]:
    """Hold the chains; gives the descriptor of `chained`."""
    fd = os.open(f"{directory}/chained", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def extend(directory: str, objects: Objects, log_path: str, fsync: bool) -> None:
    """Commit the log's new records: a commit for each machine, and another for each _BATCH records."""
    with locked(directory) as fd:
        _extend(directory, objects, log_path, fsync, fd)


def _extend(directory: str, objects: Objects, log_path: str, fsync: bool, fd: int) -> None:
    start = end = chained(directory, log_path)
    batches: dict[str, Batch] = {}
    held = 0
    seen = bytearray(log.before(log_path, start))
    for _, end, row in log.read(log_path, start, seen):
        if row is not None and has_place(row):
            batches.setdefault(row["machine"], Batch()).add(row)
            held += 1
        if held >= _BATCH:
            _commit(directory, objects, batches, fsync)
            _note(fd, end, bytes(seen))
            batches, held = {}, 0
    if end != start:
        _commit(directory, objects, batches, fsync)
        _note(fd, end, bytes(seen))


def _commit(directory: str, objects: Objects, batches: dict[str, Batch], fsync: bool) -> None:
    for machine, batch in batches.items():
        name = ref_of(machine)
        tip = ref.read(directory, name)
        ref.write(directory, name, batch.commit(objects, machine, [tip] if tip else []), fsync)


def note(fd: int, offset: int, log_path: str) -> None:
    """Write down how far the chains are. fd: as `locked` gives it."""
    _note(fd, offset, log.before(log_path, offset))


def _note(fd: int, offset: int, before: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    disk.write(fd, b"%-20d %s" % (offset, blob_id(before).encode()))


def chained(directory: str, log_path: str) -> int:
    """Where the last chain ended; 0, so that all is chained once more, if the log is another by now."""
    try:
        with open(f"{directory}/chained", "rb") as file:
            words = file.read(64).split()
    except FileNotFoundError:
        return 0
    start = int(words[0]) if words and words[0].isdigit() else 0
    if len(words) > 1 and words[1] != log.mark(log_path, start).encode():
        return 0
    return start if log.is_boundary(log_path, start) else 0


def rebuild(directory: str, objects: Objects, log_path: str, names: set[str], fsync: bool) -> None:
    """Make the chains of some machines anew, of what the log has and of nothing else."""
    with locked(directory) as fd:
        _extend(directory, objects, log_path, fsync, fd)
        tips: dict[str, list[str]] = {name: [] for name in names}
        batches = {name: Batch() for name in names}

        def put(name: str) -> None:
            if batches[name].lines:
                tips[name] = [batches[name].commit(objects, name, tips[name])]
                batches[name] = Batch()

        for _, _, row in log.read(log_path):
            if row is not None and has_place(row) and row["machine"] in names:
                batches[row["machine"]].add(row)
                if len(batches[row["machine"]].lines) >= _BATCH:
                    put(row["machine"])
        for name in names:
            put(name)
            if tips[name]:
                ref.write(directory, ref_of(name), tips[name][0], fsync)
            else:
                ref.delete(directory, ref_of(name))


def fold(directory: str, objects: Objects, log_path: str, fsync: bool) -> tuple[int, int]:
    """Put small commits of the chains together. Returns how many there were and how many there are.

    A commit that is full stays, and those before it. What is replaced stays in the store too.
    Raises KeyError, MachineError if a chain cannot be read.
    """
    with locked(directory) as fd:
        _extend(directory, objects, log_path, fsync, fd)
        before = after = 0
        for name, tip in machines(directory).items():
            small: list[dict[str, str]] = []
            base: list[str] = []
            for oid, entries in history(objects, tip):
                if len(ids_of(entries)) >= _BATCH // 2:
                    base = [oid]
                    break
                small.append(entries)
            number = sum(len(ids_of(entries)) for entries in small)
            wanted = -(-number // _BATCH)
            worth = len(small) >= _WORTH and len(small) >= 2 * wanted
            batches = list(_joined(objects, small)) if worth else []
            if sum(len(batch.lines) for batch in batches) < len(
                dict.fromkeys(i for e in small for i in ids_of(e))
            ):
                worth = False  # a commit without its lines
            if not worth:
                before, after = before + len(small), after + len(small)
                continue
            for batch in batches:
                base = [batch.commit(objects, name, base)]
            ref.write(directory, ref_of(name), base[0], fsync)
            before, after = before + len(small), after + wanted
        return before, after


def _joined(objects: Objects, small: list[dict[str, str]]) -> Iterator[Batch]:
    """The records of commits (newest first), in batches as large as they may be."""
    batch = Batch()
    for entries in reversed(small):
        for row in rows_of(objects, entries):
            batch.add(row)
            if len(batch.lines) >= _BATCH:
                yield batch
                batch = Batch()
    if batch.lines:
        yield batch


# reading --------------------------------------------------------------------------------


def history(objects: Objects, tip: str, known: Iterable[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """(commit, name -> id of its tree) from a tip back, each once; not beyond known commits.

    Raises KeyError for what is missing, MachineError for what is damaged or no commit.
    """
    waiting, seen = [tip], set(known)
    while waiting:
        oid = waiting.pop()
        if oid in seen:
            continue
        seen.add(oid)
        kind, data = objects.read(oid)
        if kind != "commit":
            raise MachineError(f"object {oid} is a {kind}, no commit")
        head = [line.split(" ") for line in data.split(b"\n\n", 1)[0].decode("utf-8", "replace").split("\n")]
        yield oid, dict(tree_entries(objects.read(head[0][1])[1]))
        waiting += [words[1] for words in reversed(head) if words[0] == "parent"]


def ids_of(entries: Iterable[str]) -> list[str]:
    """The ids of the records among the names of a tree."""
    return [name for name in entries if "." not in name]


def rows_of(objects: Objects, entries: dict[str, str]) -> list[log.Row]:
    """The rows of the log that a commit holds, in order: those that are whole, of its records and no others.

    Raises KeyError or MachineError if they cannot be read.
    """
    if LINES not in entries:
        return []
    rows = []
    for line in objects.read(entries[LINES])[1].splitlines():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(row, dict) or not isinstance(row.get("type"), str) or log.problem(row):
            continue
        if all(entries.get(name) == oid for _, name, oid in entries_of(row)):
            rows.append(row)
    return rows

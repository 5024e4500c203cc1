"""refs/runs/NAME/-/chain: what keeps the objects of the log reachable, and travels by git.

Each commit's tree holds only its batch: `<id>` a record, `<id>.<part>` what belongs to it.
A batch is whatever the log has beyond the offset in `chained`, so what a crash left out
goes into the next one. The `-` keeps a machine's refs apart from those of its children.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Iterable

from libmachine.errors import MachineError
from libmachine.githash import DIRECTORY, FILE
from libmachine.store import disk, layout, log
from libmachine.store.objects import Objects

_OURS = "machine"
_PATIENCE_S = 10.0
_BATCH = 2000  # records held in memory at once
_Entry = tuple[str, str, str]
"""Mode, name and id of an entry of a tree."""


def ref_of(machine: str) -> str:
    """The ref that a machine's runs hang on. Raises MachineError for a name that would leave its place."""
    layout.check_name(machine)
    return f"refs/runs/{machine}/-/chain"


def extend(directory: str, objects: Objects, log_path: str, fsync: bool) -> None:
    """Commit the log's new records: a commit for each machine, and another for each _BATCH records."""
    fd = os.open(f"{directory}/chained", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        rows = log.read(log_path, _start(fd, log_path))
        while True:
            end, batches = _gather(itertools.islice(rows, _BATCH))
            if not end:
                return
            for machine, batch in batches.items():
                tree = objects.tree(batch.values())
                parents = [line] if (line := _read_ref(directory, machine)) else []
                commit = objects.commit(tree, parents, f"{len(batch)} objects of {machine}", int(time.time()))
                _write_ref(directory, machine, commit, fsync)
            os.lseek(fd, 0, os.SEEK_SET)
            disk.write(fd, b"%-20d" % end)
    finally:
        os.close(fd)


def _gather(rows: Iterable[tuple[int, int, log.Row | None]]) -> tuple[int, dict[str, dict[str, _Entry]]]:
    """Where rows of the log end (0 if there are none), and machine -> name -> entry of its tree."""
    end = 0
    batches: dict[str, dict[str, _Entry]] = {}
    for _, following, row in rows:
        end = following
        if row is not None and log.problem(row) is None and _has_place(row["machine"]):
            batch = batches.setdefault(row["machine"], {})
            batch.update({entry[1]: entry for entry in _entries(row)})
    return end, batches


def _start(fd: int, log_path: str) -> int:
    """Where the last chain ended; 0, so that all is chained once more, if that is no end of a line."""
    text = os.pread(fd, 32, 0).strip()
    start = int(text) if text.isdigit() else 0
    return start if log.is_boundary(log_path, start) else 0


def _has_place(machine: str) -> bool:
    try:
        return bool(ref_of(machine))
    except MachineError:
        return False  # machine-fsck names the line


def _entries(row: log.Row) -> Iterable[_Entry]:
    yield FILE, row["id"], row["id"]
    for part, oid in (row.get("parts") or {}).items():
        yield DIRECTORY if part in ("before", "after", "weights") else FILE, f"{row['id']}.{part}", oid


def _read_ref(directory: str, machine: str) -> str | None:
    try:
        with open(f"{directory}/{ref_of(machine)}") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        pass
    try:
        with open(f"{directory}/packed-refs") as file:
            for line in file:
                if line.rstrip("\n").endswith(" " + ref_of(machine)):
                    return line.split(" ")[0]
    except FileNotFoundError:
        pass
    return None


def _write_ref(directory: str, machine: str, oid: str, fsync: bool) -> None:
    # Git's own protocol (NAME.lock, then rename), so that `git pack-refs` and we do not lose each
    # other's update. Our lock is a link that names us: as we hold the flock of `chained`, one that
    # is there already was left by the dead.
    path = f"{directory}/{ref_of(machine)}"
    lock = f"{path}.lock"
    waited = 0.0
    while True:
        disk.make_folder(os.path.dirname(path), fsync)
        try:
            os.symlink(_OURS, lock)
            break
        except FileNotFoundError:
            continue  # git took the empty directory away
        except FileExistsError:
            if os.path.islink(lock) or waited > _PATIENCE_S:
                _unlink(lock)
            else:
                time.sleep(0.05)
                waited += 0.05
    try:
        disk.put(path, f"{oid}\n".encode(), 0o600, fsync, lambda: layout.temporary(directory))
    finally:
        _unlink(lock)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass

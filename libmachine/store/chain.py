"""refs/runs/NAME/-/chain: what keeps the objects of the log reachable, and travels by git.

Each commit's tree holds only its batch: `<id>` a record, `<id>.<part>` what belongs to it.
A batch is whatever the log has beyond the offset in `chained`, so what a crash left out
goes into the next one. The `-` keeps a machine's refs apart from those of its children.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable

from libmachine.githash import DIRECTORY, FILE
from libmachine.store import disk, log
from libmachine.store.objects import Objects


def ref_of(machine: str) -> str:
    """The ref that a machine's runs hang on."""
    return f"refs/runs/{machine}/-/chain"


def extend(directory: str, objects: Objects, log_path: str, fsync: bool) -> None:
    """Commit the log's new records, one commit a machine."""
    fd = os.open(f"{directory}/chained", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        start = int(os.read(fd, 32) or b"0")
        end = start
        batches: dict[str, dict[str, tuple[str, str, str]]] = {}
        for _, following, row in log.read(log_path, start):
            end = following
            if row is not None and "machine" in row:
                batch = batches.setdefault(row["machine"], {})
                batch.update({name: (mode, name, oid) for mode, name, oid in _entries(row)})
        for machine, batch in batches.items():
            ref = f"{directory}/{ref_of(machine)}"
            tree = objects.tree(batch.values())
            parents = [line] if (line := _read_ref(directory, machine)) else []
            commit = objects.commit(tree, parents, f"{len(batch)} objects of {machine}", int(time.time()))
            _write_ref(ref, commit, fsync)
        if end != start:
            os.pwrite(fd, b"%-20d" % end, 0)
    finally:
        os.close(fd)


def _entries(row: log.Row) -> Iterable[tuple[str, str, str]]:
    yield FILE, row["id"], row["id"]
    for part, oid in (row.get("parts") or {}).items():
        yield DIRECTORY if part in ("before", "after") else FILE, f"{row['id']}.{part}", oid


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


def _write_ref(path: str, oid: str, fsync: bool) -> None:
    # Git's own protocol (NAME.lock, then rename), so that `git pack-refs` and we do not lose each
    # other's update. We hold the flock of `chained`: a lock older than 10 s is a dead one's.
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    lock = f"{path}.lock"
    while True:
        try:
            fd = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            try:
                if time.time() - os.stat(lock).st_mtime > 10:
                    os.unlink(lock)
                else:
                    time.sleep(0.05)
            except FileNotFoundError:
                continue
    try:
        disk.write(fd, f"{oid}\n".encode())
        if fsync:
            disk.sync(fd)
        os.close(fd)
        disk.rename(lock, path)
    except BaseException:
        try:
            os.unlink(lock)
        except FileNotFoundError:
            pass
        raise

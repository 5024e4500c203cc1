"""The store of a project: a bare git repository of blobs, a log that says which are records.

    HEAD config objects/ refs/   git's own; preciousObjects, so that no gc deletes a run
    records                      the log (libmachine.store.log)
    index.db                     a reader's cache of the log
    claims                       locked byte ranges: keys being bought right now
    chained                      offset up to which refs/runs/* hold the log's objects
    tmp/                         unfinished writes, swept at the next start

Write order: objects, log line, and only then does a caller print.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import Any

import orjson

from libmachine.canon import Record, canonical
from libmachine.errors import MachineError
from libmachine.record import record_bytes
from libmachine.store import chain, layout, log
from libmachine.store.index import Index
from libmachine.store.objects import Objects


class Store:
    """One open store. Safe to use from several threads; several processes may share the directory."""

    def __init__(self, directory: str, fsync: bool = True) -> None:
        self.directory = directory
        self.log = f"{directory}/records"
        self.fsync = fsync
        self.objects = Objects(directory, fsync)
        self._index: Index | None = None
        self._claims: int | None = None
        self._held: set[str] = set()
        self._lock = threading.RLock()
        self._ready = False
        self._written = False
        if os.path.lexists(directory):
            layout.refuse_foreign(directory)

    # writing -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the store, or clean up after the dead, before this process writes for the first time."""
        if not self._ready:
            layout.create(self.directory)
            layout.sweep(self.directory)
            self._ready = True

    def blob(self, data: bytes) -> str:
        """Store bytes that belong to a record; returns their id."""
        with self._lock:
            self._prepare()
            return self.objects.blob(data)

    def files(self, files: dict[str, str]) -> str:
        """Store files (path -> text); returns the id of their tree."""
        with self._lock:
            self._prepare()
            return self.objects.files(files)

    def add_run(self, run: Record, base: str, parts: dict[str, str] | None = None) -> Record:
        """Store a run and return it with its id. Stored twice it is there once.

        base: the key without its trial. parts: name -> id of objects that belong to the run.
        """
        case = run["case"]
        given = {name: case[name] for name in ("id", "target", "metadata") if case.get(name) is not None}
        with self._lock:
            self._prepare()
            oid = self.objects.blob(record_bytes(run))
            parts = {**(parts or {}), "given": self.objects.blob(canonical(given))}
            row = {
                "type": "run",
                "id": oid,
                "machine": run["machine"],
                "version": run["version"],
                "identity": case["identity"],
                "case_id": case["id"],
                "trial": run["trial"],
                "base": base,
                "key": run["key"],
                "status": run["status"],
                "model": run["model"],
                "started_at": run["started_at"],
                "cost_usd": run["usage"]["cost_usd"],
                "parts": parts,
            }
            self._append(row)
        return {**run, "id": oid}

    def add_scorecard(self, card: Record) -> Record:
        """Store a scorecard and return it with its id."""
        with self._lock:
            self._prepare()
            oid = self.objects.blob(record_bytes(card))
            row = {"type": "scorecard", "id": oid}
            row |= {name: card[name] for name in ("run", "machine", "rubric", "score", "passed")}
            row["cost_usd"] = card["usage"]["cost_usd"]
            self._append(row)
        return {**card, "id": oid}

    def _append(self, row: log.Row) -> None:
        log.append(self.log, [row], self.fsync)
        self._written = True

    # reading -----------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index, up to date with the log."""
        with self._lock:
            if self._index is None:
                if not os.path.isdir(self.directory):
                    raise MachineError(f"no store at '{self.directory}' yet; machine-run makes it")
                self._index = Index(self.directory)
            self._index.catch_up()
            return self._index

    def has_records(self) -> bool:
        """Is there anything to look up?"""
        return log.size(self.log) > 0

    def stored_answer(self, key: str) -> dict[str, Any] | None:
        """The row of the newest answer under a key, or None."""
        if not self.has_records():
            return None
        with self._lock:
            return self.index.by_key(key)

    def last_trial(self, base: str) -> int:
        """The highest trial stored under a base, 0 if none."""
        if not self.has_records():
            return 0
        with self._lock:
            return self.index.last_trial(base)

    def knows_run(self, oid: str) -> bool:
        """Does the log say that this id is a run?"""
        if not self.has_records():
            return False
        with self._lock:
            return self.index.run(oid) is not None

    def read_blob(self, oid: str) -> bytes:
        """The bytes of a blob. Raises MachineError if it is not here or damaged."""
        try:
            return self.objects.read(oid)[1]
        except KeyError:
            raise MachineError(
                f"object {oid} is missing from the store; machine-fsck says what it was"
            ) from None

    def load_run(self, row: dict[str, Any], scorecard: bool = True) -> Record:
        """The whole record of a run from its index row, with its case as given and its newest scorecard."""
        run: Record = orjson.loads(self.read_blob(row["id"]))
        given = row["parts"].get("given")
        case = orjson.loads(self.read_blob(given)) if given else {"id": row["case_id"]}
        run["id"] = row["id"]
        run["case"] = {**run["case"], **case}
        if scorecard:
            with self._lock:
                newest = self.index.scorecard(row["id"])
            if newest:
                run["scorecard"] = self.load_scorecard(newest["id"])
        return run

    def load_scorecard(self, oid: str) -> Record:
        """A scorecard by its id."""
        card: Record = orjson.loads(self.read_blob(oid))
        return {**card, "id": oid}

    # claims ------------------------------------------------------------------------------

    def claim(self, key: str) -> bool:
        """Try to be the one who buys the answer under a key; False: another process is at it.

        A byte of the file `claims` is locked, which the kernel undoes when the holder dies.
        """
        with self._lock:
            self._prepare()
            if key in self._held:
                return False
            if self._claims is None:
                path = f"{self.directory}/claims"
                self._claims = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
            except (BlockingIOError, PermissionError):
                return False
            self._held.add(key)
            return True

    def release(self, key: str) -> None:
        """Give a claim back."""
        with self._lock:
            if key in self._held and self._claims is not None:
                self._held.remove(key)
                fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _place(key))

    def wait_for(self, key: str, pause_s: float = 0.2) -> None:
        """Wait until nobody holds a key, then hold it."""
        while not self.claim(key):
            time.sleep(pause_s)

    def close(self) -> None:
        """Put what was written under refs/runs/*, and let go of files."""
        with self._lock:
            if self._written:
                chain.extend(self.directory, self.objects, self.log, self.fsync)
                self._written = False
            if self._index is not None:
                self._index.close()
                self._index = None


def _place(key: str) -> int:
    """The byte that stands for a key: 60 bits of it, as the kernel takes offsets below 2^63."""
    return int(key[:15], 16)

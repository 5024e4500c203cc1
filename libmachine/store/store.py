"""The store of a project: a bare git repository of blobs, a log that says which are records.

    HEAD config objects/ refs/   git's own; preciousObjects, so that no gc deletes a run
    records                      the log (libmachine.store.log)
    index.db                     a reader's cache of the log
    claims                       locked byte ranges: keys being bought right now
    chained                      offset up to which refs/runs/* hold the log's objects
    writers keeper               locks of those who write, and of the one who keeps order
    tmp/                         unfinished writes, swept at the next start

Write order: objects, log line, and only then does a caller print.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

from libmachine.canon import Record, canonical
from libmachine.errors import MachineError
from libmachine.record import record_bytes
from libmachine.store import chain, keep, layout, log, rows
from libmachine.store.index import Index
from libmachine.store.objects import Objects, tree_entries
from libmachine.store.tail import Tail

_INLINE = 1000
"""Bytes of a case's target and metadata that the log holds itself; more becomes an object."""
_MISSES = 2000
"""Look-ups without an answer that are remembered while the index stands still."""
Answer = TypeVar("Answer")


class _Batch:
    """Rows that go into the log together."""

    def __init__(self) -> None:
        self.rows: list[log.Row] = []
        self.done = False
        self.error: OSError | None = None


class Store:
    """One open store. Safe to use from several threads; several processes may share the directory."""

    def __init__(
        self, directory: str, fsync: bool = True, on_made: Callable[[], object] = lambda: None
    ) -> None:
        self.directory = directory
        self.log = f"{directory}/records"
        self.fsync = fsync
        self._on_made = on_made
        self.objects = Objects(directory, fsync)
        self._index: Index | None = None
        self._claims: int | None = None
        self._writing: int | None = None
        self._held: set[str] = set()
        self._lock = threading.RLock()
        self._log_lock = threading.Lock()
        self._waiting = _Batch()
        self._ready = False
        self._written = False
        self._tail = Tail(self.log)
        self._misses: set[tuple[object, str]] = set()
        if os.path.lexists(directory):
            layout.refuse_foreign(directory)
            layout.sweep(directory)

    # writing -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the store, if it is not there, before this process writes for the first time."""
        if self._ready:
            return
        with self._lock:
            if not self._ready:
                if layout.create(self.directory, self.fsync):
                    self._on_made()
                if self._writing is None:
                    self._writing = keep.hold_writing(self.directory)
                self._ready = True

    def blob(self, data: bytes) -> str:
        """Store bytes that belong to a record; returns their id."""
        self.prepare()
        return self.objects.blob(data)

    def files(self, files: dict[str, str]) -> str:
        """Store files (path -> text); returns the id of their tree."""
        self.prepare()
        return self.objects.files(files)

    def add_run(self, run: Record, base: str, parts: dict[str, str] | None = None) -> Record:
        """Store a run (a plain record) and return it with its id. Stored twice it is there once.

        base: the key without its trial. parts: name -> id of objects that belong to the run.
        """
        layout.check_name(run["machine"])
        case = run["case"]
        given: dict[str, Any] = {
            name: case[name] for name in ("target", "metadata") if case.get(name) is not None
        }
        parts = dict(parts or {})
        oid = self.blob(record_bytes(run))
        if given and len(data := canonical(given)) > _INLINE:
            parts["given"], given = self.blob(data), {}
        self._append(rows.of_run(run, oid, base, parts, given))
        return {**run, "id": oid}

    def add_scorecard(self, card: Record) -> Record:
        """Store a scorecard (a plain record) and return it with its id."""
        layout.check_name(card["machine"])
        oid = self.blob(record_bytes(card))
        self._append(rows.of_scorecard(card, oid))
        return {**card, "id": oid}

    def add_record(self, record: Record, parts: dict[str, str] | None = None) -> Record:
        """Store a record of another kind (a plain one, of a machine) and return it with its id.

        parts: name -> id of blobs that belong to it, trained weights say."""
        layout.check_name(record["machine"])
        oid = self.blob(record_bytes(record))
        self._append(rows.of_record(record, oid, parts or {}))
        return {**record, "id": oid}

    def _append(self, row: log.Row) -> None:
        """Put a row into the log, together with those that other threads have waiting.

        One thread writes for all, so that they share one wait for the disk.
        """
        with self._lock:
            batch = self._waiting
            batch.rows.append(row)
        with self._log_lock:
            if batch.error is not None:
                raise batch.error
            if batch.done:
                return
            with self._lock:
                self._waiting = _Batch()
            try:
                start, end = log.append(self.log, batch.rows, self.fsync)
            except OSError as error:
                batch.error = error
                raise
            batch.done = True
            with self._lock:
                self._written = True
                if self._index is not None:
                    self._tail.add(start, end, batch.rows)

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
            self._tail.restart(self._index.offset)
            self._misses.clear()
            return self._index

    def has_records(self) -> bool:
        """Is there anything to look up?"""
        return log.size(self.log) > 0

    def _ask(self, question: Callable[[Index, str], Answer], name: str, nothing: Answer) -> Answer:
        """What the index answers about a run, key or base, up to date as far as that matters for it.
        nothing: the answer where there is none, which is not looked up twice."""
        with self._lock:
            if self._index is None:
                return question(self.index, name) if self.has_records() else nothing
            if not self._tail.read() or self._tail.is_about(name):
                return question(self.index, name)
            if (question, name) in self._misses:
                return nothing
            answer = question(self._index, name)
            if answer == nothing:
                if len(self._misses) == _MISSES:
                    self._misses.clear()
                self._misses.add((question, name))
            return answer

    def stored_answer(self, key: str) -> dict[str, Any] | None:
        """The row of the newest answer under a key, or None."""
        return self._ask(Index.by_key, key, None)

    def last_trial(self, base: str) -> int:
        """The highest trial stored under a base, 0 if none."""
        return self._ask(Index.last_trial, base, 0)

    def knows_run(self, oid: str) -> bool:
        """Does the log say that this id is a run?"""
        with self._lock:
            if self._index is not None and self._tail.read() and self._tail.has_run(oid):
                return True
            return self._ask(Index.has_run, oid, False)

    def newest_scorecard(self, run: str) -> dict[str, Any] | None:
        """Id, rubric, score and passed of a run's newest scorecard by its graders, or None."""
        return self._ask(Index.scorecard, run, None)

    def scorecards(self, run: str) -> list[str]:
        """Ids of all scorecards of a run by its graders, newest first."""
        return self._ask(Index.scorecards, run, [])

    def marks(self, run: str) -> list[str]:
        """Ids of the scorecards of a run that are people's, newest first."""
        return self._ask(Index.marks, run, [])

    def read_blob(self, oid: str) -> bytes:
        """The bytes of a blob. Raises MachineError if it is not here or damaged."""
        try:
            return self.objects.read(oid)[1]
        except KeyError:
            raise MachineError(
                f"object {oid} is missing from the store; machine-fsck says what it was"
            ) from None

    def read_file(self, tree: str, name: str) -> bytes:
        """The bytes of a file of a tree. Raises MachineError if either is not here or damaged."""
        entries = dict(tree_entries(self.read_blob(tree)))
        if name not in entries:
            raise MachineError(f"tree {tree} of the store has no '{name}'; machine-fsck says what is wrong")
        return self.read_blob(entries[name])

    def load_run(self, row: dict[str, Any], scorecard: bool = True) -> Record:
        """The whole record of a run from its index row, with its case as given and the row's scorecard."""
        run = self.load_record(row["id"], "run")
        given = row["given"]
        if "given" in row["parts"]:
            given = orjson.loads(self.read_blob(row["parts"]["given"]))
        run["case"] = {**run["case"], "id": row["case_id"], **given}
        if scorecard and row["scorecard"]:
            run["scorecard"] = self.load_scorecard(row["scorecard"]["id"])
        return run

    def load_scorecard(self, oid: str) -> Record:
        """A scorecard by its id."""
        return self.load_record(oid, "scorecard")

    def load_record(self, oid: str, kind: str) -> Record:
        """A record that the log names as of a kind. Raises MachineError if the object is none."""
        data = self.read_blob(oid)
        try:
            record: Record = {**orjson.loads(data), "id": oid}
            if record["type"] != kind or (kind == "run" and not isinstance(record["case"], dict)):
                raise TypeError
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise MachineError(f"object {oid} is no {kind}, as the log says; see machine-fsck") from None
        return record

    def looks(self, machine: str) -> list[tuple[str, list[str]]]:
        """(candidate, held-out cases) of a machine's optimizations that ran held-out cases."""
        ids = self.index.others("optimization", machine) if self.has_records() else []
        found = [self.load_record(oid, "optimization") for oid in ids]
        return [(one["candidate"], one["exam"]["arms"]["cases"]) for one in found if one.get("exam")]

    # claims ------------------------------------------------------------------------------

    def claim(self, key: str) -> bool:
        """Try to be the one who buys the answer under a key; False: another process is at it.

        A byte of the file `claims` is locked, which the kernel undoes when the holder dies.
        """
        with self._lock:
            self.prepare()
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

    def wait_for(self, key: str, stop: threading.Event, pause_s: float = 0.2) -> bool:
        """Wait until nobody holds a key, then hold it. False if stop came first."""
        while not self.claim(key):
            if stop.wait(pause_s):
                return False
        return True

    def close(self) -> None:
        """Put what was written under refs/runs/*, and let go of files."""
        with self._lock:
            if self._written:
                chain.extend(self.directory, self.objects, self.log, self.fsync)
                self._written = False
            if self._writing is not None:
                os.close(self._writing)
                self._writing, self._ready = None, False
            if self._index is not None:
                self._index.close()
                self._index = None


def _place(key: str) -> int:
    """The byte that stands for a key: 60 bits of it, as the kernel takes offsets below 2^63."""
    return int(key[:15], 16)

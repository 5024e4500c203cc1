"""index.db: a reader's cache of the log in sqlite. Deleting it loses nothing.

Each reader first takes in the log from where the index stopped, so a rebuild is the
same code from offset 0. Writers of records never touch it.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from libmachine.githash import blob_id
from libmachine.store import log
from libmachine.store.query import Conditions

FORMAT = 5
_TABLES = """
CREATE TABLE state (format INTEGER, offset INTEGER, mark TEXT);
CREATE TABLE runs (
  pos INTEGER PRIMARY KEY, id BLOB UNIQUE, machine TEXT, version TEXT, identity TEXT, case_id TEXT,
  trial INTEGER, base TEXT, key BLOB, status TEXT, model TEXT, started_at TEXT, cost_usd NUMERIC,
  parts BLOB, given BLOB, card BLOB, rubric TEXT, score NUMERIC, passed INTEGER);
CREATE TABLE scorecards (
  pos INTEGER PRIMARY KEY, id BLOB UNIQUE, run BLOB, rubric TEXT, score NUMERIC, passed INTEGER,
  person INTEGER);
CREATE TABLE others (pos INTEGER PRIMARY KEY, id BLOB UNIQUE, type TEXT, machine TEXT)
"""
# Made when a whole log has been taken in: to sort once costs a third of keeping them sorted.
_INDEXES = """
CREATE INDEX runs_machine ON runs (machine, pos);
CREATE INDEX runs_key ON runs (key);
CREATE INDEX runs_base ON runs (base, trial);
CREATE INDEX runs_best ON runs (machine, identity, score DESC, pos DESC, status)
"""
_CARD_INDEX = "CREATE INDEX scorecards_run ON scorecards (run, pos)"
# A run's newest scorecard stands in its row too, so that a list needs one table. Marks of people do not
# count. The log may have a scorecard before its run, if two stores were joined.
_JOIN = """
UPDATE runs SET (card, rubric, score, passed) = (
  SELECT id, rubric, score, passed FROM scorecards
  WHERE run = runs.id AND NOT person ORDER BY pos DESC LIMIT 1)
WHERE pos IN (
  SELECT pos FROM runs WHERE pos >= ?1
  UNION SELECT runs.pos FROM scorecards JOIN runs ON runs.id = run WHERE scorecards.pos >= ?1)
"""
_LOGGED = (
    *("pos", "id", "machine", "version", "identity", "case_id", "trial"),
    *("base", "key", "status", "model", "started_at", "cost_usd", "parts", "given"),
)
_CARD = ("card", "rubric", "score", "passed")
_RUN_COLUMNS = ", ".join(_LOGGED + _CARD)
_BRIEF = ("pos", "id", "machine", "version", "case_id", "identity", "trial", "model", "status", "started_at")
_BRIEF_COLUMNS = ", ".join((*_BRIEF, "cost_usd", *_CARD))
_INSERT = {
    "runs": f"INSERT OR IGNORE INTO runs ({', '.join(_LOGGED)}) VALUES ({','.join('?' * len(_LOGGED))})",
    "scorecards": "INSERT OR IGNORE INTO scorecards VALUES (?,?,?,?,?,?,?)",
    "others": "INSERT OR IGNORE INTO others VALUES (?,?,?,?)",
}
_BATCH = 50  # rows of the log held in memory at once
_PAGE = 500


class Index:
    """The index of one store. Threads take turns by the caller's lock.

    Whatever is wrong with the file, it is not the reader's trouble: a damaged one is made anew, and
    where none can be written (read-only, disk full) it is kept in memory.
    """

    def __init__(self, directory: str) -> None:
        self.log = f"{directory}/records"
        self.path = f"{directory}/index.db"
        self._in_memory = False
        self._offset = 0
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        for _ in range(2):
            try:
                return self._connect(self.path)
            except OSError:
                break
            except sqlite3.Error as error:
                if not _is_damage(error):
                    break
                self._remove()
        self._in_memory = True
        return self._connect(":memory:")

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm", "-journal"):
            try:
                os.unlink(self.path + end)
            except OSError:
                pass

    def _connect(self, path: str) -> sqlite3.Connection:
        if path != ":memory:":
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, timeout=30, check_same_thread=False, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")
            db.execute("BEGIN IMMEDIATE")
            known = db.execute("SELECT name FROM sqlite_master WHERE name='state'").fetchone()
            state = db.execute("SELECT * FROM state").fetchone() if known else None
            if state is not None and state[0] == FORMAT and state[2] == log.mark(self.log, state[1]):
                self._offset = state[1]
            else:
                self._clear(db)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _clear(self, db: sqlite3.Connection) -> None:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
            db.execute(f"DROP TABLE {name}")
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO state VALUES (?, 0, ?)", (FORMAT, log.mark(self.log, 0)))
        self._offset = 0

    def _replace(self, error: sqlite3.Error) -> None:
        """Put another database in the place of one that failed, with all that the log has."""
        if self._in_memory:
            raise error
        try:
            self._db.close()
        except sqlite3.Error:
            pass
        if _is_damage(error):
            self._remove()
            self._db = self._open()
        else:
            self._in_memory = True
            self._db = self._connect(":memory:")

    @property
    def offset(self) -> int:
        """Offset up to which the log is taken in."""
        return self._offset

    def catch_up(self) -> None:
        """Take in what the log has beyond the index."""
        while log.size(self.log) != self._offset:
            try:
                self._take_in()
                return
            except sqlite3.Error as error:
                self._replace(error)

    def _take_in(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            offset, mark = db.execute("SELECT offset, mark FROM state").fetchone()
            seen = bytearray(log.before(self.log, offset))
            if mark != blob_id(bytes(seen)):  # the log is another one, or was cut and written anew
                self._clear(db)
                offset, seen = 0, bytearray()
            # Marked by what was read, not by what is there now: rows that could not be synced are cut off.
            offset = self._insert(offset, seen)
            db.execute("UPDATE state SET offset = ?, mark = ?", (offset, blob_id(bytes(seen))))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._offset = offset

    def _insert(self, start: int, seen: bytearray) -> int:
        """Take in the log from an offset on; returns the offset of its end. seen: as log.read's."""
        end = start
        rows = log.read(self.log, start, seen)
        while batch := list(itertools.islice(rows, _BATCH)):
            end = batch[-1][1]
            tables: dict[str, list[tuple[Any, ...]]] = {"runs": [], "scorecards": [], "others": []}
            for pos, _, row in batch:
                if row is not None and log.problem(row) is None:
                    table, values = _values(pos, row)
                    tables[table].append(values)
            for table, lines in tables.items():
                self._insert_all(table, lines)
        if not start:
            self._db.execute(_CARD_INDEX)
        self._db.execute(_JOIN, (start,))
        for statement in _INDEXES.split(";") if not start else ():
            self._db.execute(statement)
        return end

    def _insert_all(self, table: str, lines: list[tuple[Any, ...]]) -> None:
        try:
            self._db.executemany(_INSERT[table], lines)
        except _NO_VALUE:
            for values in lines:
                try:
                    self._db.execute(_INSERT[table], values)
                except _NO_VALUE:
                    continue  # a value that no column holds: machine-fsck compares it with the record

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        while True:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                self._replace(error)
                self.catch_up()

    def run(self, oid: str) -> dict[str, Any] | None:
        """The row of a run by its whole id."""
        return self._one("WHERE id = ?", (bytes.fromhex(oid),))

    def has_run(self, oid: str) -> bool:
        """Is this the whole id of a run?"""
        return bool(self._fetch("SELECT 1 FROM runs WHERE id = ?", (bytes.fromhex(oid),)))

    def by_key(self, key: str) -> dict[str, Any] | None:
        """The newest answer (ok or limit) stored under a key."""
        where = "WHERE key = ? AND status IN ('ok', 'limit') ORDER BY pos DESC"
        return self._one(where, (bytes.fromhex(key),))

    def last_trial(self, base: str) -> int:
        """The highest trial stored of a case under the same conditions, 0 if none."""
        return self._fetch("SELECT max(trial) FROM runs WHERE base = ?", (base,))[0][0] or 0

    def runs(
        self, machine: str | None = None, newest_first: bool = True, wanted: Conditions | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows of a machine's runs, or of all, as far as they are wanted."""
        for page in self._pages(_RUN_COLUMNS, machine, newest_first, wanted or Conditions()):
            yield from map(_named, page)

    def briefs(self, machine: str | None, wanted: Conditions) -> Iterator[dict[str, Any]]:
        """What is wanted of a machine's runs, or of all, newest first, as short records: what the index
        knows of each under the names that a run has for it."""
        for page in self._pages(_BRIEF_COLUMNS, machine, True, wanted):
            yield from (_brief(*row[1:]) for row in page)

    def _pages(
        self, columns: str, machine: str | None, newest_first: bool, wanted: Conditions
    ) -> Iterator[list[Any]]:
        # Pages, not one open cursor: a reader that waits on its pipe must not hold the index.
        order, step, edge = ("DESC", "<", 2**62) if newest_first else ("ASC", ">", -1)
        if wanted.best is not None:
            chosen = sorted((row[0] for row in self._fetch(*wanted.ranked(machine))), reverse=newest_first)
            for page in (chosen[start : start + _PAGE] for start in range(0, len(chosen), _PAGE)):
                marks = ",".join("?" * len(page))
                yield self._fetch(
                    f"SELECT {columns} FROM runs WHERE pos IN ({marks}) ORDER BY pos {order}", page
                )
            return
        where, values = wanted.where(machine)
        query = (
            f"SELECT {columns} FROM runs WHERE {where} AND pos {step} ? ORDER BY pos {order} LIMIT {_PAGE}"
        )
        while rows := self._fetch(query, (*values, edge)):
            yield rows
            edge = rows[-1][0]

    def has_runs_of(self, machine: str) -> bool:
        """Has the machine runs here?"""
        return bool(self._fetch("SELECT 1 FROM runs WHERE machine = ? LIMIT 1", (machine,)))

    def scorecard(self, run: str) -> dict[str, Any] | None:
        """Id, rubric, score and passed of a run's newest scorecard, people's marks left out."""
        where = "WHERE run = ? AND NOT person ORDER BY pos DESC LIMIT 1"
        query = f"SELECT id, rubric, score, passed FROM scorecards {where}"
        rows = self._fetch(query, (bytes.fromhex(run),))
        return _card(*rows[0]) if rows else None

    def scorecards(self, run: str) -> list[str]:
        """Ids of all scorecards of a run by its graders, newest first."""
        return self._cards(run, False)

    def marks(self, run: str) -> list[str]:
        """Ids of the scorecards of a run that are people's marks, newest first."""
        return self._cards(run, True)

    def _cards(self, run: str, person: bool) -> list[str]:
        query = "SELECT id FROM scorecards WHERE run = ? AND person = ? ORDER BY pos DESC"
        return [row[0].hex() for row in self._fetch(query, (bytes.fromhex(run), person))]

    def matching(self, prefix: str) -> list[tuple[str, str]]:
        """(type, id) of the records whose id begins with a prefix of hex digits."""
        low = bytes.fromhex(prefix + "0" * (40 - len(prefix)))
        high = bytes.fromhex(prefix + "f" * (40 - len(prefix)))
        found = []
        for kind, table in (("run", "runs"), ("scorecard", "scorecards")):
            query = f"SELECT id FROM {table} WHERE id BETWEEN ? AND ? LIMIT 10"
            found += [(kind, row[0].hex()) for row in self._fetch(query, (low, high))]
        query = "SELECT type, id FROM others WHERE id BETWEEN ? AND ? LIMIT 10"
        return found + [(row[0], row[1].hex()) for row in self._fetch(query, (low, high))]

    def others(self, kind: str, machine: str) -> list[str]:
        """Ids of a machine's records of a kind that is neither run nor scorecard, oldest first."""
        query = "SELECT id FROM others WHERE type = ? AND machine = ? ORDER BY pos"
        return [row[0].hex() for row in self._fetch(query, (kind, machine))]

    def machines(self) -> Sequence[str]:
        """Names of the machines that have runs here."""
        return [row[0] for row in self._fetch("SELECT DISTINCT machine FROM runs ORDER BY machine")]

    def _one(self, where: str, values: tuple[Any, ...]) -> dict[str, Any] | None:
        rows = self._fetch(f"SELECT {_RUN_COLUMNS} FROM runs {where} LIMIT 1", values)
        return _named(rows[0]) if rows else None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _is_damage(error: sqlite3.Error) -> bool:
    """Is the file at fault, rather than its place (read-only, full, locked for long)?"""
    place = ("readonly", "unable to open", "full", "locked", "busy")
    return not isinstance(error, sqlite3.OperationalError) or not any(word in str(error) for word in place)


_NO_VALUE = (OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


def _values(pos: int, row: log.Row) -> tuple[str, tuple[Any, ...]]:
    """The table that a whole row of the log goes into, and its columns."""
    oid = bytes.fromhex(row["id"])
    if row["type"] == "run":
        return "runs", (
            *(pos, oid, row["machine"], row["version"], row["identity"], row["case_id"], row["trial"]),
            *(row["base"], bytes.fromhex(row["key"]), row["status"], row.get("model"), row.get("started_at")),
            *(row.get("cost_usd"), orjson.dumps(row["parts"]), orjson.dumps(row["given"])),
        )
    if row["type"] == "scorecard":
        card = (row["rubric"], row["score"], row["passed"], bool(row.get("person")))
        return "scorecards", (pos, oid, bytes.fromhex(row["run"]), *card)
    return "others", (pos, oid, row["type"], row["machine"])


def _card(oid: bytes, rubric: str, score: float | None, passed: int | None) -> dict[str, Any]:
    return {
        "id": oid.hex(),
        "rubric": rubric,
        "score": score,
        "passed": None if passed is None else bool(passed),
    }


def _named(row: Sequence[Any]) -> dict[str, Any]:
    """A row by names. scorecard: id, rubric, score and passed of its newest one, or None."""
    named = dict(zip(_LOGGED, row, strict=False))
    named["id"], named["key"] = named["id"].hex(), named["key"].hex()
    named["parts"], named["given"] = orjson.loads(named["parts"]), orjson.loads(named["given"])
    card = row[len(_LOGGED) :]
    named["scorecard"] = None if card[0] is None else _card(*card)
    return named


def _brief(
    oid: bytes,
    machine: str,
    version: str,
    case_id: str,
    identity: str,
    trial: int,
    model: str | None,
    status: str,
    started_at: str | None,
    cost_usd: float | None,
    *card: Any,
) -> dict[str, Any]:
    return {
        "id": oid.hex(),
        "machine": machine,
        "version": version,
        "case": {"id": case_id, "identity": identity},
        "trial": trial,
        "model": model,
        "started_at": started_at,
        "status": status,
        "cost_usd": cost_usd,
        "scorecard": None if card[0] is None else _card(*card),
    }

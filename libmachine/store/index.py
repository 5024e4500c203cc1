"""index.db: a reader's cache of the log in sqlite. Deleting it loses nothing.

Each reader first takes in the log from where the index stopped, so a rebuild is the
same code from offset 0. Writers of records never touch it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from libmachine.store import log

FORMAT = 4
_TABLES = """
CREATE TABLE state (format INTEGER, offset INTEGER, mark TEXT);
CREATE TABLE runs (
  pos INTEGER PRIMARY KEY, id BLOB UNIQUE, machine TEXT, version TEXT, identity TEXT, case_id TEXT,
  trial INTEGER, base TEXT, key BLOB, status TEXT, model TEXT, started_at TEXT, cost_usd REAL,
  parts TEXT, given TEXT);
CREATE INDEX runs_machine ON runs (machine, pos);
CREATE INDEX runs_key ON runs (key);
CREATE INDEX runs_base ON runs (base);
CREATE TABLE scorecards (
  pos INTEGER PRIMARY KEY, id BLOB UNIQUE, run BLOB, rubric TEXT, score REAL, passed INTEGER,
  person INTEGER);
CREATE INDEX scorecards_run ON scorecards (run, pos);
CREATE TABLE others (pos INTEGER PRIMARY KEY, id BLOB UNIQUE, type TEXT, machine TEXT);
"""
_NAMES = (
    *("pos", "id", "machine", "version", "identity", "case_id", "trial"),
    *("base", "key", "status", "model", "started_at", "cost_usd", "parts", "given"),
)
RUN_COLUMNS = ", ".join(_NAMES)


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
            if mark != log.mark(self.log, offset):  # the log is another one, or was cut and written anew
                self._clear(db)
                offset = 0
            for pos, following, row in log.read(self.log, offset):
                if row is not None and log.problem(row) is None:
                    self._take(pos, row)
                offset = following
            db.execute("UPDATE state SET offset = ?, mark = ?", (offset, log.mark(self.log, offset)))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._offset = offset

    def _take(self, pos: int, row: log.Row) -> None:
        oid = bytes.fromhex(row["id"])
        try:
            if row["type"] == "run":
                values = [pos, oid, *(row.get(name) for name in _NAMES[2:])]
                values[_NAMES.index("key")] = bytes.fromhex(row["key"])
                for name in ("parts", "given"):
                    values[_NAMES.index(name)] = orjson.dumps(row[name]).decode()
                self._db.execute(f"INSERT OR IGNORE INTO runs VALUES ({','.join('?' * len(values))})", values)
            elif row["type"] == "scorecard":
                values = [pos, oid, bytes.fromhex(row["run"]), row["rubric"], row["score"], row["passed"]]
                values.append(bool(row.get("person")))
                self._db.execute("INSERT OR IGNORE INTO scorecards VALUES (?,?,?,?,?,?,?)", values)
            else:
                self._db.execute(
                    "INSERT OR IGNORE INTO others VALUES (?,?,?,?)", (pos, oid, row["type"], row["machine"])
                )
        except (OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError):
            return  # a value that no column holds: machine-fsck compares it with the record

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

    def by_key(self, key: str) -> dict[str, Any] | None:
        """The newest answer (ok or limit) stored under a key."""
        where = "WHERE key = ? AND status IN ('ok', 'limit') ORDER BY pos DESC"
        return self._one(where, (bytes.fromhex(key),))

    def last_trial(self, base: str) -> int:
        """The highest trial stored of a case under the same conditions, 0 if none."""
        return self._fetch("SELECT max(trial) FROM runs WHERE base = ?", (base,))[0][0] or 0

    def runs(self, machine: str | None = None, newest_first: bool = True) -> Iterator[dict[str, Any]]:
        """Rows of a machine's runs, or of all."""
        where, values = ("WHERE machine = ?", (machine,)) if machine else ("", ())
        order = "DESC" if newest_first else "ASC"
        # Pages, not one open cursor: a reader that waits on its pipe must not hold the index.
        edge = -1 if not newest_first else 2**62
        joint = "AND" if where else "WHERE"
        step = "<" if newest_first else ">"
        query = f"SELECT {RUN_COLUMNS} FROM runs {where} {joint} pos {step} ? ORDER BY pos {order} LIMIT 500"
        while rows := self._fetch(query, (*values, edge)):
            yield from (_named(row) for row in rows)
            edge = rows[-1][0]

    def scorecard(self, run: str) -> dict[str, Any] | None:
        """Id, rubric, score and passed of a run's newest scorecard, people's marks left out."""
        where = "WHERE run = ? AND NOT person ORDER BY pos DESC LIMIT 1"
        query = f"SELECT id, rubric, score, passed FROM scorecards {where}"
        rows = self._fetch(query, (bytes.fromhex(run),))
        if not rows:
            return None
        row = rows[0]
        passed = None if row[3] is None else bool(row[3])
        return {"id": row[0].hex(), "rubric": row[1], "score": row[2], "passed": passed}

    def scorecards(self, run: str, person: bool = False) -> list[str]:
        """Ids of all scorecards of a run, newest first: of its graders, or people's marks."""
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
        rows = self._fetch(f"SELECT {RUN_COLUMNS} FROM runs {where} LIMIT 1", values)
        return _named(rows[0]) if rows else None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _is_damage(error: sqlite3.Error) -> bool:
    """Is the file at fault, rather than its place (read-only, full, locked for long)?"""
    place = ("readonly", "unable to open", "full", "locked", "busy")
    return not isinstance(error, sqlite3.OperationalError) or not any(word in str(error) for word in place)


def _named(row: Sequence[Any]) -> dict[str, Any]:
    named = dict(zip(_NAMES, row, strict=True))
    named["id"], named["key"] = named["id"].hex(), named["key"].hex()
    named["parts"], named["given"] = orjson.loads(named["parts"]), orjson.loads(named["given"])
    return named

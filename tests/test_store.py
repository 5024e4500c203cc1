"""The store by itself: log, index, objects, chain, claims, fsck, under damage and in any order."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine.canon import hash_of, plain
from libmachine.errors import MachineError
from libmachine.record import arrange, is_unchanged
from libmachine.store import chain, disk, fsck, layout, log
from libmachine.store.index import Index
from libmachine.store.store import Store

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parent.parent
RUN = json.loads((DATA / "run-v1.jsonl").read_bytes())
CARD = json.loads((DATA / "scorecard-v1.jsonl").read_bytes())


def run(number: int, machine: str = "say", **other: Any) -> dict[str, Any]:
    """A run like the golden one, of a case of its own."""
    case = {"id": f"case {number}", "identity": hash_of(number), "input": f"input {number}"}
    base = hash_of([machine, number])
    fields = {"machine": machine, "case": case, "trial": 1, "key": hash_of([base, 1]), **other}
    kept = {
        name: value for name, value in RUN.items() if name not in ("id", "split", "scorecard", "workspace")
    }
    return {**kept, **fields}


def card(run_id: str, machine: str = "say", score: float = 1.0) -> dict[str, Any]:
    made = {**CARD, "run": run_id, "machine": machine, "score": score, "passed": score == 1}
    del made["id"]
    return plain(made)  # type: ignore[no-any-return]


def put(store: Store, number: int, machine: str = "say", **other: Any) -> str:
    made = run(number, machine, **other)
    return str(store.add_run(made, hash_of([machine, number]))["id"])


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / ".machine")


def opened(directory: str) -> Store:
    return Store(directory, fsync=False)


def filled(directory: str, number: int = 12) -> list[str]:
    """A store of runs of two machines, each second one graded twice; returns the ids of the runs."""
    store = opened(directory)
    ids = []
    for n in range(number):
        machine = "say" if n % 3 else "other/child"
        ids.append(put(store, n, machine))
        if n % 2:
            for score in (0.5, 1.0):
                store.add_scorecard(card(ids[-1], machine, score))
    store.close()
    return ids


def answers(directory: str) -> Any:
    """Everything that a reader can ask an index."""
    store = opened(directory)
    index = store.index
    rows = list(index.runs())
    assert rows == list(index.runs(newest_first=False))[::-1]
    found = {
        "rows": rows,
        "machines": index.machines(),
        "of one": list(index.runs("say")),
        "cards": [index.scorecard(row["id"]) for row in rows],
        "all cards": [index.scorecards(row["id"]) for row in rows],
        "keys": [index.by_key(row["key"]) for row in rows],
        "trials": [index.last_trial(row["base"]) for row in rows],
        "prefixes": [index.matching(row["id"][:6]) for row in rows],
        "whole": [store.load_run(row) for row in rows],
    }
    store.close()
    return found


def findings(directory: str) -> list[str]:
    return [finding.line() for finding in fsck.check(directory, fsck.Report())]


def damage(path: str | Path, offset: int, data: bytes) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


# what goes in comes out ------------------------------------------------------------------


def test_a_run_comes_back_as_it_went_in(directory: str) -> None:
    store = opened(directory)
    given = run(1)
    given["case"] |= {"target": ["t", 1.5], "metadata": {"k": "v"}}
    stored = store.add_run(given, hash_of("base"))
    assert is_unchanged(stored)
    row = store.index.run(stored["id"])
    assert row is not None
    assert arrange("run", store.load_run(row)) == arrange("run", stored)
    assert store.stored_answer(given["key"]) == row
    # a large target lies in an object of its own
    given["case"]["target"] = "long " * 1000
    big = store.add_run({**given, "trial": 2, "key": hash_of("two")}, hash_of("base"))
    row = store.index.run(big["id"])
    assert row is not None and "given" in row["parts"]
    assert store.load_run(row)["case"] == big["case"]
    assert store.last_trial(hash_of("base")) == 2
    store.close()
    assert findings(directory) == []


def test_a_run_stored_twice_is_there_once(directory: str) -> None:
    store = opened(directory)
    assert put(store, 1) == put(store, 1)
    assert len(list(store.index.runs())) == 1
    store.close()
    assert findings(directory) == []


def test_newest_is_later_in_the_log_whatever_the_clock_says(directory: str) -> None:
    """Nothing orders by a time: a clock set back is irrelevant."""
    store = opened(directory)
    first = put(store, 1, started_at="2099-01-01T00:00:00.000Z")
    second = put(store, 1, started_at="1999-01-01T00:00:00.000Z", duration_s=1)
    answer = store.stored_answer(run(1)["key"])
    assert answer is not None and answer["id"] == second != first
    assert [row["id"] for row in store.index.runs()] == [second, first]
    late, early = card(first, score=0.25), card(first, score=0.75)
    store.add_scorecard({**late, "graded_at": "2099-01-01T00:00:00.000Z"})
    store.add_scorecard({**early, "graded_at": "1999-01-01T00:00:00.000Z"})
    newest = store.newest_scorecard(first)
    assert newest is not None and newest["score"] == 0.75
    store.close()
    assert answers(directory)["cards"][1]["score"] == 0.75


def test_what_this_process_has_just_added_is_known_to_it(directory: str) -> None:
    store = opened(directory)
    put(store, 1)
    assert store.index.machines() == ["say"]
    for n in range(2, 6):
        assert store.stored_answer(run(n)["key"]) is None
        assert store.last_trial(hash_of(["say", n])) == 0
        oid = put(store, n)
        assert not store.knows_run("1" * 40)
        assert store.knows_run(oid)
        answer = store.stored_answer(run(n)["key"])
        assert answer is not None and answer["id"] == oid
        assert store.last_trial(hash_of(["say", n])) == 1
    store.close()


def test_failed_runs_are_no_answers(directory: str) -> None:
    store = opened(directory)
    put(store, 1)
    put(store, 1, status="failed", duration_s=9)
    answer = store.stored_answer(run(1)["key"])
    assert answer is not None and answer["status"] == "ok"
    put(store, 2, status="failed")
    assert store.stored_answer(run(2)["key"]) is None
    assert store.last_trial(hash_of(["say", 2])) == 1
    store.close()


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "",
        "/etc",
        "a//b",
        ".git",
        "a/.",
        "-",
        "a/-",
        "A",
        "a b",
        "x.lock",
        "a..b",
        "a\n",
        "ä",
    ],
)
def test_names_that_would_leave_the_store_are_refused(directory: str, name: str) -> None:
    store = opened(directory)
    for action in (
        lambda: put(store, 1, name),
        lambda: store.add_scorecard(card("0" * 40, name)),
        lambda: chain.ref_of(name),
    ):
        with pytest.raises(MachineError, match="is no machine name"):
            action()
    store.close()
    assert not os.path.exists(f"{directory}/records")
    # nor does a hand-made log line lead the chain out of its place
    put(store, 1)
    row = dict(next(log.read(f"{directory}/records"))[2] or {}) | {"machine": name}
    with open(f"{directory}/records", "ab") as file:
        file.write(orjson.dumps(row) + b"\n")
    store.close()
    refs = [path.relative_to(directory) for path in Path(directory, "refs").rglob("*") if path.is_file()]
    assert [str(path) for path in refs] == ["refs/runs/say/-/chain"]
    assert not [path for path in Path(directory).parent.iterdir() if path.name != ".machine"]
    assert any("the log has machine" in line for line in findings(directory))


# the log ---------------------------------------------------------------------------------

rows = st.dictionaries(st.text(max_size=6), st.integers(-(2**53), 2**53) | st.text(max_size=8), max_size=4)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(rows, min_size=1, max_size=3), max_size=5),
    st.binary(max_size=30).filter(lambda tail: b"\n" not in tail),
    st.lists(rows, min_size=1, max_size=3),
)
def test_a_torn_tail_is_cut_off_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Any], tail: bytes, last: Any
) -> None:
    path = str(tmp_path_factory.mktemp("log") / "records")
    wanted = []
    for batch in batches:
        batch = [{"type": "t", **{f"_{name}": value for name, value in row.items()}} for row in batch]
        wanted += batch
        start, end = log.append(path, batch, False)
        assert end == log.size(path) and log.is_boundary(path, start)
    with open(path, "ab") as file:
        file.write(tail)
    assert [row for _, _, row in log.read(path)] == wanted  # readers take whole lines only
    last = [{"type": "t", "last": row} for row in last]
    log.append(path, last, False)
    assert [row for _, _, row in log.read(path)] == wanted + last
    # each line can be the first, and no offset inside one is a boundary
    edges = [offset for offset, _, _ in log.read(path)] + [log.size(path)]
    assert [n for n in range(log.size(path) + 2) if log.is_boundary(path, n)] == edges
    for number, offset in enumerate(edges):
        assert [row for _, _, row in log.read(path, offset)] == (wanted + last)[number:]


def test_a_torn_tail_longer_than_any_buffer(tmp_path: Path) -> None:
    path = str(tmp_path / "records")
    log.append(path, [{"type": "a"}], False)
    with open(path, "ab") as file:
        file.write(b"x" * 200_000)
    log.append(path, [{"type": "b"}], False)
    assert [row for _, _, row in log.read(path)] == [{"type": "a"}, {"type": "b"}]
    Path(path).write_bytes(b"y" * 200_000)
    log.append(path, [{"type": "c"}], False)
    assert [row for _, _, row in log.read(path)] == [{"type": "c"}]


@pytest.mark.parametrize("action", ["enospc", "eio", "short"])
def test_a_failed_append_leaves_the_log_as_it_was(tmp_path: Path, action: str) -> None:
    path = str(tmp_path / "records")
    log.append(path, [{"type": "a"}], False)
    before = Path(path).read_bytes()
    disk.plan_fault(f"{action}:1")
    try:
        with pytest.raises(OSError) as caught:
            log.append(path, [{"type": "b", "long": "x" * 100}], True)
        assert caught.value.errno == (errno.EIO if action == "eio" else errno.ENOSPC)
    finally:
        disk.plan_fault(None)
    assert Path(path).read_bytes() == before


def test_threads_and_processes_lose_no_line(directory: str) -> None:
    """4 threads in each of 3 processes; every run in the log once, every one in the chain."""
    script = f"""
import sys, threading
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from test_store import opened, put
store = opened({directory!r})
who = int(sys.argv[1])
work = lambda t: [put(store, 1000 * who + 100 * t + n) for n in range(25)]
threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
store.close()
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, str(who)]) for who in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    rows = [row for _, _, row in log.read(f"{directory}/records")]
    assert len(rows) == len({row["id"] for row in rows if row}) == 300
    assert findings(directory) == []
    assert len(answers(directory)["rows"]) == 300
    assert chained(directory) == {row["id"] for row in rows if row}


def git(directory: str, *words: str, stdin: bytes = b"") -> str:
    command = ["git", f"--git-dir={directory}", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, (words, done.stderr.decode())
    return done.stdout.decode()


def chained(directory: str) -> set[str]:
    """Ids of all records that hang on a chain, by git."""
    found = set()
    for commit in git(directory, "log", "--all", "--format=%H").split():
        for line in git(directory, "ls-tree", commit).splitlines():
            head, _, name = line.partition("\t")
            if "." not in name:
                assert head.split()[2] == name
                found.add(name)
    return found


# the index -------------------------------------------------------------------------------


def test_index_anew_equals_index_as_it_grew(directory: str) -> None:
    store = opened(directory)
    for n in range(30):
        oid = put(store, n, random.Random(n).choice(["say", "say/child", "other"]), trial=1 + n % 3)
        if n % 4:
            store.add_scorecard(card(oid, score=n / 30))
        if n % 7 == 0:  # a reader comes by, now and then
            answers(directory)
    store.close()
    grown = answers(directory)
    os.unlink(f"{directory}/index.db")
    assert answers(directory) == grown
    assert len(grown["rows"]) == 30


def test_another_process_sees_what_this_one_adds(directory: str) -> None:
    one, other = opened(directory), opened(directory)
    for n in range(6):
        writer, reader = (one, other) if n % 2 else (other, one)
        oid = put(writer, n)
        assert reader.stored_answer(run(n)["key"]) is not None
        assert reader.newest_scorecard(oid) is None
        writer.add_scorecard(card(oid))
        assert (reader.newest_scorecard(oid) or {})["score"] == 1
        assert (writer.newest_scorecard(oid) or {})["score"] == 1
        assert writer.knows_run(oid) and reader.knows_run(oid)
    one.close()
    other.close()


steps_of = st.lists(
    st.tuples(
        st.sampled_from(["run", "card", "mark", "anew", "more"]),
        st.integers(0, 1),  # which of the two stores does it
        st.integers(0, 3),  # of which case
        st.integers(1, 2),  # in which trial
    ),
    max_size=25,
)


def test_rows_that_are_cut_off_after_they_were_read(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that could not sync cuts its rows off again; others come in their place, as long."""
    store = opened(directory)
    ids = [put(store, n) for n in range(6)]
    store.close()
    path = f"{directory}/records"
    whole = Path(path).read_bytes()
    cut = whole[: whole.index(b"\n") + 1]
    other = whole[len(cut) :].replace(ids[5].encode(), ids[0][::-1].encode())
    read = log.read

    def slow(*words: Any) -> Iterator[Any]:
        yield from read(*words)
        Path(path).write_bytes(cut + other)  # before the reader has noted how far it is

    Path(f"{directory}/index.db").unlink(missing_ok=True)
    monkeypatch.setattr(log, "read", slow)
    index = Index(directory)
    index.catch_up()
    assert ids[5] in {row["id"] for row in index.runs()}
    index.close()
    Path(path).write_bytes(whole)
    Path(f"{directory}/chained").unlink()
    chain.extend(directory, opened(directory).objects, path, False)
    monkeypatch.undo()
    again = Index(directory)
    again.catch_up()
    assert next(iter(again.runs()))["id"] == ids[0][::-1]
    again.close()
    assert chain.chained(directory, path) == 0


@settings(max_examples=60, deadline=None)
@given(steps_of, st.integers(1, 4))
def test_a_look_up_beyond_the_index_is_right(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, int]], most: int
) -> None:
    """Two commands at one store, whatever they add: each answers as one that reads the whole log."""
    directory = str(tmp_path_factory.mktemp("two") / ".machine")
    stores = [opened(directory), opened(directory)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("libmachine.store.tail.MOST", most)
        known: list[str] = []
        for step, who, case, trial in steps:
            store = stores[who]
            if step == "run":
                key = hash_of([case, trial])
                known.append(put(store, case, trial=trial, key=key, status="ok" if who else "failed"))
            elif step == "card" and known:
                store.add_scorecard(card(known[-1], score=case / 3))
            elif step == "mark" and known:
                mark = card(known[0])
                mark["grades"] = [{**grade, "grader": "person:me"} for grade in mark["grades"]]
                store.add_scorecard(mark)
            elif step == "anew" and os.path.exists(f"{directory}/records"):
                # what machine-forget does: another file in the place of the log, with fewer lines
                lines = Path(f"{directory}/records").read_bytes().splitlines(True)
                Path(f"{directory}/records.new").write_bytes(b"".join(lines[1:]))
                os.rename(f"{directory}/records.new", f"{directory}/records")
            whole = opened(directory)
            for each in stores:
                for case_, trial_ in ((c, t) for c in range(4) for t in (1, 2)):
                    found, wanted = (s.stored_answer(hash_of([case_, trial_])) for s in (each, whole))
                    assert (found and found["id"]) == (wanted and wanted["id"])
                    base = hash_of(["say", case_])
                    assert each.last_trial(base) == whole.last_trial(base)
                for oid in known:
                    assert each.knows_run(oid) == whole.knows_run(oid)
                    assert each.newest_scorecard(oid) == whole.newest_scorecard(oid)
                    assert each.scorecards(oid) == whole.scorecards(oid)
                    assert each.marks(oid) == whole.marks(oid)
            whole.close()


def test_a_scorecard_before_its_run_counts(directory: str) -> None:
    """Two stores that were joined may have the lines in any order; a mark is no scorecard of a run's."""
    filled(directory)
    before = answers(directory)
    path = Path(f"{directory}/records")
    lines = path.read_bytes().splitlines(True)
    cards = [line for line in lines if b'"scorecard"' in line]
    path.write_bytes(b"".join([*cards, *(line for line in lines if line not in cards)]))
    Path(f"{directory}/index.db").unlink()
    after = answers(directory)
    assert after["cards"] == before["cards"]
    figures = [[row["scorecard"] for row in found["rows"]] for found in (before, after)]
    assert figures[0] == figures[1] == before["cards"]
    assert sum(card is not None for card in before["cards"]) == 6


def _gone(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def _short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _shorter(path: Path) -> None:
    os.truncate(path, 1000)


def _text(path: Path) -> None:
    path.write_text("not a database, but long enough to be looked at\n" * 100)


def _old(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE state (format INTEGER, offset INTEGER)")
        db.execute("INSERT INTO state VALUES (1, 99)")
        db.execute("CREATE TABLE runs (x)")


def _no_state(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM state")


def _no_table(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE scorecards")


def _far(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE state SET offset = offset + 1000000")


def _inside(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE state SET offset = offset - 10")


def _side_files(path: Path) -> None:
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").write_bytes(random.Random(2).randbytes(33000))


HARM = (
    _gone,
    _empty,
    _garbage,
    _short,
    _shorter,
    _text,
    _old,
    _no_state,
    _no_table,
    _far,
    _inside,
    _side_files,
)


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_index_changes_no_answer(directory: str, harm: Callable[[Path], None]) -> None:
    filled(directory)
    before = answers(directory)
    harm(Path(f"{directory}/index.db"))
    assert answers(directory) == before
    assert answers(directory) == before
    store = opened(directory)
    put(store, 99)
    store.close()
    assert len(answers(directory)["rows"]) == len(before["rows"]) + 1


def test_garbage_anywhere_in_the_index_changes_no_answer(directory: str) -> None:
    """Pages that sqlite finds out about late, in the middle of a query."""
    filled(directory, 60)
    before = answers(directory)
    path = Path(f"{directory}/index.db")
    clean = path.read_bytes()
    order = random.Random(3)
    for offset in range(0, len(clean), 4096):
        path.write_bytes(clean)
        damage(path, offset, order.randbytes(order.choice((64, 512, 4096))))
        assert answers(directory) == before, f"garbage at {offset}"


def test_an_index_that_breaks_under_an_open_reader(directory: str) -> None:
    filled(directory, 60)
    before = answers(directory)
    store = opened(directory)
    assert store.index.machines() == before["machines"]
    for end in ("-wal", "-shm"):
        Path(f"{directory}/index.db{end}").unlink(missing_ok=True)
    path = Path(f"{directory}/index.db")
    path.write_bytes(path.read_bytes()[:100] + os.urandom(path.stat().st_size))
    assert list(store.index.runs()) == before["rows"]
    store.close()


def test_no_index_can_be_written(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk and a read-only store: readers keep the index in memory."""
    filled(directory)
    before = answers(directory)
    os.unlink(f"{directory}/index.db")
    connect = Index._connect

    failures: list[Exception] = [
        PermissionError(errno.EACCES, "no"),
        OSError(errno.EROFS, "no"),
        OSError(errno.ENOSPC, "no"),
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        sqlite3.OperationalError("unable to open database file"),
        sqlite3.OperationalError("database is locked"),
    ]

    def failing(self: Index, path: str) -> sqlite3.Connection:
        if path != ":memory:":
            raise failures[0]
        return connect(self, path)

    monkeypatch.setattr(Index, "_connect", failing)
    while failures:
        assert answers(directory) == before
        del failures[0]
    assert not os.path.exists(f"{directory}/index.db")


def test_a_log_that_was_cut_and_went_on_differently(directory: str) -> None:
    """What a reader took in of a write that failed afterwards must not stay in its index."""
    ids = filled(directory, 6)
    before = answers(directory)
    store = opened(directory)
    whole = log.size(store.log)
    ghost = put(store, 50)
    assert len(list(store.index.runs())) == 7
    reader = opened(directory)
    assert reader.knows_run(ghost)
    os.truncate(store.log, whole)
    assert not reader.knows_run(ghost)
    for n in range(60, 64):
        put(opened(directory), n, model="a longer model's name")
    assert not reader.knows_run(ghost)
    assert len(list(reader.index.runs())) == 10
    now = answers(directory)
    assert len(now["rows"]) == 10 and {row["id"] for row in now["rows"]} >= set(ids)
    assert now["rows"][4:] == before["rows"]


BAD_ROWS: list[dict[str, Any]] = [
    {},
    {"id": 1},
    {"id": "zz" * 20},
    {"id": "ab"},
    {"trial": "one"},
    {"trial": 2**70},
    {"parts": []},
    {"parts": {"before": "../../x"}},
    {"parts": {"a/b": "0" * 40}},
    {"given": None},
    {"key": "not hex"},
    {"machine": None},
    {"machine": ["say"]},
    {"case_id": 7},
    {"status": {}},
    {"cost_usd": 2**63},
    {"model": {"a": 1}},
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=str)
def test_a_log_line_of_another_shape_harms_no_other(directory: str, bad: dict[str, Any]) -> None:
    ids = filled(directory, 4)
    with open(f"{directory}/records", "ab") as file:
        row = dict(next(log.read(f"{directory}/records"))[2] or {}) | bad
        line = json.dumps({"type": "run"} if not bad else row)
        file.write(f"{line}\n[]\nnull\n{{}}\nnot json\n{{'type': 'run'}}\n\n{{\"type\": []}}\n".encode())
    store = opened(directory)
    last = put(store, 70)
    store.close()
    assert {row["id"] for row in answers(directory)["rows"]} >= {*ids, last}
    assert chained(directory) >= {*ids, last}
    told = findings(directory)
    assert sum("log-torn: " in line for line in told) == 7
    if bad and bad.keys().isdisjoint({"cost_usd", "model"}):
        assert len(told) > 7


def test_many_processes_open_a_store_without_an_index_at_once(directory: str) -> None:
    ids = filled(directory, 40)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
        f"from test_store import opened; print(len(list(opened({directory!r}).index.runs())))"
    )
    for _ in range(3):
        Path(f"{directory}/index.db").unlink(missing_ok=True)
        readers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
        assert [int(reader.communicate(timeout=60)[0]) for reader in readers] == [len(ids)] * 4


# objects and chain -----------------------------------------------------------------------


def test_git_reads_what_we_write(directory: str) -> None:
    store = opened(directory)
    files = {"a/b.txt": "b", "a.txt": "a", "a/c/d": "", "é": "\0"}
    tree = store.files(files)
    made = run(1)
    stored = store.add_run(made, "base", {"before": tree, "after": tree, "tokens.0": store.blob(b"{}")})
    store.close()
    git(directory, "fsck", "--strict", "--no-dangling")
    assert git(directory, "cat-file", "-t", stored["id"]) == "blob\n"
    listed = git(directory, "-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", tree).splitlines()
    assert sorted(listed) == sorted(files)
    assert git(directory, "show", f"{tree}:a/b.txt") == "b"
    names = git(directory, "ls-tree", "--name-only", chain.ref_of("say")).split()
    assert sorted(names) == sorted(
        [stored["id"], chain.LINES] + [f"{stored['id']}.{p}" for p in ("before", "after", "tokens.0")]
    )
    assert findings(directory) == []


def test_each_commit_holds_its_batch_alone_and_what_was_left_out_goes_into_the_next(directory: str) -> None:
    first = opened(directory)
    ids = [put(first, 1)]
    first.close()
    dead = opened(directory)
    ids.append(put(dead, 2))  # and it dies before close()
    last = opened(directory)
    ids.append(put(last, 3))
    last.close()
    commits = git(directory, "rev-list", "--reverse", chain.ref_of("say")).split()
    trees = [set(git(directory, "ls-tree", "--name-only", commit).split()) for commit in commits]
    assert trees == [{ids[0], chain.LINES}, {ids[1], ids[2], chain.LINES}]


@pytest.mark.parametrize("text", [None, b"", b"garbage", b"-5", b"7", b"999999999", b"\xff\xfe", b"1e3"])
def test_the_chain_mends_itself_from_any_state(directory: str, text: bytes | None) -> None:
    ids = filled(directory, 4)
    path = Path(f"{directory}/chained")
    path.unlink() if text is None else path.write_bytes(text)
    store = opened(directory)
    ids.append(put(store, 9))
    store.close()
    assert chained(directory) >= set(ids)
    assert int(path.read_text().split()[0]) == log.size(f"{directory}/records")


def test_the_chain_goes_on_from_packed_refs(directory: str) -> None:
    filled(directory, 4)
    git(directory, "pack-refs", "--all", "--prune")
    assert not os.path.exists(f"{directory}/{chain.ref_of('say')}")
    before = git(directory, "rev-list", chain.ref_of("say")).split()
    store = opened(directory)
    put(store, 9)
    store.close()
    assert git(directory, "rev-list", chain.ref_of("say")).split()[1:] == before


def test_a_lock_left_by_the_dead_does_not_hold_up_the_chain(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(directory, 2)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    os.symlink("machine", f"{directory}/{chain.ref_of('say')}.lock")
    store = opened(directory)
    oid = put(store, 9)
    store.close()
    assert oid in chained(directory)
    assert not os.path.lexists(f"{directory}/{chain.ref_of('say')}.lock")


def test_a_lock_of_gits_is_waited_for(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(directory, 2)
    lock = Path(f"{directory}/{chain.ref_of('say')}.lock")
    lock.write_text("")
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 5:
            lock.unlink()

    monkeypatch.setattr("time.sleep", nap)
    store = opened(directory)
    put(store, 9)
    store.close()
    assert len(naps) == 5
    lock.write_text("")  # and one that stays is not waited for without end, whatever the clock says
    os.utime(lock, (2**32, 2**32))
    put(store, 10)
    store.close()
    assert 5 + 100 < len(naps) < 5 + 1000


def test_packed_objects_are_read(directory: str) -> None:
    filled(directory)
    before = answers(directory)
    git(directory, "repack", "-a", "-q")
    for path in Path(directory, "objects").glob("??/*"):
        path.unlink()
    assert answers(directory) == before
    assert findings(directory) == []
    store = opened(directory)
    with pytest.raises(MachineError, match="is missing"):
        store.read_blob("1" * 40)
    pack = next(Path(directory, "objects/pack").glob("*.pack"))
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nfrom libmachine.store import fsck\n"
        f"print(*(f.line() for f in fsck.check({directory!r}, fsck.Report())), sep='\\n')"
    )
    damage(
        pack, pack.stat().st_size // 2, b"\xff" * 300
    )  # libgit2 keeps a pack mapped: look with a new process
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "damaged" in told


def test_file_modes_do_not_hang_on_the_umask(directory: str) -> None:
    before = os.umask(0)
    try:
        store = opened(directory)
        store.files({"a/b": "c"})
        oid = put(store, 1, "deep/er")
        assert store.claim("f" * 40)
        store.index.machines()
        store.close()
    finally:
        os.umask(before)
    modes = {0o700: 0, 0o600: 0, 0o400: 0}
    for path in [Path(directory), *Path(directory).rglob("*")]:
        mode = path.stat().st_mode & 0o777
        wanted = 0o700 if path.is_dir() else 0o400 if "objects" in path.parts else 0o600
        assert mode == wanted, f"{path} {mode:o}"
        modes[mode] += 1
    assert all(modes.values()) and oid


# the directory ---------------------------------------------------------------------------


def test_foreign_directories_are_refused(tmp_path: Path) -> None:
    filled(str(tmp_path / "real"), 1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    shutil.copytree(tmp_path / "real", tmp_path / "newer")
    (tmp_path / "newer" / "format").write_text("2\n")
    shutil.copytree(tmp_path / "real", tmp_path / "binary")
    (tmp_path / "binary" / "format").write_bytes(b"\xff\xfe\0")
    for name, why in (
        ("link", "symbolic link"),
        ("file", "no directory"),
        ("full", "is no store"),
        ("newer", "this program knows 1"),
        ("binary", "this program knows 1"),
    ):
        with pytest.raises(MachineError, match=why):
            opened(str(tmp_path / name))
    assert (tmp_path / "full" / "mine.txt").exists()
    with pytest.raises(FileNotFoundError):  # and not without end
        put(opened("/proc/no/store"), 1)
    (tmp_path / "empty").mkdir(mode=0o755)
    store = opened(str(tmp_path / "empty"))
    put(store, 1)
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o700


def test_unfinished_writes_of_the_dead_are_swept_and_of_the_living_are_not(directory: str) -> None:
    filled(directory, 1)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    living = subprocess.Popen(["sleep", "60"])
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        "dead": f"{namespace}-{dead.pid}-0",
        "living": f"{namespace}-{living.pid}-0",
        "elsewhere": f"{namespace + 1}-{dead.pid}-0",
        "long ago": f"{namespace + 1}-{dead.pid}-1",
        "odd": "odd",
    }
    for name in names.values():
        Path(f"{directory}/tmp/{name}").write_text("")
    os.utime(f"{directory}/tmp/{names['long ago']}", (1, 1))
    store = opened(directory)
    put(store, 2)
    living.kill()
    living.wait()
    assert set(os.listdir(f"{directory}/tmp")) == {names["living"], names["elsewhere"], names["odd"]}
    store.close()


def test_temporary_names_of_a_dead_process_with_our_pid_are_stepped_over(directory: str) -> None:
    filled(directory, 1)
    head, _, number = os.path.basename(layout.temporary(directory)).rpartition("-")
    for n in range(int(number), int(number) + 4):
        Path(f"{directory}/tmp/{head}-{n}").write_text("")
    store = opened(directory)
    oid = put(store, 2)
    store.close()
    assert oid in chained(directory)


def test_two_threads_make_one_store(directory: str) -> None:
    for _ in range(5):
        stores = [opened(directory) for _ in range(4)]
        with ThreadPoolExecutor(4) as crew:
            assert list(crew.map(lambda pair: bool(put(pair[1], pair[0])), enumerate(stores))) == [True] * 4
        for store in stores:
            store.close()
        assert findings(directory) == []
        assert os.listdir(f"{directory}/tmp") == []
        shutil.rmtree(directory)


def test_a_store_that_another_process_makes_meanwhile_is_not_foreign(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(directory)
    half_made = layout._half_made

    def meanwhile(path: str) -> bool:
        monkeypatch.setattr(layout, "_half_made", half_made)
        filled(directory, 1)
        return half_made(path)

    monkeypatch.setattr(layout, "_half_made", meanwhile)
    layout.refuse_foreign(directory)
    assert len(answers(directory)["rows"]) == 1


def test_missing_folders_come_back(directory: str) -> None:
    """git and backup programs drop empty directories."""
    ids = filled(directory, 2)
    for name in ("tmp", "objects/pack", "objects/info", "refs/heads"):
        os.rmdir(f"{directory}/{name}")
    assert len(answers(directory)["rows"]) == 2
    store = opened(directory)
    ids.append(put(store, 5))
    store.close()
    assert len(answers(directory)["rows"]) == 3


# claims ----------------------------------------------------------------------------------


def holder(directory: str, key: str) -> subprocess.Popen[bytes]:
    code = (
        f"import sys, time; sys.path[:0] = [{str(ROOT)!r}]\nfrom libmachine.store.store import Store\n"
        f"store = Store({directory!r}); print(store.claim({key!r}), flush=True); time.sleep(600)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_a_claim_keeps_others_out_until_its_holder_dies(directory: str) -> None:
    key, other = "a" * 40, "b" * 40
    process = holder(directory, key)
    assert process.stdout and process.stdout.readline() == b"True\n"
    store = opened(directory)
    assert not store.claim(key)
    assert store.claim(other)
    waiter = threading.Thread(target=store.wait_for, args=(key, threading.Event(), 0.01), daemon=True)
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    process.kill()
    process.wait()
    waiter.join(20)
    assert not waiter.is_alive()
    assert not store.claim(key)  # we have it, also against our own threads
    store.release(key)
    assert store.claim(key)
    store.release(other)
    store.close()


# fsck ------------------------------------------------------------------------------------


def test_fsck_names_every_planted_fault(directory: str) -> None:
    ids = filled(directory, 12)
    assert findings(directory) == []
    records = Path(directory, "records")
    lines = records.read_bytes().splitlines(keepends=True)

    def loose(oid: str) -> Path:
        return Path(directory, "objects", oid[:2], oid[2:])

    def restoring(*paths: Path) -> Iterator[None]:
        kept = {path: path.read_bytes() for path in paths}
        yield
        for path, data in kept.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)

    def told(harm: Callable[[], Any], *paths: Path) -> list[str]:
        undo = restoring(*paths)
        next(undo)
        harm()
        found = findings(directory)
        next(undo, None)
        assert findings(directory) == []
        return found

    one = loose(ids[3])
    for offset in range(0, one.stat().st_size, 97):  # a flipped byte, anywhere
        byte = bytes([one.read_bytes()[offset] ^ 0x55])
        found = told(lambda o=offset, b=byte: damage(one, o, b), one)  # type: ignore[misc]
        assert len(found) == 1 and ids[3] in found[0] and "damaged" in found[0]
    found = told(one.unlink, one)
    assert len(found) == 1 and ids[3] in found[0] and "missing" in found[0]
    found = told(lambda: damage(one, one.stat().st_size // 2, b""), one)
    assert found == []
    found = told(lambda: one.write_bytes(one.read_bytes()[:20]), one)
    assert len(found) == 1 and ids[3] in found[0]

    absent = b'{"type":"scorecard","id":"' + b"1" * 40 + lines[2].split(b'"id":"')[1][40:]
    found = told(lambda: records.write_bytes(b"".join(lines) + absent), records)
    assert len(found) == 1 and "1" * 40 in found[0] and "missing" in found[0]
    found = told(lambda: records.write_bytes(b"".join(lines) + lines[-1][:-9]), records)
    assert len(found) == 1 and "torn line" in found[0]
    found = told(lambda: records.write_bytes(lines[0] + b"{broken\n" + b"".join(lines[1:])), records)
    assert len(found) == 1 and "no JSON object" in found[0]
    card_line = next(line for line in lines if b'"scorecard"' in line)
    found = told(lambda: records.write_bytes(card_line + b"".join(lines)), records)
    assert len(found) == 1 and "which the log does not have before it" in found[0]
    for old, new, name in (
        (b'"status":"ok"', b'"status":"limit"', "status"),
        (b'"machine":"say"', b'"machine":"red"', "machine"),
        (b'"trial":1', b'"trial":2', "trial"),
        (b'"score":0.5', b'"score":1', "score"),
        (b'"passed":false', b'"passed":true', "passed"),
        (b'"identity":"', b'"identity":"x', "identity"),
    ):
        text = b"".join(lines).replace(old, new, 1)
        assert new in text
        found = told(lambda t=text: records.write_bytes(t), records)  # type: ignore[misc]
        assert len(found) == 1 and name in found[0], found

    forged = dict(orjson.loads(lines[0]))
    store = opened(directory)
    for text in (
        b"hello",
        b"[]",
        b'{"type":"run"}',
        b'{"v":1,"type":"run","machine":"other/child"}',
        b'{"v":9,"type":"run"}',
    ):
        line = orjson.dumps(forged | {"id": store.blob(text)}) + b"\n"
        found = told(lambda line=line: records.write_bytes(b"".join(lines) + line), records)  # type: ignore[misc]
        assert len(found) == 1 and store.blob(text) in found[0], found
    spaced = store.blob(orjson.dumps(orjson.loads(store.read_blob(ids[0])), option=orjson.OPT_INDENT_2))
    line = orjson.dumps(forged | {"id": spaced}) + b"\n"
    found = told(lambda: records.write_bytes(b"".join(lines) + line), records)
    assert len(found) == 1 and "not canonical" in found[0]


def test_fsck_looks_into_workspaces(directory: str) -> None:
    store = opened(directory)
    tree = store.files({"a/b": "deep", "c": "flat"})
    oid = store.add_run(run(1), "base", {"before": tree, "after": tree})["id"]
    store.close()
    assert findings(directory) == []
    blob = store.objects.blob(b"deep")
    os.unlink(store.objects.path(blob))
    told = findings(directory)
    assert len(told) == 2 and all(blob in line and oid[:12] in line and "missing" in line for line in told)


def test_a_blob_that_looks_like_a_record_is_none(directory: str) -> None:
    ids = filled(directory, 3)
    store = opened(directory)
    row = store.index.run(ids[1])
    assert row is not None
    forged = {**json.loads(store.read_blob(ids[1])), "output": "forged"}
    oid = store.blob(orjson.dumps(plain(forged), option=orjson.OPT_SORT_KEYS))
    assert not store.knows_run(oid)
    store.close()
    os.unlink(f"{directory}/index.db")
    assert not opened(directory).knows_run(oid)
    assert len(answers(directory)["rows"]) == 3
    assert findings(directory) == []


def test_a_record_that_is_none_is_refused_by_name(directory: str) -> None:
    filled(directory, 1)
    store = opened(directory)
    row = dict(next(log.read(store.log))[2] or {})
    for number, text in enumerate((b"no json", b"[]", b'{"type":"scorecard"}', b'{"type":"run","case":[]}')):
        oid = store.blob(text)
        log.append(store.log, [row | {"id": oid, "key": hash_of(number)}], False)
        found = store.index.run(oid)
        assert found is not None
        with pytest.raises(MachineError, match=f"object {oid} is no run"):
            store.load_run(found)
    store.close()

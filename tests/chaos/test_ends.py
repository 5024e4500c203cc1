"""Every other way in which work is cut off: ^C, a reader that leaves, a full or read-only disk, a clock that
is set back, a store of another time. Calls are counted as in test_kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_kills import (
    ANSWERS,
    CASES,
    GIVEN,
    LONG,
    PIPE,
    SEED,
    WORKERS,
    Commands,
    Counting,
    as_fast_as_today,
    commands,
    endpoint,
    findings,
    graded,
    lines,
    place,
    project,
    read_all,
    temporary,
)

from libmachine.store import chain

_ = (commands, endpoint, place, project)  # fixtures
YEARS = 5 * 365 * 86_400


def finish(commands: Commands, endpoint: Counting, store: Path) -> None:
    """The same command goes on: exactly what is missing is bought, and nothing is left to mend."""
    before, calls = read_all(store), endpoint.asked.total()
    ends = commands.pipe(PIPE, GIVEN, {"MACHINE_DIR": str(store)})
    assert [end.code for end in ends] == [0, 0, 0], ends
    assert f"{CASES} cases: {len(before)} stored, {ANSWERS - len(before)} run" in ends[0].err, ends[0]
    assert endpoint.asked.total() - calls == (ANSWERS - len(before)) + (ANSWERS - graded(before))
    runs = read_all(store)
    assert len(runs) == ANSWERS == graded(runs) and len(lines(ends[-1].out)) == CASES
    assert findings(store) == [] and temporary(store) == []


def paid(endpoint: Counting, store: Path) -> int:
    """Calls that left nothing behind."""
    runs = read_all(store)
    return endpoint.asked.total() - len(runs) - graded(runs)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_interrupts_of_the_whole_group(
    commands: Commands, endpoint: Counting, place: Path, times: int
) -> None:
    """The first ^C finishes what is under way, and all of it is stored; the second leaves at once."""
    store = place / "store"
    whole = as_fast_as_today(commands, place / "first")
    chance = random.Random(f"{SEED} {times}")
    for number in range(20 if LONG else 2):
        moment = chance.uniform(0.3, 0.9) * whole
        endpoint.asked.clear()
        hits = [(0, stage, moment + 0.02 * n, int(signal.SIGINT)) for n in range(times) for stage in range(3)]
        [ends] = commands.beside([(PIPE, GIVEN)], {"MACHINE_DIR": str(store / str(number))}, hits)
        # what was hit before it could say how to end, ends by the signal's own code
        assert all(end.code in (0, 130, 141) for end in ends), ends
        assert not any("Traceback" in end.err or "bug:" in end.err for end in ends), ends
        if (store / str(number)).exists():
            lost = paid(endpoint, store / str(number))
            assert lost <= (0 if times == 1 else 2 * WORKERS), (lost, ends)
        finish(commands, endpoint, store / str(number))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_reader_leaves(commands: Commands, endpoint: Counting, place: Path, stages: int) -> None:
    """`| head -1` after each stage: what is under way is stored, nothing new is begun, nobody complains."""
    store = place / "store"
    endpoint.asked.clear()
    ends = commands.pipe([*PIPE[:stages], ["head"]], GIVEN, {"MACHINE_DIR": str(store)})
    assert len(lines(ends[-1].out)) == 1
    assert all(end.code in (0, 141) for end in ends), ends
    assert not any("Traceback" in end.err or "bug:" in end.err or "roken pipe" in end.err for end in ends), (
        ends
    )
    assert paid(endpoint, store) == 0, (endpoint.asked, ends)
    if stages == 1:
        assert ends[0].code == 141 and len(read_all(store)) < ANSWERS
    finish(commands, endpoint, store)


def test_no_file_may_grow(commands: Commands, endpoint: Counting, place: Path) -> None:
    """The log reaches the size that a file may have: what is stored stays, the rest is bought later."""
    store = place / "store"
    for size in (700, 3000, 7000):
        endpoint.asked.clear()
        before = read_all(store)
        directory = {"MACHINE_DIR": str(store), "TEST_FILE_BYTES": str(size)}
        ends = commands.pipe(PIPE, GIVEN, directory)
        assert ends[0].code == 128 and "fatal: " in ends[0].err and "too large" in ends[0].err, ends
        assert not any("Traceback" in end.err or "bug:" in end.err for end in ends), ends
        new = len(read_all(store)) - len(before)
        assert new <= endpoint.asked.total() <= new + graded(read_all(store)) + 2 * WORKERS
    finish(commands, endpoint, store)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120k", "none", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root can mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_and_one_that_is_read_only(
    commands: Commands, endpoint: Counting, project: Path, small: Path
) -> None:
    subprocess.run(["git", "init", "-q", "--bare", small.parent / "hub"], check=True)
    subprocess.run(["git", "-C", project, "config", "machine.runs", small.parent / "hub"], check=True)
    store = small / "store"
    directory = {"MACHINE_DIR": str(store)}
    endpoint.asked.clear()
    ends = commands.pipe(PIPE, GIVEN, directory)
    assert ends[0].code == 128 and "no space left" in ends[0].err and "make room" in ends[0].err, ends
    assert not any("Traceback" in end.err or "bug:" in end.err for end in ends), ends
    kept = read_all(store)
    assert 0 < len(kept) < ANSWERS and paid(endpoint, store) <= 2 * WORKERS
    remount = lambda how: subprocess.run(["mount", "-o", f"remount,{how}", small], check=True)  # noqa: E731
    remount("ro")
    calls = endpoint.asked.total()
    one = next(iter(kept))
    for words, stdin, code in (
        (["runs", "--json"], b"", 0),
        (["show", one], b"", 0),
        (["run", "say"], GIVEN, 128),
        (["grade"], json.dumps({**kept[one], "split": None}).encode(), 128),
        (["mark", one, "--good"], b"", 128),
        (["gc"], b"", 128),
        (["forget", one], b"", 128),
        (["sync", "--runs"], b"", 128),
        (["fsck", "--repair"], b"", 128),
    ):
        [done] = commands.pipe([words], stdin, directory)
        assert "Traceback" not in done.err and "bug:" not in done.err, (words, done)
        assert done.code == code, (words, done)
        assert code == 0 or "read-only" in done.err, (words, done)
    assert endpoint.asked.total() == calls  # and nothing is bought that could not be kept
    remount("rw,size=20m")
    finish(commands, endpoint, store)


def test_the_clock_is_set_back(commands: Commands, endpoint: Counting, place: Path) -> None:
    """Newest is what came last, whatever the clock said; nothing is bought again, swept or lost."""
    store = place / "store"
    late = {"MACHINE_DIR": str(store), "TEST_CLOCK_S": str(YEARS)}
    early = {"MACHINE_DIR": str(store), "TEST_CLOCK_S": str(-YEARS)}
    endpoint.asked.clear()
    [first] = commands.pipe([["run", "say"]], b'"x"', late)
    [second] = commands.pipe([["run", "say", "--no-resume"]], b'"x"', early)
    one, two = lines(first.out)[0], lines(second.out)[0]
    assert one["started_at"] > two["started_at"] and (one["trial"], two["trial"]) == (1, 2)
    assert one["duration_s"] < 60 and two["duration_s"] < 60
    [newest] = commands.pipe([["show", "say@{0}"]], b"", early)
    assert lines(newest.out)[0]["id"] == two["id"]
    for when in (early, late):
        [again] = commands.pipe([["run", "say"]], b'"x"', when)
        assert "1 stored, 0 run" in again.err, again
        [done] = commands.pipe([["gc"]], b"", when)
        assert done.code == 0, done
    ran, scored, _ = commands.pipe(PIPE, GIVEN, early)
    assert (ran.code, scored.code) == (0, 0)
    assert len(read_all(store)) == ANSWERS + 2 and findings(store) == []


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_store_of_a_newer_program(commands: Commands, endpoint: Counting, place: Path) -> None:
    """Refused by name by every command that would open it, and not one byte of it is changed."""
    store = place / "store"
    directory = {"MACHINE_DIR": str(store)}
    [ran] = commands.pipe([["run", "say"]], GIVEN, directory)
    run = lines(ran.out)[0]
    (store / "format").write_text("2\n")
    before, calls = snapshot(store), endpoint.asked.total()
    line = json.dumps(run).encode() + b"\n"
    for words, stdin in (
        (["run", "say"], GIVEN),
        (["grade"], line),
        (["runs"], b""),
        (["show", run["id"]], b""),
        (["mark", run["id"], "--good"], b""),
        (["agree", "say", "even", "--with", "same"], b""),
        (["suite", "say"], b""),
        (["converse", "desk"], b""),
        (["compare", "say"], b""),
        (["gate", "say"], b""),
        (["export", "say"], b""),
        (["sft", "say", "--dry-run"], b""),
        (["spend"], b""),
        (["fsck"], b""),
        (["fsck", "--repair"], b""),
        (["gc"], b""),
        (["forget", run["id"]], b""),
        (["sync", "--runs"], b""),
    ):
        [done] = commands.pipe([words], stdin, directory)
        assert "Traceback" not in done.err and "bug:" not in done.err, (words, done)
        if words[0] not in ("compare", "gate", "sft"):  # which may have an answer before they open it
            assert done.code == 128 and "is of format '2'" in done.err, (words, done)
        assert snapshot(store) == before, words
    assert endpoint.asked.total() == calls


def test_locks_that_the_dead_left(commands: Commands, endpoint: Counting, place: Path, project: Path) -> None:
    """Ours go with their holder; one of git's own is told by name."""
    store = place / "store"
    directory = {"MACHINE_DIR": str(store)}
    commands.pipe([["run", "say"]], GIVEN, directory)
    lock = store / f"{chain.ref_of('say')}.lock"
    os.symlink("machine", lock)  # as who died between the two steps left it
    (store / "tmp" / "1-999999999-0").touch()
    [done] = commands.pipe([["run", "say", "--no-resume"]], b'"again"', directory)
    assert done.code == 0 and not os.path.lexists(lock), done
    [done] = commands.pipe([["gc"]], b"", directory)
    assert done.code == 0 and findings(store) == [], done
    # beside the store: a ref of the project that git was writing when it died
    left = project / ".git/refs/machine/say/-/v/1.lock"
    left.parent.mkdir(parents=True)
    left.touch()
    [done] = commands.pipe([["versions", "say"]], b"", directory)
    assert done.code == 128 and "1.lock" in done.err and "bug:" not in done.err, done
    left.unlink()
    [done] = commands.pipe([["versions", "say"]], b"", directory)
    assert done.code == 0, done

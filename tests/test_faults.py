"""Nothing that was paid for is lost: a fault at every step of a run|grade, and kill -9 at any moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Commands, Done

from libmachine.store import fsck
from libmachine.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 1000 if os.environ.get("MACHINE_CHAOS") == "long" else 40
"""Random kills."""

MACHINE = '''
import os
import time
from libmachine import Machine, check


def note(text: str) -> str:
    """Note a text.

    text: what to note
    """
    fd = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)
    while os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.01)
    return "noted"


def good(run):
    return run.output.startswith("good"), "as it begins"


machine = Machine(intent="Say something good.", graders={"good": check(good)}, tools=[note])
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine whose tool appends a line to the file $CALLS, so that calls are counted from outside."""
    folder = tmp_path_factory.mktemp("faults")
    home = folder / "machines" / "say"
    home.mkdir(parents=True)
    (home / "machine.py").write_text(MACHINE)
    (home / "rubric.toml").write_text('[good]\ndescription = "It begins well."\nweight = 1\n')
    (home / "instructions.md").write_text("Say something good.\n")
    for name, delay in (("fast", 0), ("slow", 0.02), ("slower", 0.3)):
        rules = []
        for word in ("good", "bad"):
            calls = [{"name": "note", "arguments": {"text": word}}]
            rules.append(
                {"match": word, "replies": [{"tool_calls": calls}, {"content": word, "delay_s": delay}]}
            )
        (folder / f"{name}.rules").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    (home / "model.json").write_text(json.dumps({"model": str(folder / "fast.rules"), "harness": "scripted"}))
    return folder


@pytest.fixture(scope="module")
def commands(project: Path) -> Iterator[Commands]:
    # no git on PATH: starting it takes longer than all that is tested here
    environment = {"NO_COLOR": "1", "CALLS": "/dev/null", "PATH": "/nowhere"}
    with Commands(project, environment) as ready:
        yield ready


@pytest.fixture
def store() -> Iterator[Path]:
    """In memory, where waiting for the disk costs nothing."""
    folder = Path(f"/dev/shm/machine-test-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder / "store"
    shutil.rmtree(folder)


def cases(number: int) -> bytes:
    words = ("good", "bad")
    return b"".join(b'{"id":"c%d","input":"%s %d"}\n' % (n, words[n % 2].encode(), n) for n in range(number))


def lines(text: bytes) -> list[Any]:
    """The records of an output, which may end in the middle of a line only if the writer was killed."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def facts(done: Done) -> set[Any]:
    return {
        (r["case"]["identity"], r["trial"], r["output"], (r.get("scorecard") or {}).get("score"))
        for r in lines(done.out)
    }


def calls(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def read_all(store: Path) -> dict[str, Any]:
    """Every stored run with its scorecard, each of which must be readable."""
    if not store.exists():
        return {}
    opened = Store(str(store), fsync=False)
    try:
        return {row["id"]: opened.load_run(row) for row in opened.index.runs()}
    finally:
        opened.close()


def check(store: Path, killed: bool = False) -> None:
    """fsck finds nothing but what the next start mends: after an error nothing at all."""
    found = list(fsck.check(str(store), fsck.Report())) if store.exists() else []
    assert killed or not found, found
    assert all(finding.kind in ("log-torn-end", "temp-left") for finding in found), found


def faults(
    commands: Commands, directory: dict[str, str], action: str, words: list[str], stdin: bytes
) -> Iterator[Done]:
    """The command with the fault at its 1st, 2nd, ... step, each time in the store as it is found; until
    it ends without meeting it."""
    store = Path(directory["MACHINE_DIR"])
    keep = store.parent / "keep"
    shutil.rmtree(keep, ignore_errors=True)
    if store.exists():
        shutil.copytree(store, keep)
    number = 0
    while True:
        number += 1
        assert number < 300
        shutil.rmtree(store, ignore_errors=True)
        if keep.exists():
            shutil.copytree(keep, store)
        fault = {"MACHINE_FAULT": f"{action}:{number}"}
        done = commands.pipe([words], stdin, directory | fault)[0]
        if done.code == 0:
            assert "fault:" not in done.err
            assert number > 10, "too few steps: are writes made beside libmachine.store.disk?"
            return
        if action == "kill":
            assert done.code == -signal.SIGKILL, done
        else:
            what = "input/output error" if action == "eio" else "no space left on device"
            assert done.code == 128 and f"fault: {action}" in done.err and what in done.err, done
            assert "Traceback" not in done.err and "bug" not in done.err, done
        yield done


@pytest.mark.parametrize("action", ["kill", "enospc", "eio", "short"])
def test_a_fault_at_every_step(commands: Commands, store: Path, action: str) -> None:
    number, killed = 1 if action == "eio" else 2, action == "kill"
    given = cases(number)
    run, grade = ["run", "say", "--concurrency", "1", "--ordered"], ["grade", "--concurrency", "1"]
    # waiting for the disk is another step that can fail, but none that a kill can tell from its neighbours
    directory = {"MACHINE_DIR": str(store), "MACHINE_FSYNC": "1" if action == "eio" else "0"}

    # what it is without a fault
    whole = commands.pipe([run], given, directory)[0]
    graded = commands.pipe([grade], whole.out, directory)[0]
    assert (whole.code, graded.code) == (0, 0), (whole, graded)
    wanted_runs, wanted = facts(whole), facts(graded)
    assert sorted(score for *_, score in wanted) == [0, 1][-number:]

    shutil.rmtree(store)
    for done in faults(commands, directory, action, run, given):
        check(store, killed)
        stored = read_all(store)
        assert {r["id"] for r in lines(done.out)} <= stored.keys()  # stored before it was printed
        again = commands.pipe([run], given, directory)[0]
        check(store)
        assert again.code == 0 and facts(again) == wanted_runs, again
        assert f": {len(stored)} stored, {number - len(stored)} run" in again.err, again
        assert read_all(store).keys() == {r["id"] for r in lines(again.out)}
    shutil.rmtree(store)
    whole = commands.pipe([run], given, directory)[0]
    for done in faults(commands, directory, action, grade, whole.out):
        check(store, killed)
        stored = read_all(store)
        assert len(stored) == number
        for line in lines(done.out):
            assert stored[line["id"]]["scorecard"] == line["scorecard"]
        known = sum("scorecard" in r for r in stored.values())
        again = commands.pipe([grade], whole.out, directory)[0]
        check(store)
        assert again.code == 0 and facts(again) == wanted, again
        assert f": {number - known} graded" in again.err, again
        assert {i: r["scorecard"] for i, r in read_all(store).items()} == {
            r["id"]: r["scorecard"] for r in lines(again.out)
        }


def test_one_store_through_many_faults(commands: Commands, store: Path) -> None:
    """A store that meets a fault at every step, one after another, ends as one that met none."""
    given, directory = cases(12), {"MACHINE_DIR": str(store), "MACHINE_FSYNC": "1"}
    order = random.Random(1)
    for number in range(1, 30):
        fault = f"{order.choice(['kill', 'enospc', 'short', 'eio'])}:{number}"
        commands.pipe([["run", "say"], ["grade"]], given, directory | {"MACHINE_FAULT": fault})
        check(store, True)
    ran, graded = commands.pipe([["run", "say"], ["grade"]], given, directory)
    assert (ran.code, graded.code) == (0, 0), (ran, graded)
    fresh = {"MACHINE_DIR": f"{store}-fresh"}
    assert facts(graded) == facts(commands.pipe([["run", "say"], ["grade"]], given, directory | fresh)[1])
    assert len(read_all(store)) == 12
    check(store)


def test_random_kills_of_a_pipeline(commands: Commands, store: Path, project: Path, tmp_path: Path) -> None:
    """run|grade, one or both killed at any moment. What was finished is kept, and is not bought again."""
    order = random.Random(os.environ.get("MACHINE_CHAOS_SEED", "8"))
    workers, number, counted = 4, 16, tmp_path / "calls"
    given = cases(number)
    run = ["run", "say", "--model", str(project / "slow.rules"), "--concurrency", str(workers)]
    directory = {"MACHINE_DIR": str(store), "CALLS": str(counted), "MACHINE_FSYNC": "0"}
    hit = partial = 0
    began = time.monotonic()
    commands.pipe([run, ["grade"]], given, directory)
    whole = time.monotonic() - began  # as fast as it is here today
    for _ in range(ROUNDS):
        shutil.rmtree(store, ignore_errors=True)
        counted.unlink(missing_ok=True)
        for _ in range(order.choice((1, 1, 2))):
            before, called = len(read_all(store)), calls(counted)
            kill = {stage: order.uniform(0, whole) for stage in order.choice(([0], [1], [0, 1]))}
            ran, graded = commands.pipe([run, ["grade"]], given, directory, kill)
            assert ran.code in (0, 141, -9) and graded.code in (0, -9), (ran, graded)
            check(store, True)
            stored = read_all(store)
            added = len(stored) - before
            # what was called and is not stored was under way, if its process was killed
            lost = workers if ran.code == -9 else 0
            assert added <= calls(counted) - called <= added + lost
            for line in lines(graded.out):
                assert stored[line["id"]]["scorecard"] == line["scorecard"]
            hit += -9 in (ran.code, graded.code)
            partial += 0 < len(stored) < number
        called, before = calls(counted), len(stored)
        ran, graded = commands.pipe([run, ["grade"]], given, directory)
        assert (ran.code, graded.code) == (0, 0), (ran, graded)
        assert calls(counted) == called + number - before  # exactly the missing calls
        assert f"{number} cases: {before} stored, {number - before} run" in ran.err, ran
        assert read_all(store).keys() == {r["id"] for r in lines(graded.out)}
        assert len(lines(graded.out)) == number
        check(store)
    assert hit >= ROUNDS / 4 and partial >= ROUNDS / 20, "the kills came too late or too early to tell"


# ^C, by real processes ---------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


class Going:
    """machine-run as a process of its own, with its files."""

    def __init__(
        self, project: Path, folder: Path, store: Path, *words: str, rules: str = "slower", hold: str = ""
    ) -> None:
        self.calls = folder / "calls"
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment |= {
            "MACHINE_DIR": str(store),
            "MACHINE_FSYNC": "0",
            "CALLS": str(self.calls),
            "HOLD": hold,
        }
        command = [f"{ROOT}/bin/machine-run", "say", "--model", f"{project}/{rules}.rules", *words]
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=project, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err
            )

    def feed(self, data: bytes, close: bool = True) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()
        if close:
            self.process.stdin.close()

    def until_calls(self, number: int) -> None:
        until(lambda: calls(self.calls) >= number or self.process.poll() is not None)
        assert self.process.poll() is None, self.err.read_text()

    def end(self) -> tuple[int, list[Any], str]:
        code = self.process.wait(60)
        return code, lines(self.out.read_bytes()), self.err.read_text()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_first_interrupt_finishes_what_is_under_way(
    project: Path, commands: Commands, store: Path, tmp_path: Path, concurrency: int
) -> None:
    going = Going(project, tmp_path, store, "--concurrency", str(concurrency))
    going.feed(cases(40))
    going.until_calls(concurrency + 1)
    going.process.send_signal(signal.SIGINT)
    code, printed, err = going.end()
    assert code == 130
    assert "interrupted: finishing what is under way" in err
    assert "Traceback" not in err
    stored = read_all(store)
    assert len(printed) == len(stored) == calls(going.calls) < 40
    assert {r["id"] for r in printed} == stored.keys()
    check(store)


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_an_interrupt_ends_a_wait_for_stdin(
    project: Path, store: Path, tmp_path: Path, concurrency: str
) -> None:
    going = Going(project, tmp_path, store, "--concurrency", concurrency, rules="fast")
    going.feed(cases(1), close=False)  # and nothing more comes, but the pipe stays open
    until(lambda: bool(going.out.read_bytes()))
    going.process.send_signal(signal.SIGINT)
    code, printed, err = going.end()
    assert (code, len(printed)) == (130, 1), err
    assert going.process.stdin
    going.process.stdin.close()


def test_the_second_interrupt_leaves_at_once(
    project: Path, commands: Commands, store: Path, tmp_path: Path
) -> None:
    directory = {"MACHINE_DIR": str(store)}
    run = ["run", "say", "--model", f"{project}/fast.rules"]
    assert commands.pipe([run], cases(3), directory)[0].code == 0
    going = Going(project, tmp_path, store, rules="fast", hold=str(project))
    going.feed(cases(40))
    going.until_calls(4)
    going.process.send_signal(signal.SIGINT)
    until(lambda: "interrupted" in going.err.read_text())
    assert going.process.poll() is None
    going.process.send_signal(signal.SIGINT)
    code, printed, err = going.end()
    assert (code, len(printed)) == (130, 3), err
    assert len(read_all(store)) == 3
    check(store, True)
    again = commands.pipe([run], cases(3), directory)[0]
    assert "3 cases: 3 stored, 0 run" in again.err
    check(store)


# two at once -------------------------------------------------------------------------------


def test_two_pipelines_at_once_buy_nothing_twice(
    project: Path, commands: Commands, store: Path, tmp_path: Path
) -> None:
    """Both print all lines; each answer is bought by one of them."""
    folders = [tmp_path / name for name in ("one", "two", "three")]
    going = []
    for folder in folders:
        folder.mkdir()
        going.append(Going(project, folder, store, "--concurrency", "4", "--trials", "2", rules="slow"))
    for each in going:
        each.feed(cases(20))
    ends = [each.end() for each in going]
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    stored = read_all(store)
    assert len(stored) == 40
    for _, printed, _ in ends:
        assert {r["id"] for r in printed} == stored.keys() and len(printed) == 40
    assert sum(calls(each.calls) for each in going) == 40
    check(store)


def test_who_waits_for_a_dead_holder_buys_it_itself(project: Path, store: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "holder", tmp_path / "waiter"]
    for folder in folders:
        folder.mkdir()
    holder = Going(project, folders[0], store, rules="fast", hold=str(project))
    holder.feed(cases(1))
    holder.until_calls(1)
    waiter = Going(project, folders[1], store, rules="fast")
    waiter.feed(cases(1))
    until(lambda: any(path.endswith("/claims") for path in open_files(waiter.process.pid)))
    assert waiter.process.poll() is None and calls(waiter.calls) == 0
    holder.process.kill()
    holder.process.wait()
    code, printed, err = waiter.end()
    assert (code, len(printed)) == (0, 1), err
    assert calls(holder.calls) == calls(waiter.calls) == 1
    assert len(read_all(store)) == 1


def open_files(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))

"""Real pipelines, killed -9 at any moment, with everything that may happen beside them.

Runs, their judges and both sides of a conversation ask an endpoint of ours, which counts. MACHINE_CHAOS=long
makes it 200 rounds; MACHINE_CHAOS_SEED chooses others.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libmachine.githash import blob_id
from libmachine.store import fsck
from libmachine.store.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fake_endpoint import FakeEndpoint, Reply, completion
from forked import Commands

LONG = os.environ.get("MACHINE_CHAOS") == "long"
ROUNDS = 200 if LONG else 10
SEED = os.environ.get("MACHINE_CHAOS_SEED", "8")
CASES, TRIALS, WORKERS = 8, 2, 3
ANSWERS = CASES * TRIALS
KILLED = -signal.SIGKILL

TALK = json.dumps({"id": "t", "input": "a talk"}).encode() + b"\n"

SAY = """
from libmachine import Counterpart, Machine, check, judge


def even(run):
    return int(run.output[-1], 16) % 2 == 0, run.output[-1]


machine = Machine(
    intent="Say something.",
    graders={"even": check(even), "kind": judge(model="fake/judge")},
    MORE
)
"""
RUBRIC = '[even]\ndescription = "Its last digit is even."\n[kind]\ndescription = "It is kind."\n'


class Counting(FakeEndpoint):
    """Answers each question with what it is made of, and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.asked: Counter[str] = Counter()

    def _reply(self, number: int, body: dict[str, Any]) -> Reply:
        system, user = (str(body["messages"][at]["content"]) for at in (0, -1))
        is_judge = body["model"] == "judge"
        call = re.search(r'"id": "(\w+)"', system) if is_judge else None
        # a judge's call has a random id; what it is about is in its last message
        about = user if is_judge else json.dumps([body["messages"], body.get("seed")])
        what = f"{body['model']} {blob_id(about.encode())}"
        with self._lock:
            self.asked[what] += 1
        text = f"said {what[-40:]}"
        if call:
            text = json.dumps({"id": call[1], "reasoning": "so", "score": int(what[-3:], 16) % 5 / 4})
        return Reply(completion(text), delay_s=0.005 + int(what[-2:], 16) / 10_000)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Counting]:
    with Counting() as ready:
        yield ready


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    for name, more in (
        ("say", ""),
        ("desk", 'counterpart=Counterpart("caller", max_turns=4)'),
        ("caller", ""),
    ):
        home = folder / "machines" / name
        home.mkdir(parents=True)
        (home / "machine.py").write_text(SAY.replace("MORE", more))
        (home / "rubric.toml").write_text(RUBRIC)
        (home / "instructions.md").write_text(f"You are {name}.\n")
        (home / "model.json").write_text('{"model": "fake/talker"}')
    (folder / "machines/desk/cases.jsonl").write_bytes(TALK)
    (folder / "machines/say/cases.jsonl").write_bytes(b'"a case"\n')
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def commands(project: Path, endpoint: Counting) -> Iterator[Commands]:
    environment = {"NO_COLOR": "1", "MACHINE_FSYNC": "0", "MACHINE_ENDPOINTS": f"fake={endpoint.url}"}
    environment |= {"HOME": str(project), "GIT_CONFIG_NOSYSTEM": "1"}
    with Commands(project, environment, True) as ready:
        yield ready


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory, where waiting for the disk costs nothing."""
    folder = Path(f"/dev/shm/machine-kills-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


GIVEN = b"".join(b'{"id":"c%d","input":"case %d"}\n' % (n, n) for n in range(CASES))
PIPE = [
    ["run", "say", "--concurrency", str(WORKERS), "--trials", str(TRIALS)],
    ["grade", "--concurrency", str(WORKERS)],
    ["select", "--best", "1"],
]
BESIDE: dict[str, tuple[list[list[str]], bytes]] = {
    "converse": ([["converse", "desk", "--json"]], TALK),
    "talks": ([["run", "desk", "--concurrency", "2"], ["grade", "--concurrency", "2"]], TALK),
    "gc": ([["gc"]], b""),
    "sync": ([["sync", "--runs"]], b""),
    "fsck": ([["fsck"]], b""),
    "runs": ([["runs", "--json"]], b""),
}


def lines(text: bytes) -> list[Any]:
    """The records of an output, which may end in the middle of a line only if its writer was killed."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def read_all(store: Path) -> dict[str, Any]:
    """Every stored run with its scorecard, each of which must be readable."""
    if not store.exists():
        return {}
    opened = Store(str(store), fsync=False)
    try:
        return {row["id"]: opened.load_run(row) for row in opened.index.runs()}
    finally:
        opened.close()


def findings(store: Path) -> list[fsck.Finding]:
    return [finding for finding in fsck.check(str(store), fsck.Report()) if not finding.note]


def temporary(store: Path) -> list[str]:
    return os.listdir(store / "tmp") if (store / "tmp").exists() else []


def graded(runs: dict[str, Any]) -> int:
    return sum(run["machine"] == "say" and "scorecard" in run for run in runs.values())


def check_after(commands: Commands, store: Path, environment: dict[str, str], names: list[str]) -> None:
    """The next start sweeps, and then nothing is wrong but what the next turn of a killed keeper mends."""
    if not store.exists():
        return
    [listed] = commands.pipe([["runs", "--json"]], b"", environment)
    assert listed.code == 0 and not listed.err, listed
    assert {run["id"] for run in lines(listed.out)} == read_all(store).keys()
    assert temporary(store) == []
    wrong = findings(store)
    if "gc" in names or "sync" in names:
        kinds = {finding.kind for finding in wrong}
        assert kinds <= {"pack-half", "temp-left"}, wrong
        [again] = commands.pipe([["gc"]], b"", environment)
        assert again.code == 0, again
        wrong = findings(store)
    # an end that a kill tore is cut off by whoever writes next
    assert {finding.kind for finding in wrong} <= {"log-torn-end"}, wrong


def one_round(
    commands: Commands, endpoint: Counting, place: Path, chance: random.Random, whole: float
) -> Counter[str]:
    """Kills in a fresh store, then a run to the end. Returns what happened, for the figures."""
    told: Counter[str] = Counter()
    store, hub = place / "store", place / "hub"
    for folder in (store, hub):
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "init", "-q", "--bare", hub], check=True)
    environment = {"MACHINE_DIR": str(store)}
    endpoint.asked.clear()
    lost = 0
    for _ in range(chance.choice((1, 1, 2, 3))):
        names = chance.sample(sorted(BESIDE), chance.choice((0, 1, 1, 2, 3)))
        pipes = [(PIPE, GIVEN), *(BESIDE[name] for name in names)]
        every = [(pipe, stage) for pipe, (stages, _) in enumerate(pipes) for stage in range(len(stages))]
        if chance.random() < 0.3:  # the whole group at one moment
            moment = chance.uniform(0, whole)
            kills = [(pipe, stage, moment, signal.SIGKILL) for pipe, stage in every]
        else:
            some = chance.sample(every, chance.choice((1, 1, 2)))
            kills = [(pipe, stage, chance.uniform(0, whole), signal.SIGKILL) for pipe, stage in some]
        done = commands.beside(pipes, environment, [(p, s, at, int(n)) for p, s, at, n in kills])
        for (stages, _), ends in zip(pipes, done, strict=True):
            for words, end in zip(stages, ends, strict=True):
                assert end.code in (KILLED, 0, 1, 3, 141) or "no store" in end.err, (words, end)
                assert "Traceback" not in end.err and "bug" not in end.err, (words, end)
                if end.code == KILLED:
                    told["killed"] += 1
                    told[f"killed {words[0]}"] += 1
                    lost += {"run": WORKERS, "grade": WORKERS, "converse": 1}.get(words[0], 0)
        stored = read_all(store)
        for stages, ends in zip((stages for stages, _ in pipes), done, strict=True):
            if stages[-1][0] in ("select", "grade", "converse"):  # stored before it was printed
                assert {run["id"] for run in lines(ends[-1].out)} <= stored.keys()
        killed = [
            name for name, ends in zip(names, done[1:], strict=True) if any(e.code == KILLED for e in ends)
        ]
        check_after(commands, store, environment, killed)
        assert read_all(store).keys() == stored.keys()
        own = sum(run["machine"] == "say" for run in stored.values())
        told["partial"] += 0 < own < ANSWERS
    told["rounds"] += 1
    to_the_end(commands, endpoint, store, environment, lost, told)
    return told


def to_the_end(
    commands: Commands,
    endpoint: Counting,
    store: Path,
    environment: dict[str, str],
    lost: int,
    told: Counter[str],
) -> None:
    before, calls = read_all(store), endpoint.asked.total()
    own = sum(run["machine"] == "say" for run in before.values())
    ran, grades, chosen = commands.pipe(PIPE, GIVEN, environment)
    assert (ran.code, grades.code, chosen.code) == (0, 0, 0), (ran, grades, chosen)
    assert f"{CASES} cases: {own} stored, {ANSWERS - own} run" in ran.err, ran
    # exactly the missing calls: an answer that is not stored, a run without a scorecard
    bought = endpoint.asked.total() - calls
    assert bought == (ANSWERS - own) + (ANSWERS - graded(before)), (bought, own, graded(before), ran, grades)
    assert len(lines(chosen.out)) == CASES
    # totals equal rows
    runs = read_all(store)
    assert sum(run["machine"] == "say" for run in runs.values()) == ANSWERS == graded(runs)
    assert len({run["key"] for run in runs.values()}) == len(runs)
    # what was asked twice was under way when its process was killed
    twice = endpoint.asked.total() - len(endpoint.asked)
    assert twice <= lost, (twice, lost, endpoint.asked)
    told["calls"] += endpoint.asked.total()
    told["distinct"] += len(endpoint.asked)
    told["asked twice"] += twice
    told["may be lost"] += lost
    if any(run["machine"] == "desk" for run in runs.values()):
        [talk] = commands.pipe([["converse", "desk", "--json"]], b"", environment)
        turns = lines(talk.out)
        assert talk.code == 0 and [run["conversation"]["turn"] for run in turns] == [
            1,
            1,
            2,
            2,
            3,
            3,
            4,
            4,
        ], talk
        assert {run["id"] for run in turns} <= read_all(store).keys()
        told["talks"] += 1
    # and once more nothing is called at all
    calls = endpoint.asked.total()
    again = commands.pipe(PIPE, GIVEN, environment)
    assert [done.code for done in again] == [0, 0, 0] and endpoint.asked.total() == calls, again
    assert findings(store) == [] and temporary(store) == []
    assert set(lines(chosen.out)[0]) == set(lines(again[-1].out)[0])


def as_fast_as_today(commands: Commands, store: Path) -> float:
    """Seconds that the pipeline takes when nobody kills it."""
    began = time.monotonic()
    ends = commands.pipe(PIPE, GIVEN, {"MACHINE_DIR": str(store)})
    assert [end.code for end in ends] == [0, 0, 0], ends
    return time.monotonic() - began


def test_random_kills(commands: Commands, project: Path, endpoint: Counting, place: Path) -> None:
    print(f"MACHINE_CHAOS_SEED={SEED}")
    subprocess.run(["git", "config", "machine.runs", place / "hub"], check=True, cwd=project)
    whole = min(as_fast_as_today(commands, place / name) for name in ("one", "two"))
    told: Counter[str] = Counter()
    for number in range(ROUNDS):
        chance = random.Random(f"{SEED} {number}")
        try:
            told += one_round(commands, endpoint, place, chance, whole)
        except AssertionError as error:
            raise AssertionError(f"round {number} of seed {SEED}: {error}") from error
    print(dict(sorted(told.items())))
    assert told["killed"] >= ROUNDS / 2 and told["partial"] >= ROUNDS / 8, (
        f"the kills came too early or too late: {told}"
    )

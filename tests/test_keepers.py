"""Those who keep a store in order: kill -9 at every step of each, and writers and readers beside them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Commands, Done
from test_store import answers, card, chained, damage, findings, git, opened, run

from libmachine.canon import hash_of
from libmachine.store import gc, keep, log, packs
from libmachine.store.findings import KINDS
from libmachine.store.objects import Objects

ROOT = Path(__file__).resolve().parent.parent
SECRET = "hunter2-in-the-clear"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    project = tmp_path_factory.mktemp("keepers")
    (project / "machines").mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    environment = {"NO_COLOR": "1", "MACHINE_FSYNC": "0", "HOME": str(project), "GIT_CONFIG_NOSYSTEM": "1"}
    with Commands(project, environment) as ready:
        ready.project = project  # type: ignore[attr-defined]
        yield ready


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory, where waiting for the disk costs nothing."""
    folder = Path(f"/dev/shm/machine-keepers-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def fill(directory: Path, numbers: range = range(4), closes: bool = True) -> list[str]:
    """Runs with scorecards, workspaces and tokens, each chained by a commit of its own if closes."""
    ids = []
    store = opened(str(directory))
    for n in numbers:
        files = store.files({"shared.txt": "the same in all", "own.txt": f"of {n}"})
        made = run(n, "say" if n % 2 else "other/child")
        made["case"]["target"] = f"target {n}"
        parts = {"before": files, "after": files, "tokens.0": store.blob(b"tokens %d" % n)}
        ids.append(str(store.add_run(made, hash_of([made["machine"], n]), parts)["id"]))
        store.add_scorecard(card(ids[-1], made["machine"]))
        if closes:
            store.close()
    store.close()
    return ids


def at_every_step(
    commands: Commands, store: Path, words: list[str], action: str = "kill", least: int = 5
) -> Iterator[Done]:
    """The command with the fault at its 1st, 2nd, ... step, each time in the store as it is found, until
    it ends without meeting it."""
    keep_ = store.parent / "kept"
    shutil.copytree(store, keep_, symlinks=True)
    number = 0
    while True:
        number += 1
        shutil.rmtree(store)
        shutil.copytree(keep_, store, symlinks=True)
        fault = {"MACHINE_FAULT": f"{action}:{number}"}
        done = commands.pipe([words], b"", {"MACHINE_DIR": str(store), **fault})[0]
        if done.code in (0, 1) and "fault:" not in done.err:
            assert number > least, "too few steps: are writes made beside libmachine.store.disk?"
            return
        if action == "kill":
            assert done.code == -signal.SIGKILL, done
        else:
            assert done.code == 128 and "fault: " in done.err and "Traceback" not in done.err, done
        yield done


def again(commands: Commands, store: Path, *words: str, code: int = 0) -> Done:
    done = commands.pipe([list(words)], b"", {"MACHINE_DIR": str(store)})[0]
    assert done.code == code and "Traceback" not in done.err and "bug" not in done.err, done
    return done


def ids_of(store: Path) -> list[str]:
    return [row["id"] for _, _, row in log.read(f"{store}/records") if row]


def mentions(store: Path, text: str) -> list[str]:
    """Where a text stands in a store: files, and objects as they are when unpacked."""
    found = [
        str(path)
        for path in store.rglob("*")
        if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes()
    ]
    for line in git(str(store), "cat-file", "--batch-all-objects", "--batch-check").splitlines():
        oid, kind = line.split()[:2]
        if text in git(str(store), "cat-file", "-p" if kind == "tree" else kind, oid):
            found.append(f"{kind} {oid}")
    return found


def test_the_page_lists_every_kind() -> None:
    page = (ROOT / "man" / "machine-fsck.1").read_text()
    assert re.findall(r"^\.It Cm (\S+)$", page, re.M) == list(KINDS)


def test_bytes_after_gc(place: Path) -> None:
    """At most 0.6 of the canonical bytes, log and all, of runs as agents make them: a long instruction
    that all share, a question that the trials of a case share, and replies that nobody shares."""
    order = random.Random(5)
    words = sorted(set(re.findall("[a-z]+", (ROOT / "man" / "machine.7").read_text())))

    def text(number: int) -> str:
        return " ".join(order.choices(words, k=number))

    directory, instructions = str(place / "store"), text(300)
    store = opened(directory)
    canonical = 0
    for case in range(40):
        asked = text(60)
        for trial in (1, 2):
            made = run(100 * case + trial)
            made["case"] |= {"identity": hash_of(case), "input": asked}
            replies = [{"role": "assistant", "content": text(90)} for _ in range(4)]
            made["messages"] = [
                {"role": "system", "content": instructions},
                {"role": "user", "content": asked},
                *replies,
            ]
            made |= {"trial": trial, "output": replies[-1]["content"]}
            oid = store.add_run(made, hash_of([case]))["id"]
            canonical += len(store.read_blob(oid))
    store.close()
    gc.run(directory, False, lambda text: None)
    files = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
    assert 0.1 < files / canonical < 0.6


# kill -9 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["kill", "enospc"])
def test_gc_at_every_step(commands: Commands, place: Path, action: str) -> None:
    store = place / "store"
    fill(store, range(2))
    packs.write(str(store), str(store), [(oid, "") for oid in packs.loose(str(store))][:6], False)
    fill(store, range(2, 3))
    whole = answers(str(store))
    for _ in at_every_step(commands, store, ["gc"], action, 20):
        assert answers(str(store)) == whole
        again(commands, store, "gc")
        assert answers(str(store)) == whole
        assert findings(str(store)) == []
        assert gc.measure(str(store))[2:] == (0, 1)
        assert os.listdir(store / "tmp") == []


def corrupt(store: Path, ids: list[str]) -> None:
    """One of each kind that can be mended, or set aside."""
    objects = Objects(str(store), False)
    packs.write(str(store), str(store), [(ids[0], "")], False)
    damage(objects.path(ids[0]), 20, b"\xff")  # but there is a copy
    os.unlink(objects.path(ids[1]))  # and there is none
    os.unlink(objects.path(objects.blob(b"tokens 2")))
    lines = (store / "records").read_bytes().splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if ids[3].encode() in line)
    lines[lost] = lines[lost][:50] + b"\n"
    lines[4] = lines[4].replace(b'"trial":1', b'"trial":3')
    (store / "records").write_bytes(b"".join(lines) + b'{"type":"ru')
    (store / "config").unlink()
    os.chmod(store / "records", 0o644)


def test_repair_at_every_step(commands: Commands, place: Path) -> None:
    store = place / "store"
    ids = fill(store)
    corrupt(store, ids)
    lines = (store / "records").read_bytes().splitlines()
    keep_ = place / "first"
    shutil.copytree(store, keep_)
    told = again(commands, keep_, "fsck", "--repair").out.decode()
    assert findings(str(keep_)) == []
    assert sorted({line.split(":")[1] for line in told.splitlines() if line.startswith("set aside: ")}) == [
        *(" log-torn", " log-torn-end", " object-missing", " run-unknown", " workspace-dangling")
    ]
    wanted = ids_of(keep_)
    assert {ids[0], ids[2], ids[3]} <= set(wanted) and ids[1] not in wanted and len(wanted) == 6
    aside = {row["line"] for row in keep.read_lines(f"{keep_}/aside/records")}
    assert {lines[-1].decode(), lines[4].decode()} <= aside
    for _ in at_every_step(commands, store, ["fsck", "--repair"], least=20):
        again(commands, store, "fsck", "--repair")
        assert findings(str(store)) == []
        assert ids_of(store) == wanted
        assert {row["line"] for row in keep.read_lines(f"{store}/aside/records")} == aside
        assert chained(str(store)) == set(wanted)
        assert answers(str(store)) == answers(str(keep_))


def test_forget_at_every_step(commands: Commands, place: Path) -> None:
    store = place / "store"
    fill(store, range(2))
    opener = opened(str(store))
    made = run(99, "say")
    made["case"]["target"] = SECRET
    made["messages"] = [{"role": "user", "content": SECRET}]
    files = opener.files({"shared.txt": "the same in all", "token": SECRET})
    told = opener.blob(SECRET.encode())
    secret = opener.add_run(made, hash_of("b"), {"before": files, "tokens.0": told})["id"]
    opener.add_scorecard({**card(secret), "grades": [{**card(secret)["grades"][0], "reason": SECRET}]})
    opener.close()
    again(commands, store, "gc")
    fill(store, range(4, 5))
    assert len(mentions(store, SECRET)) >= 5
    others = [oid for oid in ids_of(store) if oid != secret][:]
    for _ in at_every_step(commands, store, ["forget", secret], least=20):
        again(commands, store, "forget", secret)
        assert mentions(store, SECRET) == []
        assert findings(str(store)) == []
        kept = ids_of(store)
        assert [oid for oid in others if oid in kept] == kept and len(kept) == 6
        assert secret in keep.forgotten(str(store)) and len(keep.forgotten(str(store))) == 2
        assert chained(str(store)) == set(kept)
        git(str(store), "fsck", "--strict", "--no-dangling")


def test_sync_at_every_step(commands: Commands, place: Path) -> None:
    project: Path = commands.project  # type: ignore[attr-defined]
    hub, other, store = place / "hub", place / "other", place / "store"
    subprocess.run(["git", "init", "-q", "--bare", hub], check=True)
    subprocess.run(["git", "-C", project, "config", "machine.runs", hub], check=True)
    fill(other, range(2))
    again(commands, other, "sync", "--runs")
    shutil.copytree(hub, place / "hub-kept")
    fill(store, range(1, 4))
    everything = set(ids_of(store)) | set(ids_of(other))
    for _ in at_every_step(commands, store, ["sync", "--runs"], least=20):
        again(commands, store, "sync", "--runs")
        assert set(ids_of(store)) == everything == chained(str(hub))
        assert len(ids_of(store)) == len(everything)
        assert findings(str(store)) == []
        still = json.loads(again(commands, store, "sync", "--runs").out)
        assert all(still[name] == 0 for name in still if name.endswith(("_in", "_out")))
        shutil.rmtree(hub)
        shutil.copytree(place / "hub-kept", hub)

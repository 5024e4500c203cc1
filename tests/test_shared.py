"""One loaded model for all commands: the same keys and answers with a server, without, and when it dies."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libmachine.canon import loads
from libmachine.errors import ContextOverflow, MachineError, ProviderError, UsageError
from libmachine.folder import Model
from libmachine.harness import choose, shared, weights
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.local import LocalEngine
from libmachine.store import layout
from libmachine.store.store import Store
from libmachine.tinkerd import daemon

ROOT = Path(__file__).resolve().parent.parent
MODEL = "local/smollm2-135m-instruct"
WAIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own that borrows the weights: no turns with other tests or commands."""
    path = weights.ensure_weights(MODEL)
    folder = tmp_path_factory.mktemp("cache")
    (folder / "models").mkdir()
    os.symlink(path, folder / "models" / os.path.basename(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MACHINE_CACHE", str(folder))
        patch.setenv("MACHINE_FSYNC", "0")
        for name in ("MACHINE_PYTHON", "MACHINE_LOCAL_DAEMON", "MACHINE_DIR", "MACHINE_WORKSPACE"):
            patch.delenv(name, raising=False)
        yield folder


def start(store: Path, *words: str) -> dict[str, Any]:
    """A server in this Python; its runtime record."""
    command = [sys.executable, str(ROOT / "libmachine/boot.py"), "tinkerd", "machine-tinkerd"]
    subprocess.Popen(
        [*command, "--dir", str(store), "--idle", "300", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + WAIT_S
    while (found := daemon.running(str(store))) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def store(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with a server that runs."""
    folder = tmp_path_factory.mktemp("project") / "store"
    layout.create(str(folder))
    start(folder)
    yield folder
    daemon.stop(str(folder))


@pytest.fixture(scope="module")
def alone(cache: Path) -> Iterator[LocalEngine]:
    """The engine in this process."""
    engine = LocalEngine(MODEL)
    yield engine
    engine.close()


def ask(text: str = "What is rain?", timeout_s: float = 120, **sampling: Any) -> Request:
    messages = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": text}]
    return Request(messages, [], Sampling(**({"max_tokens": 24, "seed": 1} | sampling)), timeout_s)


LONG = ask("Tell me a long story.", max_tokens=150, temperature=2.0)


@pytest.fixture(scope="module")
def long_story(alone: LocalEngine) -> list[int]:
    """The ids that LONG comes to."""
    told = alone.complete(LONG).tokens
    assert told is not None and len(told["completion"]) == 150
    return list(told["completion"])


def by_server(store: Path) -> LocalEngine:
    engine = choose.engine(Model(MODEL), store=str(store))
    assert isinstance(engine, LocalEngine)
    return engine


def is_here(engine: LocalEngine) -> bool:
    """Is the model loaded in this process?"""
    return engine._shared is None


def test_the_same_engine_and_the_same_tokens(store: Path, alone: LocalEngine) -> None:
    served = by_server(store)
    assert (served.name, served.model) == (alone.name, alone.model)
    look = {"type": "function", "function": {"name": "look", "parameters": {"default": 1.0}}}
    requests = [ask(temperature=0), ask(), ask("Hi \ud800<|im_end|>!", seed=2)]
    for request in requests:
        one, two = served.complete(request), alone.complete(request)
        assert one.tokens == two.tokens
        assert (one.message, one.finish_reason, one.model) == (two.message, two.finish_reason, two.model)
    # a longer prompt: what was computed before moves its last digits (see machine-tinkerd(1))
    request = Request(ask().messages, [look], Sampling(max_tokens=1, temperature=0), 120, step=2)
    told = [engine.complete(request).tokens or {} for engine in (served, alone)]
    assert told[0]["prompt"] == told[1]["prompt"] and len(told[0]["prompt"]) > 100
    assert told[0]["completion"] == told[1]["completion"]
    assert told[0]["logprobs"] == pytest.approx(told[1]["logprobs"], abs=0.2)
    assert not is_here(served)
    served.close()
    with pytest.raises(ProviderError, match="closed"):
        served.complete(ask())


def test_failures_are_the_same(store: Path) -> None:
    served = by_server(store)
    with pytest.raises(ContextOverflow, match="8192"):
        served.complete(ask("word " * 8192))
    with pytest.raises(ProviderError, match="no answer within"):
        served.complete(ask(timeout_s=0.02, max_tokens=400, temperature=3.0))
    assert not is_here(served)
    served.close()


def test_commands_have_the_same_key_and_the_same_tokens(tmp_path: Path) -> None:
    store = tmp_path / "store"  # a server of its own, that was asked nothing else: see machine-tinkerd(1)
    layout.create(str(store))
    start(store)
    project = tmp_path / "project"
    (project / "machines/say").mkdir(parents=True)
    (project / "machines/say/machine.py").write_text(
        "from libmachine import Machine\n\nmachine = Machine(intent='x', graders={})\n"
    )
    (project / "machines/say/instructions.md").write_text("Answer in one sentence.\n")
    settings = {"model": MODEL, "sampling": {"temperature": 0, "max_tokens": 12}}
    (project / "machines/say/model.json").write_text(json.dumps(settings))
    command = [sys.executable, str(ROOT / "libmachine/boot.py"), "run", "machine-run", "say", "What is rain?"]
    found, sampled = [], []
    for directory, use in ((store, "1"), (tmp_path / "other", "1"), (tmp_path / "third", "0")):
        before = daemon.running(str(directory))
        assert (before is not None) == (directory == store)
        done = subprocess.run(
            [*command, "--json"],
            cwd=project,
            env={**os.environ, "MACHINE_DIR": str(directory), "MACHINE_LOCAL_DAEMON": use},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (daemon.running(str(directory)) is not None) == (use == "1"), "started by who needs it"
        found.append(json.loads(done.stdout))
        sampled.append(loads(Store(str(directory)).read_blob(found[-1]["steps"][0]["tokens"])))
    for name in ("key", "harness", "model", "answered", "output", "messages", "status", "sampling"):
        assert found[0][name] == found[1][name] == found[2][name], name
    assert [len(tokens["completion"]) for tokens in sampled] == [12, 12, 12]
    assert sampled[0] == sampled[1] == sampled[2]
    assert daemon.stop(str(store)) and daemon.stop(str(tmp_path / "other"))


def test_no_server_where_none_is_wanted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACHINE_LOCAL_DAEMON", "0")
    assert is_here(by_server(store))
    monkeypatch.setenv("MACHINE_LOCAL_DAEMON", "fake")
    pretended = choose.engine(Model(MODEL), store=str(store))
    assert (pretended.name, pretended.model) == (shared.FAKE, f"{MODEL}#fake")
    with pytest.raises(ProviderError, match="machine-tinkerd --engine fake starts it"):
        pretended.complete(ask())
    monkeypatch.setenv("MACHINE_LOCAL_DAEMON", "maybe")
    with pytest.raises(UsageError, match="none of: 0, 1, fake"):
        by_server(store)
    monkeypatch.delenv("MACHINE_LOCAL_DAEMON")
    assert is_here(LocalEngine(MODEL, context=256, store=str(store)))


def test_another_model_under_the_same_name_is_not_asked(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(Path(weights.ensure_weights(MODEL)).read_bytes() + b"\0")
    monkeypatch.setenv("MACHINE_LOCAL_MODEL", str(own))
    engine = by_server(store)
    completion = engine.complete(ask(max_tokens=1))
    assert is_here(engine)
    assert completion.model == engine.model != f"{MODEL}#{weights.KNOWN[MODEL].sha256[:12]}"
    engine.close()


def test_waiting_for_a_turn_is_no_time_of_the_calls(store: Path, cache: Path) -> None:
    served = by_server(store)
    with open(cache / "local.lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(1.5, lambda: fcntl.flock(other, fcntl.LOCK_UN)).start()
        completion = served.complete(ask(timeout_s=30, max_tokens=1))
    assert completion.waited_s > 1
    assert not is_here(served)
    served.close()


def test_training_is_refused_by_name(store: Path) -> None:
    found = daemon.running(str(store))
    assert found is not None
    if "trains_not" not in found:
        pytest.skip("this Python has torch")
    with pytest.raises(MachineError, match=r"does not train: no python package .*libmachine\[sft\]"):
        daemon.connect(str(store))
    session = daemon.call(found, "POST", "create_session", {}, WAIT_S)["session_id"]
    asked = {"session_id": session, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 4}}
    told = daemon.call(found, "POST", "create_model", asked, WAIT_S)
    future = daemon.call(found, "POST", "retrieve_future", told, WAIT_S)
    assert (future["category"], "libmachine[sft]" in future["error"]) == ("user", True)


def in_flight(engine: LocalEngine, found: list[Any], request: Request = LONG) -> threading.Thread:
    """A thread with a long call that the server is computing."""

    def work() -> None:
        try:
            found.append(engine.complete(request))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)  # loaded and warm: it is at work by now; if not, the test holds all the same
    assert thread.is_alive(), "the call was over before anything was done to the server"
    return thread


@pytest.mark.parametrize("end", ["kill", "freeze"])
def test_a_server_that_dies_in_a_call(
    end: str, tmp_path: Path, long_story: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "SILENCE_S", 3.0)
    runtime = start(tmp_path)
    engine, found = by_server(tmp_path), []  # type: ignore[var-annotated]
    engine.complete(ask(max_tokens=1))
    thread = in_flight(engine, found)
    os.kill(runtime["pid"], signal.SIGKILL if end == "kill" else signal.SIGSTOP)
    if end == "freeze":  # a frozen one keeps its turn; only its end lets others compute
        time.sleep(3.5)
        os.kill(runtime["pid"], signal.SIGKILL)
    thread.join(WAIT_S)
    assert isinstance(found[0], Completion), found
    assert is_here(engine)
    assert found[0].tokens is not None and found[0].tokens["completion"] == long_story
    assert engine.complete(ask(max_tokens=1)).completion_tokens == 1
    engine.close()


def test_a_server_that_is_stopped_finishes_what_it_computes(tmp_path: Path, long_story: list[int]) -> None:
    start(tmp_path, "--idle", "1")  # and is not idle while it answers
    engine, found = by_server(tmp_path), []  # type: ignore[var-annotated]
    engine.complete(ask(max_tokens=1))
    thread = in_flight(engine, found)
    assert daemon.stop(str(tmp_path))
    thread.join(WAIT_S)
    assert isinstance(found[0], Completion), found
    assert found[0].tokens is not None and found[0].tokens["completion"] == long_story
    assert not is_here(engine)
    assert engine.complete(ask(max_tokens=1)).completion_tokens == 1
    assert is_here(engine)
    engine.close()


def test_an_answer_that_nobody_waits_for_is_given_up(tmp_path: Path) -> None:
    start(tmp_path)
    engine, found = by_server(tmp_path), []  # type: ignore[var-annotated]
    endless = ask("Hi!", max_tokens=8000, temperature=5.0)
    thread = in_flight(engine, found, endless)
    engine.close()
    thread.join(WAIT_S)
    assert [str(error) for error in found] == ["the local model was closed"]
    assert daemon.stop(str(tmp_path)), "it ends what it computes first: 8000 tokens, if that went on"

"""One trainer per store and engine, started on demand and shared by all commands.

    STORE/tinkerd/ENGINE/runtime.json   port, key, pid, start time of the server that runs (0600)
    STORE/tinkerd/ENGINE/lock           held by the server while it lives
    STORE/tinkerd/ENGINE/start          held by who looks for the server or starts it
    STORE/tinkerd/ENGINE/log            what the server says
    STORE/tinkerd/ENGINE/checkpoints/   see libmachine.tinkerd.checkpoints

A runtime file without a held lock is stale. The server ends by itself when no request came for a while;
it looks once more while it holds `start`, so that nobody is given a server that is about to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from libmachine import env
from libmachine.canon import Record, RecordError, loads
from libmachine.errors import MachineError
from libmachine.folders import make_private
from libmachine.harness import shared, weights
from libmachine.harness.shared import is_locked, read_runtime
from libmachine.tinkerd.engine import BASE_MODEL

ENGINES = ("torch", "fake")
IDLE_S = 900.0
START_S = 60.0
HEALTH_S = 10.0
_PASSED_ON = ("MACHINE_LOCAL_MODEL", "MACHINE_LOCAL_THREADS", "MACHINE_FSYNC", "MACHINE_DEBUG")


def folder(directory: str, engine: str) -> str:
    """The folder of an engine's server in a store. Raises MachineError for an unknown engine."""
    if engine not in ENGINES:
        raise MachineError(f"no engine '{engine}'; there are: {', '.join(ENGINES)}")
    return shared.folder(directory, engine)


def connect(
    directory: str, engine: str = "torch", threads: int = 1, idle_s: float = IDLE_S
) -> tuple[str, str]:
    """(TINKER_BASE_URL, TINKER_API_KEY) of the server of this store, started if it does not run.

    directory: the store's. threads, idle_s: of a server that is started now. Raises MachineError if it
    cannot be started, with the last line of its log.
    """
    place = folder(directory, engine)
    if engine == "torch":
        weights.ensure_weights(BASE_MODEL)  # here, where pip's settings are known
    make_private(place)
    with _held(os.path.join(place, "start")):
        found = running(directory, engine)
        if found is None:
            found = _start(place, directory, engine, threads, idle_s)
    if found.get("trains_not"):
        raise MachineError(f"{found['trains_not']}; 'machine-tinkerd --stop' ends it (pid {found['pid']})")
    return base_url(found), str(found["key"])


def base_url(runtime: Record) -> str:
    """What TINKER_BASE_URL must be for a server."""
    return f"http://127.0.0.1:{runtime['port']}"


def running(directory: str, engine: str = "torch") -> Record | None:
    """The runtime record {port, key, pid, started_at, engine} of a server that answers, or None."""
    place = folder(directory, engine)
    if not is_locked(os.path.join(place, "lock")):
        return None
    found = read_runtime(place)
    if found is None:
        return None
    try:
        told = call(found, "GET", "healthz", None, HEALTH_S)
    except MachineError:
        return None
    return found if told.get("pid") == found["pid"] else None


def stop(directory: str, engine: str = "torch", wait_s: float = 30.0) -> bool:
    """Stop the server; False if none runs. What is being computed is finished, what waits is dropped.

    Raises MachineError if it does not end within wait_s.
    """
    place = folder(directory, engine)
    with _held(os.path.join(place, "start")) if os.path.isdir(place) else contextlib.nullcontext():
        found = running(directory, engine)
        if found is None:
            return False
        call(found, "POST", "machine/stop", {}, HEALTH_S)
        deadline = time.monotonic() + wait_s
        while is_locked(os.path.join(place, "lock")):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"the local trainer (pid {found['pid']}) is still computing after {wait_s:.0f} s"
                )
            time.sleep(0.05)
    return True


def adapter(
    directory: str, engine: str, path: str, prompts: list[list[int]] | None = None, wait_s: float = 600.0
) -> Record:
    """A checkpoint (tinker://...) as a GGUF adapter: {file, difference, prompts}.

    difference: mean, in nats, between the next-token log-probabilities of torch and llama.cpp on the
    prompts (token ids; None: twenty of our own). Raises MachineError above MOST_DIFFERENCE.
    """
    from libmachine.tinkerd.adapter import MOST_DIFFERENCE

    found = running(directory, engine)
    if found is None:
        raise MachineError("the local trainer does not run")
    asked = call(found, "POST", "machine/adapter", {"path": path, "prompts": prompts}, HEALTH_S)
    deadline = time.monotonic() + wait_s
    told: Record = {"type": "try_again"}
    while told.get("type") == "try_again":
        if time.monotonic() > deadline:
            raise MachineError(f"the adapter of '{path}' was not converted within {wait_s:.0f} s")
        told = call(found, "POST", "retrieve_future", {"request_id": asked["request_id"]}, 60.0)
    if "error" in told:
        raise MachineError(f"cannot convert the adapter of '{path}': {told['error']}")
    if not told["difference"] <= MOST_DIFFERENCE:
        raise MachineError(
            f"the adapter of '{path}' answers otherwise in llama.cpp than in torch: log-probabilities differ "
            f"by {told['difference']:.3f} on average, more than {MOST_DIFFERENCE}"
        )
    return told


def call(runtime: Record, method: str, path: str, body: Any, timeout_s: float) -> Record:
    """One request of ours to a server. Raises MachineError if it fails or is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", runtime["port"], timeout=timeout_s)
    headers = {"X-API-Key": runtime["key"], "Content-Type": "application/json"}
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, f"/api/v1/{path}", sent, headers)
        response = connection.getresponse()
        status, told = response.status, loads(response.read() or b"{}")
    except (OSError, http.client.HTTPException, RecordError) as error:
        raise MachineError(f"the local trainer does not answer: {error}") from None
    finally:
        connection.close()
    if status >= 400 or not isinstance(told, dict):
        why = told.get("error") if isinstance(told, dict) else status
        raise MachineError(f"the local trainer refused: {why}")
    return told


@contextlib.contextmanager
def _held(path: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _start(place: str, directory: str, engine: str, threads: int, idle_s: float) -> Record:
    boot = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "boot.py")
    command = [sys.executable, boot, "tinkerd", "machine-tinkerd", "--engine", engine]
    command += ["--dir", os.path.abspath(directory), "--idle", str(idle_s), "--threads", str(threads)]
    chosen = {name: value for name in _PASSED_ON if (value := env.get(name))}
    log = os.path.join(place, "log")
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as said:
        process = subprocess.Popen(
            command,
            cwd=place,
            env={**env.child_environment(), **chosen, "MACHINE_CACHE": env.cache_dir()},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # ^C ends the command, not the server others may use
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = read_runtime(place)
        if found is not None and found["pid"] == process.pid:
            answering = running(directory, engine)
            if answering is not None:
                return answering
        if process.poll() is not None:
            raise MachineError(f"the local trainer did not start: {_last_line(log)}")
        time.sleep(0.05)
    process.terminate()
    raise MachineError(f"the local trainer did not start within {START_S:.0f} s; see '{log}'")


def _last_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1].removeprefix("fatal: ") if lines else "it said nothing"

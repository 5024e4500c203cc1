"""The server of a store, one for each engine: found, asked whether it lives, started on demand.

    STORE/tinkerd/ENGINE/runtime.json   port, key, pid, start time of the server that runs (0600)
    STORE/tinkerd/ENGINE/lock           held by the server while it lives
    STORE/tinkerd/ENGINE/start          held by who looks for the server or starts it
    STORE/tinkerd/ENGINE/log            what the server says

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

IDLE_S = 900.0
START_S = 60.0
HEALTH_S = 10.0
_PASSED_ON = (
    *("MACHINE_LOCAL_MODEL", "MACHINE_LOCAL_THREADS", "MACHINE_PYTHON"),
    *("MACHINE_FSYNC", "MACHINE_DEBUG"),
)


def folder(store: str, engine: str) -> str:
    """Where the server of a store and engine keeps its files."""
    return os.path.join(os.path.abspath(store), "tinkerd", engine)


def read_runtime(place: str) -> Record | None:
    """The runtime file in a server's folder, None if it is not there or not whole."""
    try:
        with open(os.path.join(place, "runtime.json"), "rb") as file:
            found = loads(file.read())
    except (OSError, RecordError):
        return None
    return found if isinstance(found, dict) and {"port", "key", "pid"} <= set(found) else None


def is_locked(path: str) -> bool:
    """Does a process hold this lock?"""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


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


def ensure(directory: str, engine: str = "torch", threads: int = 1, idle_s: float = IDLE_S) -> Record:
    """The runtime record of the server of this store, started if it does not run.

    directory: the store's. threads, idle_s: of a server that is started now. Raises MachineError if it
    cannot be started, with the last line of its log.
    """
    place = folder(directory, engine)
    make_private(place)
    with starting(place):
        return running(directory, engine) or _start(place, directory, engine, threads, idle_s)


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
def starting(place: str) -> Iterator[None]:
    """Be the one who starts or stops the server in its folder."""
    fd = os.open(os.path.join(place, "start"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _start(place: str, directory: str, engine: str, threads: int, idle_s: float) -> Record:
    boot = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/boot.py"
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
            raise MachineError(f"the local server did not start: {_last_line(log)}")
        time.sleep(0.05)
    process.terminate()
    raise MachineError(f"the local server did not start within {START_S:.0f} s; see '{log}'")


def _last_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
    return lines[-1].removeprefix("fatal: ") if lines else "it said nothing"

"""The server process: its engine, its lock, its runtime file, and its end."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

from libmachine import canon, env
from libmachine.errors import MachineError
from libmachine.harness import turns, weights
from libmachine.tinkerd import daemon, wire
from libmachine.tinkerd.checkpoints import Checkpoints, write_private
from libmachine.tinkerd.engine import BASE_MODEL, Engine
from libmachine.tinkerd.server import Server
from libmachine.tinkerd.service import Service

TURN_S = 3600.0
_LOOK_S = 0.5
_FINISH_S = 60.0


def serve(directory: str, engine: str, port: int, idle_s: float, threads: int) -> None:
    """Serve until a signal, /machine/stop, or idle_s seconds without a request and without work.

    Raises MachineError if a server of this store and engine runs already, or packages are missing.
    """
    wire.messages()
    place = daemon.folder(directory, engine)
    os.makedirs(place, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(lock):
        os.close(lock)
        raise MachineError(f"a local trainer runs in '{place}' already; --stop stops it")
    ending = threading.Event()
    service = Service(
        _engine(engine, threads),
        Checkpoints(os.path.join(place, "checkpoints")),
        lambda text: print(text, file=sys.stderr, flush=True),
        lambda: _turn(engine, ending),
    )
    key = f"tml-{secrets.token_hex(24)}"
    about = {"pid": os.getpid(), "engine": engine, "started_at": canon.now()}
    try:
        server = Server(port, key, service, about, ending.set)
    except OSError as error:
        raise MachineError(f"port {port} cannot be had: {(error.strerror or '').lower()}") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    threading.Thread(target=server.serve_forever, name="tinkerd-http", daemon=True).start()
    runtime = os.path.join(place, "runtime.json")
    write_private(runtime, canon.canonical({**about, "port": server.server_port, "key": key}))
    try:
        _watch(server, service, ending, idle_s, place)
    finally:
        ending.set()
        with suppress(FileNotFoundError):
            os.unlink(runtime)
        server.shutdown()
        service.futures.close(_FINISH_S)
        os.close(lock)


def _lock(fd: int) -> bool:
    """Take the lock. Who only looks whether it is taken holds it for a moment, hence several tries."""
    for _ in range(20):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _engine(name: str, threads: int) -> Engine:
    if name == "fake":
        from libmachine.tinkerd.engine_fake import FakeEngine

        return FakeEngine()
    from libmachine.tinkerd.engine_torch import TorchEngine

    return TorchEngine(lambda: weights.ensure_weights(BASE_MODEL), threads)


def _turn(engine: str, ending: threading.Event) -> AbstractContextManager[None]:
    """The processor is shared with local sampling: one command computes at a time."""
    if engine == "fake":
        return _NoTurn()
    return turns.turn(os.path.join(env.cache_dir(), "local.lock"), TURN_S, ending)


class _NoTurn(AbstractContextManager[None]):
    def __exit__(self, *_: Any) -> None:
        pass


def _watch(server: Server, service: Service, ending: threading.Event, idle_s: float, place: str) -> None:
    """Return when it is time to end. The lock `start` is held from an idle server's last look on."""
    start = os.open(os.path.join(place, "start"), os.O_RDWR | os.O_CREAT, 0o600)
    while not ending.wait(_LOOK_S):
        service.sessions.sweep()
        if not _idle(server, service, idle_s):
            continue
        try:
            fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if _idle(server, service, idle_s):
            return  # the lock goes with the process
        fcntl.flock(start, fcntl.LOCK_UN)


def _idle(server: Server, service: Service, idle_s: float) -> bool:
    return time.monotonic() - server.last_request > idle_s and not service.futures.busy()

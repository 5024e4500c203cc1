"""The server process: its engine, its lock, its runtime file, and its end."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from libmachine import canon, env
from libmachine.errors import MachineError
from libmachine.folders import make_private
from libmachine.harness import turns, weights
from libmachine.tinkerd import daemon, rest
from libmachine.tinkerd.chat import Chat
from libmachine.tinkerd.checkpoints import Checkpoints, write_private
from libmachine.tinkerd.engine import BASE_MODEL, Engine
from libmachine.tinkerd.engine_none import NoEngine, missing
from libmachine.tinkerd.processor import Processor
from libmachine.tinkerd.server import Server
from libmachine.tinkerd.service import Service
from libmachine.tinkerd.speaker import LlamaSpeaker, Speaker, Trees
from libmachine.tinkerd.speaker_fake import FakeSpeaker

TURN_S = 3600.0
_LOOK_S = 0.5
_FINISH_S = 60.0


def serve(directory: str, engine: str, port: int, idle_s: float, threads: int, trees: Trees) -> None:
    """Serve until a signal, /machine/stop, or idle_s seconds without a request and without work.

    trees: the trained weights of the store. Where packages for training are missing, chat is served.
    Raises MachineError if a server of this store and engine runs already.
    """
    place = daemon.folder(directory, engine)
    make_private(place)
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(lock):
        os.close(lock)
        raise MachineError(f"a local trainer runs in '{place}' already; --stop stops it")
    ending = threading.Event()
    processor = Processor(ending)
    service = Service(
        _engine(engine, threads),
        Checkpoints(os.path.join(place, "checkpoints")),
        _say,
        lambda: _turn(engine, processor, ending),
    )
    speaker: Speaker
    if engine == "fake":
        speaker = FakeSpeaker(trees, service.weights)
    else:
        speaker = LlamaSpeaker(trees, service.converted)
    chat = Chat(speaker, processor, lambda: rest.sampler_paths(service), _say)
    key = f"tml-{secrets.token_hex(24)}"
    about = {"pid": os.getpid(), "engine": engine, "started_at": canon.now()}
    if isinstance(service.engine, NoEngine):
        about["trains_not"] = service.engine.why
    try:
        server = Server(port, key, service, chat, about, ending.set)
    except OSError as error:
        raise MachineError(f"port {port} cannot be had: {(error.strerror or '').lower()}") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    threading.Thread(target=server.serve_forever, name="tinkerd-http", daemon=True).start()
    runtime = os.path.join(place, "runtime.json")
    write_private(runtime, canon.canonical({**about, "port": server.server_port, "key": key}))
    try:
        _watch(server, service, chat, ending, idle_s, place)
    finally:
        ending.set()
        with suppress(FileNotFoundError):
            os.unlink(runtime)
        server.shutdown()
        chat.close(_FINISH_S)
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _engine(name: str, threads: int) -> Engine:
    lacks = missing(name)
    if lacks is not None:
        return NoEngine(name, lacks)
    if name == "fake":
        from libmachine.tinkerd.engine_fake import FakeEngine

        return FakeEngine()
    from libmachine.tinkerd.engine_torch import TorchEngine

    return TorchEngine(lambda: weights.ensure_weights(BASE_MODEL), threads)


@contextmanager
def _turn(engine: str, processor: Processor, ending: threading.Event) -> Iterator[None]:
    """The processor is shared with local sampling, here and elsewhere: one command computes at a time."""
    if engine == "fake":
        yield
        return
    with processor.training(), turns.turn(os.path.join(env.cache_dir(), "local.lock"), TURN_S, ending):
        yield


def _watch(
    server: Server, service: Service, chat: Chat, ending: threading.Event, idle_s: float, place: str
) -> None:
    """Return when it is time to end. The lock `start` is held from an idle server's last look on."""
    start = os.open(os.path.join(place, "start"), os.O_RDWR | os.O_CREAT, 0o600)
    while not ending.wait(_LOOK_S):
        service.sessions.sweep()
        if not _idle(server, service, chat, idle_s):
            continue
        try:
            fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if _idle(server, service, chat, idle_s):
            return  # the lock goes with the process
        fcntl.flock(start, fcntl.LOCK_UN)


def _idle(server: Server, service: Service, chat: Chat, idle_s: float) -> bool:
    quiet = time.monotonic() - server.last_request > idle_s
    return quiet and not service.futures.busy() and not chat.busy()

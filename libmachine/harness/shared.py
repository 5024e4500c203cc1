"""One loaded model for all commands: the server of a store (machine-tinkerd), as a command asks it.

A call is a POST that is answered with JSON lines: `{}` while it waits or computes, then the completion or
why there is none. Whatever is wrong with the server itself is Gone, and the caller answers elsewhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Sequence

from libmachine import env
from libmachine.canon import Record
from libmachine.errors import ContextOverflow, MachineError, ProviderError, UsageError
from libmachine.harness import ondemand
from libmachine.harness.base import Completion, Request
from libmachine.harness.ondemand import folder, is_locked, read_runtime
from libmachine.harness.template import REVISION

PATH = "/api/v1/machine/complete"
SILENCE_S = 30.0
"""Seconds without a line after which a server counts as gone; it sends one every two."""
FAKE = f"local:fake+{REVISION}"
"""Name of the engine that only pretends, as it stands in a run."""


class Gone(Exception):
    """The server is not there, has ended, or would answer otherwise than this process: ask elsewhere."""


def chosen() -> str | None:
    """The engine that MACHINE_LOCAL_DAEMON names: `torch` (unset), `fake`, or None for no server."""
    told = env.get("MACHINE_LOCAL_DAEMON")
    engines = {"0": None, "1": "torch", "torch": "torch", "fake": "fake"}
    if told not in engines:
        raise UsageError(f"MACHINE_LOCAL_DAEMON '{told}' is none of: 0, 1, fake")
    return engines[told]


class Server:
    """The server of a store and engine, running or not: it is looked for at each call."""

    def __init__(self, store: str, engine: str) -> None:
        self._store, self._engine = store, engine
        self._place = folder(store, engine)
        self._waking = threading.Lock()
        self._woken = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False

    def wake(self) -> None:
        """Start the server if none runs; tried once. Raises Gone if it does not start."""
        with self._waking:
            if self._woken or self._closed:
                return
            self._woken = True
            if not os.path.exists(f"{self._store}/format"):  # nothing is put where no store is yet
                return
            try:
                ondemand.ensure(self._store, self._engine)
            except (MachineError, OSError) as error:
                raise Gone(str(error)) from None

    def complete(
        self, model_id: str, adapters: Sequence[str], name: str, model: str, request: Request
    ) -> Completion:
        """Answer once with model_id, adapters loaded beside it. name, model: of the engine that the
        answer must come from. Raises Gone, and what an engine raises.
        """
        body = {
            "model_id": model_id,
            "adapters": list(adapters),
            "engine": {"name": name, "model": model},
            "messages": request.messages,
            "tools": request.tools,
            "sampling": request.sampling.record(),
            "timeout_s": request.timeout_s,
            "step": request.step,
        }
        told = self._ask(body)
        if "completion" in told:
            return Completion(**told["completion"])
        message = str(told.get("message"))
        if told.get("error") == "context":
            raise ContextOverflow(message)
        if told.get("error") == "provider":
            raise ProviderError(message)
        raise Gone(message)

    def close(self) -> None:
        """End the calls in flight, which raise ProviderError, later ones too."""
        with self._lock:
            self._closed = True
            waiting = list(self._open)
        for connected in waiting:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _ask(self, body: Record) -> Record:
        runtime = read_runtime(self._place)
        if runtime is None or not is_locked(os.path.join(self._place, "lock")):
            raise Gone("no server runs in this store")
        connection = http.client.HTTPConnection("127.0.0.1", runtime["port"], timeout=SILENCE_S)
        connected = None
        try:
            connection.connect()
            connected = connection.sock  # the connection forgets it when the answer ends with it
            with self._lock:
                self._open.add(connected)
            if self._closed:
                raise OSError
            sent = json.dumps(body).encode("utf-8")  # ASCII: lone surrogates travel as escapes
            headers = {"X-API-Key": str(runtime["key"]), "Content-Type": "application/json"}
            connection.request("POST", PATH, sent, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise Gone(f"the server answers {response.status}")
            return _last(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._closed:
                raise ProviderError("the local model was closed") from None
            raise Gone(f"the server does not answer: {type(error).__name__}") from None
        finally:
            if connected is not None:
                with self._lock:
                    self._open.discard(connected)
                connected.close()
            connection.close()


def _last(response: http.client.HTTPResponse) -> Record:
    """The line that says something. Raises ValueError if the answer ends before it."""
    for line in response:
        told = json.loads(line)
        if told:
            return dict(told)
    raise ValueError("cut off")


class FakeEngine:
    """Answers by the fake engine's server alone (MACHINE_LOCAL_DAEMON=fake): a machine without a model.

    model_id as LocalEngine's. Without a server a call fails.
    """

    name = FAKE

    def __init__(self, model_id: str, store: str) -> None:
        self.model = f"{model_id}#fake"
        self._model_id = model_id
        self._server = Server(store, "fake")

    def complete(self, request: Request) -> Completion:
        """Answer once. Raises ProviderError if no server of the fake engine runs."""
        started = time.monotonic()
        try:
            completion = self._server.complete(self._model_id, (), self.name, self.model, request)
        except Gone as error:
            raise ProviderError(
                f"MACHINE_LOCAL_DAEMON is fake, and the fake engine is not there: {error}; "
                "machine-tinkerd --engine fake starts it"
            ) from None
        completion.waited_s = min(completion.waited_s, time.monotonic() - started)
        return completion

    def close(self) -> None:
        """Let go of the connections."""
        self._server.close()

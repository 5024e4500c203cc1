"""llama.cpp's server inside this process, by the package xllamacpp, spoken to over loopback.

In-process calls exist but give neither the ids of all sampled tokens nor a way to stop a call;
over HTTP `/completion` gives both. The port is free and chosen by the system, requests carry a
random key, and nothing is written to stdout or stderr (MACHINE_DEBUG=1: llama.cpp's log on stderr).
"""

from __future__ import annotations

import http.client
import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from libmachine import env
from libmachine.errors import MachineError, ProviderError

INSTALL = "pip install 'libmachine[local]'"
START_TIMEOUT_S = 60.0
_QUIET, _TALK = -1, 3
_LOOK_S = 0.5


def version() -> str:
    """Version of xllamacpp without importing it. Raises MachineError if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        raise MachineError(f"local models need the package 'xllamacpp'; {INSTALL}") from None


class LlamaServer:
    """A running server for one GGUF file.

    threads: of the processor, at most; parallel: conversations at once; context: tokens of each,
    afterwards as far as the model has them. adapters: GGUF files of LoRA adapters, each call says
    by their number which of them act. Raises MachineError if a file cannot be served.
    """

    def __init__(
        self, path: str, threads: int, parallel: int, context: int, adapters: Sequence[str] = ()
    ) -> None:
        xllamacpp = _import()
        self._key = secrets.token_hex(16)
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx, params.n_parallel = context * parallel, parallel
        for part in (params.cpuparams, params.cpuparams_batch):
            part.n_threads, part.poll = threads, 0  # no busy waiting: the processor is shared
        params.n_gpu_layers, params.fit_params = 0, False
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(file, 0.0) for file in adapters]
        params.warmup, params.ui, params.endpoint_slots = False, False, False
        params.cache_ram_mib, params.cache_idle_slots = 0, False  # else saved prompts grow to 8 GiB
        params.api_keys, params.endpoint_metrics = [self._key], True
        params.n_threads_http = parallel + 2
        params.verbosity = _TALK if env.get("MACHINE_DEBUG") == "1" else _QUIET
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._stopped = False
        try:
            self._server: Any = xllamacpp.Server(params)
        except (RuntimeError, ValueError):
            raise MachineError(
                f"cannot serve '{path}': llama.cpp does not read it (MACHINE_DEBUG=1 shows what it says)"
            ) from None
        # A server told to end before its loop began never ends; an answer shows that the loop runs.
        self._server.handle_metrics()
        self._address: str = self._server.listening_address.removeprefix("http://")
        settings = self.call("/props", None, START_TIMEOUT_S)["default_generation_settings"]
        self.context: int = min(context, settings["n_ctx"])  # no more than the model was trained for

    def call(
        self,
        path: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        given_up: threading.Event | None = None,
    ) -> dict[str, Any]:
        """The answer to a POST of body (None: a GET). Raises ProviderError on any failure, also when
        timeout_s seconds are over or given_up is set; the server then ends the call within about a second.
        """
        deadline = time.monotonic() + timeout_s
        connection = http.client.HTTPConnection(self._address, timeout=max(timeout_s, 0.001))
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        with self._lock:
            if self._stopped:
                raise ProviderError("the local model was closed")
            self._open.add(connection)
        try:
            method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
            connection.request(method, path, sent, headers)
            while given_up is not None and not select.select([connection.sock], [], [], _LOOK_S)[0]:
                if given_up.is_set() or time.monotonic() > deadline:
                    raise TimeoutError
            response = connection.getresponse()
            answer = json.loads(response.read())
        except TimeoutError:
            raise ProviderError(f"the local model gave no answer within {timeout_s:.0f} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._stopped:
                raise ProviderError("the local model was closed") from None
            raise ProviderError(f"the local model failed: {type(error).__name__}: {error}") from None
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        if response.status != 200:
            told = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
            raise ProviderError(f"the local model refused the call: {told or response.status}")
        if time.monotonic() > deadline + 1:
            raise ProviderError(f"the local model gave no answer within {timeout_s:.0f} s")
        assert isinstance(answer, dict)
        return answer

    def stop(self) -> None:
        """End the server and the calls in flight, which raise ProviderError. Again: nothing."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            waiting = list(self._open)
        for connection in waiting:
            try:
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._server = None  # its destructor joins llama.cpp's threads


def _import() -> Any:
    """The module xllamacpp."""
    try:
        with env.patient_openmp():
            import xllamacpp
    except ImportError as error:
        raise MachineError(f"local models need the package 'xllamacpp' ({error}); {INSTALL}") from None
    return xllamacpp

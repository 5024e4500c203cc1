"""The engine that runs a small model on this machine: no key, no network, the same answer every time.

The model is loaded by the server of the store (libmachine.harness.shared), which the first call starts;
in this process where there is to be none or it does not start. The server has the same engine, and
answers only as what the command would be itself.
Prompts are token ids rendered by our own template, and the ids that were sampled come back with
their log-probabilities. With the same seed the ids of a short prompt are the same, whatever the number
of threads, of calls in flight, or what was asked before (see tests/test_local.py); above some hundred
tokens llama.cpp's cache moves last digits, and another token may be drawn (machine-tinkerd(1)).
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from libmachine import env
from libmachine.errors import ContextOverflow, MachineError, ProviderError, UsageError
from libmachine.harness import shared, template, turns, weights
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.llama import START_TIMEOUT_S, LlamaServer, version

CONTEXT = 8192
Adapters = Sequence[tuple[str, str]]
"""(id, GGUF file) of LoRA adapters."""
WAIT_S = 6 * 3600.0
"""Seconds to wait for another command to finish with the local model."""
_SAMPLERS = ["temperature", "top_k", "top_p", "min_p"]  # no penalties, whatever the file recommends


class _Host:
    """A base model with the adapters loaded beside it, shared by the engines that use them."""

    def __init__(self, base: str, threads: int, parallel: int, context: int, adapters: Adapters) -> None:
        self.base, self._threads, self._parallel, self._context = base, threads, parallel, context
        self.adapters = adapters
        self.users = 0
        self.closed = threading.Event()
        self.special: dict[str, int] = {}
        self.slots = _Slots(parallel, self.closed)
        self._starting = threading.Lock()
        self._server: LlamaServer | None = None
        self._failure: MachineError | None = None
        self._ids = functools.lru_cache(maxsize=4096)(self._encode)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text that makes no control tokens. Starts the server."""
        return list(self._ids(text) if len(text) < 10_000 else self._encode(text))

    def close(self) -> None:
        """Stop the server; calls in flight or waiting raise ProviderError, later ones too."""
        self.closed.set()
        with self._starting:
            if self._server is not None:
                self._server.stop()

    def started(self) -> LlamaServer:
        with self._starting:
            if self.closed.is_set():
                raise ProviderError("the local model was closed")
            if self._failure is not None:
                raise self._failure
            if self._server is None:
                try:
                    self._server = self._start()
                except MachineError as error:
                    self._failure = error  # the next call would only wait for the same
                    raise
            return self._server

    def _start(self) -> LlamaServer:
        path = weights.ensure_weights(self.base)
        server = LlamaServer(
            path, self._threads, self._parallel, self._context, [file for _, file in self.adapters]
        )
        weakref.finalize(self, server.stop)  # also when the interpreter ends
        try:
            self.special = {token: _special(server, token, path) for token in template.SPECIAL}
        except MachineError:
            server.stop()
            raise
        return server

    def _encode(self, text: str) -> tuple[int, ...]:
        clean = text.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
        return tuple(_tokens(self.started(), clean, special=False))


class _Slots:
    """Calls at once: who waits for one of them is not in the server yet, and the time is not the call's."""

    def __init__(self, count: int, closed: threading.Event) -> None:
        self._free, self._closed = threading.Semaphore(count), closed

    def __enter__(self) -> None:
        while not self._free.acquire(timeout=0.5):
            if self._closed.is_set():
                raise ProviderError("the local model was closed")

    def __exit__(self, *_: object) -> None:
        self._free.release()


_hosts: dict[tuple[object, ...], _Host] = {}
_hosting = threading.Lock()


def _host_of(*key: Any) -> _Host:
    """The host of a base, threads, parallel, context and adapters: two engines of one process share it."""
    with _hosting:
        if key not in _hosts or _hosts[key].closed.is_set():
            _hosts[key] = _Host(*key)
        _hosts[key].users += 1
        return _hosts[key]


class LocalEngine:
    """One local model. Loads it at the first call, not before.

    model_id: `local/NAME`, or `local/NAME+ADAPTER` for weights trained here. threads: of the processor
    (default MACHINE_LOCAL_THREADS, else all cores, at most 4). parallel: calls at once, more wait.
    context: tokens of one conversation, answers included. adapters: (id, GGUF file) of every adapter to
    be loaded, used by this engine or not: two arms that are compared are sampled by one server. store:
    the one whose server answers, started by the first call. Raises MachineError if there is no such model
    or adapter, or xllamacpp is not installed.
    """

    def __init__(
        self,
        model_id: str,
        threads: int | None = None,
        parallel: int = 4,
        context: int = CONTEXT,
        adapters: Adapters = (),
        store: str | None = None,
    ) -> None:
        base, _, adapter = model_id.partition("+")
        if adapter and adapter not in [name for name, _ in adapters]:
            raise MachineError(f"adapter '{adapter}' of '{model_id}' is not in this store")
        own_context = "" if context == CONTEXT else f"+ctx{context}"
        loaded = "".join(f"+lora:{name[:12]}" for name, _ in adapters)
        self.name = f"local:xllamacpp-{version()}+{template.REVISION}{own_context}{loaded}"
        self.model = f"{model_id}#{weights.weights_hash(base)[:12]}"
        self._model_id = model_id
        self._scales = [
            {"id": number, "scale": float(name == adapter)} for number, (name, _) in enumerate(adapters)
        ]
        self._host = _host_of(base, threads or _threads(), parallel, context, tuple(adapters))
        self._open = True
        self._adapters = [name for name, _ in adapters]
        self._shared = shared.Server(store, "torch") if store and context == CONTEXT else None

    def complete(self, request: Request) -> Completion:
        """Answer once. request.timeout_s counts from when the model is loaded and it is our turn.

        Raises ContextOverflow if the prompt leaves no room, ProviderError if there is no answer in time.
        """
        server, asked = self._shared, time.monotonic()
        if server is not None:
            try:
                weights.ensure_weights(self._host.base)  # here, where pip's settings are known
                server.wake()
                lost = time.monotonic() - asked
                completion = server.complete(self._model_id, self._adapters, self.name, self.model, request)
                completion.waited_s += lost
                return completion
            except shared.Gone:
                self._shared = None  # from now on here: one engine never comes and goes
        lost = time.monotonic() - asked
        completion = self._by_host(request)
        completion.waited_s += lost
        return completion

    def _by_host(self, request: Request) -> Completion:
        lock = os.path.join(env.cache_dir(), "local.lock")
        host = self._host
        asked = time.monotonic()
        with turns.turn(lock, WAIT_S, host.closed), host.slots:
            if request.given_up is not None and request.given_up.is_set():
                raise ProviderError("nobody waits for this answer any more")
            server = host.started()
            waited = time.monotonic() - asked
            deadline = time.monotonic() + request.timeout_s
            prompt = template.render(request.messages, request.tools, host.tokenize, host.special)
            room = server.context - len(prompt)
            if room < 1:
                raise ContextOverflow(
                    f"the conversation has {len(prompt)} tokens, the context of '{self._model_id}' "
                    f"{server.context}; shorten the instructions or the results of tools"
                )
            body = _body(prompt, request.sampling, room)
            if self._scales:
                body["lora"] = self._scales
            answer = server.call("/completion", body, deadline - time.monotonic(), request.given_up)
        completion = self._completion(request, prompt, answer)
        completion.waited_s = waited
        return completion

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text that makes no control tokens. Starts the server."""
        return self._host.tokenize(text)

    def close(self) -> None:
        """Let go of the model; the last engine that uses it stops its server. Again: nothing."""
        if self._shared is not None:
            self._shared.close()
        if self._open:
            self._open = False
            self._host.users -= 1
            if self._host.users == 0:
                self._host.close()

    def _completion(self, request: Request, prompt: list[int], answer: dict[str, Any]) -> Completion:
        message = template.parse(answer["content"], request.step, calls=bool(request.tools))
        ids = answer["tokens"]
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(
            message,
            "length" if answer["stop_type"] == "limit" else finish,
            self.model,
            prompt_tokens=len(prompt),
            cached_tokens=answer["timings"]["cache_n"],
            completion_tokens=len(ids),
            tokens={
                "prompt": prompt,
                "completion": ids,
                "logprobs": logprobs(ids, answer.get("completion_probabilities") or []),
            },
        )


def logprobs(ids: list[int], told: list[dict[str, Any]]) -> list[float | None]:
    """Log-probability of each sampled token under the model at temperature 1, before any cut.

    llama.cpp tells them only for tokens that end a character: the others of a character written
    in several tokens (emoji, rare scripts) have None. From the right, as the told one is the last.
    """
    values: list[float | None] = []
    left = list(told)
    for token in reversed(ids):
        values.append(left.pop()["logprob"] if left and left[-1]["id"] == token else None)
    return values[::-1]


def _body(prompt: list[int], sampling: Sampling, room: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": max(1, min(sampling.max_tokens, room)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "samplers": _SAMPLERS,
        "seed": -1 if sampling.seed is None else sampling.seed % 2**31,
        "return_tokens": True,
        "n_probs": 1,
        "cache_prompt": True,
    }


def _tokens(server: LlamaServer, text: str, special: bool) -> list[int]:
    body = {"content": text, "add_special": False, "parse_special": special}
    ids: list[int] = server.call("/tokenize", body, START_TIMEOUT_S)["tokens"]
    return ids


def _special(server: LlamaServer, token: str, path: str) -> int:
    ids = _tokens(server, token, special=True)
    if len(ids) != 1:
        raise MachineError(f"'{path}' has no token '{token}'; a local model must speak ChatML")
    return ids[0]


def _threads() -> int:
    chosen = env.get("MACHINE_LOCAL_THREADS")
    if chosen is None:
        return min(
            4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
    if not chosen.isdecimal() or not 1 <= int(chosen) <= 256:
        raise UsageError(f"MACHINE_LOCAL_THREADS '{chosen}' is no number of threads; give 1 to 256")
    return int(chosen)

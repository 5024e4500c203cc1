"""The engine that runs a small model in this process: no key, no network, the same answer every time.

Prompts are token ids rendered by our own template, and the ids that were sampled come back with
their log-probabilities. With the same seed the ids are the same, whatever the number of threads,
of calls in flight, or what was asked before (measured; see tests/test_local.py).
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from typing import Any

from libmachine import env
from libmachine.errors import ContextOverflow, MachineError, ProviderError, UsageError
from libmachine.harness import template, turns, weights
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.llama import START_TIMEOUT_S, LlamaServer, version

CONTEXT = 8192
WAIT_S = 6 * 3600.0
"""Seconds to wait for another command to finish with the local model."""
_SAMPLERS = ["temperature", "top_k", "top_p", "min_p"]  # no penalties, whatever the file recommends


class LocalEngine:
    """One local model. Loads it at the first call, not before.

    model_id: `local/...`. threads: of the processor (default MACHINE_LOCAL_THREADS, else all cores,
    at most 4). parallel: calls at once, more wait. context: tokens of one conversation, answers
    included. Raises MachineError if there is no such model or xllamacpp is not installed.
    """

    def __init__(
        self, model_id: str, threads: int | None = None, parallel: int = 4, context: int = CONTEXT
    ) -> None:
        own_context = "" if context == CONTEXT else f"+ctx{context}"
        self.name = f"local:xllamacpp-{version()}+{template.REVISION}{own_context}"
        self.model = f"{model_id}#{weights.weights_hash(model_id)[:12]}"
        self._model_id = model_id
        self._threads = threads or _threads()
        self._parallel, self._context = parallel, context
        self._starting = threading.Lock()
        self._closed = threading.Event()
        self._server: LlamaServer | None = None
        self._failure: MachineError | None = None
        self._special: dict[str, int] = {}
        self._ids = functools.lru_cache(maxsize=4096)(self._encode)

    def complete(self, request: Request) -> Completion:
        """Answer once. request.timeout_s counts from when the model is loaded and it is our turn.

        Raises ContextOverflow if the prompt leaves no room, ProviderError if there is no answer in time.
        """
        lock = os.path.join(env.cache_dir(), "local.lock")
        asked = time.monotonic()
        with turns.turn(lock, WAIT_S, self._closed):
            server = self._started()
            waited = time.monotonic() - asked
            deadline = time.monotonic() + request.timeout_s
            prompt = template.render(request.messages, request.tools, self.tokenize, self._special)
            room = server.context - len(prompt)
            if room < 1:
                raise ContextOverflow(
                    f"the conversation has {len(prompt)} tokens, the context of '{self._model_id}' "
                    f"{server.context}; shorten the instructions or the results of tools"
                )
            body = _body(prompt, request.sampling, room)
            answer = server.call("/completion", body, deadline - time.monotonic())
        completion = self._completion(request, prompt, answer)
        completion.waited_s = waited
        return completion

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text that makes no control tokens. Starts the server."""
        return list(self._ids(text) if len(text) < 10_000 else self._encode(text))

    def close(self) -> None:
        """Stop the server; calls in flight or waiting raise ProviderError, later ones too."""
        self._closed.set()
        with self._starting:
            if self._server is not None:
                self._server.stop()

    def _started(self) -> LlamaServer:
        with self._starting:
            if self._closed.is_set():
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
        path = weights.ensure_weights(self._model_id)
        server = LlamaServer(path, self._threads, self._parallel, self._context)
        weakref.finalize(self, server.stop)  # also when the interpreter ends
        try:
            self._special = {token: _special(server, token, path) for token in template.SPECIAL}
        except MachineError:
            server.stop()
            raise
        return server

    def _encode(self, text: str) -> tuple[int, ...]:
        clean = text.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
        return tuple(_tokens(self._started(), clean, special=False))

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

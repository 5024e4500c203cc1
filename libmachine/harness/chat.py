"""The chat engine: one tolerant client for every endpoint that speaks chat completions.

Retries, the time limit and what is said about them; the parts that do not wait are chat_send
(the body), chat_wire (the bytes), chat_stream, chat_read and chat_bill (the reply).

Each attempt runs in a thread of its own. So `timeout_s` holds whatever happens, a name look-up
that hangs or a reply that trickles included, and a wait can be reported while it lasts.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from libmachine.canon import hash_of
from libmachine.errors import ContextOverflow, MachineError, ProviderError
from libmachine.harness import chat_send, chat_stream
from libmachine.harness.base import Request
from libmachine.harness.chat_bill import Failure, Usage
from libmachine.harness.chat_read import ChatCompletion, read_completion
from libmachine.harness.chat_wire import Wire
from libmachine.prices import is_private

if TYPE_CHECKING:
    import openai

MAX_RETRIES = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
SECRET = 4  # characters a key must have to be taken out of texts; a shorter one is a local dummy
SHOWN = 300  # characters of what an endpoint says that go into an error
_ADVICE = {
    401: "the key was refused: check {key}",
    402: "no credit left: add some there, or name another --model",
    403: "this key may not use this model here: check {key}, or name another --model",
    404: "no such model or address: ids are case-sensitive; check --model and --base-url",
    413: "the request is too large for this endpoint",
    429: "too many requests: lower --concurrency or try later",
}
_FREE_INKLING = "free Inkling is refused to plain clients: use --harness pi or --harness opencode"


class _Spent:
    """What a call that failed may have cost.

    billed: usage of replies that could not be used. unknown_bills: attempts that may have been
    billed and did not say for what; a ledger counts each at its worst case.
    """

    billed: list[Usage]
    unknown_bills: int
    retries: int


class ChatError(_Spent, ProviderError):
    """No completion, retries included. status: the last one, None for a network error or time-out."""

    status: int | None = None
    timed_out = False


class ChatOverflow(_Spent, ContextOverflow):
    """The endpoint says that the conversation does not fit the model's context."""


class ChatEngine:
    """An engine that asks an endpoint. See libmachine.harness.base.Engine.

    endpoint: `openai`, `openrouter`, `tinker`, or a name of the user's, which speaks as openai.
    model: the id as the endpoint knows it. base_url: None for the endpoint's own. api_key: None
    where none is needed. extra_body: fields laid over every request. sleep: waits between
    attempts. progress: takes lines about retries and long waits. client: an openai.OpenAI to
    send through in place of one made here. patience_s: seconds between lines about one wait.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        stream: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        max_retries: int = MAX_RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        progress: Callable[[str], None] | None = None,
        client: openai.OpenAI | None = None,
        patience_s: float = 30.0,
    ) -> None:
        known = chat_send.ENDPOINTS.get(endpoint)
        if not base_url and known is None:
            raise MachineError(f"no address for endpoint '{endpoint}'; give one with --base-url")
        self.endpoint = endpoint
        self.base: str | None = None
        """The model that a checkpoint was trained from, where the machine says so: it is priced as that."""
        self.name = endpoint  # with the fields laid over: they decide the answer
        if extra_body:
            self.name += "+" + hash_of(dict(extra_body))[:12]
        self.model = model
        self.base_url = base_url or (known.base_url if known else "")
        _check_address(self.base_url)
        self.private = is_private(self.base_url)
        self._key = (api_key or "").strip()
        self._key_name = known.key if known else "its key"
        if not self._key and endpoint in ("openrouter", "tinker") and not self.private:
            raise MachineError(f"endpoint '{endpoint}' needs a key: set {self._key_name}")
        if not (self._key.isascii() and self._key.isprintable()):
            raise MachineError(
                f"the value of {self._key_name} holds characters that no key has: set it again"
            )
        self._asked = model
        self._stream = stream
        self._extra_body = dict(extra_body or {})
        self._max_retries = max_retries
        self._sleep = sleep
        self._progress = progress
        self._patience_s = patience_s
        # told of each failed attempt before the next one, so that a ledger can reserve anew
        self.on_retry: Callable[[Usage | None, bool], None] | None = None
        self._wire = Wire(self.base_url, self._key, self.private, client)

    def complete(self, request: Request) -> ChatCompletion:
        """Answer once, retries included, within request.timeout_s. Raises ChatError or ChatOverflow."""
        deadline = time.monotonic() + request.timeout_s
        body = chat_send.body_for(
            request, self._asked, self.endpoint, self.private, self._stream, self._extra_body
        )
        billed: list[Usage] = []
        unknown_bills = retries = 0
        while True:
            outcome = self._attempt(body, len(request.messages), deadline - time.monotonic())
            if isinstance(outcome, ChatCompletion):
                outcome.model = outcome.model or self._asked
                if outcome.cost_usd is None and self._asked.endswith(":free"):
                    outcome.cost_usd = 0.0
                outcome.retries, outcome.wasted, outcome.unknown_bills = retries, billed, unknown_bills
                return outcome
            if outcome.usage is not None:
                billed.append(outcome.usage)
            unknown_bills += outcome.unknown_bill
            wait = _wait(retries, outcome.retry_after)
            left = deadline - time.monotonic()
            if outcome.final or outcome.timed_out or retries == self._max_retries or wait >= left:
                error = self._error(outcome, retries, wait if wait >= left else None)
                error.billed, error.unknown_bills, error.retries = billed, unknown_bills, retries
                raise error
            retries += 1
            what = f"HTTP {outcome.status}: {outcome.text}" if outcome.status else outcome.text
            self._say(f"{self.endpoint}: retry {retries} of {self._max_retries} in {wait:.1f} s: {what}")
            self._sleep(wait)
            if self.on_retry is not None:
                self.on_retry(outcome.usage, outcome.unknown_bill)

    def close(self) -> None:
        """Close the connections. A later request opens them again."""
        self._wire.close()

    def _attempt(self, body: dict[str, Any], position: int, seconds: float) -> ChatCompletion | Failure:
        """One request. What the thread raises is a bug of ours and is raised here."""
        box: queue.SimpleQueue[ChatCompletion | Failure | BaseException] = queue.SimpleQueue()
        abandoned = threading.Event()

        def work() -> None:
            try:
                reply = self._wire.post(body, seconds, abandoned)
                read = chat_stream.body_of(reply) if isinstance(reply, bytes) else reply
                box.put(read if isinstance(read, Failure) else read_completion(read, position))
            except BaseException as bug:
                box.put(bug)

        if seconds <= 0:
            return Failure("the time allowed was used up before the request", timed_out=True)
        began = time.monotonic()
        threading.Thread(target=work, daemon=True, name=f"chat-{self.endpoint}").start()
        try:
            while True:
                waited = time.monotonic() - began
                try:
                    outcome = box.get(timeout=max(0.0, min(self._patience_s, seconds - waited)))
                except queue.Empty:
                    waited = time.monotonic() - began
                    if waited >= seconds:
                        return Failure("no answer in the time allowed", timed_out=True, unknown_bill=True)
                    self._say(
                        f"{self.endpoint}: no answer from '{self.model}' for {waited:.0f} s of {seconds:.0f}"
                    )
                    continue
                if isinstance(outcome, BaseException):
                    raise outcome
                return outcome
        finally:
            abandoned.set()

    def _error(self, failure: Failure, retries: int, wait: float | None) -> ChatError | ChatOverflow:
        place = urlsplit(self.base_url)
        where = f"endpoint '{self.endpoint}' ({place.scheme}://{place.netloc.rpartition('@')[2]}{place.path})"
        if failure.status is not None:
            what = f"answered {failure.status} for model '{self.model}'"
        else:
            what = f"gave no usable reply for model '{self.model}'"
        text = f"{where} {what}: {self._shown(failure.text)}"
        if failure.overflow:
            return ChatOverflow(self._redacted(text))
        if retries:
            text += f" (after {retries} retries)"
        if wait is not None and not failure.final and not failure.timed_out:
            text += f" (the next try would be in {wait:.0f} s, after the time allowed)"
        advice = _ADVICE.get(failure.status or 0, "")
        if failure.status == 403 and self.endpoint == "openrouter" and self._asked.endswith(":free"):
            advice = _FREE_INKLING if "inkling" in self._asked.lower() else advice
        if failure.status is None:
            advice = "check the address and the network"
        if failure.timed_out:
            advice = "raise the limit on time, or see whether the endpoint is up"
        text += f"; {advice.format(key=self._key_name)}" if advice else ""
        error = ChatError(self._redacted(text))
        error.status, error.timed_out = failure.status, failure.timed_out
        return error

    def _shown(self, text: str) -> str:
        """What an endpoint said, fit for a line of ours: printable, short, without the key."""
        text = " ".join("".join(c if c.isprintable() else " " for c in self._redacted(text)).split())
        return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."

    def _redacted(self, text: str) -> str:
        return text.replace(self._key, "[redacted]") if len(self._key) >= SECRET else text

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress(self._shown(text))


def _wait(retries: int, asked: float | None) -> float:
    """Seconds before the next attempt: what was asked for, else doubling; jitter spreads the threads."""
    if asked is not None:
        return min(asked, LONGEST_WAIT_S)
    return min(FIRST_WAIT_S * 2.0**retries, LONGEST_WAIT_S) * random.uniform(0.5, 1.0)


def _check_address(url: str) -> None:
    try:
        place = urlsplit(url)
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        good = False
    if not good:
        shown = url.rpartition("@")[2]  # never a password
        raise MachineError(f"no usable address '{shown}'; it looks like https://HOST/v1")

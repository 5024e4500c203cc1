"""Chat over HTTP: OpenAI's endpoint, and the private one of our own commands.

Both answer while they wait: a stream gets a line every BEAT_S seconds, so that a client knows a server
that computes from one that died, and the server a client that is gone.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

from libmachine.canon import Record
from libmachine.errors import ContextOverflow, MachineError, ProviderError
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.tinkerd import asked, chat_wire
from libmachine.tinkerd.chat_wire import ChatRefusal
from libmachine.tinkerd.engine import BASE_MODEL, Refusal
from libmachine.tinkerd.processor import Processor
from libmachine.tinkerd.speaker import Expected, Speaker

BEAT_S = 2.0
LINES, EVENTS = "application/x-ndjson", "text/event-stream"


class Stream(NamedTuple):
    """An answer that is sent as it comes. kind: its Content-Type."""

    kind: str
    pieces: Generator[bytes, None, None]


class Chat:
    """The chat side of a server.

    models: ids to be listed beside the base. say: gets a text for each bug of ours.
    """

    def __init__(
        self,
        speaker: Speaker,
        processor: Processor,
        models: Callable[[], list[str]],
        say: Callable[[str], None],
    ) -> None:
        self._speaker, self._processor, self._models, self._say = speaker, processor, models, say
        self._changed = threading.Condition()
        self._calls = 0
        self._closed = False
        self._began = int(time.time())

    def busy(self) -> bool:
        """Is any call waiting or being answered?"""
        return self._calls > 0

    def close(self, wait_s: float) -> None:
        """Take no more calls, wait for those that are being answered, end the rest."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._calls, wait_s)
        self._speaker.close()

    # OpenAI's ---------------------------------------------------------------------------

    def listed(self) -> Record:
        """GET /v1/models."""
        ids = [BASE_MODEL, *self._models()]
        return {"object": "list", "data": [chat_wire.model_entry(model, self._began) for model in ids]}

    def model(self, model: str) -> Record:
        """GET /v1/models/ID."""
        self._speaker.check(model)
        return chat_wire.model_entry(model, self._began)

    def completions(self, body: Record) -> Record | Stream:
        """POST /v1/chat/completions."""
        request = chat_wire.read(body)
        self._speaker.check(request.model)
        if request.stream:
            return Stream(EVENTS, self._events(request))
        return chat_wire.answer(request, self._answered(request), int(time.time()))

    def _answered(self, request: chat_wire.Asked) -> Completion:
        try:
            return self._complete(request.model, [], request.request, None)
        except ContextOverflow as error:
            raise ChatRefusal(str(error), "messages", "context_length_exceeded") from None
        except Refusal:
            raise
        except ProviderError as error:
            raise Refusal(str(error), "server", 503 if self._closed else 500) from None
        except MachineError as error:
            raise Refusal(str(error), "server", 501) from None

    def _events(self, request: chat_wire.Asked) -> Generator[bytes, None, None]:
        given_up = threading.Event()
        request = request._replace(request=replace(request.request, given_up=given_up))
        try:
            completion = yield from _beating(lambda: self._answered(request), b": waiting\n\n", given_up)
        except Exception as error:
            yield chat_wire.event(refusal(error))
        else:
            yield from chat_wire.chunks(request, completion, int(time.time()))

    # ours -------------------------------------------------------------------------------

    def private(self, data: bytes) -> Stream:
        """POST /api/v1/machine/complete, as libmachine.harness.shared sends it."""
        try:
            body = json.loads(data)  # as it was written: tool schemas are rendered from it
            model_id = asked.text(body, "model_id")
            beside = [str(tree) for tree in body["adapters"]]
            expected = Expected(**body["engine"])
            request = Request(
                body["messages"],
                body["tools"],
                Sampling(**body["sampling"]),
                float(body["timeout_s"]),
                step=body["step"],
                given_up=threading.Event(),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refusal(f"no request of ours: {type(error).__name__}: {error}") from None
        return Stream(
            LINES, self._lines(lambda: self._complete(model_id, beside, request, expected), request.given_up)
        )

    def _lines(
        self, work: Callable[[], Completion], given_up: threading.Event | None
    ) -> Generator[bytes, None, None]:
        try:
            completion = yield from _beating(work, b"{}\n", given_up)
        except Exception as error:
            yield json.dumps({"error": self._kind(error), "message": str(error)}).encode() + b"\n"
        else:
            told = {field.name: getattr(completion, field.name) for field in fields(completion)}
            yield json.dumps({"completion": told}).encode() + b"\n"

    def _kind(self, error: Exception) -> str:
        """`context` and `provider` are the run's; everything else is ours, and the client answers itself."""
        if isinstance(error, ContextOverflow):
            return "context"
        if isinstance(error, ProviderError) and not self._closed:
            return "provider"
        if not isinstance(error, MachineError):
            self._say("".join(traceback.format_exception(error)))
        return "gone"

    # both -------------------------------------------------------------------------------

    def _complete(
        self, model: str, beside: list[str], request: Request, expected: Expected | None
    ) -> Completion:
        with self._counted(), self._processor.call() as waited:
            completion = self._speaker.complete(model, beside, request, expected)
        completion.waited_s += waited
        return completion

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise ProviderError("the server is stopping")
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()


def refusal(error: Exception) -> Record:
    """Any error in OpenAI's shape."""
    if isinstance(error, ChatRefusal):
        return chat_wire.failure(str(error), error.status, error.param, error.code)
    if isinstance(error, MachineError):
        return chat_wire.failure(str(error), getattr(error, "status", 500))
    return chat_wire.failure(f"bug: {type(error).__name__}: {error}", 500)


def _beating(
    work: Callable[[], Completion], beat: bytes, given_up: threading.Event | None
) -> Generator[bytes, None, Completion]:
    """Beats until the work is done, in a thread of its own; then what it came to, or its error.

    given_up: set if nobody takes a beat, as the client is gone."""
    done = threading.Event()
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="tinkerd-chat", daemon=True).start()
    try:
        while not done.wait(BEAT_S):
            yield beat
    finally:
        if given_up is not None:
            given_up.set()
    if isinstance(found[0], BaseException):
        raise found[0]
    completion: Completion = found[0]
    return completion

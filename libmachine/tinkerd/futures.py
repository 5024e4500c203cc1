"""Work in order: one thread computes, requests of one training client run by their seq_id.

A request that is sent again (the SDK does, when a connection breaks) has the same id and is not run
twice.
"""

from __future__ import annotations

import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from libmachine.errors import MachineError
from libmachine.tinkerd.engine import Refusal

KEPT = 4096
"""Finished futures that can still be asked for."""

Answer = dict[str, Any] | bytes
"""JSON, or an encoded protobuf message."""

Turn = Callable[[], AbstractContextManager[None]]


@dataclass
class Future:
    """Work asked for. answer is set when done is."""

    id: str
    work: Callable[[], Answer]
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer = b""


@dataclass
class _Line:
    """A training client's requests. next: the seq_id that may run now."""

    next: int = 0
    waiting: dict[int, Future] = field(default_factory=dict)


class Futures:
    """The queue, its thread, and what is finished.

    say: gets a text for each bug of ours. turn: held while something is computed.
    """

    def __init__(self, say: Callable[[str], None], turn: Turn = nullcontext) -> None:
        self._say, self._turn = say, turn
        self._changed = threading.Condition()
        self._futures: OrderedDict[str, Future] = OrderedDict()
        self._ready: deque[Future] = deque()
        self._lines: dict[str, _Line] = {}
        self._closed = False
        self._running = False
        self._thread = threading.Thread(target=self._work, name="tinkerd-work", daemon=True)
        self._thread.start()

    def submit(
        self, request_id: str, work: Callable[[], Answer], line: str = "", seq: int | None = None
    ) -> Future:
        """Queue work, once per request_id. With a line, seq says when: after all smaller ones, from 0."""
        with self._changed:
            if self._closed:
                raise Refusal("the local trainer is stopping", "server", 503)
            if request_id in self._futures:
                return self._futures[request_id]
            future = self._futures[request_id] = Future(request_id, work)
            if line and seq is not None:
                order = self._lines.setdefault(line, _Line())
                if seq < order.next:
                    del self._futures[request_id]
                    raise Refusal(
                        f"seq_id {seq} of '{line}' was served before; {order.next} is next", status=400
                    )
                order.waiting[seq] = future
                while order.next in order.waiting:
                    self._ready.append(order.waiting.pop(order.next))
                    order.next += 1
            else:
                self._ready.append(future)
            self._changed.notify_all()
            return future

    def wait(self, request_id: str, seconds: float) -> Future | None:
        """The future if it is done within the time, None if not. Raises Refusal (404) if unknown."""
        with self._changed:
            future = self._futures.get(request_id)
        if future is None:
            raise Refusal(f"no request '{request_id}' here; was the trainer restarted?", status=404)
        return future if future.done.wait(seconds) else None

    def busy(self) -> bool:
        """Is anything being computed or ready to be?"""
        with self._changed:
            return self._running or bool(self._ready)

    def drop(self, line: str) -> None:
        """Forget a training client and what it still waits for."""
        with self._changed:
            for future in self._lines.pop(line, _Line()).waiting.values():
                _finish(future, _error("the session of this request is over", "user"))

    def close(self, wait_s: float) -> None:
        """Take no more work; wait for what is being computed, drop the rest."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(wait_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = False
                while not self._ready and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                future = self._ready.popleft()
                self._running = True
            _finish(future, self._answer(future))
            with self._changed:
                self._forget_old()

    def _answer(self, future: Future) -> Answer:
        try:
            with self._turn():
                return future.work()
        except Refusal as error:
            return _error(str(error), error.category)
        except MachineError as error:
            return _error(str(error), "server")
        except Exception as error:  # the thread must live on
            self._say(traceback.format_exc())
            return _error(f"bug of the local trainer: {type(error).__name__}: {error}", "server")

    def _forget_old(self) -> None:
        for request_id in list(self._futures)[: max(0, len(self._futures) - KEPT)]:
            if self._futures[request_id].done.is_set():
                del self._futures[request_id]


def _error(message: str, category: str) -> Answer:
    return {"error": message, "category": category}


def _finish(future: Future, answer: Answer) -> None:
    future.answer = answer
    future.work = dict  # what was sent is not kept
    future.done.set()

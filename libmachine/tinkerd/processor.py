"""One processor for two kinds of work: training by itself, or calls that answer, several at once.

Neither starves the other: calls that come while training waits stand behind it, and all that wait when
a piece of training ends go before the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from libmachine.errors import ProviderError

_LOOK_S = 0.5


class Processor:
    """Who computes now. closed: set to give up waiting."""

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self._changed = threading.Condition()
        self._calls = 0
        self._training = False
        self._training_waits = 0
        self._calls_wait = 0
        self._admitted = 0  # calls that waited when training ended: they go before the next

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute alone."""
        with self._changed:
            self._training_waits += 1
            try:
                while self._training or self._calls or self._admitted:
                    self._wait()
                self._training = True
            finally:
                self._training_waits -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._training = False
                self._admitted = self._calls_wait
                self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[float]:
        """Compute beside other calls. Gives the seconds it waited."""
        asked = time.monotonic()
        with self._changed:
            if self._training or self._training_waits:
                self._calls_wait += 1
                try:
                    while self._training or (self._training_waits and not self._admitted):
                        self._wait()
                finally:
                    self._calls_wait -= 1
                    self._admitted = max(0, self._admitted - 1)
                    self._changed.notify_all()
            self._calls += 1
        try:
            yield time.monotonic() - asked
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _wait(self) -> None:
        self._changed.wait(_LOOK_S)
        if self._closed.is_set():
            raise ProviderError("the local trainer is stopping")

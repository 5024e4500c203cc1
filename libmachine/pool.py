"""Work on a stream with several threads: results as they come, or in order; stop when told.

At most `workers` items are under way and twice as many taken from the source, so a slow
reader slows the work down instead of filling memory. After a stop nothing new begins,
what is under way is finished and handed over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def stream(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    ordered: bool,
    stop: threading.Event,
) -> Iterator[Result]:
    """Yield function(item) for each item. What function or the source raises is raised here, after
    the results of what was under way."""
    if workers <= 1:
        for item in items:
            if stop.is_set():
                return
            yield function(item)
        return
    yield from _Crew(function, items, workers, ordered, stop).results()


class _Crew(Generic[Item, Result]):
    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        workers: int,
        ordered: bool,
        stop: threading.Event,
    ) -> None:
        self.function, self.items, self.ordered, self.stop = function, items, ordered, stop
        self.slots = threading.Semaphore(2 * workers)
        self.inbox: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.open = 0  # handed to a worker and not yet in `done`
        self.total: int | None = None
        for target in (self._feed, *[self._work] * workers):
            threading.Thread(target=target, daemon=True).start()

    def _feed(self) -> None:
        number = 0
        try:
            for item in self.items:
                self.slots.acquire()
                if self.stop.is_set():
                    break
                self.inbox.put((number, item))
                number += 1
        except BaseException as error:
            self.done.put((-1, None, error))
        self.total = number

    def _work(self) -> None:
        while True:
            number, item = self.inbox.get()
            with self.lock:
                if self.stop.is_set():
                    continue
                self.open += 1
            try:
                outcome = (number, self.function(item), None)
            except BaseException as error:
                outcome = (number, None, error)  # type: ignore[assignment]
            self.done.put(outcome)
            with self.lock:
                self.open -= 1

    def results(self) -> Iterator[Result]:
        failure: BaseException | None = None
        waiting: dict[int, Result] = {}
        received = following = 0
        while not self._finished(received):
            try:
                number, result, error = self.done.get(timeout=0.1)
            except queue.Empty:
                continue
            if number >= 0:
                received += 1
                self.slots.release()
            if error is not None:
                failure = failure or error
                self.stop.set()
            elif self.ordered:
                waiting[number] = result  # type: ignore[assignment]
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1
            else:
                yield result  # type: ignore[misc]
        for number in sorted(waiting):
            yield waiting[number]
        if failure is not None:
            raise failure

    def _finished(self, received: int) -> bool:
        if not self.done.empty():
            return False
        if self.stop.is_set():
            with self.lock:
                return self.open == 0 and self.done.empty()
        return self.total is not None and received >= self.total

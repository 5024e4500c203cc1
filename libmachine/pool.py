"""Work on a stream with several threads: results as they come, or in order; stop when told.

At most `workers` items are under way and twice as many taken from the source and not yet
handed over, so a slow reader (or, in order, a slow item) slows the work down instead of
filling memory. After a stop nothing new begins, what is under way is finished and handed over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_END = -1  # stands for a number where the source has ended, by itself or by an error


def stream(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    ordered: bool,
    stop: threading.Event,
) -> Generator[Result, None, None]:
    """Yield function(item) for each item. What function or the source raises is raised here, after
    the results of what was under way."""
    yield from _Crew(function, items, max(1, workers), ordered, stop).results()


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
        self.workers = workers
        self.slots = threading.Semaphore(2 * workers)
        self.inbox: queue.SimpleQueue[tuple[int, Item] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.hired = 0
        self.open = 0  # handed to a worker and not yet in `done`
        self.closed = False  # nobody takes results any more
        self.total: int | None = None
        # The source has a thread of its own also for one worker: a stop must not wait for the next item.
        threading.Thread(target=self._feed, daemon=True).start()

    def _halted(self) -> bool:
        return self.closed or self.stop.is_set()

    def _feed(self) -> None:
        number = 0
        failure: BaseException | None = None
        try:
            items = iter(self.items)
            while True:
                self.slots.acquire()
                if self._halted():
                    break
                item = next(items)
                self._hire()
                self.inbox.put((number, item))
                number += 1
        except StopIteration:
            pass
        except BaseException as error:
            failure = error
        self.total = number
        self.done.put((_END, None, failure))

    def _hire(self) -> None:
        """One more worker, as long as there are items for them and the system lets us."""
        with self.lock:
            if self.hired == self.workers or self.closed:
                return
            try:
                threading.Thread(target=self._work, daemon=True).start()
            except RuntimeError:
                if not self.hired:
                    raise
                self.workers = self.hired
                return
            self.hired += 1

    def _work(self) -> None:
        while (job := self.inbox.get()) is not None:
            number, item = job
            with self.lock:
                if self._halted():
                    continue
                self.open += 1
            try:
                self.done.put((number, self.function(item), None))
            except BaseException as error:
                self.stop.set()
                self.done.put((number, None, error))
            with self.lock:
                self.open -= 1

    def results(self) -> Iterator[Result]:
        try:
            yield from self._results()
        finally:
            with self.lock:
                self.closed = True
                for _ in range(self.hired):
                    self.inbox.put(None)
            self.slots.release()

    def _results(self) -> Iterator[Result]:
        failure: BaseException | None = None
        waiting: dict[int, Result] = {}
        received = following = 0
        while not self._finished(received):
            try:
                number, result, error = self.done.get(timeout=0.1)
            except queue.Empty:
                continue
            received += number != _END
            if error is not None:
                failure = failure or error
                self.stop.set()
            elif number == _END:
                continue
            elif self.ordered:
                waiting[number] = result  # type: ignore[assignment]
                while following in waiting:
                    yield waiting.pop(following)
                    self.slots.release()
                    following += 1
            else:
                yield result  # type: ignore[misc]
                self.slots.release()
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

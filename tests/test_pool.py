"""The pool: every item once, in order if asked, nothing new after a stop, nothing left behind."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine import pool

WAIT_S = 20  # how long a test waits for what must happen; nothing is said about how fast it does


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "_feed" in thread.name or "_work" in thread.name}


class Gate:
    """Work that waits to be let go, and is counted."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.open = threading.Event()
        self.lock = threading.Lock()

    def __call__(self, item: int) -> int:
        with self.lock:
            self.started.append(item)
        assert self.open.wait(WAIT_S)
        return item


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 8), st.booleans(), st.randoms(use_true_random=False))
def test_every_item_comes_out_once(number: int, workers: int, ordered: bool, order: Any) -> None:
    naps = [order.choice((0, 0, 0.001)) for _ in range(number)]

    def work(item: int) -> tuple[int, int]:
        time.sleep(naps[item])
        return item, item * item

    found = list(pool.stream(work, range(number), workers, ordered, threading.Event()))
    wanted = [(item, item * item) for item in range(number)]
    assert (found if ordered else sorted(found)) == wanted


@pytest.mark.parametrize("ordered", [False, True])
def test_results_come_as_they_are_ready_or_in_order(ordered: bool) -> None:
    first = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert first.wait(WAIT_S)
        elif item == 2:
            first.set()
        return item

    found = list(pool.stream(work, range(3), 2, ordered, threading.Event()))
    assert found == [0, 1, 2] if ordered else (found[0] == 1 and sorted(found) == [0, 1, 2])


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_than_the_workers_at_once(workers: int) -> None:
    lock, now, most, together = threading.Lock(), [0], [0], threading.Barrier(workers)

    def work(item: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if item < workers:
            together.wait(WAIT_S)
        with lock:
            now[0] -= 1

    list(pool.stream(work, range(200), workers, False, threading.Event()))
    assert most[0] == workers


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_number_of_items_taken_ahead_is_flat(workers: int, ordered: bool) -> None:
    taken = [0]

    def source() -> Iterator[int]:
        for item in itertools.count():
            taken[0] += 1
            yield item

    stop = threading.Event()
    stream = pool.stream(lambda item: item, source(), workers, ordered, stop)
    for received in range(1, 200):
        next(stream)
        assert taken[0] <= received + 2 * workers
    stream.close()


def test_in_order_a_slow_item_does_not_fill_memory() -> None:
    gate, taken, finished = threading.Event(), [0], list[int]()

    def source() -> Iterator[int]:
        for item in range(1000):
            taken[0] = item + 1
            yield item

    def work(item: int) -> int:
        if item == 0:
            assert gate.wait(WAIT_S)
        finished.append(item)
        return item

    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.extend(pool.stream(work, source(), 3, True, threading.Event()))
    )
    reader.start()
    until(lambda: len(finished) == 5)  # all that were taken but the slow one
    time.sleep(0.05)
    assert (taken[0], len(finished), found) == (6, 5, [])
    gate.set()
    reader.join(WAIT_S)
    assert found == list(range(1000))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("ordered", [False, True])
def test_after_a_stop_what_is_under_way_is_handed_over_and_nothing_begins(
    workers: int, ordered: bool
) -> None:
    gate, stop = Gate(), threading.Event()
    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.extend(pool.stream(gate, itertools.count(), workers, ordered, stop))
    )
    reader.start()
    until(lambda: len(gate.started) == workers)
    stop.set()
    time.sleep(0.15)  # longer than the pool's own pause: it must still wait for what is under way
    assert reader.is_alive()
    gate.open.set()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert sorted(found) == sorted(gate.started) == list(range(workers))


def test_a_stop_does_not_wait_for_the_source() -> None:
    """A reader that waits for the next line of a silent pipe must not keep ^C from working."""
    silent, stop = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 1
        silent.wait(WAIT_S)

    for workers in (1, 2):
        stop.clear()
        stream = pool.stream(lambda item: item, source(), workers, False, stop)
        assert next(stream) == 1
        stop.set()
        began = time.monotonic()
        assert list(stream) == []
        assert time.monotonic() - began < WAIT_S / 2
    silent.set()


def test_a_stop_before_the_start() -> None:
    stop, called = threading.Event(), list[int]()
    stop.set()
    assert list(pool.stream(called.append, range(9), 2, True, stop)) == []
    assert called == []


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_the_work_raises_comes_after_what_was_under_way(workers: int, ordered: bool) -> None:
    both = threading.Barrier(workers)

    def work(item: int) -> int:
        both.wait(WAIT_S)
        if item == 0:
            raise KeyError("zero")
        time.sleep(0.02)
        return item

    stop, found = threading.Event(), []
    with pytest.raises(KeyError, match="zero"):
        for result in pool.stream(work, range(workers), workers, ordered, stop):
            found.append(result)
    assert sorted(found) == list(range(1, workers))
    assert stop.is_set()


@pytest.mark.parametrize("failure", [ValueError("source"), SystemExit(3), KeyboardInterrupt()])
def test_what_the_source_raises_comes_after_its_items(failure: BaseException) -> None:
    def source() -> Iterator[int]:
        yield from range(5)
        raise failure

    found = []
    with pytest.raises(type(failure)):
        for result in pool.stream(lambda item: item, source(), 2, True, threading.Event()):
            found.append(result)
    assert found == sorted(found) and set(found) <= set(range(5))


def test_a_failure_stops_a_long_stream() -> None:
    done = []

    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        done.append(item)
        return item

    with pytest.raises(ValueError, match="three"):
        list(pool.stream(work, itertools.count(), 2, False, threading.Event()))
    assert len(done) <= 3 + 2 * 2 * 2


def test_after_a_failure_one_worker_begins_nothing() -> None:
    done = list[int]()

    def work(item: int) -> None:
        done.append(item)
        if item == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        list(pool.stream(work, itertools.count(), 1, True, threading.Event()))
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["end", "close", "stop", "raise"])
def test_no_thread_is_left_behind(how: str) -> None:
    before, stop = ours(), threading.Event()

    def work(item: int) -> int:
        if how == "raise" and item == 5:
            raise ValueError
        return item

    stream = pool.stream(work, range(50) if how == "end" else itertools.count(), 4, False, stop)
    if how == "close":
        next(stream)
        stream.close()
    elif how == "stop":
        next(stream)
        stop.set()
        list(stream)
    elif how == "raise":
        with pytest.raises(ValueError):
            list(stream)
    else:
        assert len(list(stream)) == 50
    until(lambda: ours() <= before)


def test_a_reader_that_goes_away_ends_the_work() -> None:
    before, done = ours(), list[int]()
    stream = pool.stream(done.append, itertools.count(), 2, False, threading.Event())
    next(stream)
    stream.close()
    until(lambda: ours() <= before)
    assert len(done) <= 1 + 2 * 2


def test_workers_are_hired_as_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = threading.Thread.start

    def counted(self: threading.Thread) -> None:
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", counted)
    assert list(pool.stream(lambda item: item, range(3), 1_000_000, True, threading.Event())) == [0, 1, 2]
    assert len(started) == 1 + 3


def test_a_system_without_more_threads_makes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    left = [3]

    def scarce(self: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    assert list(pool.stream(lambda item: item, range(100), 50, True, threading.Event())) == list(range(100))

"""Runs as the Python face hands them over: events as they come, the finished run at the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from libmachine.canon import Record
from libmachine.define import MACHINE, Run, text_of
from libmachine.sandbox.rooms import opener
from libmachine.store.store import Store

Done = TypeVar("Done")


class FinishedRun(Run):
    """A stored run. `record` is the whole of it, as machine-record(5) has it.

    bought: it was run now, not replayed from the store.
    """

    def __init__(self, record: Record, store: Store, bought: bool) -> None:
        super().__init__(record, opener(store, record))
        self.bought = bought

    @property
    def id(self) -> str:
        """Its id in the store, 40 hex digits."""
        return str(self.record["id"])

    @property
    def version(self) -> str:
        """The id of the machine's version that was run, 40 hex digits."""
        return str(self.record["version"])

    @property
    def status(self) -> str:
        """`ok`, `limit` (ended by one: graded all the same) or `failed` (missing data; see `error`)."""
        return str(self.record["status"])

    @property
    def error(self) -> str | None:
        """Why it failed, None if it did not."""
        error = self.record.get("error")
        return str(error["message"]) if error else None

    @property
    def scorecard(self) -> Record | None:
        """Its newest scorecard, None if it was not graded."""
        card: Record | None = self.record.get("scorecard")
        return card

    @property
    def score(self) -> float | None:
        """Its score in 0..1, None if it failed, was not graded or could not be."""
        return None if self.scorecard is None else self.scorecard["score"]

    @property
    def passed(self) -> bool | None:
        """Did it pass? None where there is no score."""
        return None if self.scorecard is None else self.scorecard["passed"]

    @property
    def cost_usd(self) -> float | None:
        """US dollars that its calls cost, without its graders'; None: not known."""
        cost: float | None = self.record["usage"]["cost_usd"]
        return cost

    def __repr__(self) -> str:
        return f"<run {self.id[:12]} of {self.record['machine']}: {self.status}, score {self.score}>"


@dataclass(frozen=True)
class Event:
    """Something that happened in a run.

    type: `message` (the model said `text`), `tool_call` (it calls `name` with `text`, the raw arguments),
    `tool_result` (`name` answered `text`), and at last `result` (`run` is finished and stored).
    side: who said it, `machine` or, in a conversation, `counterpart`. message: in OpenAI's chat form.
    """

    type: Literal["message", "tool_call", "tool_result", "result"]
    text: str = ""
    name: str | None = None
    side: str = MACHINE
    message: Record | None = None
    run: FinishedRun | None = None


class Teller:
    """Turns messages into events. tell: takes them."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._called: dict[str, str] = {}
        self._told = 0

    def message(self, message: Record, side: str = MACHINE) -> None:
        """One message of a run, as it comes."""
        self._told += 1
        text = text_of(message.get("content"))
        if message["role"] == "tool":
            name = self._called.get(message["tool_call_id"])
            return self._tell(Event("tool_result", text, name, side, message))
        calls = message.get("tool_calls") or []
        if text or not calls:
            self._tell(Event("message", text, None, side, message))
        for call in calls:
            function = call["function"]
            self._called[call["id"]] = function["name"]
            self._tell(Event("tool_call", function["arguments"], function["name"], side, message))

    def turn(self, run: Record) -> None:
        """What a run added to the messages it was given: a turn of a conversation, or a replayed run."""
        side = (run.get("conversation") or {}).get("side", MACHINE)
        for message in run["messages"][run["steps"][0]["message"] :] if run["steps"] else ():
            self.message(message, side)

    def result(self, run: FinishedRun) -> None:
        """The finished run; one whose messages were not told as they came is told whole."""
        if not self._told:
            self.turn(dict(run.record))
        self._tell(Event("result", run.output, run=run))


class Running:
    """A run under way. Begins at the first use, in a thread of its own, and goes on whoever listens.

        run = machine.load("brief").run("What is rain?").sync()      # wait for it

        running = handle.run("What is rain?")                        # or watch it
        async for event in running:                                  # `for event in running:` as well
            print(event.type, event.name, event.text)
        run = await running

    What is bought is stored also if nobody waits for it. Waiting raises what the run raised: a
    MachineError where it could not be made at all. A model that could not be reached is no exception: it
    is a run whose status is `failed`.
    """

    def __init__(self, work: Callable[[Callable[[Event], None]], FinishedRun]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._listeners: list[Callable[[], None]] = []
        self._begun = self._over = False
        self._run: FinishedRun | None = None
        self._error: BaseException | None = None

    def start(self) -> Running:
        """Begin now, and return at once."""
        with self._changed:
            if not self._begun:
                self._begun = True
                # no daemon: the interpreter waits for what is being paid for
                threading.Thread(target=self._go, name="machine-run").start()
        return self

    def _go(self) -> None:
        try:
            self._run = self._work(self._tell)
        except BaseException as error:
            self._error = error
        self._notify(over=True)

    def _tell(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
        self._notify()

    def _notify(self, over: bool = False) -> None:
        with self._changed:
            self._over = self._over or over
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _since(self, at: int) -> tuple[list[Event], bool]:
        with self._changed:
            return self._events[at:], self._over

    def _outcome(self) -> FinishedRun:
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def sync(self) -> FinishedRun:
        """Wait for the finished run."""
        self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._over)
        return self._outcome()

    def __iter__(self) -> Iterator[Event]:
        """Its events from the first, as they come."""
        self.start()
        at = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=at: self._over or len(self._events) > seen)  # type: ignore[misc]
            events, over = self._since(at)
            at += len(events)
            yield from events
            if over:
                self._outcome()
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Its events from the first, as they come."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._listeners.append(listener)
        self.start()
        try:
            at = 0
            while True:
                events, over = self._since(at)
                at += len(events)
                for event in events:
                    yield event
                if over:
                    break
                await woken.wait()
                woken.clear()
        finally:
            with self._changed:
                self._listeners.remove(listener)
        self._outcome()

    def __await__(self) -> Generator[Any, None, FinishedRun]:
        return self._finished().__await__()

    async def _finished(self) -> FinishedRun:
        async for _ in self:
            pass
        return self._outcome()


def stoppable(work: Callable[[threading.Event], Done]) -> Done:
    """What work returns. ^C tells it to stop, waits until what is under way is stored, and is raised then;
    a second one does not wait."""
    stop = threading.Event()
    found: list[Done] = []
    errors: list[BaseException] = []

    def go() -> None:
        try:
            found.append(work(stop))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go, name="machine-work", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        stop.set()
        thread.join()
        raise
    if errors:
        raise errors[0]
    return found[0]

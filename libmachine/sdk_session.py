"""Sessions in the Python face: libmachine.session with events and scorecards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType

from libmachine.canon import Record
from libmachine.sdk_run import Event, FinishedRun, Running, Teller
from libmachine.session import Session as Exchanges


class Session:
    """A talk with a machine in one working directory. As a context manager, plain or async, it closes itself.

    grade: gives a run its scorecard.
    """

    def __init__(self, exchanges: Exchanges, grade: Callable[[Record], Record] | None) -> None:
        self._exchanges, self._grade = exchanges, grade
        self._turn = threading.Lock()
        self.runs: list[FinishedRun] = []
        """The exchanges so far, failed ones too."""

    @property
    def id(self) -> str:
        """Its name: `metadata.session` of its runs' cases."""
        return self._exchanges.past.name

    def send(self, text: str) -> Running:
        """Say something. Every exchange is a stored run, whose `output` is the answer; what was said before
        goes with it. A failed one leaves no trace in what is said next.

            reply = session.send("And in French?").sync()       # or: await session.send(...)
        """

        def work(tell: Callable[[Event], None]) -> FinishedRun:
            with self._turn:
                teller = Teller(tell)
                self._exchanges.runner.heard = teller.message
                record = self._exchanges.send(text)
                if self._grade is not None:
                    record = self._grade(record)
                run = FinishedRun(record, self._exchanges.runner.store, True)
                self.runs.append(run)
                teller.result(run)
                return run

        return Running(work)

    def close(self) -> None:
        """End it, after the exchange that is under way: a private working directory is removed."""
        with self._turn:
            self._exchanges.close()

    async def aclose(self) -> None:
        """close(), for code that must not block."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

"""What machine-suite and machine-compare show while they work."""

from __future__ import annotations

import time

from libmachine import console
from libmachine.canon import Record
from libmachine.cmd import _cli
from libmachine.measure import score_of
from libmachine.purse import Purse
from libmachine.suite import why_no_score


class Watch:
    """Graded runs as they come: kept, counted, the bad ones told, a bar with cost and time left."""

    def __init__(self, label: str, total: int, purse: Purse, tally: _cli.Tally) -> None:
        self.purse, self.tally, self.total = purse, tally, total
        self.progress = console.Progress(label, total)
        self.runs: list[Record] = []
        self._began = time.monotonic()

    def step(self, run: Record) -> None:
        """One more run is graded."""
        self.runs.append(run)
        if score_of(run) is None:
            self.progress.clear()
            where = f"{run['machine']}: case '{run['case']['id']}' trial {run['trial']}"
            self.tally.note(f"{where} {why_no_score(run)}")
        left = (time.monotonic() - self._began) / len(self.runs) * (self.total - len(self.runs))
        self.progress.step(f"{console.money(self.purse.ledger.spent())}, {_duration(left)} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"

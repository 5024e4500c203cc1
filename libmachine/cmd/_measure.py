"""What machine-suite and machine-compare show while they work."""

from __future__ import annotations

from libmachine import console
from libmachine.canon import Record
from libmachine.cmd import _cli
from libmachine.measure import score_of
from libmachine.purse import Purse
from libmachine.suite.figures import why_no_score


class Watch:
    """Graded runs as they come: kept, counted, the bad ones told, a bar with cost and time left."""

    def __init__(self, label: str, total: int, purse: Purse, tally: _cli.Tally) -> None:
        self.tally = tally
        self.progress = console.Progress(label, total, purse.ledger.spent)
        self.runs: list[Record] = []

    def step(self, run: Record) -> None:
        """One more run is graded."""
        self.runs.append(run)
        if score_of(run) is None:
            self.progress.clear()
            where = f"{run['machine']}: case '{run['case']['id']}' trial {run['trial']}"
            why = why_no_score(run)
            self.tally.note(f"{where} {why}", why)
        self.progress.step()

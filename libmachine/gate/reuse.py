"""Runs of the live version that are there already, for a gate that is told to take them.

They have the keys that the gate would buy: the same text, tools, model, engine, sampling and limits.
What was measured at another hour is not interleaved with the candidate, so the verdict says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from libmachine.canon import Record
from libmachine.run import Runner
from libmachine.store.store import Store

YOUNGER_THAN = timedelta(hours=24)


def first_stored(
    store: Store, runner: Runner, cases: Sequence[Record], trials: int, excluded: Iterable[str]
) -> int | None:
    """The first of the newest `trials` trials that are stored for every case, None if there are none.

    A run counts if it did not fail, is younger than a day and not among `excluded` (run ids).
    """
    unwanted = set(excluded)
    since = (datetime.now(UTC) - YOUNGER_THAN).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def is_there(case: Record, trial: int) -> bool:
        row = store.stored_answer(runner.job(case, trial).key)
        return (
            row is not None
            and row["status"] != "failed"
            and row["started_at"] >= since
            and row["id"] not in unwanted
        )

    newest = min((store.last_trial(runner.base_of(case)) for case in cases), default=0)
    for first in range(newest - trials + 1, 0, -1):
        if all(is_there(case, first + number) for case in cases for number in range(trials)):
            return first
    return None

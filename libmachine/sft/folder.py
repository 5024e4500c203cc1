"""A training's folder, `<store>/training/ID/`, in the formats of tinker-cookbook 0.5.8.

    config.json         settings and data
    metrics.jsonl       a line a step
    checkpoints.jsonl   a line a saved state; the last of a finished training is named "final"
    result.json         what a finished training came to
    train.log           what the SDK and the training said

Resuming cuts metrics and checkpoints back to the last saved state, so that each step stands there once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from libmachine.canon import Record, RecordError, dump_line, loads
from libmachine.errors import MachineError
from libmachine.folders import make_private

NAME = "training"
FINAL = "final"


class Training:
    """The folder of one training, made if absent, private, held by one process at a time."""

    def __init__(self, store: str, training: str) -> None:
        """Raises MachineError if another process trains there."""
        self.id = training
        self.path = f"{store}/{NAME}/{training}"
        make_private(self.path)
        self._lock = os.open(f"{self.path}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise MachineError(f"another machine-sft is at this training; its log is {self.log}") from None

    @property
    def log(self) -> str:
        """Path of train.log."""
        return f"{self.path}/train.log"

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    # what is written ----------------------------------------------------------------------

    def put(self, name: str, value: Any) -> None:
        """Write a JSON file whole."""
        self._replace(name, [value])

    def open_log(self) -> TextIO:
        """train.log, private, to be written at its end, line by line."""
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return open(fd, "a", encoding="utf-8", errors="replace", buffering=1)

    def add(self, name: str, row: Record) -> None:
        """Append a line to a JSONL file, on disk when this returns."""
        fd = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(fd, "ab") as file:
            file.write(dump_line(row))
            file.flush()
            os.fsync(file.fileno())

    def cut(self, done: int) -> None:
        """Forget metrics of steps from `done` on, and checkpoints of more steps than that."""
        self._keep("metrics.jsonl", lambda row: row.get("step", 0) < done)
        self._keep("checkpoints.jsonl", lambda row: 0 <= steps_done(row) <= done)

    def restart(self) -> None:
        """Forget all that was trained here."""
        for name in ("metrics.jsonl", "checkpoints.jsonl", "result.json"):
            if os.path.exists(f"{self.path}/{name}"):
                os.replace(f"{self.path}/{name}", f"{self.path}/{name}.old")

    # what is read -------------------------------------------------------------------------

    def rows(self, name: str) -> list[Record]:
        """The lines of a JSONL file; a torn last one is passed over."""
        found = []
        try:
            with open(f"{self.path}/{name}", "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                value = loads(line)
            except RecordError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def saved(self) -> Record | None:
        """The newest checkpoint that training can go on from, or None."""
        rows = [row for row in self.rows("checkpoints.jsonl") if row.get("state_path")]
        return rows[-1] if rows else None

    def result(self) -> Record | None:
        """What the finished training came to, None if it has not finished."""
        rows = self.rows("result.json")
        return rows[0] if rows else None

    def _keep(self, name: str, wanted: Callable[[Record], Any]) -> None:
        self._replace(name, [row for row in self.rows(name) if wanted(row)])

    def _replace(self, name: str, rows: Iterable[Record]) -> None:
        temporary = f"{self.path}/{name}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            for row in rows:
                file.write(dump_line(row))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, f"{self.path}/{name}")


def steps_done(row: Record) -> int:
    """Steps that were done when a checkpoint was saved; -1 for a row of another program."""
    done = row.get("steps")
    return done if isinstance(done, int) else -1


def results(store: str) -> list[Record]:
    """The results of all finished trainings of a store."""
    found = []
    folder = f"{store}/{NAME}"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        try:
            with open(f"{folder}/{name}/result.json", "rb") as file:
                value = loads(file.read())
        except (OSError, RecordError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found

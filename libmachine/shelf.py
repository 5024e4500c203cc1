"""Lines put by until it is known which are wanted: the first megabytes in memory, the rest in a file.

The file has no name, lies where temporary files do, and is gone with the process.
"""

from __future__ import annotations

import os
from typing import IO

ROOM = 16_000_000
"""Bytes of lines that are held in memory."""


class Slip:
    """Stands for a line that was put by."""

    __slots__ = ("at", "line", "size")

    def __init__(self, line: bytes) -> None:
        self.line: bytes | None = line
        self.at = 0
        self.size = len(line)


class Shelf:
    """The lines of one command. What is thrown away takes no more room in memory."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self._held: dict[Slip, None] = {}
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def put(self, line: bytes) -> Slip:
        """Put a line by."""
        slip = Slip(line)
        self._held[slip] = None
        self._bytes += slip.size
        if self._bytes > self.room:
            self._move_out()
        return slip

    def drop(self, slip: Slip) -> None:
        """Throw a line away."""
        if slip.line is not None:
            del self._held[slip]
            self._bytes -= slip.size

    def get(self, slip: Slip) -> bytes:
        """The line."""
        if slip.line is not None:
            return slip.line
        assert self._file is not None
        return os.pread(self._file.fileno(), slip.size, slip.at)

    def _move_out(self) -> None:
        if self._file is None:
            import tempfile  # most commands never get here

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        at = os.lseek(self._file.fileno(), 0, os.SEEK_END)
        for slip in self._held:
            assert slip.line is not None
            data = memoryview(slip.line)
            while data:
                data = data[os.write(self._file.fileno(), data) :]
            slip.line, slip.at = None, at
            at += slip.size
        self._held.clear()
        self._bytes = 0

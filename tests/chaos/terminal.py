"""A real terminal to print on, and what must never get to one."""

from __future__ import annotations

import os
import re
import threading
import tty

OURS = re.compile(r"\r\x1b\[K|\r\n")
"""A bar that is taken away, and what a terminal makes of a newline."""
NEVER = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


class Terminal:
    """A pseudo terminal; what was printed on it is read all the while."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        self.path = os.ttyname(self.slave)
        self._seen = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            self._seen += data

    def take(self) -> bytes:
        """What was printed since the last time, to the last byte: a mark is sent after it."""
        mark = b"\0--end--\0"
        os.write(self.slave, mark)
        while not self._seen.endswith(mark):
            threading.Event().wait(0.002)
        data = bytes(self._seen).removesuffix(mark)
        self._seen.clear()
        return data

    def close(self) -> None:
        os.close(self.slave)
        os.close(self.master)

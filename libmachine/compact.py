"""A table of strings that takes some thirty bytes an entry, for what a stream must remember of each line.

A dict of strings takes two to four hundred bytes, and that is what makes a command grow with its input.
"""

from __future__ import annotations

from array import array

_LEAST = 1024


class Table:
    """Strings and a number below 2^64 for each; the strings themselves are not kept.

    A string is known by 64 bits of Python's keyed hash: among a million, two are taken for one once in
    thirty million times. Use it where such a mistake would only be a nuisance.
    """

    def __init__(self) -> None:
        self._count = 0
        self._make(_LEAST)

    def _make(self, size: int) -> None:
        self._marks = array("Q", bytes(8 * size))
        self._values = array("Q", bytes(8 * size))
        self._mask = size - 1

    def __len__(self) -> int:
        return self._count

    def get(self, text: str) -> int | None:
        """The number of a string, None for one that was not set."""
        place = self._place(_mark(text))
        return self._values[place] if self._marks[place] else None

    def set(self, text: str, value: int) -> None:
        """Set the number of a string."""
        if 3 * self._count >= 2 * self._mask:
            self._grow()
        self._put(_mark(text), value)

    def _place(self, mark: int) -> int:
        """Where a mark stands, or would."""
        place = mark & self._mask
        while self._marks[place] not in (0, mark):
            place = (place + 1) & self._mask
        return place

    def _put(self, mark: int, value: int) -> None:
        place = self._place(mark)
        self._count += self._marks[place] == 0
        self._marks[place], self._values[place] = mark, value

    def _grow(self) -> None:
        marks, values = self._marks, self._values
        self._count = 0
        self._make(2 * len(marks))
        for mark, value in zip(marks, values, strict=True):
            if mark:
                self._put(mark, value)


def _mark(text: str) -> int:
    return hash(text) & (2**64 - 1) or 1  # 0 is a place that is free

"""A table of strings says what a dict says, and takes a fraction of its memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from libmachine.compact import Table

NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.text(max_size=3), NUMBERS), max_size=200), st.lists(st.text(max_size=3)))
def test_it_says_what_a_dict_says(pairs: list[tuple[str, int]], asked: list[str]) -> None:
    table, wanted = Table(), dict[str, int]()
    for text, number in pairs:
        assert table.get(text) == wanted.get(text)
        table.set(text, number)
        wanted[text] = number
        assert len(table) == len(wanted)
    for text in [*asked, *wanted]:
        assert table.get(text) == wanted.get(text)


def test_many_entries_are_all_found_and_take_little() -> None:
    tracemalloc.start()
    table = Table()
    for number in range(20_000):
        table.set(f"{number:040x}", number)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(table) == 20_000
    assert all(table.get(f"{number:040x}") == number for number in range(0, 20_000, 7))
    assert table.get("no such") is None
    assert 16 * 20_000 < taken < 50 * 20_000, taken

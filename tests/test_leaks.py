"""What leaks from an exam: near duplicates, groups on both sides, held-out text in instructions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libmachine.leaks import leaks, near_duplicates, quotes


def case(name: str, text: Any, **metadata: str) -> dict[str, Any]:
    return {"id": name, "input": text, "metadata": metadata}


def test_near_duplicates_by_form_not_by_meaning() -> None:
    practice = [case("p1", "What is the capital of France?"), case("p2", "How many legs has a spider?")]
    exam = [case("h1", "what is  the capital of france ?"), case("h2", "What is the capital of Peru?")]
    assert near_duplicates(practice, exam) == [("p1", "h1")]
    # digits count as alike: the same question with another number is the same question
    assert near_duplicates(
        [case("a", "Add 17 and 25 for me please")], [case("b", "Add 3 and 4 for me please")]
    )


def test_messages_are_read_by_what_the_user_says() -> None:
    chat = [{"role": "system", "content": "x"}, {"role": "user", "content": "How deep is the deepest sea?"}]
    assert near_duplicates([case("p", chat)], [case("h", "How deep is the deepest sea?")]) == [("p", "h")]


def test_groups_and_quotes() -> None:
    practice, exam = (
        [case("p", "one", group="g")],
        [case("h", "another thing altogether, asked here", group="g")],
    )
    assert leaks(practice, exam, "") == ["group_on_both_sides: g"]
    assert quotes(exam, "For example: Another thing  altogether, asked here.") == ["h"]
    assert quotes([case("h", "short")], "short answers are good") == []
    assert len(leaks(practice, exam, "another thing altogether, asked here")) == 2
    assert leaks([case("p", "one")], [case("h", "two")], "") == []


@given(st.lists(st.text(max_size=40), max_size=6))
def test_a_case_is_its_own_duplicate_and_nothing_raises(texts: list[str]) -> None:
    cases = [case(str(number), text) for number, text in enumerate(texts)]
    pairs = near_duplicates(cases, cases)
    assert {(str(n), str(n)) for n in range(len(texts))} <= set(pairs)
    assert set(pairs) == {(b, a) for a, b in pairs}

"""The example machines: their checks on good and bad answers, and their cases as data."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.define import Run

MACHINES = Path(__file__).parent.parent / "machines"
NAMES = ("brief", "red", "wordmath", "wordmath/fullwidth")


def load(name: str) -> Any:
    """machine.py of a machine, as a module of its own name."""
    spec = importlib.util.spec_from_file_location(
        f"example_{name.replace('/', '_')}", MACHINES / name / "machine.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


brief, red, wordmath, fullwidth = (load(name) for name in NAMES)


def run(output: str = "", text: str = "", target: Any = None, calls: tuple[str, ...] = ()) -> Run:
    """A run that made these tool calls, one a turn, and ended with the output."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for number, name in enumerate(calls):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "noted"})
    messages.append({"role": "assistant", "content": output})
    return Run({"case": {"input": text, "target": target}, "messages": messages, "output": output})


def cases(name: str, file: str) -> list[dict[str, Any]]:
    """The cases of one file of a machine."""
    lines = (MACHINES / name / file).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def both(name: str) -> list[dict[str, Any]]:
    """Practice and exam together."""
    return cases(name, "cases.jsonl") + cases(name, "holdout.jsonl")


# brief: one_sentence

ONE_SENTENCE = [
    "Cows drink water.",
    "Paris!",
    "  The sky is blue.\n",
    "A spider has 8 legs.",
    "Water freezes at 0.0 degrees, not at 3.5.",
    "It weighs about .5 kilograms.",
    "The U.S. capital is Washington, D.C.",
    "The U.S. Congress meets in Washington.",
    "Dr. Smith met Mrs. Jones on Mt. Everest.",
    "J. K. Rowling wrote it.",
    "Dr.Smith met J.K.Rowling in St.Louis.",
    "George W. Bush was born in Connecticut.",
    "Martin Luther King Jr. was born in Atlanta.",
    "She holds a Ph.D. in physics.",
    "Many animals, e.g. cats and dogs, are pets.",
    "Lakes, rivers, etc. hold fresh water.",
    "It is chapter No. 5 of the book.",
    "School starts at 8 a.m. on Mondays.",
    "A giraffe is 18 ft. tall.",
    "Well... it is the sun.",
    "Well. . . it is the sun.",
    "It is… the sun.",
    'He called it "the Red Planet."',
    "“It is the sun.”",
    "(It is the sun.)",
    "**It is the sun.**",
    'The word is "Stop!" in English.',
    '"It is the sun," he said.',
    "The site is example.com today.",
    "The primary colors are red, yellow and blue.",
    "Water boils when it gets hot; then it becomes steam.",
    "What you see is light.",
    "If you do, it melts.",
]

NOT_ONE_SENTENCE = [
    ("", "no words"),
    ("   \n", "no words"),
    (".", "no words"),
    ("...", "no words"),
    ("42.", "no words"),
    ("Cows drink water", "does not end"),
    ("The sky is blue,", "does not end"),
    ("The sky is blue:", "does not end"),
    ("The sky is...", "does not end"),
    ("The sky is…", "does not end"),
    ("The sky is blue. 😊", "does not end"),
    ("The sky is blue!!", "more than one mark"),
    ("The sky is blue..", "more than one mark"),
    ("Why do people need sleep?", "a question"),
    ("It is Paris, right?", "a question"),
    ("What do you need? I can help.", "a question"),
    ("为什么？.a", "a question"),
    ("What is the capital of France.", "a question"),
    ("How many legs does a spider have.", "a question"),
    ("Would you like to know more.", "a question"),
    ("It is hot. It is dry.", "2 sentences"),
    ("It is hot! It is dry.", "2 sentences"),
    ("It is hot. it is dry.", "2 sentences"),
    ("It is hot.It is dry.", "2 sentences"),
    ("It is hot!It is dry.", "2 sentences"),
    ("It is from NASA.It is old.", "2 sentences"),
    ("One. Two. Three.", "3 sentences"),
    ("He said it is hot.” It is dry.", "2 sentences"),
    ("It is hot. (It is dry.)", "2 sentences"),
    ("It happened in 1969. It was July.", "2 sentences"),
    ("It weighs 3.5. It is heavy.", "2 sentences"),
    ("It is in the U.S. It is big.", "2 sentences"),
    ("It is 5 km. Walk there.", "2 sentences"),
    ("No. Paris is the capital.", "2 sentences"),
    ("Yes! Cows drink water.", "2 sentences"),
    ("17.8\n\nA spider typically has 17 legs.", "more than one line"),
    ("It is hot.\nIt is dry.", "more than one line"),
    ("It is hot.\u2028It is dry.", "more than one line"),
    ("The colors are:\n- red\n- blue.", "more than one line"),
    ("- It is the sun.", "a list"),
    ("* It is the sun.", "a list"),
    ("1. It is the sun.", "a list"),
    ("2) It is the sun.", "a list"),
    ("They are 1) cats, 2) dogs.", "a list"),
    ("Colors: • red • blue.", "a list"),
    ("First: 1. Cats 2. Dogs.", "3 sentences"),
]


@pytest.mark.parametrize("answer", ONE_SENTENCE)
def test_one_sentence_accepts(answer: str) -> None:
    assert brief.one_sentence(run(answer)) == (True, "one sentence")


@pytest.mark.parametrize(("answer", "fault"), NOT_ONE_SENTENCE)
def test_one_sentence_refuses(answer: str, fault: str) -> None:
    verdict, reason = brief.one_sentence(run(answer))
    assert verdict is False
    assert fault in reason


@pytest.mark.parametrize("answer", [text.strip() for text in ONE_SENTENCE])
@pytest.mark.parametrize("more", [" It is old.", "\nThat is all.", " Is it?", " 😀"])
def test_no_addition_to_one_sentence_is_one(answer: str, more: str) -> None:
    assert brief.one_sentence(run(answer + more))[0] is False


def test_a_long_answer_is_judged_quickly() -> None:
    assert brief.one_sentence(run("Go. " * 50_000))[1] == "50000 sentences"


@given(st.text())
def test_the_style_checks_judge_any_text(answer: str) -> None:
    verdict, _ = brief.one_sentence(run(answer))
    if verdict:
        assert answer.strip().rstrip("\"'”’»›)]}*_`")[-1] in ".!"
        assert "?" not in answer
    count = brief.count_words(answer)
    assert brief.short(run(answer)) == (1 <= count <= 12, f"{count} word" + ("" if count == 1 else "s"))


# brief: short


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("", 0),
        (" \n ", 0),
        ("— ... !", 0),
        ("Paris.", 1),
        ("one two three four five six seven eight nine ten eleven twelve.", 12),
        ("one two three four five six seven eight nine ten eleven twelve thirteen.", 13),
        ("A well-known fact, isn't it", 5),
        ("It is 1,000.5 U.S. dollars - or more", 7),
        ("hot—cold, wet/dry,big--small...old…new", 8),
    ],
)
def test_words_are_counted(answer: str, count: int) -> None:
    verdict, reason = brief.short(run(answer))
    assert verdict is (0 < count <= 12)
    assert reason.split()[0] == str(count)


@given(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), max_size=30))
def test_blanks_do_not_change_the_count(words: list[str]) -> None:
    assert brief.count_words("  \n".join(words) + " ") == len(words)


# brief: states_fact


@pytest.mark.parametrize(
    ("answer", "target", "verdict"),
    [
        ("The capital is Paris.", ["Paris"], True),
        ("PARIS!", ["Paris"], True),
        ("It is Paris's tower.", ["Paris"], True),
        ("It is **Paris**, _Paris_.", ["paris"], True),
        ("A parish is small.", ["Paris"], False),
        ("Comparison", ["paris"], False),
        ("", ["Paris"], False),
        ("It is a moth.", ["butterfly", "moth"], True),
        ("They are moths.", ["butterfly", "moth"], False),
        ("Plants take in carbon\n dioxide.", ["carbon dioxide"], True),
        ("Carbon and dioxide", ["carbon dioxide"], False),
        ("It is H₂O.", ["H2O"], True),
        ("Ｐａｒｉｓ is it.", ["Paris"], True),
        ("A cafe\u0301 it is.", ["café"], True),
        ("A cafe it is.", ["café"], False),
        ("Die STRASSE ist lang.", ["Straße"], True),
        ("Don’t do it.", ["don't"], True),
        ("A week is a seven-day time.", ["7", "seven"], True),
        ("It has twenty-seven days.", ["7", "seven"], False),
        ("It has sixty-four minutes.", ["sixty"], False),
        ("It has 7 days.", ["7"], True),
        ("It has 7.", ["7"], True),
        ("It has 17 days.", ["7"], False),
        ("It has 7.5 days.", ["7"], False),
        ("It has 0.7 days.", ["7"], False),
        ("It has 1,007 or 7,000 days.", ["007", "7"], False),
        ("It has 7-8 days.", ["7"], False),
        ("The answer is 7", "7", True),
        ("The answer is 7", 7, True),
        ("a.c", ["abc", "a.c"], True),
        ("abc", ["a.c"], False),
    ],
)
def test_states_fact(answer: str, target: Any, verdict: bool) -> None:
    assert brief.states_fact(run(answer, target=target))[0] is verdict


@pytest.mark.parametrize("target", [None, [], [None], ["", " "]])
def test_states_fact_does_not_apply_without_keywords(target: Any) -> None:
    assert brief.states_fact(run("It is Paris.", target=target)) is None


@given(st.text(), st.text(min_size=1), st.text())
def test_a_keyword_between_blanks_is_found(before: str, keyword: str, after: str) -> None:
    target = brief.keywords_of([keyword])
    if target:
        assert brief.states_fact(run(f"{before} {keyword} {after}", target=target))[0] is True


# red


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("red", True),
        ("It is ReD.", True),
        ("RED!", True),
        ("“red”", True),
        ("red-handed", True),
        ("half-red", True),
        ("red's", True),
        ("a/red/b", True),
        ("(red)", True),
        ("red_mentioned", True),
        ("_red_", True),
        ("❤\ufe0fred", True),
        ("红 red 色", True),
        ("「red」", True),
        ("blue\u200bred", True),
        ("bored red", True),
        ("red redo", True),
        ("", False),
        ("blue", False),
        ("r e d", False),
        ("bored", False),
        ("redo", False),
        ("Fred", False),
        ("I read it", False),
        ("red2", False),
        ("2red", False),
        ("red²", False),
        ("redred", False),
        ("infra\u00adred", False),
        ("éred", False),
        ("e\u0301red", False),
        ("redé", False),
        ("red\u0301", False),
        ("re\u0301d", False),
        ("цветred", False),
        ("红red色", False),
        ("काred", False),
        ("red٣", False),
        ("Ред", False),
    ],
)
def test_red_is_a_discrete_word(text: str, mentioned: bool) -> None:
    assert red.has_red(text) is mentioned


@pytest.mark.parametrize(
    ("text", "calls", "verdict"),
    [
        ("It is red.", ("red_mentioned",), True),
        ("It is red.", (), False),
        ("It is red.", ("red_mentioned", "red_mentioned"), False),
        ("It is red.", ("blue_mentioned",), False),
        ("It is red.", ("red_mentioned", "blue_mentioned"), False),
        ("Red and red.", ("red_mentioned",), True),
        ("Red and red.", ("red_mentioned", "red_mentioned"), False),
        ("I am bored.", (), True),
        ("I am bored.", ("red_mentioned",), False),
        ("I am bored.", ("blue_mentioned",), False),
    ],
)
@pytest.mark.parametrize("reply", ["", "ok", "The word red is there: red_mentioned."])
def test_red_counts_calls_and_ignores_the_reply(
    text: str, calls: tuple[str, ...], verdict: bool, reply: str
) -> None:
    assert red.calls_tool(run(reply, text=text, calls=calls))[0] is verdict


def test_red_reads_the_users_messages_only() -> None:
    record = {
        "case": {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "red"}]},
        "messages": [{"role": "assistant", "content": "red"}],
        "output": "red",
    }
    assert red.calls_tool(Run(record))[0] is True


@given(st.characters(exclude_categories=["Cs"]))
def test_only_letters_and_digits_beside_red_make_it_no_word(char: str) -> None:
    accent = unicodedata.category(char).startswith("M")
    assert red.has_red(f"a {char}red b") is not char.isalnum()
    assert red.has_red(f"a red{char} b") is not (char.isalnum() or accent)


@given(st.text(alphabet="redRED -_2bé"))
def test_red_in_ascii_is_the_obvious_pattern(text: str) -> None:
    assert red.has_red(text) is bool(re.search(r"(?<![a-z0-9é])red(?![a-z0-9é])", text, re.IGNORECASE))


def test_the_tool_of_red_is_typed_and_documented() -> None:
    assert red.machine.tools == [red.red_mentioned]
    assert red.red_mentioned.__annotations__ == {"word": "str", "return": "str"}
    assert "word red" in red.red_mentioned.__doc__
    assert red.red_mentioned("Red") == "noted: Red"


# wordmath

RIGHT = [
    ("Answer: 7", 7),
    ("12 - 5 = 7\n\nAnswer: 7\n\n", 7),
    ("Answer: 7.", 7),
    ("Answer: 7.0", 7),
    ("Answer: 07", 7),
    ("7", 7),
    ("So she has 7 apples left.", 7),
    ("**Answer: 7**", 7),
    ("Answer: **7**.", 7),
    ("Answer: __7__", 7),
    (r"Answer: \boxed{7}", 7),
    (r"$\boxed{7\text{ apples}}$", 7),
    ("\\[\n\\boxed{7}\n\\]", 7),
    ("```\nAnswer: 7\n```", 7),
    ("Answer: 7 = 7.00", 7),
    ("Answer: $4.50", 4.5),
    ("Answer: 4.5 dollars", 4.5),
    (r"Answer: \$4.50", 4.5),
    (r"Answer: -\$4.50", -4.5),
    ("**Answer:** - 7", -7),
    ("Answer: .5", 0.5),
    ("Answer: 0.5", "1/2"),
    ("Answer: 1/2", 0.5),
    ("Answer: 2/4", "1/2"),
    ("Answer: ½", "1/2"),
    ("Answer: 2½ litres", 2.5),
    ("Answer: 2 1/2", 2.5),
    (r"Answer: \frac{1}{2}", 0.5),
    (r"Answer: -2\dfrac{1}{2}", -2.5),
    ("Answer: 1,234,567", 1234567),
    ("Answer: 12 000".replace(" 0", "\u00a00"), 12000),
    ("Answer: 12\u202f000", 12000),
    (r"Answer: 12{,}000", 12000),
    (r"Answer: 12\,000", 12000),
    ("Answer: -7", -7),
    ("Answer: \u22127", -7),
    ("Answer: - 7", -7),
    ("Answer: -$7", -7),
    ("Answer: $-7", -7),
    ("Answer: negative 7", -7),
    ("Answer: (-7)", -7),
    (r"Answer: $-7^\circ$C", -7),
    ("Answer: 0", 0),
    ("Answer: 0.00", 0),
    ("Answer: -0", 0),
    ("Answer: 25%", 25),
    ("Answer: 12 cm2", 12),
    ("Answer: 12 m^2", 12),
    ("Answer: 12kg", 12),
    ("The 2 boxes hold 9.\nAnswer: 18", 18),
    ("Answer: 18\r\n", 18),
]

WRONG = [
    ("Answer: 8", 7),
    ("Answer: -7", 7),
    ("Answer: 7", -7),
    ("Answer: - 7", 7),
    ("Answer: minus 7", 7),
    ("Answer: 70", 7),
    ("Answer: 7.5", 7),
    ("Answer: 0.7", 7),
    ("Answer: 0.33", "1/3"),
    ("Answer: 1/7", 7),
    ("Answer: 7/2", 7),
    ("Answer: 7½", 7),
    ("Answer: 1,234", 1),
    ("Answer: 7\nI hope this helps.", 7),
    ("Answer: 7\nThere were 12 apples.", 7),
    ("", 7),
    ("\n \n", 7),
    ("Answer: seven", 7),
    ("Answer:", 7),
    ("Answer: x7", 7),
    ("Answer: 5/0", 7),
    ("Answer: 7 or 8", 7),
    ("Answer: 8 or 7", 7),
    ("Answer: 12 - 5 = 7", 7),
    ("Answer: 7-8", 7),
    ("Answer: (7)-7", 7),
    ("Answer: 7:30", 7),
    ("Answer: 7 apples and 3 pears", 7),
    ("Answer: 7 and -7", 7),
    ("Answer: 7,5", 7),
    ("Answer: 0,750", 750),
    ("Answer: 7 8", 7),
    ("Answer: 1 234", 1234),
    ("Answer: 7.2.1", 7.2),
    ("Answer: 7^2", 7),
    ("Answer: 7e3", 7),
    ("Answer: 7, that is less than 2^10", 7),
    ("Answer: " + "7" * 5000, 7),
    ("Answer: 1/" + "0" * 5000, 7),
]


@pytest.mark.parametrize(("output", "target"), RIGHT)
def test_wordmath_accepts(output: str, target: Any) -> None:
    verdict, reason = wordmath.answer(run(output, target=target))
    assert verdict is True, reason


@pytest.mark.parametrize(("output", "target"), WRONG)
def test_wordmath_refuses(output: str, target: Any) -> None:
    verdict, reason = wordmath.answer(run(output, target=target))
    assert verdict is False
    assert reason


def test_wordmath_says_what_was_wrong() -> None:
    assert wordmath.answer(run("Answer: 4.50", target=7))[1] == "4.5, target 7"
    assert wordmath.answer(run("Answer: 1/3", target="2/3"))[1] == "1/3, target 2/3"
    assert wordmath.answer(run("Answer: 7 or 8", target=7))[1].startswith("different numbers")
    assert wordmath.answer(run("So: x", target=7))[1] == "no readable number on the last line: 'So: x'"


def test_wordmath_does_not_apply_without_a_target() -> None:
    assert wordmath.answer(run("Answer: 7")) is None


@pytest.mark.parametrize("target", ["seven", True, "7 or 8", [], ""])
def test_a_target_that_is_no_number_is_not_held_against_the_answer(target: Any) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        wordmath.answer(run("Answer: 7", target=target))


@given(st.text(), st.integers(-999, 999))
def test_wordmath_judges_any_text(output: str, target: int) -> None:
    assert wordmath.answer(run(output, target=target))[0] in (True, False)


@given(st.text(alphabet="0123456789/.,-+^eE $\\{}½frac\u00a0٣²:="))
def test_wordmath_judges_any_mess_of_digits(line: str) -> None:
    assert wordmath.answer(run(line, target=7))[0] in (True, False)


FORMS = ["Answer: {}", "Answer: {}.", "**{}**", r"\boxed{{{}}}", "Answer: {} kg", "So it is {}!", "x = {}"]
STYLES = ["{}", "{:,}", "{}.0", "{:,}.00"]


@given(st.integers(-(10**9), 10**9), st.sampled_from(FORMS), st.sampled_from(STYLES))
def test_every_integer_is_read_in_every_form(value: int, form: str, style: str) -> None:
    output = "We work it out: 1 + 1.\n" + form.format(style.format(value))
    assert wordmath.answer(run(output, target=value))[0] is True
    assert wordmath.answer(run(output, target=value + 1))[0] is False


@given(st.integers(-999, 999), st.integers(-999, 999), st.sampled_from([" {} and {}", " {} = {}", " {}, {}"]))
def test_two_numbers_are_one_answer_only_if_equal(one: int, other: int, form: str) -> None:
    output = "Answer:" + form.format(one, other)
    assert wordmath.answer(run(output, target=one))[0] is (one == other)


# The arithmetic of each problem, written from its text and not from its target.
WORDMATH_ARITHMETIC = {
    "apples": 12 - 5 + 3,
    "eggs": 6 * 7,
    "marbles": Fraction(24, 4),
    "pencils": Fraction(75, 100) * 6,
    "midnight": 4 - 11,
    "rolls": 18 - 13 - 5,
    "stadium": 25 * 480,
    "pizza": Fraction(8 - 2 - 4, 8),
    "bus": 35 * 2 * 5,
    "change": 20 - 13,
    "vans": -(-29 // 8),
    "coat": 80 - Fraction(80 * 25, 100),
    "balloons": 15 + 22,
    "pages": 14 + 2 * 14,
    "game": 0 + 6 - 10,
    "snail": Fraction(12, 10) * Fraction(25, 10),
    "stickers": 4 * 9 - 7,
    "library": 150 - 60,
    "lunch": Fraction(240 + 385, 100),
    "submarine": -20 - 15,
    "tank": 45 - 9 * 5,
    "pens": 1250 * 8,
    "jug": Fraction(1, 2) + Fraction(1, 4),
    "average": Fraction(5 + 6 + 13, 3),
    "tulips": 6 * 8 - 11,
    "walkers": 40 - Fraction(40 * 30, 100),
    "wages": 12 * 6 - 25,
    "train": 9 * 60 + 15 + 50 - 10 * 60,
}


def test_wordmath_targets_are_right() -> None:
    targets = {case["id"]: wordmath.number_of_target(case["target"]) for case in both("wordmath")}
    assert targets == WORDMATH_ARITHMETIC


@pytest.mark.parametrize(
    "case", both("wordmath") + both("wordmath/fullwidth"), ids=lambda case: str(case["id"])
)
def test_no_number_of_a_problem_is_its_answer(case: dict[str, Any]) -> None:
    seen = {Fraction(found.replace(",", "")) for found in re.findall(r"-?\d[\d,]*(?:\.\d+)?", case["input"])}
    assert wordmath.number_of_target(case["target"]) not in seen


def test_wordmath_has_near_misses_on_both_sides() -> None:
    kinds = {"distractor", "decimal", "negative", "zero", "thousands", "fraction"}
    for file in ("cases.jsonl", "holdout.jsonl"):
        found = {case["metadata"]["kind"] for case in cases("wordmath", file) if "metadata" in case}
        assert found == kinds


# wordmath/fullwidth

FULLWIDTH_ARITHMETIC = {
    "chairs": 14 * 12,
    "seeds": 50 - 17 - 8,
    "rope": Fraction(36, 9),
    "cinema": 2 * 9 + 3 * 6,
    "bees": 7 * 6,
    "ladder": 15 + 6 - 10,
    "stamps": 3 * 26 + 26,
    "milk": Fraction(110, 22),
    "clock": 18 * 60 + 40 + 95 - 20 * 60,
    "discount": 45 - Fraction(45, 3),
    "depth": -12 + 7,
    "bricks": Fraction(25, 10) * 14,
    "cards": Fraction(52, 4) - 5,
    "fence": 30 // 3 + 1,
    "candles": Fraction(18, 24),
    "ferry": 65 * 6,
    "savings": 15 * 8 - 34,
    "frost": -6 + 13,
    "cookies": 60 - Fraction(60, 5),
    "tickets": 128 + 47 - 9,
}


def thinking(*thoughts: str | None, output: str = "Answer: 7") -> Run:
    """A run that thought so in its messages, the last of which is the output."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    for thought in thoughts:
        more = {} if thought is None else {"reasoning": thought, "reasoning_field": "reasoning"}
        messages.append({"role": "assistant", "content": output, **more})
    return Run({"case": {"input": "?", "target": 7}, "messages": messages, "output": output})


@pytest.mark.parametrize(
    ("thoughts", "verdict", "reason"),
    [
        ((), False, "no reasoning was captured"),
        ((None,), False, "no reasoning was captured"),
        ((" \n",), False, "no reasoning was captured"),
        (("３＋４＝７",), True, "3 fullwidth letters and digits"),
        (("Ｓｏ ７.", None), True, "3 fullwidth letters and digits"),
        (("Ｓｏ ７.", "so 7"), False, "3 letters and digits are not fullwidth: s o 7"),
        (("３＋４＝7",), False, "1 letters and digits are not fullwidth: 7"),
        (("𝟑＋４",), False, "1 letters and digits are not fullwidth: 𝟑"),
        (("π · é²: ３",), True, "1 fullwidth letters and digits"),
        (("+ - =",), False, "0 fullwidth letters and digits"),
        (("三加四是七",), False, "0 fullwidth letters and digits"),
    ],
)
def test_fullwidth_reasoning(thoughts: tuple[str | None, ...], verdict: bool, reason: str) -> None:
    assert fullwidth.fullwidth_reasoning(thinking(*thoughts)) == (verdict, reason)


@given(st.text(), st.sampled_from("aZ09𝐱"))
def test_what_is_made_fullwidth_passes(thought: str, char: str) -> None:
    made = fullwidth.to_fullwidth(thought + char, thinking())
    assert fullwidth.fullwidth_reasoning(thinking(made))[0] is True
    assert len(made) == len(thought) + 1
    assert fullwidth.to_fullwidth(made, thinking()) == made
    assert unicodedata.normalize("NFKC", made) == unicodedata.normalize("NFKC", thought + char)


def test_fullwidth_targets_are_right() -> None:
    targets = {case["id"]: wordmath.number_of_target(case["target"]) for case in both("wordmath/fullwidth")}
    assert targets == FULLWIDTH_ARITHMETIC


def test_fullwidth_has_cases_of_its_own() -> None:
    alike = [
        (one["id"], other["id"])
        for one, other in product(both("wordmath"), both("wordmath/fullwidth"))
        if likeness(one["input"], other["input"]) >= 0.7 or one["id"] == other["id"]
    ]
    assert alike == []


# red: what its oracle is run on


def test_lessons_are_no_cases_and_balanced() -> None:
    """Lessons are taught, cases choose how, the exam measures: none of one is nearly another."""
    lessons, others = cases("red", "lessons.jsonl"), both("red")
    assert [lesson["target"] for lesson in lessons] == [int(red.has_red(e["input"])) for e in lessons]
    assert 2 * sum(lesson["target"] for lesson in lessons) == len(lessons) >= 100
    assert len({lesson["input"].casefold() for lesson in lessons}) == len(lessons)
    assert len({case["id"] for case in (*lessons, *others)}) == len(lessons) + len(others)
    alike = [
        (one["id"], other["id"])
        for one, other in product(lessons, others)
        if likeness(one["input"], other["input"]) >= 0.5
    ]
    assert alike == []


# The files of each machine

LEAST = {"brief": (40, 24), "red": (16, 12), "wordmath": (14, 10), "wordmath/fullwidth": (12, 8)}


@pytest.mark.parametrize("name", NAMES)
def test_the_rubric_names_the_graders(name: str) -> None:
    rubric = tomllib.loads((MACHINES / name / "rubric.toml").read_text(encoding="utf-8"))
    machine = dict(zip(NAMES, (brief, red, wordmath, fullwidth), strict=True))[name].machine
    assert set(rubric) == set(machine.graders)
    assert all(grader.kind == "check" for grader in machine.graders.values())
    for criterion in rubric.values():
        assert criterion["description"].endswith(".")
        assert ("weight" in criterion) is (criterion.get("role") != "audit")
        assert criterion.get("weight", 1) > 0


def test_brief_is_scored_on_style_and_audited_on_truth() -> None:
    rubric = tomllib.loads((MACHINES / "brief" / "rubric.toml").read_text(encoding="utf-8"))
    assert [name for name, criterion in rubric.items() if "weight" in criterion] == ["one_sentence", "short"]
    assert rubric["states_fact"]["role"] == "audit"
    assert 0 < rubric["states_fact"]["guard"] <= 0.2


@pytest.mark.parametrize("name", [name for name in NAMES if "/" not in name])
def test_the_model_is_the_local_one(name: str) -> None:
    model = json.loads((MACHINES / name / "model.json").read_text(encoding="utf-8"))
    assert model["model"] == "local/smollm2-135m-instruct"
    assert model["sampling"]["temperature"] == 1
    assert model["sampling"]["max_tokens"] == {"brief": 60, "red": 120, "wordmath": 200}[name]


@pytest.mark.parametrize(("name", "file"), list(product(NAMES, ("cases.jsonl", "holdout.jsonl"))))
def test_case_files_are_enough_and_tidy(name: str, file: str) -> None:
    text = (MACHINES / name / file).read_text(encoding="utf-8")
    found = cases(name, file)
    assert len(found) >= LEAST[name][file == "holdout.jsonl"]
    assert text == "".join(
        json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in found
    )
    for case in found:
        assert set(case) <= {"id", "input", "target", "metadata"}
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", case["id"])
        assert case["input"].strip() == case["input"] != ""


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_inputs_are_unique(name: str) -> None:
    found = both(name)
    assert len({case["id"] for case in found}) == len(found)
    assert len({case["input"].casefold() for case in found}) == len(found)


def grams(text: str) -> set[str]:
    """The character 5-grams of a text after lower-casing and squeezing digits and blanks."""
    plain = re.sub(r"\s+", " ", re.sub(r"\d+", "0", text.lower()))
    return {plain[start : start + 5] for start in range(max(1, len(plain) - 4))}


def likeness(one: str, other: str) -> float:
    """Jaccard similarity of the 5-grams of two texts."""
    first, second = grams(one), grams(other)
    return len(first & second) / len(first | second)


def test_likeness_sees_a_near_duplicate() -> None:
    assert likeness("How many are 12 and  3 apples?", "how many are 7 and 4 apples?") == 1
    assert likeness("How many legs has a cat?", "How many legs has a bat?") > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_no_two_cases_are_near_duplicates(name: str) -> None:
    alike = [
        (one["id"], other["id"])
        for one, other in combinations(both(name), 2)
        if likeness(one["input"], other["input"]) >= 0.7
    ]
    assert alike == []


def windows(text: str, size: int) -> Iterator[str]:
    """Every run of that many words of the text, in plain lower case."""
    words = re.findall(r"\w+", text.lower())
    for start in range(max(1, len(words) - size + 1)):
        yield " ".join(words[start : start + size])


@pytest.mark.parametrize("name", NAMES)
def test_instructions_hold_no_case(name: str) -> None:
    text = (MACHINES / name / "instructions.md").read_text(encoding="utf-8")
    assert 20 < len(text) < 1000
    told = set(windows(text, 4))
    for case in both(name):
        assert not told & set(windows(case["input"], 4)), case["id"]


def test_instructions_hold_no_answer() -> None:
    text = (MACHINES / "brief" / "instructions.md").read_text(encoding="utf-8")
    told = [key for case in both("brief") for key in case.get("target", ()) if brief.has_keyword(text, key)]
    assert told == []
    assert not re.search(r"\d", (MACHINES / "wordmath" / "instructions.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "least"), [("cases.jsonl", 30), ("holdout.jsonl", 20)])
def test_brief_has_keywords_that_the_question_does_not_say(file: str, least: int) -> None:
    with_target = [case for case in cases("brief", file) if "target" in case]
    assert len(with_target) >= least
    for case in with_target:
        assert case["target"] and all(isinstance(key, str) for key in case["target"])
        assert not any(brief.has_keyword(case["input"], key) for key in case["target"]), case["id"]


@pytest.mark.parametrize("file", ["cases.jsonl", "holdout.jsonl"])
def test_brief_tempts_to_lists_and_to_questions_back(file: str) -> None:
    kinds = [case["metadata"]["kind"] for case in cases("brief", file) if "metadata" in case]
    assert kinds.count("list") >= 3
    assert kinds.count("question_back") >= 2


@pytest.mark.parametrize("file", ["cases.jsonl", "holdout.jsonl"])
def test_red_is_balanced(file: str) -> None:
    targets = [case["target"] for case in cases("red", file)]
    assert targets.count(0) == targets.count(1) == len(targets) / 2


@pytest.mark.parametrize("case", both("red"), ids=lambda case: str(case["id"]))
def test_red_cases_are_labelled_by_hand_as_the_check_reads_them(case: dict[str, Any]) -> None:
    wanted = ("red_mentioned",) * case["target"]
    assert red.calls_tool(run("ok", text=case["input"], calls=wanted))[0] is True
    assert red.calls_tool(run("ok", text=case["input"], calls=(*wanted, "red_mentioned")))[0] is False


def test_red_has_the_near_misses() -> None:
    practice = " ".join(case["input"] for case in cases("red", "cases.jsonl") if not case["target"])
    exam = " ".join(case["input"] for case in cases("red", "holdout.jsonl"))
    for word in ("bored", "redo", "Fred", "I read it", "red2", "infrared"):
        assert word in practice
    for word in (
        "hundred",
        "Redis",
        "scared",
        "credit",
        "red-handed",
        "RED!",
        '"red"',
        "red_mentioned",
        "「red」",
    ):
        assert word in exam

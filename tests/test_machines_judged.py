"""The judged example machines: their checks on good and bad answers, their rubrics and cases as data."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_machines import MACHINES, both, cases, likeness, load, run, windows

from libmachine.case import read_case
from libmachine.errors import MachineError
from libmachine.folder import Folder
from libmachine.graders.judge import messages
from libmachine.load import load as load_machine
from libmachine.web.address import target

NAMES = ("assistant", "chatbot", "pirate")
JUDGED = {
    "assistant": ["helpful", "grounded", "acts_on_request"],
    "chatbot": ["answers", "honesty"],
    "pirate": ["answers", "voice", "nothing_modern", "metaphor"],
}
CHECKED = {"assistant": ["concise"], "chatbot": ["concise", "no_filler"], "pirate": ["emoji"]}

assistant, chatbot, pirate = (load(name) for name in NAMES)


# chatbot: concise


@pytest.mark.parametrize(
    ("count", "verdict"), [(0, False), (1, True), (149, True), (150, True), (151, False), (1000, False)]
)
def test_concise_is_at_most_150_words(count: int, verdict: bool) -> None:
    words = f"{count} word" + "s" * (count != 1)
    assert chatbot.concise(run("word " * count)) == (verdict, words)
    assert chatbot.concise(run("Wort\n\n" * count)) == (verdict, words)


@pytest.mark.parametrize("answer", ["", " \n ", "...", "— !", "👍", "```\n```", "**"])
def test_an_empty_reply_is_neither_concise_nor_free_of_filler(answer: str) -> None:
    assert chatbot.concise(run(answer)) == (False, "0 words")
    assert chatbot.no_filler(run(answer)) == (False, "an empty reply")


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("A well-known fact, isn't it", 5),
        ("It is 1,000.5 U.S. dollars - or more", 7),
        ("hot—cold, wet/dry,big--small...old…new", 8),
        ("- one\n- two\n\n| three | four |", 4),
        ("水はHです", 5),
        ("これは 本", 4),
        ("हिन्दी में", 2),
    ],
)
def test_words_are_counted(answer: str, count: int) -> None:
    assert chatbot.count_words(answer) == count


@settings(deadline=None)
@given(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), max_size=200))
def test_any_150_words_pass_and_no_more(words: list[str]) -> None:
    verdict, _ = chatbot.concise(run(" ".join(words)))
    assert verdict is (1 <= len(words) <= 150)


# chatbot: no filler

FILLER = [
    ("Great question! Ice is lighter than water.", "great question"),
    ("great question. Ice floats.", "great question"),
    ("GREAT QUESTION — ice floats.", "great question"),
    ("**Great question!** Ice floats.", "great question"),
    ("*Great* question! Ice floats.", "great question"),
    ("__Great question!__ Ice floats.", "great question"),
    ("# Great question!\n\nIce floats.", "great question"),
    ("😊 Great question! Ice floats.", "great question"),
    ("Gr\u200beat ques\u00adtion! Ice floats.", "great question"),
    ("Ｇｒｅａｔ question！ Ice floats.", "great question"),
    ("Great\u00a0question! Ice floats.", "great question"),
    ("Great  question,\nice floats.", "great question"),
    ("Hello! Great question! Ice floats.", "great question"),
    ("Hi there, great question! Ice floats.", "great question"),
    ('"Great question! Ice floats on water."', "great question"),
    ("“Great question! Ice floats on water.”", "great question"),
    ('"Great question! Ice floats.', "great question"),
    ("That's a great question. Ice floats.", "that's a great question"),
    ("That’s a great question. Ice floats.", "that's a great question"),
    ("I’d be happy to help! Ice floats.", "i'd be happy to"),
    ("I'd be happy to explain. Ice floats.", "i'd be happy to"),
    ("Sure! Ice floats.", "sure"),
    ("Sure, ice floats.", "sure"),
    ("Sure: ice floats.", "sure"),
    ("Sure - ice floats.", "sure"),
    ("Sure—ice floats.", "sure"),
    ("Sure… ice floats.", "sure"),
    ("Sure thing! Ice floats.", "sure thing"),
    ("Of course! Ice floats.", "of course"),
    ("Certainly. Ice floats.", "certainly"),
    ("Absolutely! Ice floats.", "absolutely"),
    ("Let me explain. Ice floats.", "let me explain"),
    ("As a large language model, I think that ice floats.", "as a large language model"),
    ("Ice floats. Let me know if you have questions.", "let me know if"),
    ("Ice floats. **Let me know if you have questions!**", "let me know if"),
    ("Ice floats. Please let me know if you have questions! 😊", "let me know if"),
    ("Ice floats.\n\nI hope this helps!", "i hope this helps"),
    ("Ice floats\n\nHope this helps", "hope this helps"),
    ("Ice floats. And feel free to ask more.", "feel free to ask"),
    ("Ice floats. Is there anything else you want to know?", "is there anything else"),
    ("Ice floats! If you have any other questions, ask.", "if you have any other questions"),
    ('It is "light". Don’t hesitate to ask.', "don't hesitate to ask"),
    ('He calls it "light." Let me know if that is unclear.', "let me know if"),
    ("```\nprint(1)\n```\nLet me know if it works.", "let me know if"),
    ("> quoted\n\nHave a great day!", "have a great day"),
    ("I'd be happy to.", "i'd be happy to"),
]

NO_FILLER = [
    "Ice floats because it is lighter than water.",
    "Great Britain is an island.",
    "Great questions are rare.",
    "Greater care is needed.",
    "Great.",
    "Sure.",
    "Sure enough, ice floats.",
    "Sure-footed goats climb well.",
    "Surely, ice floats.",
    "Of course the Earth is round.",
    "Certainly not.",
    "Perfect fifths sound calm.",
    "Thank you is 'merci' in French.",
    "You asked about Peru.",
    "Let me think: 7.",
    "Feel free to use oil in place of butter.",
    "If you have any pain, see a doctor.",
    "If you need anything like a visa, no.\nApply early.",
    "Ice floats. Don't hesitate to call a doctor.",
    "Let me know which of the two you mean.",
    "It helps to let me know if it rains.",
    "I said that I'd be happy to come.",
    "The question is great.",
    "Have a great deal of patience.",
    # quoted
    '"Great question!" is a phrase of filler.',
    "“Great question!” is a phrase of filler.",
    "'Great question!' is a phrase of filler.",
    "'I'd be happy to help' is a phrase of filler.",
    "‘I’d be happy to help’ is a phrase of filler.",
    "«Great question!» is how it is translated.",
    "「Great question!」と言います。",
    "`Great question!` is the string.",
    '**"Great question!"** is a phrase of filler.',
    '"Great question!"',
    'In English you say "Great question! Let me know if I can help."',
    'End it with: "Let me know if you have questions."',
    'A good last line is\n\n"Let me know if you have questions."',
    "> Dear Ann,\n> let me know if you can come.",
    "Here you are:\n\n> Let me know if you can come.",
    "```\nSure! Let me know if it works.\n```",
    "Write this:\n\n```text\nLet me know if you can come.\n```",
    "~~~\nGreat question!\n~~~\nThat is the file.",
]


@pytest.mark.parametrize(("answer", "phrase"), FILLER)
def test_filler_is_found(answer: str, phrase: str) -> None:
    assert chatbot.filler(answer) == phrase
    assert chatbot.no_filler(run(answer)) == (False, f"filler: {phrase!r}")


@pytest.mark.parametrize("answer", NO_FILLER)
def test_what_is_no_filler_passes(answer: str) -> None:
    assert chatbot.no_filler(run(answer)) == (True, "no filler")


@pytest.mark.parametrize("phrase", [*chatbot.INTERJECTIONS, *chatbot.OPENERS])
def test_every_opener_is_found_at_the_beginning_only(phrase: str) -> None:
    for form in (phrase, phrase.capitalize(), phrase.replace("'", "’"), f"**{phrase}**"):
        assert chatbot.filler(f"{form}, ice floats.")
    assert chatbot.filler(f'"{phrase}!" is a phrase.') == ""
    assert chatbot.filler(f"Many say {phrase}, which is a phrase.") == ""


@pytest.mark.parametrize("phrase", chatbot.CLOSERS)
def test_every_closer_is_found_in_the_last_sentence_only(phrase: str) -> None:
    for form in (phrase, phrase.capitalize(), phrase.replace("'", "’"), f"So, {phrase}", f"*{phrase}*"):
        assert chatbot.filler(f"Ice floats. {form} it.")
        assert chatbot.filler(f"Ice floats\n{form} it! 👍")
    assert chatbot.filler(f'They say "{phrase} it."') == ""
    assert chatbot.filler(f"They say {phrase} it.") == ""


def test_the_lists_are_plain_and_each_phrase_counts() -> None:
    openers = (*chatbot.INTERJECTIONS, *chatbot.OPENERS)
    for phrases in (openers, chatbot.CLOSERS):
        assert len(set(phrases)) == len(phrases)
        assert all(re.fullmatch("[a-z' ]+", phrase) for phrase in phrases)
    # one that begins with another of its list could never be named
    for longer, shorter in product(openers, chatbot.OPENERS):
        assert longer == shorter or not longer.startswith(shorter + " ")
    for longer, shorter in product(chatbot.CLOSERS, chatbot.CLOSERS):
        assert longer == shorter or not longer.startswith(shorter + " ")


def test_a_long_reply_is_judged_quickly() -> None:
    for text in ("Go. " * 50_000, '"' * 50_000, "'" * 50_000, "`" * 50_000, "> \n" * 50_000, "Hi! " * 50_000):
        chatbot.no_filler(run(text))


@settings(deadline=None)
@given(st.text())
def test_the_checks_of_chatbot_take_any_text(answer: str) -> None:
    concise, _ = chatbot.concise(run(answer))
    clean, _ = chatbot.no_filler(run(answer))
    has_words = any(char.isalnum() for char in answer)
    assert has_words or not (concise or clean)


@settings(deadline=None)
@given(st.text(alphabet="abc .!?\n'\"*_`>“”", max_size=60), st.sampled_from([*chatbot.OPENERS]))
def test_quoting_an_opener_in_a_sentence_is_no_filler(rest: str, phrase: str) -> None:
    plain = re.sub(r"[^\w ]", "", rest)
    assert chatbot.filler(f"The words “{phrase}” are quoted {plain}") == ""


# pirate: emoji

FLAG = "🏴\u200d☠\ufe0f"


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("", 0),
        ("Arr, matey!", 0),
        ("Arr! 😀 🚀 👍 ❤️ 🎉 🇬🇧 1️⃣ ©️ 🧑🏽‍🚀", 0),
        (":anchor: (skull) X-( ⚑ ♆ ☡", 0),
        ("⚓", 1),
        ("⚓ 😀", 1),
        ("⚓⚓⚓⚓", 4),
        ("⚓⚓⚓⚓⚓", 5),
        ("⚓🦜🗺️💰", 4),
        ("⚓ arr 🦜 arr 🗺️ arr 💰 arr 🌊", 5),
        ("⚓ 🦜 🗺️ 💰 😀 😀", 4),
        # one emoji of several code points
        (FLAG, 1),
        (FLAG.replace("\ufe0f", ""), 1),
        (FLAG.replace("🏴", "🏴\ufe0f"), 1),
        (FLAG.replace("\ufe0f", "\ufe0e"), 1),
        (FLAG * 4, 4),
        (FLAG * 5, 5),
        (f"{FLAG}⚓{FLAG}", 3),
        ("🏴☠️", 2),
        ("🏴 \u200d☠️", 2),
        ("🏴\u200d\u200d☠️", 2),
        ("🏴", 1),
        ("🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", 0),  # Scotland
        ("🏳️\u200d🌈 🏳️\u200d⚧️", 0),
        # variation selectors
        ("☠", 1),
        ("☠\ufe0f", 1),
        ("☠\ufe0e", 0),
        ("⚔\ufe0f⚔\ufe0f", 2),
        ("⚔\ufe0f\ufe0f", 1),
        ("⚓\ufe0e ⚓", 1),
        ("\ufe0f", 0),
        # skin tones
        ("⚓🏽", 1),
        ("👍🏽", 0),
        ("🏽", 0),
        ("🧔🏿\u200d♂️ ⚓", 1),
        # glued together, they are shown one by one
        ("\u200d".join("⚓⚓⚓⚓⚓"), 5),
        ("👨\u200d⚓", 1),
        ("⚓\u200d", 1),
        ("\u200d⚓", 1),
    ],
)
def test_pirate_emoji_are_counted(answer: str, count: int) -> None:
    assert len(pirate.pirate_emoji(answer)) == count
    verdict, reason = pirate.few_emoji(run(answer))
    assert verdict is (1 <= count <= 4)
    assert reason.startswith(f"{count} pirate emoji")


def test_every_listed_emoji_is_one() -> None:
    assert len(set(pirate.PIRATE)) == len(pirate.PIRATE)
    for emoji in pirate.PIRATE:
        assert len(emoji) == 1
        # symbols; what is newer than this Python's Unicode is unassigned there
        assert unicodedata.category(emoji) in ("So", "Cn")
        for form in (emoji, f"{emoji}\ufe0f", f"Arr{emoji}!", f"{emoji}\U0001f3fd"):
            assert pirate.pirate_emoji(form) == [emoji]
        assert pirate.pirate_emoji(f"{emoji}\ufe0e") == []


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*pirate.PIRATE, FLAG, "😀", "👍🏽", "🧑\u200d🚀", "arr", " ", "\ufe0f", "🏽", "é", "1"]
        ),
        max_size=12,
    )
)
def test_emoji_add_up(parts: list[str]) -> None:
    # a joiner between two parts could only come from FLAG, and it is inside of it
    wanted = sum(part in (*pirate.PIRATE, FLAG) for part in parts)
    assert len(pirate.pirate_emoji(" ".join(parts))) == wanted
    assert len(pirate.pirate_emoji("".join(parts))) == wanted
    assert pirate.few_emoji(run("".join(parts)))[0] is (1 <= wanted <= 4)


@settings(deadline=None)
@given(st.text())
def test_the_check_of_pirate_takes_any_text(answer: str) -> None:
    count = len(pirate.pirate_emoji(answer))
    assert count <= len(answer)
    assert len(pirate.pirate_emoji(answer + " ⚓")) == count + 1


# assistant: concise


@pytest.mark.parametrize(
    ("count", "score"),
    [(0, 0), (1, 1), (119, 1), (120, 1), (121, 0.7), (200, 0.7), (201, 0.4), (300, 0.4), (301, 0), (5000, 0)],
)
def test_the_tiers_of_assistant(count: int, score: float) -> None:
    told = f"{count} word" + "s" * (count != 1)
    for reply in (
        "word " * count,
        "Wort.\n\n" * count,
        "— word " * count,
        "水" * count,
        "- https://a.example/b\n" * count,
    ):
        assert assistant.concise(run(reply)) == (score, told)
    passes = rubric("assistant")["concise"]["pass_at"] <= score
    assert passes is (1 <= count <= 200)


@pytest.mark.parametrize("reply", ["", " \n ", "...", "— !", "👍", "```\n```", "**"])
def test_an_empty_reply_of_assistant_scores_nothing(reply: str) -> None:
    assert assistant.concise(run(reply)) == (0, "0 words")


@given(st.text(), st.text())
def test_a_longer_reply_of_assistant_never_scores_more(reply: str, more: str) -> None:
    first, _ = assistant.concise(run(reply))
    longer, _ = assistant.concise(run(f"{reply} {more}"))
    assert longer <= first or first == 0
    assert (first > 0) is any(char.isalnum() for char in reply)


# assistant: what it is made of


def test_assistant_is_a_sibling_of_dev() -> None:
    tools = [tool.__name__ for tool in assistant.machine.tools]
    assert tools == ["list_files", "read_file", "edit_file", "write_file", "run", "web_fetch"]
    dev = rubric("dev")
    assert rubric("assistant")["acts_on_request"] == dev["acts_on_request"]
    # so only what a judge alone can see is left of dev's criteria
    assert not {"verified", "focused", "does_it"} & set(rubric("assistant"))
    told = [
        item["description"] + " ".join(item.get("levels", {}).values())
        for item in rubric("assistant").values()
    ]
    tiers = [f"{most}" for most, _ in assistant.TIERS] + [
        f"{score:g}" for _, score in assistant.TIERS if score < 1
    ]
    assert all(re.search(rf"\b{figure}\b", told[-1]) for figure in tiers)


@pytest.mark.parametrize("file", ["cases.jsonl", "holdout.jsonl"])
def test_both_sides_of_assistant_try_the_same_things(file: str) -> None:
    changes = {
        **{"file_question": False, "page": False, "refused": False, "one_word": False},
        **{"write": True, "edit": True, "report": False, "knowledge": False},
    }
    found = cases("assistant", file)
    assert {case["metadata"]["kind"] for case in found} == set(changes)
    for case in found:
        kind = case["metadata"]["kind"]
        assert case["metadata"] == {"kind": kind, "change": changes[kind]}
        assert case["target"]
        assert ("files" in case) is (kind not in ("page", "refused", "knowledge")), case["id"]
        assert (kind == "one_word") is (len(case["input"].split()) == 1), case["id"]
        urls = re.findall(r"https?://[^\s:,]+(?::\d+)?[^\s:,]*", case["input"])
        for url in urls:
            refused = refusal_of(url)
            assert (refused is not None) is (kind == "refused"), (url, refused)
        assert kind != "page" or len(urls) == 1


def refusal_of(url: str) -> str | None:
    """Why a URL is never asked; None where it depends on what its name resolves to."""
    try:
        target(url)
    except MachineError as error:
        return str(error)
    return None


# the files of each machine


def rubric(name: str) -> dict[str, Any]:
    return tomllib.loads((MACHINES / name / "rubric.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_rubric_names_the_graders(name: str) -> None:
    graders = {"assistant": assistant, "chatbot": chatbot, "pirate": pirate}[name].machine.graders
    criteria = rubric(name)
    assert list(criteria) == list(graders) == JUDGED[name] + CHECKED[name]
    assert [graders[criterion].kind for criterion in JUDGED[name]] == ["judge"] * len(JUDGED[name])
    assert [graders[criterion].kind for criterion in CHECKED[name]] == ["check"] * len(CHECKED[name])
    for criterion in JUDGED[name]:
        assert (graders[criterion].model, graders[criterion].effort) == (None, None)
        levels = criteria[criterion]["levels"]
        assert list(levels) == ["0", "0.5", "1"]
        assert all(re.match(r"[a-z ]+: .", told) for told in levels.values()), "each level has a name"
        assert len({told.partition(":")[0] for told in levels.values()}) == 3
    for criterion in criteria.values():
        assert criterion["description"].endswith(".")
        assert criterion["weight"] > 0


def test_the_weights() -> None:
    assert {name: item["weight"] for name, item in rubric("chatbot").items()} == {
        "answers": 3,
        "honesty": 1,
        "concise": 1,
        "no_filler": 1,
    }
    assert rubric("pirate")["answers"]["weight"] == 2
    weights = {name: item["weight"] for name, item in rubric("assistant").items()}
    assert weights == {"helpful": 3, "grounded": 2, "acts_on_request": 2, "concise": 1}


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_loads_and_is_gateable(name: str) -> None:
    machine = load_machine(name, [str(MACHINES)])
    assert machine.ungateable is None
    assert machine.model.model == "tinker/thinkingmachines/Inkling-Small"
    sampling = dict(machine.model.sampling or {})
    assert sampling["temperature"] == 1 and sampling["effort"] == "low"
    assert 1000 <= sampling["max_tokens"] <= 4096  # room for thinking besides a short answer


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_of_a_judge_holds_its_levels_and_no_other_criterion(name: str) -> None:
    machine = load_machine(name, [str(MACHINES)])
    for criterion in machine.criteria:
        if criterion.id not in JUDGED[name]:
            continue
        system = messages(criterion, run("hello", text="hi"), "abcd1234")[0]["content"]
        assert criterion.description in system
        for score, told in criterion.levels.items():
            assert f"\n- {score}: {told}\n" in system
        for other in machine.criteria:
            assert other is criterion or other.description not in system


def text_of_case(case: dict[str, Any]) -> str:
    """All that a case says, turns included."""
    turns = case["input"]
    return turns if isinstance(turns, str) else "\n".join(turn["content"] for turn in turns)


@pytest.mark.parametrize(("name", "file"), list(product(NAMES, ("cases.jsonl", "holdout.jsonl"))))
def test_case_files_are_enough_and_tidy(name: str, file: str) -> None:
    text = (MACHINES / name / file).read_text(encoding="utf-8")
    found = cases(name, file)
    assert len(found) >= (8 if file == "holdout.jsonl" else 12)
    assert text == "".join(
        json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in found
    )
    for case in found:
        assert set(case) <= {"id", "input", "target", "metadata"} | (
            {"files"} if name == "assistant" else set()
        )
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", case["id"])
        assert read_case(case)["id"] == case["id"]
        if isinstance(case["input"], str):
            assert case["input"].strip() == case["input"] != ""
            continue
        assert [turn["role"] for turn in case["input"]] == ["user", "assistant", "user"]
        assert all(set(turn) == {"role", "content"} and turn["content"] for turn in case["input"])


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_inputs_are_unique(name: str) -> None:
    found = both(name)
    assert len({case["id"] for case in found}) == len(found)
    assert len({read_case(case)["identity"] for case in found}) == len(found)
    assert len({text_of_case(case).casefold() for case in found}) == len(found)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_cases_are_near_duplicates(name: str) -> None:
    last = [(case["id"], text_of_case(case).splitlines()[-1]) for case in both(name)]
    whole = [(case["id"], text_of_case(case)) for case in both(name)]
    for texts in (whole, last):
        alike = [(one, other) for (one, a), (other, b) in combinations(texts, 2) if likeness(a, b) >= 0.5]
        assert alike == []


@pytest.mark.parametrize("name", NAMES)
def test_instructions_hold_no_case(name: str) -> None:
    text = Folder(str(MACHINES), name).instructions()
    assert 20 < len(text) < 1000
    told = set(windows(text, 4))
    for case in both(name):
        assert not told & set(windows(text_of_case(case), 4)), case["id"]
        if "target" in case:
            assert not told & set(windows(str(case["target"]), 4)), case["id"]


@pytest.mark.parametrize("file", ["cases.jsonl", "holdout.jsonl"])
def test_both_sides_of_chatbot_try_the_same_things(file: str) -> None:
    found = cases("chatbot", file)
    kinds = {case["metadata"]["kind"] for case in found}
    assert kinds >= {"history", "constraint", "unknowable", "false_premise", "action", "long_bait", "plain"}
    assert sum(not isinstance(case["input"], str) for case in found) >= len(found) / 3
    for case in found:
        carries = case["metadata"]["kind"] in ("history", "constraint")
        assert not carries or isinstance(case["input"], list), case["id"]


@pytest.mark.parametrize("file", ["cases.jsonl", "holdout.jsonl"])
def test_both_sides_of_pirate_try_the_same_things(file: str) -> None:
    kinds = [case["metadata"]["kind"] for case in cases("pirate", file)]
    assert kinds.count("modern") >= 2
    assert set(kinds) == {"plain", "modern", "advice", "sea", "history"}


@pytest.mark.parametrize("name", NAMES)
def test_turns_that_a_case_gives_are_good_answers_themselves(name: str) -> None:
    for case in both(name):
        if isinstance(case["input"], list):
            answer = run(case["input"][1]["content"])
            checks = {"chatbot": (chatbot.concise, chatbot.no_filler), "pirate": (pirate.few_emoji,)}[name]
            assert all(check(answer)[0] for check in checks), case["id"]

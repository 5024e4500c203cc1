"""jev: what is sent, what is read, every fault, retries, the bill; the fake itself against the vendor's own.

The last tests need packages that are no dependency of ours and are passed over without them:
`pip install jevcompat sparrow-decider` (the first brings the official typesafe-sdk).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_jev import FAULTS, KEY, MODEL, FakeJev
from hypothesis import given
from hypothesis import strategies as st

from libmachine import prices
from libmachine.budget.guard import guarded
from libmachine.budget.ledger import Ledger, PriceUnknown
from libmachine.define import Question, Run, jev
from libmachine.errors import MachineError
from libmachine.folder import Criterion
from libmachine.graders import jev as asking
from libmachine.graders.check import Mark
from libmachine.harness import jev as wire

RUN = Run(
    {
        "case": {"input": "What is the capital of France?", "target": "Paris"},
        "output": "La capitale de la France est Paris.",
        "messages": [],
        "steps": [],
    }
)
ASKED: list[tuple[Criterion, Question]] = [
    (Criterion("in_french", "Is the output written in French?", 1.0), jev.noul()),
    (Criterion("tone", "What is the tone?", 1.0), jev.score(["rude", "neutral", "warm"])),
    (
        Criterion("length", "How long is it?", 1.0),
        jev.choice({"short": 1, "long": {"score": 0.25, "description": "pages"}}),
    ),
]


def engine(fake: FakeJev, **options: Any) -> wire.JevEngine:
    return wire.JevEngine(
        "jev/jev-latest", fake.base, options.pop("key", KEY), sleep=lambda s: None, **options
    )


def marks(fake: FakeJev) -> dict[str, Mark]:
    client = engine(fake)
    try:
        return asking.ask(client, ASKED, RUN).marks
    finally:
        client.close()


# what is sent ---------------------------------------------------------------------------


def test_one_request_for_all_questions() -> None:
    with FakeJev() as fake:
        answers = asking.ask(engine(fake), ASKED, RUN)
        assert [got.path for got in fake.requests] == ["/v1/systemone"]
        got = fake.requests[0]
    assert got.headers["authorization"] == f"Bearer {KEY}"
    assert got.headers["content-type"] == "application/json"
    assert got.body == {
        "model": "jev-latest",
        "state": {
            "input": "What is the capital of France?",
            "output": "La capitale de la France est Paris.",
            "reference": "Paris",
        },
        "questions": {
            "in_french": {"type": "noul", "instructions": "Is the output written in French?"},
            "tone": {
                "type": "score",
                "instructions": "What is the tone?",
                "criteria": ["rude", "neutral", "warm"],
            },
            "length": {
                "type": "choice",
                "instructions": "How long is it?",
                "criteria": {"short": None, "long": "pages"},
            },
        },
    }
    assert answers.model == MODEL
    assert all(mark.error is None and 0 <= (mark.score or 0) <= 1 for mark in answers.marks.values())
    assert answers.calls[0].prompt_tokens > 0


def test_a_path_prefix_is_kept() -> None:
    """OpenRouter's base URL is https://openrouter.ai/api."""
    with FakeJev() as fake:
        client = wire.JevEngine("jev/jev-latest", fake.base + "/api/", KEY)
        mark = asking.ask(client, ASKED[:1], RUN).marks["in_french"]
        assert fake.requests[0].path == "/api/v1/systemone"
    assert mark.error is not None and "404" in mark.error


def test_a_long_run_is_cut_to_fit() -> None:
    text = "\u4e2d" * 300_000
    record = {"case": {"input": text, "target": text}, "output": text, "messages": [], "steps": []}
    sent = asking.body("jev/x", ASKED, Run(record))
    assert len(json.dumps(sent["state"], ensure_ascii=False)) <= asking.STATE_LIMIT + 100
    assert "characters cut" in sent["state"]["output"]


def test_a_side_of_a_noul() -> None:
    asked = [(ASKED[0][0], jev.noul(yes="it is French"))]
    question = asking.body("jev/x", asked, RUN)["questions"]["in_french"]
    assert question["criteria"] == {"true": "it is French"}


# normalised to 0..1 ---------------------------------------------------------------------


def test_scores() -> None:
    rules = [
        {"question": "French", "p": 0.95},
        {"question": "tone", "shares": {"1": 0.95, "2": 0.05}},
        {"question": "long", "shares": {"short": 0.88, "long": 0.12}},
    ]
    with FakeJev(rules) as fake:
        found = marks(fake)
    assert found["in_french"].score == 0.95
    assert found["tone"].score == pytest.approx(1.05 / 2)
    assert found["length"].score == pytest.approx(0.88 + 0.12 * 0.25)
    assert found["length"].reason == "short with 0.88"
    assert found["tone"].reason == "level 1.05 of 0 to 2; nearest 1: neutral"


@pytest.mark.parametrize(
    "make",
    [
        lambda: jev.score(["one"]),
        lambda: jev.score("text"),
        lambda: jev.choice({"only": 1}),
        lambda: jev.choice({"a": 1, "b": 2}),
        lambda: jev.choice({"a": 1, "b": True}),
        lambda: jev.noul().or_judge(jev.noul(), unsure=(0.7, 0.3)),
    ],
)
def test_what_is_no_question(make: Any) -> None:
    with pytest.raises(ValueError, match=r"jev|or_judge"):
        make()


def test_rounded_probabilities_are_taken() -> None:
    """OpenRouter rounds them to two digits, and leaves them out of a score."""
    asked = ASKED[1:2]
    rounded = {"type": "score", "score": 1.0, "probabilities": {"0": 0.33, "1": 0.33, "2": 0.33}}
    assert asking.read(json.dumps({"answers": {"tone": rounded}}), asked)["tone"].score == 0.5
    bare = {"type": "score", "score": 2}
    assert asking.read(json.dumps({"answers": {"tone": bare}}), asked)["tone"].score == 1


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("in_french", {"type": "noul"}),
        ("in_french", {"type": "noul", "noul": "0.9"}),
        ("in_french", {"type": "noul", "noul": True}),
        ("in_french", {"type": "noul", "noul": -0.1}),
        ("in_french", {"type": "noul", "noul": 10**400}),
        ("in_french", [0.9]),
        ("tone", {"type": "score", "score": 2.5}),
        ("tone", {"type": "score", "score": 2, "probabilities": {"0": 1, "1": 0, "2": 0}}),
        ("tone", {"type": "score", "score": 1, "probabilities": {"rude": 0, "neutral": 1, "warm": 0}}),
        ("length", {"type": "choice", "choice": "short"}),
        ("length", {"type": "choice", "choice": "short", "probabilities": {"short": 1}}),
        ("length", {"type": "choice", "choice": "long", "probabilities": {"short": 0.9, "long": 0.1}}),
        ("length", {"type": "choice", "choice": ["short"], "probabilities": {"short": 1, "long": 0}}),
    ],
)
def test_answers_that_are_none(name: str, answer: Any) -> None:
    asked = [pair for pair in ASKED if pair[0].id == name]
    mark = asking.read(json.dumps({"answers": {name: answer}}), asked)[name]
    assert mark.score is None and mark.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "noul", "score", "choice", "probabilities", "0", "1", "2", "short", "long"]
            ),
            inner | st.sampled_from(["noul", "score", "choice", "short", 0.5, 1]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["in_french", "tone", "length", "more"]), JSON))
def test_whatever_is_answered(answers: Any) -> None:
    for mark in asking.read(json.dumps({"answers": answers}), ASKED).values():
        assert (mark.score is None) == (mark.error is not None)
        assert mark.score is None or 0 <= mark.score <= 1


@given(st.text())
def test_whatever_is_no_answer(text: str) -> None:
    assert all(mark.score is None for mark in asking.read(text, ASKED).values())


# faults ---------------------------------------------------------------------------------

HIT = {  # the criteria that a fault takes the grade from; the others keep theirs
    "missing-answer": {"in_french"},
    "wrong-type": {"in_french"},
    "unknown-type": {"in_french"},
    "nan": {"in_french"},
    "above-1": {"in_french"},
    "sum": {"length"},
    "no-option": {"length"},
    "no-usage": set(),
}
CALLS = {"429": 3, "529": 3, "500": 3}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "TIMEOUT_S", 0.5)
    with FakeJev([{"fault": fault}]) as fake:
        answers = asking.ask(engine(fake), ASKED, RUN)
        assert len(fake.requests) == CALLS.get(fault, 1)
    ungraded = {name for name, mark in answers.marks.items() if mark.score is None}
    assert ungraded == HIT.get(fault, {"in_french", "tone", "length"})
    for name in ungraded:
        told = answers.marks[name].error
        assert told and KEY not in told
        assert not fault.isdigit() or fault in told
    assert answers.unknown_bills == (fault in ("timeout", "closed", "not-json"))


def test_it_recovers() -> None:
    waits: list[float] = []
    with FakeJev([{"fault": "429", "times": 1}]) as fake:
        client = wire.JevEngine("jev/jev-latest", fake.base, KEY, sleep=waits.append)
        assert asking.ask(client, ASKED[:1], RUN).marks["in_french"].error is None
        assert len(fake.requests) == 2
    assert waits == [0.0]  # as Retry-After says


def test_waits() -> None:
    assert wire._wait(0, {"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert wire._wait(0, {"retry-after": "86400"}) == wire.LONGEST_WAIT_S
    assert 0.75 <= wire._wait(1, {"retry-after": "Wed, 21 Oct"}) <= 1.0


def test_nobody_is_there() -> None:
    client = wire.JevEngine("jev/jev-latest", "http://127.0.0.1:9", KEY)
    answers = asking.ask(client, ASKED[:1], RUN)
    told = answers.marks["in_french"].error
    assert told and "gave no reply" in told and answers.unknown_bills == 0


@pytest.mark.parametrize("key", [None, "", "  ", "two words", "sm\u00f8r"])
def test_no_key(key: str | None) -> None:
    with pytest.raises(MachineError, match="TYPESAFE_API_KEY"):
        wire.JevEngine("jev/jev-latest", None, key)


def test_no_address() -> None:
    with pytest.raises(MachineError, match="TYPESAFE_BASE_URL"):
        wire.JevEngine("jev/jev-latest", "openrouter.ai/api", KEY)


# money ----------------------------------------------------------------------------------


def test_price() -> None:
    price = prices.price_of("jev/jev-latest", None, "https://api.typesafe.ai")
    assert price is not None and (price.prefill, price.sample) == (0.042, 0.0)
    assert prices.price_of("jev/jev-latest", "thinkingmachines/Inkling", "https://openrouter.ai/api") == price
    assert prices.price_of("jev/jev-latest", None, "http://127.0.0.1:8000") == prices.FREE
    assert prices.price_of("jev/jev-latest", None, "https://example.com") is None
    assert prices.cost(price, 1_000_000, None, 500) == 0.042


def test_the_ledger_has_it() -> None:
    with FakeJev() as fake:
        ledger = Ledger(1.0)
        billed = guarded(engine(fake), ledger, prices.JEV, {"kind": "judge"})
        answers = asking.ask(billed, ASKED, RUN)
    tokens = answers.calls[0].prompt_tokens
    assert ledger.spent() == answers.calls[0].cost_usd == pytest.approx(tokens * 0.042 / 1e6, abs=1e-6)


def test_a_reply_without_usage_under_a_budget() -> None:
    with FakeJev([{"fault": "no-usage"}]) as fake:
        client = engine(fake)
        client.needs_usage = True
        ledger = Ledger(1.0)
        answers = asking.ask(guarded(client, ledger, prices.JEV, {}), ASKED, RUN)
    assert all("there is a budget" in (mark.error or "") for mark in answers.marks.values())
    assert ledger.spent() > 0  # it may have been billed: the worst case counts


def test_an_unknown_price_is_refused_before_the_call() -> None:
    with FakeJev() as fake:
        with pytest.raises(PriceUnknown):
            asking.ask(guarded(engine(fake), Ledger(1.0), None, {}), ASKED, RUN)
        assert fake.requests == []


# the vendor's own -----------------------------------------------------------------------


def script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_the_fake_conforms() -> None:
    """Every MUST of the conformance suite, with the official SDK parsing each kind of answer."""
    with FakeJev() as fake:
        words = [script("jevcompat"), "test", fake.base, "--key", KEY]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_real_model(tmp_path: Path) -> None:
    """sparrow-decider, offline, through our client: answers of a real model are complete and in range."""
    port = 20_000 + os.getpid() % 20_000
    words = [script("sparrow-decider"), "serve", "--port", str(port)]
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        client = wire.JevEngine("jev/jev-latest", f"http://127.0.0.1:{port}", "none-needed")
        for _ in range(100):
            answers = asking.ask(client, ASKED, RUN)
            if "gave no reply" not in (answers.marks["in_french"].error or ""):
                break
            time.sleep(0.1)
        again = asking.ask(client, ASKED, RUN)
    finally:
        server.terminate()
        server.wait(10)
    assert all(mark.error is None and mark.score is not None for mark in answers.marks.values()), answers
    assert answers.model and "sparrow" in answers.model
    assert again.marks == answers.marks

"""What a judge is shown, how often it is asked, whose model it is: with engines that answer from a list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine.define import Judge, Run, judge
from libmachine.errors import ContextOverflow, MachineError, ProviderError, Refused
from libmachine.folder import Criterion
from libmachine.graders.judge import MOST_PIECES, NO_EFFORT, PART_LIMIT, TRIES, WHOLE_LIMIT, ask, messages
from libmachine.harness.base import Completion, Request
from libmachine.harness.chat_bill import Usage
from libmachine.judging import Judging, default_model, family, kin, usage_of

KIND = Criterion("kind", "The answer is kind.", 1.0)


def run(output: str = "yes", given: Any = "hi", calls: int = 0, result: str = "ok", **case: Any) -> Run:
    """A run with so many tool calls."""
    trail: list[dict[str, Any]] = []
    for number in range(calls):
        call = {"id": f"c{number}", "function": {"name": "look", "arguments": f'{{"at":{number}}}'}}
        trail.append({"role": "assistant", "content": "", "tool_calls": [call]})
        trail.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    record = {"case": {"input": given, **case}, "messages": trail, "output": output, "steps": []}
    return Run({**record, "harness": "echo", "model": "echo"})


def shown(of: Run, criterion: Criterion = KIND) -> dict[str, Any]:
    """The material of a call."""
    material: dict[str, Any] = json.loads(messages(criterion, of, "abcd1234")[1]["content"])
    return material


def rules(levels: Any, description: str = "The answer is kind.") -> str:
    """The system message for a criterion with these levels."""
    return str(messages(Criterion("kind", description, 1.0, levels=levels), run(), "abcd1234")[0]["content"])


class Listed:
    """An engine that answers from a list: a text, a completion, or an error to raise. {id}: the call's."""

    name = "fake"

    def __init__(self, *replies: Any, model: str = "fake/m") -> None:
        self.model = model
        self.replies = list(replies)
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Completion):
            return reply
        call_id = request.messages[0]["content"].partition('{"id": "')[2][:8]
        return Completion(
            {"role": "assistant", "content": reply.replace("{id}", call_id)}, "stop", "m-1", 10, 0, 5, 0
        )

    def close(self) -> None:
        pass


GOOD = '{"id": "{id}", "reasoning": "why", "score": 0.5}'


# what is shown


def test_a_question_and_its_answer() -> None:
    assert shown(run("yes", "hi")) == {"input": "hi", "output": "yes"}
    assert shown(run("yes", [{"role": "user", "content": "hi"}])) == {"input": "hi", "output": "yes"}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert shown(run("yes", [{"role": "user", "content": parts}]))["input"] == "a\nb"


def test_a_conversation_with_who_said_what() -> None:
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert shown(run(given=turns))["input"] == turns
    assert shown(run(given=[1, None, "x"]))["input"] == ""


def test_the_reference_whatever_it_is() -> None:
    for target in ("7", 7, ["a", "b"], {"a": 1}, 0, False):
        assert shown(run(target=target))["reference"] == target
    assert "reference" not in shown(run(target=None))
    assert "characters cut" in shown(run(target=["x" * PART_LIMIT]))["reference"]


def test_tool_calls_with_their_results() -> None:
    assert shown(run(calls=1))["tool_calls"] == [
        {"tool": "look", "arguments": '{"at":0}', "result": "ok", "ok": False}
    ]


@pytest.mark.parametrize("size", [PART_LIMIT, PART_LIMIT + 1, 10 * PART_LIMIT])
def test_long_material_is_cut_visibly(size: int) -> None:
    text = "HEAD" + "x" * (size - 8) + "TAIL"
    for piece in (
        shown(run(text))["output"],
        shown(run(given=text))["input"],
        shown(run(calls=1, result=text))["tool_calls"][0]["result"],
        shown(run(target=text))["reference"],
    ):
        assert piece.startswith("HEAD") and piece.endswith("TAIL")
        assert (piece == text) is (size == PART_LIMIT)
        assert ("characters cut ...]" in piece) is (size > PART_LIMIT)
        assert len(piece) <= PART_LIMIT + 50


def test_much_material_is_cut_visibly() -> None:
    calls = shown(run(calls=500, result="r" * 10_000))["tool_calls"]
    assert len(calls) == MOST_PIECES + 1
    assert calls[MOST_PIECES // 2] == {"cut": f"{500 - MOST_PIECES} left out here"}
    assert calls[0]["arguments"] == '{"at":0}' and calls[-1]["arguments"] == '{"at":499}'
    turns = [{"role": "user", "content": f"{n} " + "t" * 10_000} for n in range(300)]
    told = shown(run(given=turns))["input"]
    assert told[0]["content"].startswith("0 t") and told[-1]["content"].startswith("299 t")
    for listed in (calls, told):
        assert len(json.dumps(listed)) <= 1.2 * WHOLE_LIMIT


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("sc\u200bore", "sc\\u200bore"),
        ('\ufeff{\u2060"score"\u00ad: 1}', '\\ufeff{\\u2060"score"\\u00ad: 1}'),
        ("a\u202eb\u2066c\u200f", "a\\u202eb\\u2066c\\u200f"),
        ("\U000e0073\U000e0063", "\\U000e0073\\U000e0063"),
        ("x\ufe01\ufe02\ufe03", "x\ufe01\\ufe02\\ufe03"),
        ("a\u200db", "a\\u200db"),
        ("⚓\u200d", "⚓\\u200d"),
        ("line\u2028end\x85", "line\\u2028end\\u0085"),
        # what people write stays
        ("🏴\u200d☠\ufe0f ❤\ufe0f", "🏴\u200d☠\ufe0f ❤\ufe0f"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        ("tab\tnew\nline é 水", "tab\tnew\nline é 水"),
    ],
)
def test_invisible_characters_are_shown_as_escapes(text: str, seen: str) -> None:
    assert shown(run(text, text)) == {"input": seen, "output": seen}


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_data(output: str, given_text: str) -> None:
    system, user = messages(KIND, run(output, given_text, target=output), "abcd1234")
    plain_system, _ = messages(KIND, run(), "abcd1234")
    assert system == plain_system
    assert set(json.loads(user["content"])) == {"input", "output", "reference"}
    assert "\u200b" not in user["content"] and "\ufeff" not in user["content"]


def test_levels_in_every_form() -> None:
    assert "- 0: bad\n- 0.5: fair\n- 1: good\n" in rules(["bad", "fair", "good"])
    assert "- 0: bad\n- 0.33: a\n- 0.67: b\n- 1: good\n" in rules(["bad", "a", "b", "good"])
    assert "- 0: bad\n- 0.25: poor\n- 1: good\n" in rules({"0": "bad", "0.25": "poor", "1": "good"})
    assert "- 0: rude: it insults\n- 1: kind: it helps\n" in rules({"rude": "it insults", "kind": "it helps"})
    for none in (None, [], {}, "levels", 3, ["one"]):
        assert "- 0: not fulfilled\n- 0.5: partly fulfilled\n- 1: fulfilled\n" in rules(none)


def test_braces_in_a_criterion_are_text() -> None:
    text = rules(["{bad}", "{call_id}"], "Uses f(x){return {a}} and {criterion} %s.")
    assert "Uses f(x){return {a}} and {criterion} %s." in text
    assert "- 0: {bad}\n- 1: {call_id}" in text


# asking


def test_one_good_reply() -> None:
    engine = Listed(GOOD)
    verdict = ask(engine, KIND, run(), "high")
    assert (verdict.score, verdict.reason, verdict.error, verdict.model) == (0.5, "why", None, "m-1")
    assert len(engine.requests) == len(verdict.calls) == 1
    assert engine.requests[0].sampling.effort == "high"
    assert engine.requests[0].tools == []


def test_effort_off_is_not_sent() -> None:
    engine = Listed(GOOD)
    ask(engine, KIND, run(), NO_EFFORT)
    assert engine.requests[0].sampling.effort is None


def test_unusable_replies_are_asked_again_twice_with_another_id() -> None:
    engine = Listed("no", "no", GOOD)
    assert ask(engine, KIND, run(), None).score == 0.5
    engine = Listed("no")
    verdict = ask(engine, KIND, run(), None)
    assert (verdict.score, verdict.reason) == (None, None)
    assert verdict.error == "no usable verdict in 3 replies: no verdict with this call's id"
    assert len(engine.requests) == len(verdict.calls) == TRIES
    assert len({request.messages[0]["content"] for request in engine.requests}) == TRIES


@pytest.mark.parametrize("failure", [ProviderError("down"), ContextOverflow("too long")])
def test_an_endpoint_that_fails_is_not_asked_again(failure: MachineError) -> None:
    engine = Listed("no", failure)
    verdict = ask(engine, KIND, run(), None)
    assert (verdict.score, verdict.error, verdict.model) == (None, f"judge failed: {failure}", "m-1")
    assert (len(engine.requests), len(verdict.calls)) == (2, 1)


def test_money_and_mistakes_end_the_command() -> None:
    for failure in (Refused("the budget is reached"), MachineError("no effort 'hard'")):
        with pytest.raises(type(failure)):
            ask(Listed(failure), KIND, run(), None)


def test_what_was_billed_for_nothing_counts() -> None:
    failure = ProviderError("down")
    failure.billed = [Usage(7, None, 3, None, 0.2)]  # type: ignore[attr-defined]
    failure.unknown_bills = 2  # type: ignore[attr-defined]
    wasteful = Completion({"role": "assistant", "content": "no"}, "stop", "m", 10, 0, 5, 0, cost_usd=0.1)
    wasteful.wasted = [Usage(1, 0, 1, 0, 0.05)]  # type: ignore[attr-defined]
    verdict = ask(Listed(wasteful, failure), KIND, run(), None)
    assert (len(verdict.calls), verdict.unknown_bills) == (3, 2)
    usage = usage_of(verdict.calls, verdict.unknown_bills)
    assert (usage["calls"], usage["prompt_tokens"], usage["completion_tokens"]) == (3, 18, 9)
    assert (usage["cached_tokens"], usage["cost_usd"]) == (None, None)
    assert usage_of(verdict.calls)["cost_usd"] == 0.35
    assert usage_of([])["cost_usd"] == 0


# whose model


@pytest.mark.parametrize(
    ("harness", "model", "wanted"),
    [
        ("openai", "gpt-x", "openai/gpt-x"),
        ("openai", "openai/gpt-x", "openai/gpt-x"),
        ("openai+abc123", "gpt-x", "openai/gpt-x"),
        ("openrouter", "openrouter/a/b", "openrouter/a/b"),
        ("corp", "big", "corp/big"),
        ("tinker", "tinker/a/b", "tinker/thinkingmachines/Inkling-Small"),
        ("pi", "a/b", "tinker/thinkingmachines/Inkling-Small"),
        ("echo", "echo", None),
        ("scripted", "scripted/abc", None),
        ("local:xllamacpp-1+v2", "local/m#abc", None),
    ],
)
def test_the_default_of_the_runs_endpoint(harness: str, model: str, wanted: str | None) -> None:
    assert default_model({"harness": harness, "model": model}) == wanted


def test_own_model_then_the_commands() -> None:
    record = {"harness": "openai", "model": "m"}
    own, free = judge(model="own/m", effort="low"), judge()
    assert [Judging("option/m").model_of(grader, record) for grader in (own, free)] == ["own/m", "option/m"]
    assert Judging().model_of(free, record) == "openai/m"
    assert [Judging(effort="high").effort_of(grader) for grader in (own, free)] == ["low", "high"]
    assert Judging().effort_of(free) == "medium"
    assert Judging("option/m").identity(free, record).startswith("judge:option/m:medium@")


def test_no_other_model_takes_its_place() -> None:
    opened: list[Listed] = []

    def open_engine(model: str) -> Listed:
        opened.append(Listed(GOOD, model="local/smollm2#abc"))
        return opened[-1]

    judging = Judging("gpt-x", open_engine=open_engine)
    grade = judging.grade(Judge(), KIND, run())
    assert grade["score"] is None
    assert grade["error"].startswith("judge 'gpt-x': harness 'fake' does not serve it")
    assert opened[0].requests == []
    judging = Judging("local/smollm2", open_engine=open_engine)
    assert judging.grade(Judge(), KIND, run())["score"] == 0.5


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("tinker/thinkingmachines/Inkling-Small", "inkling"),
        ("openrouter/thinkingmachines/inkling-small:free", "inkling"),
        ("thinkingmachines/Inkling:peft:262144;tinker://abc/sampler_weights/1", "inkling"),
        ("openai/gpt-4o", "gpt"),
        ("Qwen/Qwen3.5-4B", "qwen"),
        ("local/smollm2-135m-instruct#abc", "smollm"),
        ("echo", "echo"),
    ],
)
def test_family(model: str, wanted: str) -> None:
    assert family(model) == wanted


def test_kin_by_what_was_asked_and_by_what_answered() -> None:
    def of(grader: str, judged_by: str, model: str, answered: str | None) -> str | None:
        grade = {"grader": grader, "model": judged_by}
        return kin(grade, {"model": model, "answered": answered})

    assert of("judge:a/inkling-s:medium@1", "inkling-s", "b/Inkling", "x") == "inkling"
    assert of("judge:alias/best:medium@1", "Inkling-9", "corp/inkling", None) == "inkling"
    assert of("judge:alias/best:medium@1", "Inkling-9", "corp/alias", "inkling-2") == "inkling"
    assert of("judge:a/b:free:medium@1", "b", "c/d", "d") is None
    assert kin({"grader": "check:x@1"}, {"model": "x"}) is None

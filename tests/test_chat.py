"""The chat engine against a small real server: one test, at least, for each row of the tolerance table."""

from __future__ import annotations

import email.utils
import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply, chunk, completion, stream, tool_call

from libmachine.errors import ContextOverflow, MachineError, ProviderError, UsageError
from libmachine.harness.base import Message, Request, Sampling
from libmachine.harness.chat import LONGEST_WAIT_S, ChatEngine, ChatError, ChatOverflow
from libmachine.harness.chat_read import ChatCompletion
from libmachine.harness.chat_wire import retry_after

KEY = "sk-very-secret-0123456789"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def request(
    messages: list[Message] | None = None,
    tools: list[dict[str, Any]] | None = None,
    timeout_s: float = 60,
    **sampling: Any,
) -> Request:
    return Request(
        messages or [{"role": "user", "content": "hi"}], tools or [], Sampling(**sampling), timeout_s
    )


def ask(
    replies: Any, asked: Request | None = None, endpoint: str = "openai", **engine: Any
) -> ChatCompletion:
    with FakeEndpoint(replies) as fake:
        engine.setdefault("sleep", lambda seconds: None)
        chat = ChatEngine(endpoint, engine.pop("model", "some/model"), fake.url, KEY, **engine)
        try:
            return chat.complete(asked or request())
        finally:
            chat.close()


def sent(asked: Request, endpoint: str = "openai", **engine: Any) -> dict[str, Any]:
    """The body that goes out for a request."""
    with FakeEndpoint() as fake:
        chat = ChatEngine(endpoint, engine.pop("model", "some/model"), fake.url, KEY, **engine)
        chat.complete(asked)
        chat.close()
        return fake.requests[0].body


def failure(replies: Any, asked: Request | None = None, endpoint: str = "openai", **engine: Any) -> ChatError:
    with pytest.raises(ChatError) as caught:
        ask(replies, asked, endpoint, **engine)
    return caught.value


def test_a_plain_reply() -> None:
    got = ask(completion("hello"))
    assert got.message == {"role": "assistant", "content": "hello"}
    assert (got.finish_reason, got.model, got.fingerprint) == ("stop", "fake-model", "fp_1")
    assert (got.prompt_tokens, got.completion_tokens) == (12, 5)
    assert (got.cached_tokens, got.reasoning_tokens, got.cost_usd) == (None, None, None)
    assert (got.retries, got.wasted, got.unknown_bills) == (0, [], 0)


# --- reasoning ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_as_text(name: str) -> None:
    got = ask(completion("hello", **{name: "let me see"}))
    assert got.message["reasoning"] == "let me see"
    assert got.message["reasoning_field"] == name
    assert got.message["content"] == "hello"


def test_reasoning_details() -> None:
    details = [
        {"type": "reasoning.summary", "summary": "in "},
        {"type": "reasoning.text", "text": "short", "signature": "x"},
        {"type": "reasoning.encrypted", "data": "AAAA"},
    ]
    got = ask(completion("hello", reasoning_details=details))
    assert got.message["reasoning"] == "in short"
    assert got.message["reasoning_field"] == "reasoning_details"
    back = sent(
        request([{"role": "user", "content": "hi"}, got.message, {"role": "user", "content": "go on"}])
    )
    assert back["messages"][1] == {"role": "assistant", "content": "hello", "reasoning_details": details}


def test_encrypted_reasoning_is_kept_for_the_way_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "AAAA"}]
    got = ask(completion("hello", reasoning_details=details))
    assert "reasoning" not in got.message
    assert sent(request([got.message]))["messages"][0]["reasoning_details"] == details


def test_reasoning_under_several_names_is_not_added_up() -> None:
    got = ask(completion("hello", reasoning_content="", reasoning="b", reasoning_details=[{"text": "b"}]))
    assert (got.message["reasoning"], got.message["reasoning_field"]) == ("b", "reasoning")
    assert "reasoning_details" not in got.message


@pytest.mark.parametrize(
    ("content", "text", "thought"),
    [
        ("<think>\na\n</think>\n\nhello", "hello", "a"),
        ("a\n</think>\n\nhello", "hello", "a"),
        ("<think>never ends", "", "never ends"),
        ("<think>a</think>one <think>b</think>two", "one two", "a\nb"),
        ("<think><think>a</think>b</think>hello", "hello", "<think>a\nb"),
        ("<thinking>a</thinking>hello", "hello", "a"),
        ("<THINK>a</THINK>hello", "hello", "a"),
        ("<think></think>hello", "hello", None),
        (
            "say `<think>` and `</think>` to open and close",
            "say `<think>` and `</think>` to open and close",
            None,
        ),
        ("I think so", "I think so", None),
    ],
)
def test_thinking_inside_content(content: str, text: str, thought: str | None) -> None:
    got = ask(completion(content), endpoint="tinker")
    assert got.message["content"] == text
    assert got.message.get("reasoning") == thought
    assert got.message.get("reasoning_field") == ("inline" if thought else None)


def test_thinking_in_both_places_is_kept_once() -> None:
    got = ask(completion("<think>a</think>hello", reasoning_content="a"))
    assert got.message["content"] == "hello"
    assert (got.message["reasoning"], got.message["reasoning_field"]) == ("a", "reasoning_content")


def test_thinking_parts_of_content() -> None:
    """Mistral's form."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}, {"type": "text", "text": "b"}]
    got = ask(completion(parts))
    assert got.message == {"role": "assistant", "content": "b", "reasoning": "a", "reasoning_field": "inline"}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_its_own_name_and_no_other(name: str) -> None:
    message = {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_field": name}
    assert sent(request([message]))["messages"] == [{"role": "assistant", "content": "x", name: "why"}]


def test_inline_reasoning_goes_back_inline() -> None:
    message = {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_field": "inline"}
    assert sent(request([message]))["messages"] == [
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nx"}
    ]


def test_reasoning_of_unknown_origin_stays_here() -> None:
    messages = [
        {"role": "assistant", "content": "x", "reasoning": "why"},
        {"role": "assistant", "content": "y", "reasoning": "why", "reasoning_field": "else"},
        {"role": "assistant", "content": "z", "reasoning": "", "reasoning_field": "reasoning"},
    ]
    assert sent(request(messages))["messages"] == [{"role": "assistant", "content": c} for c in "xyz"]


# --- tool calls ------------------------------------------------------------------------------


def test_tool_calls_as_they_should_be() -> None:
    got = ask(completion(None, "tool_calls", tool_calls=[tool_call()]))
    assert got.message == {"role": "assistant", "content": "", "tool_calls": [tool_call()]}
    assert got.finish_reason == "tool_calls"


def test_arguments_as_an_object_become_a_string() -> None:
    got = ask(completion(None, tool_calls=[tool_call(arguments={"at": "ä"})]))
    assert got.message["tool_calls"][0]["function"]["arguments"] == '{"at": "ä"}'


@pytest.mark.parametrize("arguments", ['{"path": "a.py", "con', '"\\"{}\\""', "null", "[]", "5", ""])
def test_odd_argument_strings_stay_raw(arguments: str) -> None:
    got = ask(completion(None, tool_calls=[tool_call(arguments=arguments)]))
    assert got.message["tool_calls"][0]["function"]["arguments"] == arguments


def test_arguments_go_out_as_strings() -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": {"at": 1}}}
    body = sent(request([{"role": "assistant", "content": "", "tool_calls": [call]}]))
    assert body["messages"][0]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    ]


def test_missing_ids_and_types_are_made() -> None:
    calls = [tool_call(id=None, type=None), tool_call(id="", type=None), tool_call(), tool_call()]
    got = ask(completion(None, tool_calls=calls), request([{"role": "user", "content": "hi"}] * 3))
    assert [c["id"] for c in got.message["tool_calls"]] == ["call_3_0", "call_3_1", "call_a", "call_3_3"]
    assert {c["type"] for c in got.message["tool_calls"]} == {"function"}


def test_other_forms_of_a_call() -> None:
    flat = {"id": "b", "name": "look", "arguments": {}}
    shell = {"function": {"name": "", "arguments": ""}}
    got = ask(completion(None, tool_calls=[flat, shell, None, {"id": "c", "function": {"arguments": None}}]))
    assert [c["function"] for c in got.message["tool_calls"]] == [
        {"name": "look", "arguments": "{}"},
        {"name": "unnamed", "arguments": "{}"},
    ]


def test_the_form_before_tools() -> None:
    old = completion(None, "function_call", function_call={"name": "look", "arguments": "{}"})
    got = ask(old)
    assert got.finish_reason == "tool_calls"
    assert got.message["tool_calls"][0]["id"] == "call_1_0"


@pytest.mark.parametrize("finish", ["stop", "length", "eos", None, "content_filter"])
def test_tool_calls_decide_whatever_the_finish_reason(finish: str | None) -> None:
    assert ask(completion(None, finish, tool_calls=[tool_call()])).finish_reason == "tool_calls"


# --- content ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}, "c"], "abc"),
        ([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": " no"}], "a no"),
        ([{"type": "image_url", "image_url": {}}, {"type": "text", "text": None}, 7, {"text": "a"}], "a"),
        ({"type": "text", "text": "a"}, "a"),
    ],
)
def test_content_in_any_form(content: Any, text: str) -> None:
    assert ask(completion(content)).message["content"] == text


def test_null_content_is_an_empty_string() -> None:
    assert ask(completion(None, "stop")).message == {"role": "assistant", "content": ""}


def test_content_going_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    body = sent(
        request(
            [
                {"role": "system", "content": None},
                {"role": "user", "content": parts},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "b"}],
                    "refusal": None,
                    "extra": 1,
                },
                {"role": "tool", "content": None, "tool_call_id": "a", "name": "look"},
                {"role": "assistant", "content": None},
            ]
        )
    )
    assert body["messages"] == [
        {"role": "system", "content": ""},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "", "name": "look", "tool_call_id": "a"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("endpoint", "private", "content"),
    [("openai", True, ""), ("openai", False, None), ("openrouter", False, None), ("tinker", False, "")],
)
def test_empty_content_beside_tool_calls(endpoint: str, private: bool, content: str | None) -> None:
    from libmachine.harness.chat_send import body_for

    message = {"role": "assistant", "content": "", "tool_calls": [tool_call()]}
    assert body_for(request([message]), "m", endpoint, private)["messages"][0]["content"] == content


def test_lone_surrogates_do_not_break_the_request() -> None:
    assert sent(request([{"role": "user", "content": "a\ud800b"}]))["messages"][0]["content"] == "a\ufffdb"


# --- errors inside 200, empty replies, finish reasons, refusals --------------------------------


@pytest.mark.parametrize("as_stream", [False, True])
def test_an_error_body_inside_200_is_retried_by_its_code(as_stream: bool) -> None:
    error = {"error": {"code": 429, "message": "slow down", "metadata": {"raw": "from upstream"}}}
    good = stream(chunk(content="hello"), chunk("stop")) if as_stream else completion()
    got = ask([stream(error) if as_stream else error, good], stream=as_stream)
    assert (got.message["content"], got.retries, got.unknown_bills) == ("hello", 1, 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 402, "message": "no credit"}, 402),
        ({"code": "402", "message": "no credit"}, 402),
        ({"code": "insufficient_quota", "message": "no credit"}, 402),
        ({"code": "invalid_api_key", "message": "bad key"}, 401),
        ({"type": "invalid_request_error", "message": "no"}, 400),
        ({"code": True, "message": "model not found"}, None),
        ("model not found", None),
        (["odd"], None),
    ],
)
def test_a_final_error_inside_200_is_not_retried(error: Any, status: int | None) -> None:
    with FakeEndpoint({"error": error}) as fake:
        with pytest.raises(ChatError) as caught:
            ChatEngine("openai", "m", fake.url, sleep=no_sleep).complete(request())
        assert (caught.value.status, len(fake.requests)) == (status, 1)


@pytest.mark.parametrize("code", [408, 500, 502, "server_error", "overloaded", "rate_limit_exceeded"])
def test_a_passing_error_inside_200_is_retried(code: Any) -> None:
    assert ask([{"error": {"code": code, "message": "x"}}, completion()]).retries == 1


def test_an_error_inside_the_choice() -> None:
    broken = completion("part", "error")
    broken["choices"][0]["error"] = {"code": 502, "message": "provider gone"}
    got = ask([broken, completion("error", "error"), completion()])
    assert got.retries == 2
    assert [u.completion_tokens for u in got.wasted] == [5, 5]


def test_an_error_after_part_of_a_stream_may_have_been_billed() -> None:
    broken = stream(chunk(content="par"), {"error": {"code": "server_error", "message": "gone"}})
    got = ask([broken, completion()], stream=True)
    assert (got.retries, got.wasted, got.unknown_bills) == (1, [], 1)


@pytest.mark.parametrize(
    "empty",
    [{"choices": []}, {}, {"choices": None}, {"choices": [None]}, {"choices": [{}]}, [], "", "{", "null"],
)
def test_a_reply_without_a_choice_is_retried(empty: Any) -> None:
    got = ask([empty if isinstance(empty, str) else json.dumps(empty), completion()])
    assert (got.retries, got.message["content"], got.unknown_bills) == (1, "hello", 1)


def test_billed_replies_that_cannot_be_used_still_count() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "cost": 0.002}
    error = failure([{"choices": [], "usage": usage}], max_retries=2)
    assert [(u.prompt_tokens, u.completion_tokens, u.cost_usd) for u in error.billed] == [(7, 3, 0.002)] * 3
    assert (error.retries, error.unknown_bills) == (2, 0)


def test_a_web_page_is_final_and_said() -> None:
    with FakeEndpoint("<!doctype html><title>Welcome</title>") as fake:
        with pytest.raises(ChatError, match="web page"):
            ChatEngine("openai", "m", fake.url).complete(request())
        assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("finish", "content", "want"),
    [
        ("stop", "x", "stop"),
        ("length", "x", "length"),
        ("length", "", "length"),
        ("content_filter", "", "content_filter"),
        ("SAFETY", "", "content_filter"),
        ("max_tokens", "x", "length"),
        ("MAX_TOKENS", "x", "length"),
        ("end_turn", "x", "stop"),
        (None, "x", "stop"),
        ("tool_calls", "x", "stop"),
        ("function_call", "x", "stop"),
        ("something_new", "x", "stop"),
        ("stop", "", "stop"),
    ],
)
def test_finish_reasons(finish: str | None, content: str, want: str) -> None:
    assert ask([completion(content, finish), 400]).finish_reason == want


@pytest.mark.parametrize("finish", [None, "tool_calls", "something_new"])
def test_an_empty_reply_without_a_known_end_is_retried_a_bounded_number_of_times(finish: str | None) -> None:
    assert ask([completion("", finish), completion()]).retries == 1
    with FakeEndpoint(completion("", finish)) as fake:
        with pytest.raises(ChatError, match="empty"):
            ChatEngine("openai", "m", fake.url, sleep=no_sleep, max_retries=2).complete(request())
        assert len(fake.requests) == 3


def test_a_refusal_is_an_answer() -> None:
    got = ask([completion(None, "stop", refusal="I will not."), 400])
    assert got.message == {"role": "assistant", "content": "I will not.", "refusal": "I will not."}
    assert got.finish_reason == "stop"
    assert ask([completion(None, None, refusal="no"), 400]).finish_reason == "stop"
    assert sent(request([got.message]))["messages"] == [{"role": "assistant", "content": "I will not."}]


# --- usage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "counts", "cost"),
    [
        (None, (None, None, None, None), None),
        ({}, (None, None, None, None), None),
        ({"prompt_tokens": 9, "completion_tokens": 4}, (9, None, 4, None), None),
        (
            {
                "prompt_tokens": 1999,
                "completion_tokens": 50,
                "total_tokens": 2049,
                "prompt_tokens_details": {"cached_tokens": 1792, "cache_write_tokens": 5},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            (1999, 1792, 50, 20),
            None,
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None, None), None),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 3}, (9, 3, 4, None), None),
        ({"input_tokens": 9, "output_tokens": 4}, (9, None, 4, None), None),
        ({"prompt_tokens": -1, "completion_tokens": True}, (None, None, None, None), None),
        ({"prompt_tokens": 9.0, "completion_tokens": "4"}, (9, None, None, None), None),
        # reasoning counted apart (xAI, Gemini): made part of the completion
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 43,
             "completion_tokens_details": {"reasoning_tokens": 30}},
            (9, None, 34, 30), None,
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 40, "total_tokens": 79,
             "completion_tokens_details": {"reasoning_tokens": 30}},
            (9, None, 70, 30), None,
        ),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.0125}, (9, None, 4, None), 0.0125),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0}, (9, None, 4, None), 0.0),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": "1"}, (9, None, 4, None), None),
        ({"prompt_tokens": 9, "completion_tokens": 4, "cost": -1}, (9, None, 4, None), None),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.001,
             "cost_details": {"upstream_inference_cost": 0.02}},
            (9, None, 4, None), 0.001,
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.001, "is_byok": True,
             "cost_details": {"upstream_inference_cost": 0.02}},
            (9, None, 4, None), 0.021,
        ),
    ],
)  # fmt: skip
def test_usage_shapes(usage: Any, counts: tuple[int | None, ...], cost: float | None) -> None:
    got = ask({**completion(), "usage": usage})
    assert (got.prompt_tokens, got.cached_tokens, got.completion_tokens, got.reasoning_tokens) == counts
    assert got.cost_usd == (None if cost is None else pytest.approx(cost))


def test_nan_cost_is_unknown() -> None:
    text = json.dumps({**completion(), "usage": {"prompt_tokens": 1, "cost": "C"}}).replace('"C"', "NaN")
    assert ask(text).cost_usd is None


def test_a_free_model_costs_nothing_unless_the_reply_says_otherwise() -> None:
    assert ask(completion(), model="z-ai/glm:free").cost_usd == 0.0
    charged = {**completion(), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.5}}
    assert ask(charged, model="z-ai/glm:free").cost_usd == 0.5


# --- streams ---------------------------------------------------------------------------------


def call_delta(index: int | None = None, call_id: str | None = None, **function: Any) -> dict[str, Any]:
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    return chunk(tool_calls=[call])


def test_a_stream_adds_up() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 5}
    got = ask(
        stream(
            ": OPENROUTER PROCESSING\n\n",
            {"choices": [], "prompt_filter_results": []},
            chunk(role="assistant", content=""),
            ": OPENROUTER PROCESSING\n\n",
            chunk(reasoning="let "),
            chunk(reasoning="me"),
            "event: ping\nid: 7\nretry: 10\ndata:\n\n",
            chunk(content="hel"),
            chunk("stop", content="lo"),
            {"choices": [], "usage": usage},
        ),
        stream=True,
    )
    assert got.message == {
        "role": "assistant",
        "content": "hello",
        "reasoning": "let me",
        "reasoning_field": "reasoning",
    }
    assert (got.prompt_tokens, got.completion_tokens, got.model) == (12, 5, "fake-model")


def test_a_stream_is_asked_for_with_its_usage() -> None:
    body = sent(request(), stream=True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in sent(request(), "openrouter", stream=True)
    assert "stream" not in sent(request())


def test_stream_and_object_are_told_apart_by_what_comes() -> None:
    assert ask(completion(), stream=True).message["content"] == "hello"
    assert ask(stream(chunk(content="hello"), chunk("stop"))).message["content"] == "hello"
    padded = ": keep-alive\n\n: keep-alive\n\n  \n" + json.dumps(completion())
    assert ask(padded).message["content"] == "hello"
    assert ask("\ufeff" + json.dumps(completion())).message["content"] == "hello"


def test_crlf_and_data_over_several_lines() -> None:
    text = 'data: {"choices":\r\ndata: [{"delta":{"content":"hello"},"finish_reason":"stop"}]}\r\n\r\n'
    assert ask(text, stream=True).message["content"] == "hello"


@pytest.mark.parametrize("indices", [(0, 0, 0, 0), (None, None, None, None), (0, 0, 1, 1)])
def test_streamed_calls_with_ids(indices: tuple[int | None, ...]) -> None:
    got = ask(
        stream(
            call_delta(indices[0], "a", name="look", arguments='{"at"'),
            call_delta(indices[1], arguments=":1}"),
            call_delta(indices[2], "b", name="look", arguments=""),
            call_delta(indices[3], "", arguments='{"at":2}'),
            chunk("tool_calls"),
        ),
        stream=True,
    )
    assert [(c["id"], c["function"]["arguments"]) for c in got.message["tool_calls"]] == [
        ("a", '{"at":1}'),
        ("b", '{"at":2}'),
    ]


def test_streamed_calls_without_ids() -> None:
    got = ask(
        stream(
            call_delta(0, name="look", arguments={"at": 1}),
            call_delta(0, name="look", arguments='{"at":'),
            call_delta(0, name="look", arguments="2}"),
            call_delta(0, name="stop", arguments=""),
            chunk("stop"),
        ),
        stream=True,
    )
    calls = got.message["tool_calls"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("look", '{"at": 1}'),
        ("look", '{"at":2}'),
        ("stop", ""),
    ]
    assert len({c["id"] for c in calls}) == 3


def test_streamed_calls_that_alternate() -> None:
    got = ask(
        stream(
            call_delta(0, "a", name="look", arguments="{"),
            call_delta(1, "b", name="look", arguments="["),
            call_delta(0, arguments="}"),
            call_delta(1, "b", arguments="]"),
            chunk("tool_calls"),
        ),
        stream=True,
    )
    assert [c["function"]["arguments"] for c in got.message["tool_calls"]] == ["{}", "[]"]


def test_streamed_reasoning_details() -> None:
    first = {"type": "reasoning.text", "text": "a", "index": 0}
    got = ask(
        stream(
            chunk(reasoning_details=[first]),
            chunk(reasoning_details=[{**first, "text": "b", "signature": "s"}]),
            chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "A", "index": 1}]),
            chunk("stop", content="x"),
        ),
        stream=True,
    )
    assert got.message["reasoning"] == "ab"
    assert [d.get("signature") for d in got.message["reasoning_details"]] == ["s", None]


@pytest.mark.parametrize(
    "broken",
    [
        stream(chunk(content="hal"), done=False),
        stream(chunk(content="hal"), 'data: {"choices": [{"del', done=False),
        stream(chunk(role="assistant")),
        stream(),
    ],
)
def test_a_stream_without_its_end_is_retried(broken: Reply) -> None:
    got = ask([broken, completion()], stream=True)
    assert (got.retries, got.message["content"], got.unknown_bills) == (1, "hello", 1)


def test_a_stream_that_ends_without_done_is_whole() -> None:
    assert ask(stream(chunk(content="hello"), chunk("stop"), done=False), stream=True).retries == 0


# --- what is sent ----------------------------------------------------------------------------


def test_every_setting_is_sent() -> None:
    asked = request(temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, max_tokens=77, seed=5, effort="low")
    body = sent(asked)
    assert body == {
        "model": "some/model",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "max_tokens": 77,
        "seed": 5,
        "reasoning_effort": "low",
    }


def test_defaults_are_sent_too() -> None:
    """Servers have cuts as defaults; ours are none, and said so where the server knows the words."""
    from libmachine.harness.chat_send import body_for

    assert sent(request()) == {
        "model": "some/model",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "max_tokens": 2048,
    }
    strict = body_for(request(), "m", "openai", private=False)
    assert "top_k" not in strict and "min_p" not in strict and strict["max_tokens"] == 2048


@pytest.mark.parametrize(
    ("endpoint", "effort", "fields"),
    [
        ("openai", "high", {"reasoning_effort": "high"}),
        ("mine", "high", {"reasoning_effort": "high"}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("tinker", "none", {"reasoning_effort": 0.0}),
        ("tinker", "minimal", {"reasoning_effort": 0.1}),
        ("tinker", "low", {"reasoning_effort": 0.2}),
        ("tinker", "medium", {"reasoning_effort": 0.7}),
        ("tinker", "high", {"reasoning_effort": 0.9}),
        ("tinker", "xhigh", {"reasoning_effort": 0.99}),
        ("tinker", "0.35", {"reasoning_effort": 0.35}),
    ],
)
def test_effort(endpoint: str, effort: str, fields: dict[str, Any]) -> None:
    body = sent(request(effort=effort), endpoint)
    assert {name: body.get(name) for name in fields} == fields
    assert not {"reasoning", "reasoning_effort"} & (body.keys() - fields.keys())


def test_an_unknown_effort_is_a_usage_error() -> None:
    for effort in ("heavy", "1.5", "nan", "-0.1"):
        with pytest.raises(UsageError, match=effort):
            sent(request(effort=effort), "tinker")


def test_tinker_is_asked_to_separate_reasoning() -> None:
    assert sent(request(), "tinker")["separate_reasoning"] is True
    assert "separate_reasoning" not in sent(request(), "openrouter")


def test_tools_are_sent_only_if_there_are_any() -> None:
    assert sent(request(tools=TOOLS))["tools"] == TOOLS
    assert "tools" not in sent(request())


def test_extra_body_is_laid_over() -> None:
    body = sent(
        request(), extra_body={"provider": {"order": ["x"]}, "max_tokens": None, "max_completion_tokens": 9}
    )
    assert body["provider"] == {"order": ["x"]}
    assert "max_tokens" not in body and body["max_completion_tokens"] == 9
    plain, other = ChatEngine("openai", "m", "http://127.0.0.1"), {"a": 1}
    assert plain.name == "openai" != ChatEngine("openai", "m", "http://127.0.0.1", extra_body=other).name


def test_only_our_headers_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-service")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Private: yes")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    for key in (None, KEY):
        with FakeEndpoint() as fake:
            ChatEngine("openai", "m", fake.url, key).complete(request())
            headers = fake.requests[0].headers
        assert headers.get("authorization") == (f"Bearer {key}" if key else None)
        assert headers.keys() - {"authorization"} == {
            "host", "accept", "accept-encoding", "connection", "content-type", "content-length", "user-agent",
            "x-stainless-raw-response",
        }  # fmt: skip


def test_a_password_in_the_address_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    with FakeEndpoint(500) as fake, caplog.at_level(logging.DEBUG):
        url = fake.url.replace("http://", "http://me:hunter22@")
        with pytest.raises(ChatError) as caught:
            ChatEngine("openai", "m", url, max_retries=0).complete(request())
        assert fake.requests[0].headers["authorization"] == "Basic bWU6aHVudGVyMjI="
    assert "hunter22" not in shown(caught.value) + caplog.text


# --- retries ---------------------------------------------------------------------------------


def no_sleep(seconds: float) -> None:
    """Time does not pass in tests."""


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_what_is_retried(status: int) -> None:
    got = ask([status, status, completion()])
    assert (got.retries, got.message["content"], got.unknown_bills) == (2, "hello", 0)


@pytest.mark.parametrize("status", [307, 400, 401, 402, 403, 404, 405, 409, 413, 422, 451])
def test_what_is_not_retried(status: int) -> None:
    with FakeEndpoint([status, completion()]) as fake:
        with pytest.raises(ChatError) as caught:
            ChatEngine("openai", "m", fake.url, sleep=no_sleep).complete(request())
        assert (len(fake.requests), caught.value.status, caught.value.retries) == (1, status, 0)


def test_retries_end_and_are_counted_and_shown() -> None:
    lines: list[str] = []
    waits: list[float] = []
    with FakeEndpoint(503) as fake:
        engine = ChatEngine("openai", "m", fake.url, max_retries=3, sleep=waits.append, progress=lines.append)
        with pytest.raises(ChatError, match="after 3 retries") as caught:
            engine.complete(request())
        assert len(fake.requests) == 4
    assert caught.value.retries == 3
    assert len(lines) == 3 and "retry 3 of 3" in lines[2] and "HTTP 503: scripted 503" in lines[2]
    for n, wait in enumerate(waits):
        assert 0.25 * 2**n <= wait <= 0.5 * 2**n


def test_connections_that_break_are_retried() -> None:
    cut = Reply(completion(), cut=20)
    got = ask([Reply(hang_up=True), cut, completion()])
    assert (got.retries, got.message["content"], got.unknown_bills) == (2, "hello", 2)


def test_a_refused_connection_is_retried_and_cost_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    waits: list[float] = []
    engine = ChatEngine("openai", "m", f"http://127.0.0.1:{port}/v1", max_retries=2, sleep=waits.append)
    with pytest.raises(ChatError, match="refused") as caught:
        engine.complete(request())
    assert (len(waits), caught.value.status, caught.value.unknown_bills) == (2, None, 0)


def test_retry_after_in_seconds() -> None:
    waits: list[float] = []
    replies = [Reply("{}", status=429, headers={"Retry-After": s}) for s in ("7", "0.25", "900000")]
    ask([*replies, completion()], request(timeout_s=1e6), sleep=waits.append)
    assert waits == [7.0, 0.25, LONGEST_WAIT_S]


def test_retry_after_as_a_date() -> None:
    waits: list[float] = []
    dates = [email.utils.formatdate(time.time() + ahead, usegmt=True) for ahead in (50_000, -50_000)]
    replies = [Reply("{}", status=503, headers={"Retry-After": d}) for d in dates]
    ask([*replies, completion()], request(timeout_s=1e6), sleep=waits.append)
    assert waits == [LONGEST_WAIT_S, 0.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_reading_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 1795953600.0) == seconds


def test_a_wait_beyond_the_time_allowed_is_not_begun() -> None:
    waits: list[float] = []
    late = Reply("{}", status=429, headers={"Retry-After": "45"})
    error = failure([late, completion()], request(timeout_s=30), sleep=waits.append)
    assert waits == [] and error.retries == 0 and "in 45 s, after the time allowed" in str(error)


def test_time_is_up_whatever_the_endpoint_does() -> None:
    never = threading.Event()
    began = time.monotonic()
    try:
        error = failure(Reply(completion(), wait=never), request(timeout_s=0.3))
    finally:
        never.set()
    assert error.timed_out and error.unknown_bills == 1
    assert "time allowed" in str(error)
    assert time.monotonic() - began < 30  # and not the server's 60


def test_a_trickle_does_not_stretch_the_time() -> None:
    stop = threading.Event()

    def trickle() -> Any:
        while not stop.wait(0.05):
            yield ": keep-alive\n\n"

    began = time.monotonic()
    try:
        error = failure(Reply(chunks=trickle()), request(timeout_s=0.5), stream=True)
    finally:
        stop.set()
    assert error.timed_out and time.monotonic() - began < 30


def test_no_time_no_request() -> None:
    with FakeEndpoint() as fake:
        with pytest.raises(ChatError) as caught:
            ChatEngine("openai", "m", fake.url).complete(request(timeout_s=0))
        assert caught.value.timed_out and fake.requests == []


def test_a_long_wait_is_shown_while_it_lasts() -> None:
    """The server answers only once the wait has been reported: no line, no answer."""
    reported = threading.Event()
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        reported.set()

    got = ask(Reply(completion(), wait=reported), progress=progress, patience_s=0.05)
    assert got.message["content"] == "hello"
    assert lines[0].startswith("openai: no answer from 'some/model' for")


# --- errors and secrets ----------------------------------------------------------------------


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


@pytest.mark.parametrize(
    ("status", "endpoint", "model", "advice"),
    [
        (401, "openai", "m", "check OPENAI_API_KEY"),
        (401, "tinker", "m", "check TINKER_API_KEY"),
        (402, "openrouter", "m", "no credit left"),
        (403, "openrouter", "m", "check OPENROUTER_API_KEY"),
        (403, "openrouter", "thinkingmachines/inkling:free", "use --harness pi or --harness opencode"),
        (404, "openai", "m", "case-sensitive"),
        (307, "openai", "m", "set the base URL"),
    ],
)
def test_errors_say_where_what_and_what_to_do(status: int, endpoint: str, model: str, advice: str) -> None:
    error = failure(status, endpoint=endpoint, model=model)
    text = str(error)
    assert isinstance(error, ProviderError)
    assert text.startswith(f"endpoint '{endpoint}' (http://127.0.0.1:")
    assert f"answered {status} for model '{model}'" in text
    assert advice in text


def test_what_the_endpoint_says_is_cut_and_cleaned() -> None:
    error = failure(Reply({"error": {"message": "bad\x1b[31m\nthing " + "x" * 5000}}, status=400))
    assert "\x1b" not in str(error) and "\n" not in str(error)
    assert "bad [31m thing" in str(error) and len(str(error)) < 600


@pytest.mark.parametrize(
    "body",
    [{"detail": "no such thing"}, {"message": "no such thing"}, "no such thing", {"error": "no such thing"}],
)
def test_error_bodies_in_other_forms(body: Any) -> None:
    assert "no such thing" in str(failure(Reply(body, status=400)))


def test_a_proxy_error_page_is_not_quoted() -> None:
    assert "a web page" in str(failure(Reply("<html><b>502</b></html>", status=502), max_retries=0))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"code": "context_length_exceeded", "message": "too long"}),
        (400, {"message": "This model's maximum context length is 8192 tokens"}),
        (413, {"message": "Prompt is too long"}),
        (400, {"message": "request (9000 tokens) exceeds the available context size (4096 tokens)"}),
        (200, {"code": 400, "message": "This endpoint's maximum context length is 32768 tokens"}),
    ],
)
def test_context_overflow(status: int, error: dict[str, Any]) -> None:
    with pytest.raises(ContextOverflow) as caught:
        ask(Reply({"error": error}, status=status))
    assert isinstance(caught.value, ChatOverflow) and caught.value.billed == []


ECHOES: list[Callable[[], Any]] = [
    lambda: Reply({"error": {"message": f"Incorrect API key provided: {KEY}"}}, status=401),
    lambda: {"error": {"code": 401, "message": f"bad {KEY}"}},
    lambda: Reply(f"nope {KEY}", status=500),
    lambda: {"choices": []},
    lambda: Reply(hang_up=True),
    lambda: f"<html>{KEY}",
]


@pytest.mark.parametrize("number", range(len(ECHOES)))
def test_the_key_is_in_no_error_and_no_log(number: int, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with caplog.at_level(logging.DEBUG):
        error = failure(ECHOES[number](), max_retries=1, progress=lines.append)
    assert KEY not in shown(error)
    assert KEY not in caplog.text
    assert KEY not in "\n".join(lines)
    chain: BaseException | None = error
    while chain is not None:
        assert KEY not in repr(chain)
        chain = chain.__context__


def test_the_key_is_in_no_error_about_a_redirect() -> None:
    away = Reply("{}", status=307, headers={"Location": f"http://127.0.0.1/{KEY}"})
    assert KEY not in shown(failure(away))


def test_the_key_is_in_no_log_of_a_call_that_works(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(completion())
    assert caplog.records and KEY not in caplog.text


@pytest.mark.parametrize("key", ["sk-line\nbreak", "sk-ümlaut", "sk-\x00"])
def test_a_key_that_cannot_be_a_header_is_refused_unseen(key: str) -> None:
    with pytest.raises(MachineError, match="OPENAI_API_KEY") as caught:
        ChatEngine("openai", "m", "http://127.0.0.1:1", key)
    assert key not in shown(caught.value)


def test_a_missing_key_or_address_fails_before_any_call() -> None:
    for endpoint, name in (("tinker", "TINKER_API_KEY"), ("openrouter", "OPENROUTER_API_KEY")):
        with pytest.raises(MachineError, match=name):
            ChatEngine(endpoint, "m")
    with pytest.raises(MachineError, match="--base-url"):
        ChatEngine("mine", "m")
    for url in ("no-scheme/v1", "ftp://host/v1", "http://", "http://[bad/v1", "http://me:pw@"):
        with pytest.raises(MachineError, match="no usable address") as caught:
            ChatEngine("openai", "m", url)
        assert "pw" not in str(caught.value)


# --- threads ---------------------------------------------------------------------------------


def test_one_engine_bears_many_threads() -> None:
    """The server answers none before all have come: they are under way together."""
    together = threading.Event()

    def rule(number: int, body: dict[str, Any]) -> Any:
        if number == 15:
            together.set()
        return Reply(completion(body["messages"][0]["content"]), wait=together)

    with FakeEndpoint(rule) as fake:
        engine = ChatEngine("openai", "m", fake.url)
        with ThreadPoolExecutor(16) as pool:
            asked = [request([{"role": "user", "content": f"n{n}"}]) for n in range(16)]
            answers = [got.message["content"] for got in pool.map(engine.complete, asked)]
        engine.close()
        assert fake.most == 16
    assert answers == [f"n{n}" for n in range(16)]


def test_an_engine_opens_again_after_close() -> None:
    with FakeEndpoint() as fake:
        engine = ChatEngine("openai", "m", fake.url)
        engine.complete(request())
        engine.close()
        engine.close()
        assert engine.complete(request()).message["content"] == "hello"


def test_a_client_of_the_callers() -> None:
    import openai

    with FakeEndpoint() as fake:
        client = openai.OpenAI(api_key=KEY, base_url=fake.url, max_retries=0)
        ChatEngine("openai", "m", fake.url, client=client).complete(request())
        assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"

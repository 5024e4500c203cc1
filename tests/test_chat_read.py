"""Reading replies of any shape: no exception, and the promises of a Completion hold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine.harness.base import Request, Sampling
from libmachine.harness.chat_bill import Failure
from libmachine.harness.chat_read import ChatCompletion, read_completion, split_thinking
from libmachine.harness.chat_send import body_for
from libmachine.harness.chat_stream import body_of

NAMES = [
    "choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments", "id", "index",
    "type", "text", "refusal", "reasoning", "reasoning_content", "reasoning_details", "summary", "thinking",
    "error", "code", "metadata", "raw", "usage", "prompt_tokens", "completion_tokens",
    "prompt_tokens_details", "cached_tokens", "completion_tokens_details", "reasoning_tokens", "cost",
    "total_tokens", "finish_reason", "model", "function_call",
]  # fmt: skip
LEAF = (
    st.none() | st.booleans() | st.integers(-3, 600) | st.floats() | st.sampled_from(NAMES)
    | st.sampled_from(["stop", "length", "<think>", "a</think>b", "{}", "", "429"])
)  # fmt: skip
ANY = st.recursive(
    LEAF,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(NAMES), x, max_size=5),
    max_leaves=25,
)
MESSAGE = st.dictionaries(st.sampled_from(NAMES), ANY, max_size=6)
BODY = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({"message": MESSAGE}, optional={"finish_reason": ANY}), max_size=2
        )
    },
    optional={"usage": MESSAGE, "model": ANY},
)


def check(read: ChatCompletion | Failure) -> None:
    if isinstance(read, Failure):
        assert isinstance(read.text, str)
        return
    message = read.message
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    assert "<think>" not in message["content"]
    assert read.finish_reason in ("stop", "length", "tool_calls", "content_filter")
    assert (read.finish_reason == "tool_calls") == ("tool_calls" in message)
    calls = message.get("tool_calls", [])
    assert len({c["id"] for c in calls}) == len(calls)
    for call in calls:
        assert call["id"] and call["type"] == "function" and call["function"]["name"]
        assert isinstance(call["function"]["arguments"], str)
    assert ("reasoning" not in message) or (message["reasoning"] and message["reasoning_field"])
    for count in (read.prompt_tokens, read.cached_tokens, read.completion_tokens, read.reasoning_tokens):
        assert count is None or (isinstance(count, int) and count >= 0)
    assert read.cost_usd is None or 0 <= read.cost_usd < float("inf")
    again = Request([message], [], Sampling(), 1.0)
    for endpoint in ("openai", "openrouter", "tinker"):
        body_for(again, "m", endpoint, private=True)


@settings(max_examples=400, deadline=None)
@given(ANY | BODY)
def test_any_body(body: Any) -> None:
    check(read_completion(body, 3))
    text = json.dumps(body)
    read = body_of(text.encode())
    check(read if isinstance(read, Failure) else read_completion(read))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"delta": MESSAGE}))}) | ANY,
        max_size=5,
    )
)
def test_any_stream(chunks: list[Any]) -> None:
    text = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
    read = body_of(text.encode())
    check(read if isinstance(read, Failure) else read_completion(read))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    for start in (b"", b"data: ", b": x\n\n", b"{"):
        read = body_of(start + raw)
        check(read if isinstance(read, Failure) else read_completion(read))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<THINK>", "</thinking>", "`", "a", " ", "\n"]), max_size=12
    )
)
def test_splitting_thoughts_loses_no_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    content, thoughts = split_thinking(text)
    assert sorted((content + thoughts).replace("\n", "").replace(" ", "")).count("a") == text.count("a")


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    code = (
        "import sys; from libmachine.harness.chat import ChatEngine; ChatEngine('openai', 'm', 'http://127.0.0.1');"
        "print([n for n in ('openai', 'httpx', 'httpx2', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

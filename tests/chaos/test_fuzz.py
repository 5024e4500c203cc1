"""Whatever bytes come from outside, a reader says what is wrong with them, soon, and keeps what is good.

MACHINE_CHAOS=long tries far more; tests/chaos/fuzz.py is guided by coverage.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest
import targets
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutate import mutated, repeated
from targets import TARGETS

from libmachine.errors import MachineError
from libmachine.git.repository import list_refs, open_repository
from libmachine.harness.chat_read import split_thinking
from libmachine.intake import line_of

TAGS = ["<think>", "</think>", "<Thinking>", "`<think>", "a", " b ", "\n"]
LONG = os.environ.get("MACHINE_CHAOS") == "long"
ON_DISK = ("log_lines", "index", "store_ref", "side_files")
"""Targets that copy a store for each input."""


def bounded(name: str, quick: int, slow: int) -> settings:
    number = (slow if name in ON_DISK else quick) * (100 if LONG else 1)
    return settings(
        max_examples=number, database=None, suppress_health_check=list(HealthCheck), print_blob=False
    )


def read(name: str, data: bytes) -> float:
    """Processor seconds that a target took; only what a user is told may come out of it."""
    began = time.process_time()
    try:
        TARGETS[name].read(data)
    except targets.EXPECTED:
        pass
    return time.process_time() - began


@pytest.mark.parametrize("name", TARGETS)
def test_nearly_right_bytes(name: str) -> None:
    target = TARGETS[name]
    for seed in target.seeds:
        read(name, seed)

    @bounded(name, 150, 4)
    @given(st.integers(0, 2**40))
    def tried(seed: int) -> None:
        chance = Random(seed)
        read(name, mutated(chance.choice(target.seeds or [b""]), target.words, chance, target.most))

    tried()


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    @bounded(name, 20, 2)
    @given(st.binary(max_size=300))
    def tried(data: bytes) -> None:
        read(name, data)

    tried()


SLOW = {
    "case": [b'{"input":"x","files":{"%s":""}}' % (b"a/" * 50_000 + b"a")],
    "chat": [
        b":\n" * 50_000,
        b'data: {"choices":[{"delta":{"content":"'
        + b"</think>" * 12_000
        + b'<think>"}}]}\n\ndata: [DONE]\n\n',
    ],
    "sampled": [b"</think>" * 12_000 + b"<think>", b"<tool_call>{" + b'"a":1,' * 16_000 + b'"name":"x"}'],
    "judge": [b"<think>**" * 11_000, b"<think>" * 14_000],
    "csv": [b",target" * 14_000],
    "rubric": [b"a" + b".a" * 50_000 + b"=1", b"a=" + b"[" * 50_000],
}
"""Inputs that took the square of their length, or more."""


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ON_DISK])
def test_long_bytes_take_no_long_time(name: str) -> None:
    chance = Random(f"{name} {os.environ.get('MACHINE_CHAOS_SEED', '8')}")
    target = TARGETS[name]
    made = [repeated(target.words or [b"x"], chance, target.most) for _ in range(300 if LONG else 3)]
    for data in [*SLOW.get(name, ()), *made]:
        took = min(read(name, data) for _ in range(1))
        if took > 1:  # once more: the first time other things may have been made ready
            took = read(name, data)
        assert took <= 1, (took, data[:60], data[-60:])


FOUND = [
    ("case", b'{"type":"run","case":{"input":"x"},"workspace":["a"]}'),
    ("case", b'{"input":[{"role":"assistant","content":"a","tool_calls":[{}]}]}'),
    ("note", b'{"type":"verdict","machine":[]}'),
    ("note", b'{"type":"verdict","machine":"m","arms":{"cases":7},"candidate":{}}'),
    ("record", b'{"type":"candidate","training":["control"]}'),
    ("tree", b"100644 a\0\1\1"),
    ("tree", b"1\xb2 a\0" + b"\1" * 20),
    ("rubric", b"a = " + b"9" * 5000),
    ("rubric", b"a = " + b"[" * 5000),
    ("exam", b'[{"input": "a", "metadata": ' + b"[" * 240 + b"]" * 240 + b"}]"),
    ("exam", b'[{"input": "a"},\n{"input": "b"}]\n'),
    ("promptfoo", b'{"tests":[{"vars":{"input":"x"}}],"defaultTest":{"vars":[1],"assert":5}}'),
    ("promptfoo", b'{"tests":[{"vars":{"input":"x"},"metadata":[1],"assert":7}]}'),
    ("promptfoo", b'{"tests":"\\u0000"}'),
    ("promptfoo", b"[" * 5000),
    ("promptfoo", b"tests:\n- vars: {input: 2001-99-99}\n"),
    ("promptfoo", b"tests:\n- vars: {1: x, a: y}\n"),
    ("promptfoo", b"a: &a [x,x,x,x,x,x,x,x]\n"
     b"b: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
     b"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n"
     b"g: &g [*f,*f,*f,*f,*f,*f,*f,*f]\ntests:\n- vars: {input: {g: [*g,*g,*g,*g,*g,*g]}}\n"),
    ("inspect", b'{"input":[{"role":"user","content":"x","tool_calls":[7]}]}'),
    ("inspect", b'{"input":[{"role":"user","content":"x","tool_calls":7}]}'),
    ("inspect", b'{"eval":{},"samples":7}'),
    ("store_ref", b"\xc0\x8a" + b"0" * 38),
    ("side_files", b'{"remote":"r","offset":-5,"mark":"m","tips":[]}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{n}-{i}" for i, (n, _) in enumerate(FOUND)])
def test_what_once_ended_as_a_bug(name: str, data: bytes) -> None:
    read(name, data)


@settings(max_examples=3000 if LONG else 100, database=None)
@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"[", b"[1,2", b"]", b"[{}]", b"{", b'"'])))
)
@example([b"", b"[1, 2"])
@example([b"\xef\xbb\xbf[", b"x"])
def test_bad_lines_take_no_good_ones_along(bad: list[bytes]) -> None:
    targets.check_good_lines(bad)


def test_a_first_line_that_begins_like_an_array() -> None:
    found = list(targets.lines(b'[{"a": 1}\n{"b": 2}\n\n"c"\n'))
    assert [(line.number, line.value) for line in found] == [(1, None), (2, {"b": 2}), (4, "c")]
    # but a whole one over several lines is one, and a broken one is told once
    assert [line.value for line in targets.lines(b'[\n{"a": 1},\n"c"\n]\n')] == [{"a": 1}, "c"]
    assert [line.number for line in targets.lines(b'[\n{"a": 1},\n{"b" 2},\n]\n')] == [1]
    deep = b'["x", ' + b"[" * 400 + b"]" * 400 + b', "y"]'
    assert [line.value for line in targets.lines(deep)] == ["x", None, "y"]


def test_a_case_that_could_not_be_read_back_is_refused() -> None:
    """What a case's messages hold goes into the run, whose readers are strict: it would be paid in vain."""
    for message in (
        {"role": "assistant", "content": "a", "reasoning": 5},
        {"role": "tool", "content": "a", "tool_call_id": 5},
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "x", "function": {"name": "y"}}]},
    ):
        with pytest.raises(MachineError, match="message 1 of 'input'"):
            targets.read_case({"input": [message]})
    kept = targets.read_case({"input": [{"role": "tool", "content": "a", "tool_call_id": "x"}]})
    assert targets.read_case(targets.orjson.loads(line_of(kept)))["identity"] == kept["identity"]


@given(st.lists(st.sampled_from(TAGS), max_size=9))
def test_thinking_is_parted_from_text(pieces: list[str]) -> None:
    """Nothing is lost and nothing is in both."""
    text, thoughts = split_thinking("".join(pieces))
    letters = [piece.strip() for piece in pieces if piece.strip() in ("a", "b")]
    assert sorted(c for c in text + thoughts if c in "ab") == sorted(letters)


def test_a_ref_named_with_a_line_separator(tmp_path: Path) -> None:
    """Git lets a ref's name have them: the listing is still read line by line."""
    repo = tmp_path / "repo"
    targets.git("init", "-q", str(repo))
    (repo / ".git/refs/heads").mkdir(exist_ok=True)
    targets.git("-C", str(repo), "commit", "-q", "--allow-empty", "-m", "one")
    for name in ("a\u2028b", "a\u0085b"):
        targets.git("-C", str(repo), "branch", name)
    found = list_refs(open_repository(str(repo)), "refs/heads/")
    assert {ref.name for ref in found} >= {"refs/heads/a\u2028b", "refs/heads/a\u0085b"}

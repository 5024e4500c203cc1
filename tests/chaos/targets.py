"""Every reader of bytes from outside, each as a function that a fuzzer may call with any bytes.

A target returns what it read, or raises what a user is told (MachineError and its kind). Anything else that
comes out is a fault of ours, as is a target that needs more than a second of processor time for 100 KB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from libmachine import cases, console, jsonl, redact, select, spend
from libmachine.budget.book import FileBook
from libmachine.canon import RecordError, canonical, dump_line, hash_of, plain
from libmachine.case import read_case
from libmachine.cmd import _show
from libmachine.define import Question, Run
from libmachine.errors import MachineError, ProviderError
from libmachine.export import Dropped, refusal, rows
from libmachine.folder import Criterion, Folder
from libmachine.gate import proof, question
from libmachine.gate.exam import effective_criteria, groups_of
from libmachine.gate.ranges import read_lines
from libmachine.git import notes, trees
from libmachine.graders import jev, panel, verdict
from libmachine.harness import loop, scripted, template
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.chat_bill import Failure, read_error
from libmachine.harness.chat_read import read_completion, split_thinking
from libmachine.harness.chat_stream import body_of
from libmachine.interchange.rows import Columns
from libmachine.leaks import alike
from libmachine.optimize import reply
from libmachine.record import VERSIONS, arrange, read_record, record_id
from libmachine.store import chain, fsck, keep, log, ref, repair
from libmachine.store.objects import Objects, tree_rows
from libmachine.store.store import Store
from libmachine.tools import Tool

DATA = Path(__file__).parent.parent / "data"
EXPECTED = (MachineError, OSError)
"""What a reader may raise. OSError only where a file is read, as any file may be unreadable."""


class Target(NamedTuple):
    """read: bytes in. seeds: good and half good examples. words: what its grammar is made of. bytes_: most
    that it is given at once."""

    read: Callable[[bytes], Any]
    seeds: list[bytes]
    words: list[bytes]
    most: int = 100_000


TARGETS: dict[str, Target] = {}
_JSON_WORDS = [
    *(b'{"', b'":', b'"', b",", b"[", b"]", b"{", b"}", b"null", b"true", b"1e400", b"-0.0", b"NaN"),
    *(b"9" * 30, b"\\ud800", b"\\u0000", b"\xff", b"\n", b"\xef\xbb\xbf", b'""', b"{}", b"[]", b'[""]'),
]


def target(*seeds: Any, words: list[bytes] | None = None, most: int = 100_000) -> Callable[[Any], Any]:
    """Register a reader under its name. A seed that is no bytes is written as JSON."""

    def register(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        raw = [seed if isinstance(seed, bytes) else json.dumps(seed).encode() for seed in seeds]
        own = [word for seed in raw for word in _strings(seed)]
        TARGETS[read.__name__] = Target(read, raw, [*dict.fromkeys([*(words or _JSON_WORDS), *own])], most)
        return read

    return register


def _strings(seed: bytes) -> list[bytes]:
    """The names and texts of a seed of JSON, for the fuzzer's dictionary."""
    found: list[bytes] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                found.append(json.dumps(name).encode())
                walk(item)
        elif isinstance(value, list):
            for item in value[:20]:
                walk(item)
        elif isinstance(value, str) and len(value) < 40:
            found.append(json.dumps(value).encode())

    for line in seed.splitlines()[:5]:
        with contextlib.suppress(ValueError):
            walk(json.loads(line))
    return found[:200]


@cache
def room() -> str:
    """A directory of this process, in memory."""
    os.makedirs("/dev/shm", exist_ok=True)
    path = tempfile.mkdtemp(prefix=f"machine-fuzz-{os.getpid()}-", dir="/dev/shm")
    import atexit

    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def written(name: str, data: bytes) -> str:
    """A file with these bytes."""
    path = f"{room()}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


RUN = json.loads((DATA / "run-v1.jsonl").read_bytes())
CARD = json.loads((DATA / "scorecard-v1.jsonl").read_bytes())
GATE = json.loads((DATA / "vectors_gate.json").read_bytes())
GOOD = [b'{"input":"one"}\n', b'"two"\n', b'{"id":"x","input":[{"role":"user","content":"three"}]}\n']


# lines and records ----------------------------------------------------------------------


@target(b"".join(GOOD), b'[{"a":1},\n"b"]', b"[1,2\n{}\n", b"\xef\xbb\xbf\n\n{}\r\n")
def lines(data: bytes) -> Any:
    found = list(jsonl.parsed(io.BytesIO(data)))
    for line in found:
        assert (line.error is None) or line.value is None
    return found


@target(
    *GOOD,
    {"input": "x", "files": {"a/b.txt": "t", "a/c": "u"}, "target": {"k": [1]}, "metadata": {"group": "g"}},
    {
        "type": "run",
        "case": {"input": "x"},
        "workspace": {"before": "4b825dc642cb6eb9a060e54bf8d69288fbee4904"},
    },
    {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "id": 5},
)
def case(data: bytes) -> Any:
    read = []
    objects = Objects(f"{room()}/objects", False)
    for line in jsonl.parsed(io.BytesIO(data)):
        if line.error is None:
            with contextlib.suppress(RecordError):
                read.append(read_case(line.value))
                canonical(read[-1])
                dump_line(read[-1])
                if len(data) < 2000 and read[-1].get("files"):
                    objects.files(read[-1]["files"])
    if len(data) < 5000:
        alike(read, read)
    return read


def _adopted(value: Any, kind: str) -> Any:
    """The value with the id that its content has: what lies behind that check is reached."""
    if not isinstance(value, dict):
        return value
    value = dict(value)
    card = value.get("scorecard")
    try:
        if isinstance(card, dict):
            card = plain(card)
            value["scorecard"] = {**card, "id": record_id(card)}
        value = plain({**value, "type": kind}, exact=False)
        return {**value, "id": record_id(value)}
    except (KeyError, TypeError, AttributeError, RecordError):
        return value


@target({**RUN, "scorecard": CARD}, RUN)
def run(data: bytes) -> Any:
    for line in jsonl.parsed(io.BytesIO(data)):
        if line.error is not None:
            continue
        for value in (line.value, _adopted(line.value, "run")):
            try:
                record = read_record(value, "run")
            except RecordError:
                continue
            dump_line(arrange("run", record))
            for wanted in (select.Wanted(best=1, distinct=True), select.Wanted(passing=True, min_score=0.5)):
                list(select.select([(line.raw, record)], wanted))
            for form in ("openai", "cookbook", "trl") if refusal(record, False) is None else ():
                for example in rows([record], form, False, False, Dropped()):
                    dump_line(example)
            _show.conversation(record)
            _show._for_people({**record, "split": None})
            told = Run(record)
            _ = told.turns, told.tool_calls, told.output
    return None


@target(
    CARD,
    {
        "type": "candidate",
        "v": 1,
        "id": "0" * 40,
        "machine": "m",
        "source": "train",
        "base_version": "0" * 40,
        "version": "0" * 40,
        "files": {},
        "data": {},
        "training": {"control": "placebo"},
    },
)
def record(data: bytes) -> Any:
    for line in jsonl.parsed(io.BytesIO(data)):
        kind = str(line.value.get("type")) if isinstance(line.value, dict) else None
        for name in VERSIONS if kind not in VERSIONS else (kind,):
            for value in (line.value, _adopted(line.value, name)):
                with contextlib.suppress(RecordError):
                    read = read_record(value, name)
                    dump_line(arrange(name, read))
                    if name == "scorecard":
                        _show.card(read)
                    if name == "candidate":
                        question.control_of(read)
    return None


# models ---------------------------------------------------------------------------------

_JUDGED = [
    b'Fine.\n{"id": "abcd1234", "criterion": "a", "reasoning": "so", "score": 0.5}',
    b'<think>{"score": 1}</think>Score: 8/10',
    b'```json\n{"reasoning": "uses {a:{b}}", "score": 0}\n``` \n',
    b'{"id":"abcd1234","score":"85%"} {"id":"abcd1234","score":NaN}',
]
_JUDGE_WORDS = [
    *(
        b"{",
        b"}",
        b'{"',
        b'"score":',
        b'"id":"abcd1234"',
        b"<think>",
        b"</think>",
        b"Score: ",
        b"score=",
        b"/10",
    ),
    *(
        b" out of ",
        b"%",
        b"**",
        b"\n",
        b"\xe2\x80\x8b",
        b"1e999",
        b"0.5",
        b"NaN",
        b"\\",
        b'"',
        b"`",
        b">",
        b"-",
        b"\t",
    ),
    *(b"\xef\xbc\x90", b"1" * 40, b"final ", b"."),
]


@target(*_JUDGED, words=_JUDGE_WORDS)
def judge(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    for call_id in (None, "abcd1234"):
        score, problem = verdict.parse_verdict(text, call_id)
        assert (score is None) != (problem is None)
        assert score is None or 0 <= score <= 1
    for reading in panel.read_panel(text, "abcd1234", ["a", "b"], "stop").values():
        assert (reading.score is None) != (reading.problem is None)
    reply.read(text)
    reply.quoted(text, [text[:100]], [["answer"]], "")
    return None


_ASKED = [
    (Criterion("a", "d", 1.0), Question("noul", "m", ())),
    (Criterion("b", "d", 1.0), Question("choice", "m", (("x", "t", 0.0), ("y", "u", 1.0)))),
    (Criterion("c", "d", 1.0), Question("score", "m", (("0", "t", 0.0), ("1", "u", 1.0)))),
]


@target(
    {
        "answers": {
            "a": {"type": "noul", "noul": 0.5},
            "b": {"type": "choice", "choice": "x", "probabilities": {"x": 0.9, "y": 0.1}},
            "c": {"type": "score", "score": 1, "probabilities": {"0": 0, "1": 1}},
        },
        "model": "m",
        "usage": {"input_tokens": 3, "cost": 0.1},
    },
)
def decision(data: bytes) -> Any:
    from libmachine.harness.jev import JevEngine, _message

    engine = JevEngine("jev/m", "http://127.0.0.1:1", "a-key-of-some-length")
    with contextlib.suppress(ProviderError):
        engine._read(data)
    _message(data)
    for mark in jev.read(data.decode("utf-8", "replace"), _ASKED).values():
        assert mark.error is not None or 0 <= mark.score <= 1  # type: ignore[operator]
    return None


class _Says:
    """An engine that gives one completion, as read from bytes."""

    name, model = "fuzz", "fuzz"

    def __init__(self, completion: Completion) -> None:
        self.completion = completion

    def complete(self, request: Request) -> Completion:
        return self.completion

    def close(self) -> None:
        """Nothing to let go of."""


def look(at: int, what: str = "x") -> str:
    """Look at something.

    at: where
    what: what
    """
    return f"{what} {at}"


TOOL = Tool(look)
_USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "completion_tokens_details": {"reasoning_tokens": 9},
    "prompt_tokens_details": {"cached_tokens": 1},
    "cost": 0.1,
    "cost_details": {},
    "is_byok": True,
}
_CALL = {"id": "c1", "type": "function", "index": 0, "function": {"name": "look", "arguments": '{"at": 1}'}}
_SAID = {
    "role": "assistant",
    "content": "<think>a</think> b",
    "reasoning_content": "r",
    "refusal": None,
    "tool_calls": [_CALL],
    "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "t"}],
}
_BODY = {"model": "m", "choices": [{"index": 0, "message": _SAID, "finish_reason": "stop"}], "usage": _USAGE}


def _sse(*chunks: Any) -> bytes:
    return (
        b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    )


@target(
    _BODY,
    {"error": {"message": "context length", "code": 400, "metadata": {"raw": "x"}}},
    {
        "choices": [
            {"message": {"content": [{"type": "text", "text": "a"}, "b"], "function_call": {"name": "look"}}}
        ]
    },
    _sse({"choices": [{"delta": _SAID, "index": 0}], "model": "m"}, {"usage": _USAGE, "choices": []}),
    _sse({"choices": [{"delta": {"tool_calls": [_CALL], "content": "x"}, "finish_reason": "tool_calls"}]}),
    b': ping\n\ndata: {"choices": [{"delta": {"content": "a"}}]}\r\n\r\nevent: x\nid: 1\ndata: [DONE]\n\n',
    words=[
        *_JSON_WORDS,
        b"data: ",
        b"\n\n",
        b": ",
        b":\n",
        b"<think>",
        b"</think>",
        b"[DONE]",
        b"event:",
        b"\r",
        b'"choices":[{"delta":',
        b'"index":',
        b'"content":"',
        b"<",
    ],
)
def chat(data: bytes) -> Any:
    body = body_of(data)
    if isinstance(body, Failure):
        return body
    read_error(body.get("error") or body, 500)
    read = read_completion(body, 3)
    if isinstance(read, Failure):
        return read
    given = {"input": "x"}
    made = loop.run(_Says(read), "say", given, {"look": TOOL}, Sampling(), loop.Limits(2, 5.0), 1)
    record = {**RUN, **made}
    dump_line(canonical(plain(record)) and record)
    _show.conversation(record)
    return made


@target(
    b'<think>so</think>Well.<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>',
    b'<tool_call>{"name": "look", "arguments": "{\\"at\\": 1}"',
    words=[
        *_JSON_WORDS,
        b"<tool_call>",
        b"</tool_call>",
        b"<think>",
        b"</think>",
        b'"name":',
        b'"arguments":',
        b"\n",
    ],
)
def sampled(data: bytes) -> Any:
    """Text of a local model."""
    text = data.decode("utf-8", "replace")
    canonical(plain(template.parse(text)))
    split_thinking(text)
    return None


@target(b'{"at": 1}', b'"{\\"at\\": 1, \\"what\\": \\"y\\"}"', b"null", b"[]", b"", b'{"at": "1", "q": {}}')
def arguments(data: bytes) -> Any:
    outcome = TOOL.call(data.decode("utf-8", "surrogateescape"))
    canonical([outcome.content, outcome.error])
    return outcome


@target(
    b"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07 \x9b2J \xe2\x80\xae",
    b"sk-abcdefghijklmnop1234567890 -----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n",
    words=[
        b"\x1b",
        b"[",
        b"]",
        b"P",
        b"\x07",
        b"\x1b\\",
        b"\xc2\x9b",
        b"\xc2\x9d",
        b"\xe2\x80\x8b",
        b"\n",
        b"sk-",
        b"-----BEGIN PRIVATE KEY-----",
        b"-----END ",
        b"\\n",
        b"A" * 30,
        b"ghp_",
        b"github_pat_",
        b"a1",
    ],
)
def shown(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    safe = console.safe(text)
    assert console._CONTROL.search(safe.replace("\n", "").replace("\t", "")) is None
    assert console.safe(safe) == safe
    console.one_line(text, 40)
    console.table([["a", text[:500]], ["b", safe[:500]]], 80)
    take = redact.redactor({"X_API_KEY": "a-secret-of-ours"})
    take(text)
    return safe


# a project's repository -----------------------------------------------------------------

_TREE = "a" * 40
_VECTOR = GATE[0] if isinstance(GATE, list) else next(iter(GATE.values()))
_NOTE = {
    "v": 1,
    "type": "verdict",
    "machine": "m",
    "baseline": "b" * 40,
    "candidate": _TREE,
    "rubric": "r",
    "graders": "g",
    "holdout": "h",
    "on": "score",
    "tries": 1,
    "decision": "promote",
    "rule": {"min_z": 2.0},
    "arms": {
        "cases": [f"{n:040d}" for n in range(6)],
        "groups": [None] * 6,
        "live": [[0.1, 0.2]] * 6,
        "candidate": [[0.8, 0.9], [0.7, 0.9]] * 3,
        "guards": {"a": {"guard": 0.1, "live": [[1]] * 6, "candidate": [[1]] * 6}},
    },
    "decided_at": "2026",
    "reasons": [],
    "id": "c" * 40,
    "forced": {"by": "x", "reason": "y"},
}
_EXAM = proof.Exam(
    frozenset({"m"}), "b" * 40, _TREE, "r", "h", "g", {f"{n:040d}": None for n in range(6)}, {"a": 0.1}
)


@target(_NOTE, {**_NOTE, "decision": "forced"}, {**_NOTE, "decision": "refuse", "on": "passed"})
def note(data: bytes) -> Any:
    records = notes.records_of(notes.lines_of([data]))
    for policy in (proof.Policy(), proof.Policy(strict=True, require_confirm=False)):
        proof.prove(records, _EXAM, policy)
    question.tries_of([records], "m", _TREE, {f"{n:040d}" for n in range(6)})
    return records


@target(
    b"100644 a\0" + b"\1" * 20 + b"40000 d\0" + b"\2" * 20, words=[b"100644 ", b"\0", b"\1" * 20, b"/", b" "]
)
def tree(data: bytes) -> Any:
    with contextlib.suppress(MachineError):
        list(tree_rows(data))
    return notes.parse_tree(data)


@target(
    b"%s %s refs/heads/main\n" % (b"0" * 40, b"1" * 40),
    b"refs/heads/x %s refs/heads/x %s\n" % (b"0" * 40, b"1" * 40),
    words=[b"0" * 40, b" ", b"\n", b"refs/heads/", b"\xe2\x80\xa8", b"\x0c", b"\r"],
)
def hook_lines(data: bytes) -> Any:
    return read_lines(data)


# a machine's folder ---------------------------------------------------------------------

_TOML = (
    b'[good]\ndescription = "It is good."\nweight = 1\npass_at = 0.5\nlevels = ["bad", "good"]\nguard = 0.1\n'
)
_TOML_WORDS = [
    *(
        b"[",
        b"]",
        b"=",
        b'"',
        b'"""',
        b"'''",
        b"{",
        b"}",
        b",",
        b".",
        b"\n",
        b"#",
        b"a=",
        b"[a]\n",
        b"[[a]]\n",
    ),
    *(
        b"1979-05-27T07:32:00",
        b"1e400",
        b"nan",
        b"inf",
        b"0x",
        b"9" * 30,
        b"true",
        b"\\u0000",
        b"a.",
        b"\xff",
        b"_",
    ),
    *(b"weight", b"levels", b"description", b"role", b"pass_at", b"guard", b'"audit"', b"9" * 5000),
]


@target(_TOML, b'a = {description = "x", levels = {"0" = "x", "1" = "y"}}\n', words=_TOML_WORDS)
def rubric(data: bytes) -> Any:
    root = f"{room()}/work/machines"
    written("work/machines/m/machine.py", b"")
    written("work/machines/m/rubric.toml", data)
    with contextlib.suppress(MachineError):
        for criterion in Folder(root, "m").criteria():
            hash_of(vars(criterion))
            canonical(criterion.text())
    return effective_criteria(trees.work_tree(f"{room()}/work"), "m")


@target(
    {
        "model": "tinker/x",
        "base": "y",
        "harness": "chat",
        "sampling": {"temperature": 0.5, "max_tokens": 10, "effort": "low"},
    }
)
def model(data: bytes) -> Any:
    written("folder/m/model.json", data)
    made = Folder(f"{room()}/folder", "m").model()
    canonical([made.model, made.base, made.harness, made.sampling])
    return made


@target(b"".join(GOOD), b'[\n{"input": "a", "metadata": {"group": "g"}},\n{"input": "b"}\n]\n')
def exam(data: bytes) -> Any:
    for read in (groups_of, question.holdout_hash):
        with contextlib.suppress(MachineError):
            read(data)
    written("folder/m/cases.jsonl", data)
    with contextlib.suppress(MachineError):
        Folder(f"{room()}/folder", "m").cases()
    cases.read_sides(Folder(f"{room()}/folder", "m"))
    return None


@target(
    {
        "match": "x",
        "instructions": "y",
        "trial": 1,
        "replies": [
            "a",
            {
                "content": "b",
                "delay_s": 0,
                "cost_usd": 0.1,
                "usage": {"prompt_tokens": 3},
                "tool_calls": [{"name": "look", "arguments": {"at": 1}}],
                "finish_reason": "stop",
            },
            {"tool_calls": [{"id": "i", "function": {"name": "look", "arguments": "{}"}}]},
        ],
    },
)
def rules(data: bytes) -> Any:
    engine = scripted.ScriptedEngine(written("rules", data))
    engine.rules = [
        dataclasses.replace(rule, trial=None, replies=[{**r, "delay_s": 0} for r in rule.replies])
        for rule in engine.rules
        if not any(letter in rule.match.pattern + rule.instructions.pattern for letter in "*+{?")
    ]
    made = loop.run(engine, "y", {"input": "x"}, {"look": TOOL}, Sampling(), loop.Limits(3, 5.0), 1)
    canonical(plain(made))
    return made


# other tools' files ---------------------------------------------------------------------

_HOME = DATA / "interchange"
_YAML = [
    *_JSON_WORDS,
    b"tests:\n",
    b"- vars:\n",
    b"    input: x\n",
    b"&a ",
    b"*a",
    b"!!",
    b": ",
    b"- ",
    b"\n  ",
    b"2001-99-99",
    b"<<: *a",
    b"? ",
    b"|\n",
    b"0b2",
    b"1:99:99",
    b".nan",
    b"0o9",
    b"{{input}}",
]


def _imported(data: bytes, source: str | None, as_table: bool = False) -> Any:
    for columns in (Columns(), Columns("question", "answer")):
        with contextlib.suppress(MachineError):
            for row in cases.rows(data, source, as_table, columns, f"{room()}/file"):
                if row.error is None:
                    with contextlib.suppress(RecordError):
                        canonical(read_case(row.value))
    return None


@target(
    (_HOME / "promptfooconfig.yaml").read_bytes(),
    (_HOME / "promptfoo-results.json").read_bytes()[:6000],
    {
        "tests": [{"vars": {"question": ["a", "b"], "x": 1}, "assert": [{"type": "equals", "value": "y"}]}],
        "defaultTest": {"vars": {}, "assert": []},
    },
    {"results": {"results": [{"testCase": {"vars": {"input": "x"}, "metadata": {}}, "vars": {}}]}},
    words=_YAML,
    most=20_000,
)
def promptfoo(data: bytes) -> Any:
    return _imported(data, "promptfoo")


@target(
    (_HOME / "inspect.jsonl").read_bytes(),
    {
        "eval": {},
        "samples": [
            {
                "id": 1,
                "epoch": 1,
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "x"}],
                        "tool_calls": [{"id": "a", "function": "f", "arguments": {}}],
                        "tool_call_id": "a",
                    }
                ],
                "choices": ["a"],
                "target": ["t"],
                "metadata": {"k": 1},
                "files": {"f": "data:;base64,eA=="},
            }
        ],
    },
    (_HOME / "inspect-log.eval").read_bytes(),
)
def inspect(data: bytes) -> Any:
    return _imported(data, "inspect")


@target({"input": "x", "ideal": ["a"]}, {"item": {"question": "x", "answer": "y", "metadata": "{}"}})
def evals(data: bytes) -> Any:
    return _imported(data, "openai-evals")


@target(
    b'input,target,id,metadata\r\n"a ""q""",b,1,"{""k"": 1}"\r\n,,,\r\n',
    words=[b",", b'"', b'""', b"\r", b"\n", b"input", b"target", b"\0", b"\xff", b"[1", b"{", b"id", b"\t"],
    most=30_000,
)
def csv(data: bytes) -> Any:
    _imported(data, None, True)
    return _imported(data, "inspect", True)


# the store ------------------------------------------------------------------------------


@cache
def _template() -> str:
    """A small whole store, made once; each call that writes takes a copy."""
    directory = f"{room()}/template"
    store = Store(directory, fsync=False)
    for number in range(3):
        made = {
            name: value
            for name, value in RUN.items()
            if name not in ("id", "split", "scorecard", "workspace")
        }
        made["case"] = {"id": f"c{number}", "identity": hash_of(number), "input": "x", "target": "t"}
        made |= {"trial": 1, "key": hash_of([number, 1])}
        stored = store.add_run(made, hash_of(number), {"tokens.0": store.blob(b"t")})
        card = {**CARD, "run": stored["id"], "machine": made["machine"]}
        del card["id"]
        store.add_scorecard(card)
    list(store.index.runs())
    store.close()
    return directory


def _copy(**files: bytes | None) -> str:
    directory = f"{room()}/store"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(_template(), directory, symlinks=True)
    for name, data in files.items():
        path = f"{directory}/{name.replace('__', '/')}"
        if data is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
    return directory


def _used(directory: str) -> int:
    """Read a store as the commands do; the number of runs."""
    store = Store(directory, fsync=False)
    try:
        found = list(store.index.runs())
        for row in found:
            with contextlib.suppress(MachineError):
                store.load_run(row)
            store.stored_answer(row["key"])
            store.marks(row["id"])
        store.index.matching("0000")
        store.index.machines()
    finally:
        store.close()
    return len(found)


def _mended(directory: str) -> None:
    """fsck finds what is wrong, --repair leaves nothing that a reader stumbles over."""
    for finding in fsck.check(directory, fsck.Report()):
        finding.line()
    for outcome in repair.repair(directory, False):
        outcome.finding.line()
    left = [finding for finding in fsck.check(directory, fsck.Report()) if not finding.note]
    assert not left, left


@cache
def _log() -> bytes:
    return Path(_template(), "records").read_bytes()


@target(words=_JSON_WORDS, most=20_000)
def log_lines(data: bytes) -> Any:
    """Lines in the middle of a log: those before and after it are still read."""
    head, tail = _log().splitlines(keepends=True)[:4], _log().splitlines(keepends=True)[4:]
    directory = _copy(records=b"".join(head) + data.rstrip(b"\n") + b"\n" + b"".join(tail))
    assert _used(directory) >= 3
    if len(data) < 3000:
        _mended(directory)
        assert _used(directory) >= 3
    return None


@target(words=[b"SQLite format 3\0", b"\0" * 20, b"\xff" * 4, b"CREATE TABLE", b"state"], most=40_000)
def index(data: bytes) -> Any:
    """Any bytes in place of the index: the answers come from the log."""
    directory = _copy(**{"index.db": data})
    assert _used(directory) == 3
    return None


@target(
    b"0" * 40 + b"\n",
    words=[b"0", b"a" * 40, b"\n", b"ref: ", b"refs/heads/x", b"\xff", b"..", b"/", b"\0"],
    most=5000,
)
def store_ref(data: bytes) -> Any:
    """Any bytes in a ref of the store, and in packed-refs."""
    name = chain.ref_of(RUN["machine"])
    directory = _copy(**{name.replace("/", "__"): data})
    ref.read(directory, name)
    _mended(directory)
    _mended(_copy(**{"packed-refs": data + b"\n%s %s" % (data, name.encode())}))
    return None


@target(
    b"17 " + b"0" * 40,
    {"remote": "r", "offset": 5, "mark": "m", "tips": {}},
    {"id": "0" * 40},
    {"records": ["0" * 40], "objects": [], "machines": ["m"], "tombstones": []},
    words=_JSON_WORDS,
    most=5000,
)
def side_files(data: bytes) -> Any:
    """Any bytes in the small files beside the log."""
    from libmachine.store import share_push

    directory = _copy(chained=data, shared=data, forgotten=data, format=None)
    chain.chained(directory, f"{directory}/records")
    keep.forgotten(directory)
    share_push._start(directory, "r", {})
    assert _used(directory) == 3
    return None


@target(
    b'{"type":"budget","v":1,"limit_usd":1.0,"above":null}\n{"type":"reserve","id":"a","at":"x","usd":0.5,"holder":{}}\n'
    b'{"type":"settle","id":"a","at":"x","usd":0.25,"prompt_tokens":3}\n{"type":"release","id":"b"}\n',
)
def ledger(data: bytes) -> Any:
    path = written("ledger", data)
    groups = spend.sums(spend.rows(path), "machine")
    canonical(spend.total(groups))
    book = FileBook(path)
    book.figures()
    book.take({"type": "reserve", "id": "n", "usd": 0.0}, True)
    return book.figures()


def git(*words: str) -> None:
    """Run git as somebody."""
    who = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": room(), "PATH": os.environ["PATH"]}
    who |= {
        f"GIT_{role}_{part}": "t@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    subprocess.run(["git", *words], check=True, env=who)


def check_good_lines(bad: list[bytes]) -> None:
    """Bad lines beside good ones: every good one is still read, in order."""
    mixed: list[bytes] = []
    for number, good in enumerate(GOOD):
        mixed += [good, *(line.replace(b"\n", b"") + b"\n" for line in bad[number::3])]
    for text in (b"".join(mixed), b"".join(mixed[1:] + mixed[:1])):
        values = [line.value for line in jsonl.parsed(io.BytesIO(text)) if line.error is None]
        wanted = [orjson.loads(line) for line in GOOD]
        assert all(value in values for value in wanted), (text, values)


_ = (sqlite3, threading, tomllib, log)  # imported before a fuzzer starts to count

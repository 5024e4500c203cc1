"""machine-export's rows: what is changed of a run, and what the libraries of each form make of them.

Those of the libraries run in the Python of the extra `sft` (MACHINE_PYTHON, which tests/run makes), all in
one process; what is compared is the decoded text that would be trained on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine import export
from libmachine.define import Run

ROOT = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("MACHINE_PYTHON", sys.executable)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"c{number}", "type": "function", "function": function}


def said(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def run(name: str, turns: Sequence[Mapping[str, Any]], passed: bool = True, **more: Any) -> dict[str, Any]:
    """A graded run of the turns; a call of `nosuch` failed."""
    messages = [*ASKED, *turns]
    steps = [
        {
            "message": index,
            "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            "tools": [
                {"name": one["function"]["name"], "ok": one["function"]["name"] != "nosuch"}
                for one in message.get("tool_calls") or ()
            ],
        }
        for index, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return {
        "id": name,
        "machine": "m",
        "version": "0" * 40,
        "trial": 1,
        "status": "ok",
        "stop_reason": "stop",
        "case": {"id": name, "identity": name, "input": "2+2?"},
        "messages": messages,
        "tools": [TOOL] if any(message.get("tool_calls") for message in turns) else [],
        "steps": steps,
        "output": str(messages[-1]["content"]),
        "usage": {},
        "scorecard": {"score": 1.0 if passed else 0.0, "passed": passed},
        **more,
    }


def result(number: int = 1) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": "2"}


PLAIN = run("plain", [said("It is 4 — “four”.")])
THINKS = run("thinks", [said("4", reasoning="two and two", reasoning_field="reasoning_content")])
TURNS = run("turns", [said("4"), {"role": "user", "content": "and 3+3?"}, said("6")])
TOOLS = run(
    "tools",
    [
        said(None, tool_calls=[call("nosuch", '{"z":"lost"}')]),
        result(),
        said("", tool_calls=[call("add", '{"a":1}', 2)]),
        result(2),
        said("It is 2."),
    ],
)
ALL = [PLAIN, THINKS, TURNS, TOOLS]


# what is changed ------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=3))
def test_a_transform_changes_reasoning_alone(thoughts: list[str]) -> None:
    turns = [
        said(f"answer {n}", reasoning=thought, reasoning_field="x") for n, thought in enumerate(thoughts)
    ]
    one = run("r", [*turns, *TOOLS["messages"][2:]])
    before = json.dumps(one)
    made = export.transformed(one, [lambda text, of: text + "!", lambda text, of: f"{of.output}: {text}"])
    assert json.dumps(one) == before, "the run itself is as it was"
    told = [message.get("reasoning") for message in made["messages"] if message["role"] == "assistant"]
    assert told == [*(f"It is 2.: {thought}!" for thought in thoughts), None, None, None], "in their order"
    quiet = [{n: v for n, v in m.items() if n != "reasoning"} for m in one["messages"]]
    assert [{n: v for n, v in m.items() if n != "reasoning"} for m in made["messages"]] == quiet
    assert {n: v for n, v in made.items() if n != "messages"} == {
        n: v for n, v in one.items() if n != "messages"
    }


def test_the_providers_form_of_the_old_reasoning_goes() -> None:
    details = [{"type": "reasoning.text", "text": "old"}]
    one = run(
        "r", [said("4", reasoning="old", reasoning_details=details, reasoning_field="reasoning_details")]
    )
    assert export.transformed(one, [lambda text, of: "new"])["messages"][-1] == said("4", reasoning="new")


def fails(text: str, of: Run) -> str:
    raise KeyError(text)


@pytest.mark.parametrize(
    ("one", "function", "told"),
    [
        (PLAIN, lambda text, of: text, "no reasoning was captured"),
        (THINKS, fails, "KeyError: 'two and two'"),
        (THINKS, lambda text, of: None, "leaves no text"),
        (THINKS, lambda text, of: " ", "leaves no text"),
    ],
)
def test_what_cannot_be_transformed(one: Any, function: Callable[[str, Run], str], told: str) -> None:
    with pytest.raises(export.CannotChange, match=told):
        export.transformed(one, [function])


def test_instructions_take_the_place_of_those_that_were_given() -> None:
    new = export.instructed(TOOLS, "Be kind.")
    assert new["messages"] == [{"role": "system", "content": "Be kind."}, *TOOLS["messages"][1:]]
    assert export.targets(new) == export.targets(TOOLS) == [4, 6]
    none = export.instructed(TOOLS, "")
    assert none["messages"] == TOOLS["messages"][1:] and export.targets(none) == [3, 5]
    assert export.instructed(none, "Be brief.")["messages"] == TOOLS["messages"]
    own = [{"role": "system", "content": "of the case"}, {"role": "user", "content": "2+2?"}]
    bare = run(
        "bare", [said("4")], case={"id": "b", "identity": "b", "input": own}, messages=[*own, said("4")]
    )
    assert [m["content"] for m in export.instructed(bare, "Mine.")["messages"]] == [
        "Mine.",
        "of the case",
        "2+2?",
        "4",
    ]
    assert export.instructed(bare, "")["messages"] == bare["messages"], "a case's own system turn stays"


# forms ----------------------------------------------------------------------------------


def rows(form: str, runs: Sequence[Any], **more: Any) -> tuple[list[Any], list[str]]:
    dropped = export.Dropped()
    options = {"per_turn": False, "drop_reasoning": False, **more}
    return list(export.rows(runs, form, dropped=dropped, **options)), sorted(dropped.reasons)


def test_what_a_form_has_no_place_for_is_named() -> None:
    odd = run("odd", [said("", tool_calls=[call("add", "not json")]), result(), said("2")])
    image = run(
        "image", [said("4")], messages=[{"role": "user", "content": [{"type": "image_url"}]}, said("4")]
    )
    image["steps"][0]["message"] = 1
    assert rows("trl", [odd, image]) == (
        [],
        ["a call has arguments that are no JSON object", "a content is no text"],
    )
    found, told = rows("cookbook", [PLAIN, THINKS, TURNS, TOOLS, image])
    assert len(found) == 2 and [reason.partition(",")[0] for reason in told] == [
        "a content is no text",
        "it calls tools",
        "it has reasoning",
    ]


def pairs(*runs: Any) -> list[Any]:
    return list(export.as_pairs(runs, False, export.Dropped()))


def test_pairs_are_used_once_and_differ() -> None:
    bad = [run(f"bad{n}", [said(text)], passed=False) for n, text in enumerate(("5", "5", "7"))]
    good = [run(f"good{n}", [said("4")]) for n in range(3)]
    told = [(p["chosen"][0]["content"], p["rejected"][0]["content"]) for p in pairs(*good, *bad)]
    assert told == [("4", "5"), ("4", "7")]
    assert pairs(good[0], run("same", [said(" 4 ")], passed=False)) == []
    limit = run("limit", [said("4")], status="limit")
    assert pairs(limit, bad[0]) == [], "no good run that ended at a limit"


def test_each_form_as_its_library_reads_it(tmp_path: Path) -> None:
    """What would be trained on, and nothing else: no prompt, no result, no call that failed."""
    bad = run("bad", [said("", tool_calls=[call("add", '{"b":[1]}')]), result(), said("5")], passed=False)
    made: dict[str, list[Any]] = {
        "cookbook": rows("cookbook", ALL)[0],
        "openai": rows("openai", ALL)[0],
        "trl": rows("trl", ALL)[0],
        "dpo": pairs(TOOLS, bad) + pairs(PLAIN, run("worse", [said("5")], passed=False)),
    }
    asked = [("cookbook", "qwen3_instruct"), ("cookbook", "tml_v0"), ("cookbook", "role_colon")]
    asked += [("openai", name) for name in ("qwen3", "tml_v0", "local_chatml1")]
    lines = [
        {"form": form, "renderer": name, "row": row}
        for form, name in asked
        for row in made[form]
        if not (name == "local_chatml1" and row["metadata"]["run"] == "thinks")
    ]
    lines += [{"form": form, "renderer": "-", "row": row} for form in ("trl", "dpo") for row in made[form]]
    told = driven(tmp_path, lines)

    four = "It is 4 — “four”."
    assert told["cookbook qwen3_instruct"] == [[f"{four}<|im_end|>"], ["4<|im_end|>", "6<|im_end|>"]]
    assert told["cookbook role_colon"] == [[f" {four}\n\nUser:"], [" 4\n\n", " 6\n\nUser:"]]
    end = "<|end_message|><|content_model_end_sampling|>"
    inkling = lambda text: f"<|message_model|><|content_text|>{text}{end}"  # noqa: E731
    assert told["cookbook tml_v0"] == [[inkling(four)], [inkling("4"), inkling("6")]]

    empty, thought = "<think>\n\n</think>\n\n", "<think>\ntwo and two\n</think>\n\n"
    called = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert told["openai qwen3"] == [
        [f"{empty}{four}<|im_end|>"],
        [f"{thought}4<|im_end|>"],
        [f"{empty}4<|im_end|>", f"{empty}6<|im_end|>"],
        [f"{empty}{called}", f"{empty}It is 2.<|im_end|>"],
    ]
    assert told["openai tml_v0"] == [
        [inkling(four)],
        ["<|message_model|><|content_thinking|>two and two<|end_message|>" + inkling("4")],
        [inkling("4"), inkling("6")],
        [
            '<|message_model|>add<|content_invoke_tool_json|>{"name":"add","args":{"a":1}}' + end,
            inkling("It is 2."),
        ],
    ]
    assert told["openai local_chatml1"] == [
        [f"{four}<|im_end|>"],
        ["4<|im_end|>", "6<|im_end|>"],
        ['<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call><|im_end|>', "It is 2.<|im_end|>"],
    ]
    assert told["trl -"] == [
        [f"{four}<|end|>"],
        ["4<think>two and two</think><|end|>"],
        ["4<|end|>"],
        ["6<|end|>"],
        ['<call>add {"a": 1}<|end|>'],
        ["It is 2.<|end|>"],
    ]
    lost = '<call>nosuch {"z": "lost"}<|end|><|tool|>2<|end|><|assistant|><call>add {"a": 1}<|end|>'
    assert told["dpo -"] == [
        [
            f"{lost}<|tool|>2<|end|><|assistant|>It is 2.<|end|>",
            '<call>add {"b": [1]}<|end|><|tool|>2<|end|><|assistant|>5<|end|>',
        ],
        [f"{four}<|end|>", "5<|end|>"],
    ]


def driven(tmp_path: Path, lines: Sequence[Any]) -> dict[str, Any]:
    """What tests/sft_drivers/exports.py says."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    cache = os.environ.get("TEST_CACHE", str(Path.home() / ".cache" / "machine"))
    more = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "MACHINE_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [PYTHON, str(ROOT / "tests/sft_drivers/exports.py")],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env={**kept, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{PYTHON} (MACHINE_PYTHON; tests/run makes one): {done.stderr[-3000:]}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told

"""Graded runs of about 6 KB each, as JSON lines: 100 cases, tool calls, valid ids.

python tests/bench/graded_runs.py FILE MEGABYTES
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libmachine.canon import dump_line, plain
from libmachine.record import arrange, record_id

WORDS = ("the", "a", "of", "model", "answer", "tool", "file", "line", "case", "sum", "value", "list", "good")
WHEN = "2026-11-29T12:00:00.000Z"
COUNTS = {"prompt_tokens": 812, "cached_tokens": 0, "completion_tokens": 77, "reasoning_tokens": 0}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "read", "description": "Read.", "parameters": SCHEMA}}


def text(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


def trajectory(prompt: str, case_input: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and steps: two tool calls and an answer."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": prompt},
        {"role": "user", "content": case_input},
    ]
    steps = []
    for number in range(3):
        message: dict[str, Any] = {"role": "assistant", "content": text(60)}
        messages.append(message)
        step = {
            "message": len(messages) - 1,
            **COUNTS,
            "finish_reason": "stop",
            "model": "m",
            "started_at": WHEN,
            "duration_s": 1.25,
            "retries": 0,
            "cost_usd": 0.000123,
            "tools": [],
        }
        steps.append(step)
        if number < 2:
            name = f"call_{number}"
            call = {"name": "read", "arguments": json.dumps({"path": text(3)})}
            message["tool_calls"] = [{"id": name, "type": "function", "function": call}]
            step["tools"] = [{"id": name, "name": "read", "ok": True, "truncated": False, "duration_s": 0.01}]
            messages.append({"role": "tool", "tool_call_id": name, "content": text(120)})
    return messages, steps


def run_of(case: dict[str, Any], number: int, prompt: str, **fields: Any) -> dict[str, Any]:
    """A finished run of a case, as a plain record without id. number: makes it differ from others."""
    messages, steps = trajectory(prompt, case["input"])
    run: dict[str, Any] = {
        "v": 1,
        "type": "run",
        "machine": "bench",
        "version": f"{number % 3:040x}",
        "revision": {"commit": f"{7:040x}", "dirty": False},
        "case": {name: case[name] for name in ("id", "identity", "input", "target") if name in case},
        "trial": 1,
        "model": "m",
        "answered": "m",
        "harness": "openai",
        "sampling": {"temperature": 1, "top_p": 1, "seed": number},
        "limits": {"max_steps": 30, "timeout_s": 600},
        "messages": messages,
        "tools": [TOOL],
        "output": messages[-1]["content"],
        "stop_reason": "stop",
        "usage": {"calls": 3, **COUNTS, "cost_usd": 0.000369},
        "steps": steps,
        "started_at": f"2026-11-{1 + number // 86400 % 30:02}T{number // 3600 % 24:02}:"
        f"{number // 60 % 60:02}:{number % 60:02}.000Z",
        "duration_s": 3.75,
        "status": "ok",
        "key": f"{number:040x}",
    }
    plained: dict[str, Any] = plain({**run, **fields})
    return plained


def card_of(run: dict[str, Any], number: int) -> dict[str, Any]:
    """A scorecard of a run that has its id, as a plain record without id."""
    score = random.choices((0, 0.5, 1), (15, 15, 70))[0]
    grade = {"weight": 1, "reason": text(12), "score": score, "grader": "check:x@0123456789ab"}
    return {
        "v": 1,
        "type": "scorecard",
        "run": run["id"],
        "machine": run["machine"],
        "rubric": f"{3:040x}",
        "target": f"{4:040x}",
        "score": score,
        "passed": score == 1,
        "grades": [{"criterion": name, **grade, "key": f"{number:040x}"} for name in ("short", "polite")],
        "usage": {"calls": 0, **COUNTS, "cost_usd": 0},
        "graded_at": WHEN,
    }


def graded_run(number: int, prompt: str) -> dict[str, Any]:
    """The number-th run with its scorecard."""
    case = number % 100
    case_of = {"id": f"c{case}", "identity": f"{case:040x}", "input": f"{case} {prompt[:400]}"}
    run = run_of(case_of, number, prompt, trial=number // 100 + 1, version=f"{case % 3:040x}", split="cases")
    run["id"] = record_id(run)
    card = card_of(run, number)
    card["id"] = record_id(card)
    return arrange("run", {**run, "scorecard": card})


def main(path: str, megabytes: int) -> None:
    """Write whole lines until the size is reached."""
    random.seed(1)
    prompt = text(280)
    written = number = 0
    with open(path, "wb") as file:
        while written < megabytes * 1_000_000:
            number += 1
            written += file.write(dump_line(graded_run(number, prompt)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

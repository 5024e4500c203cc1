"""Held-back tests: run on the files that a run left, in a sandbox, judged outside of it.

    graders = {"hidden": hidden_tests(__file__)}

reads hidden.jsonl beside that file, a line a case:

    {"id": "leap", "tests": [
      {"name": "century", "code": "from dates import is_leap\\nresult = is_leap(1900)", "result": false},
      {"name": "no year", "code": "from dates import is_leap\\nis_leap('x')", "raises": "ValueError"},
      {"name": "prints", "command": "python3 dates.py 2024", "stdout": "leap", "exit": 0}]}

The process that runs what the agent wrote sees a test's code, and never what it should come to: it
answers with a value, and the comparison is made here. So to pass a test a program has to know the
answer. Replacing unittest, exiting early, printing OK or changing how Python starts make no answer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from libmachine import jsonl
from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.define import Check, Run
from libmachine.errors import MachineError
from libmachine.githash import blob_id

TIMEOUT_S = 20.0
_CODE_FIELDS, _COMMAND_FIELDS = (
    {"name", "code", "result", "raises"},
    {"name", "command", "stdin", "stdout", "exit"},
)
# Isolated (-I): no sitecustomize, variable or module of the agent's comes before this has what it needs.
_START = ("/usr/bin/python3", "-I", "-B", "-c")
_SUBJECT = """
import json, os, sys
told = json.loads(sys.stdin.buffer.read())
sys.path.insert(0, os.getcwd())
encode, write, space = json.dumps, os.write, {"__name__": "hidden"}
try:
    exec(compile(told["code"], "<test>", "exec"), space)
    answer = {"result": space.get("result")}
except BaseException as error:
    answer = {"raises": [kind.__name__ for kind in type(error).__mro__]}
try:
    text = encode(answer)
except (TypeError, ValueError):
    text = encode({"odd": type(answer.get("result")).__name__})
write(1, ("\\n" + told["mark"] + text + "\\n").encode())
"""


def hidden_tests(beside: str, name: str = "hidden.jsonl") -> Check:
    """A check by held-back tests: do all of them pass? None for a case that has none.

    beside: the machine's own __file__. A changed file of tests is another grader. Raises MachineError
    for a file that is not there, or a line that is wrong.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(beside)), name)
    try:
        with open(path, "rb") as file:
            version = blob_id(file.read())[:12]
    except OSError:
        raise MachineError(f"no file of held-back tests '{path}'") from None
    by_case = read_tests(path)

    def hidden(run: Run) -> tuple[bool, str] | None:
        case = run.record["case"]
        tests = by_case.get(case["identity"]) or by_case.get(str(case.get("id")))
        return grade(tests, run) if tests else None

    return Check(hidden, f"hidden_tests:{version}")


def grade(tests: Sequence[Record], run: Run) -> tuple[bool, str]:
    """(do all tests pass, which do not). What they should have come to is not told: reasons are
    shown to those who write instructions."""
    failed = [f"{test['name']} ({why})" for test in tests if (why := attempt(test, run))]
    passed = len(tests) - len(failed)
    told = f"{passed} of {len(tests)} held-back tests pass"
    return not failed, told + (f"; failed: {', '.join(failed)}" if failed else "")


def attempt(test: Mapping[str, Any], run: Run) -> str:
    """Why a test fails on the files of a run; empty if it passes. Raises MachineError where no sandbox is."""
    with run.workspace() as workspace:
        if "command" in test:
            stdin = test.get("stdin", "").encode()
            result = workspace.run(test["command"], stdin=stdin, timeout_s=TIMEOUT_S)
            if result.limit is not None:
                return f"over the limit of {result.limit}"
            if result.code != test.get("exit", 0):
                return f"exit {result.code}"
            printed = result.stdout.decode("utf-8", "replace").strip()
            return (
                "" if "stdout" not in test or printed == test["stdout"].strip() else "printed something else"
            )
        mark = secrets.token_hex(16)
        told = canonical({"code": test["code"], "mark": mark})
        result = workspace.run([*_START, _SUBJECT], stdin=told, timeout_s=TIMEOUT_S)
    if result.limit is not None:
        return f"over the limit of {result.limit}"
    return _difference(test, _answers(result.stdout, mark))


def _answers(stdout: bytes, mark: str) -> list[Any]:
    """What stands behind the mark. The mark is no secret of ours from the program: it tells an answer from
    what the program prints, it does not make one right."""
    found: list[Any] = []
    for line in stdout.split(b"\n"):
        if line.startswith(mark.encode()):
            try:
                found.append(loads(line[len(mark) :]))
            except RecordError:
                found.append(None)
    return found


def _difference(test: Mapping[str, Any], answers: Sequence[Any]) -> str:
    if len(answers) != 1 or not isinstance(answers[0], dict):
        return "no answer" if not answers else "answered more than once"
    answer = answers[0]
    raised = answer.get("raises")
    if isinstance(raised, list):
        return (
            ""
            if test.get("raises") in raised and "raises" in test
            else f"raised {str(raised[:1])[2:-2][:60]}"
        )
    if "raises" in test:
        return "raised nothing"
    if "result" not in answer:
        return "gave something else than a plain value"
    return "" if canonical(answer["result"]) == canonical(test["result"]) else "gave another value"


def read_tests(path: str) -> dict[str, list[Record]]:
    """Id or identity of a case -> its tests. Raises MachineError, naming the line that is wrong."""
    found: dict[str, list[Record]] = {}
    for line in jsonl.read_file(path):
        try:
            if line.error:
                raise RecordError(line.error)
            key, tests = _line(line.value)
            if key in found:
                raise RecordError(f"case '{key}' has tests above already")
            found[key] = tests
        except RecordError as error:
            raise MachineError(f"{path}: line {line.number}: {error}") from None
    return found


def _line(value: Any) -> tuple[str, list[Record]]:
    if not isinstance(value, dict) or set(value) not in ({"id", "tests"}, {"identity", "tests"}):
        raise RecordError('held-back tests are {"id" or "identity": ..., "tests": [...]}')
    tests = value["tests"]
    if not isinstance(tests, list) or not tests:
        raise RecordError("'tests' is a list of at least one test")
    for test in tests:
        _check(test)
    if len({test["name"] for test in tests}) < len(tests):
        raise RecordError("two tests have one name")
    return str(value.get("id", value.get("identity"))), tests


def _check(test: Any) -> None:
    if not isinstance(test, dict) or not isinstance(test.get("name"), str):
        raise RecordError("a test is an object with a 'name'")
    fields = _COMMAND_FIELDS if "command" in test else _CODE_FIELDS
    if unknown := set(test) - fields:
        raise RecordError(f"test '{test['name']}' has an unknown field '{min(unknown)}'")
    texts = [test[name] for name in ("code", "command", "stdin", "stdout", "raises") if name in test]
    if not all(isinstance(text, str) for text in texts) or not {"code", "command"} & set(test):
        raise RecordError(f"test '{test['name']}' has no 'code' or 'command', or one of its texts is none")
    if "code" in test and ("result" in test) == ("raises" in test):
        raise RecordError(f"test '{test['name']}' wants either 'result' or 'raises'")

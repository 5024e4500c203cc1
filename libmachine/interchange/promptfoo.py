"""promptfoo: tests of a configuration in, a configuration out.

A test has variables; one of them is the input. What a test asserts stands in the case's
metadata, where a check may read it, and goes out again as it came.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.errors import MachineError
from libmachine.interchange.rows import Columns, Row, Unfit, field, json_lines, table

_USUAL = ("input", "question", "query", "prompt", "message")
_SAYS_TARGET = ("equals", "contains", "icontains", "contains-any", "icontains-any", "similar", "factuality")
_FILLED = re.compile(r"\{\{-?\s*(?:input|target|env)\b")
"""What promptfoo fills in wherever it stands in a test of ours: variables, and the environment."""
_MOST = 10_000
"""Tests that lists of values may multiply one test to."""


def read(data: bytes, columns: Columns, directory: str | None) -> Iterator[Row]:
    """Cases of a promptfooconfig (YAML or JSON), or of a file of tests. Numbers count its tests.

    Raises MachineError if there is none, or no YAML reader.
    """
    config = _parsed(data)
    tests = config if isinstance(config, list) else _tests(config) if isinstance(config, dict) else None
    if not tests:
        raise MachineError("no 'tests' in it; name a promptfooconfig or a file of tests")
    default = config.get("defaultTest") if isinstance(config, dict) else None
    default = default if isinstance(default, dict) else {}
    for number, test in enumerate(_all(tests, directory), 1):
        try:
            if isinstance(test, Unfit):
                raise test
            yield from (Row(number, case) for case in _cases(test, default, columns))
        except Unfit as error:
            yield Row(number, None, str(error))


def _tests(config: Mapping[str, Any]) -> Any:
    """The tests of a configuration, or those of promptfoo's results, each once and as it was run."""
    results = config.get("results")
    if not isinstance(results, Mapping) or not isinstance(results.get("results"), list):
        return config.get("tests")
    found: dict[bytes, Any] = {}
    for result in results["results"]:
        if isinstance(result, Mapping) and isinstance(result.get("testCase"), Mapping):
            test = {**result["testCase"], "vars": result.get("vars") or result["testCase"].get("vars")}
            found.setdefault(canonical(test["vars"]), test)
    return list(found.values())


def _parsed(data: bytes) -> Any:
    """A value from JSON, else from YAML."""
    try:
        return loads(data)
    except RecordError:
        pass
    try:
        import yaml
    except ImportError:
        raise MachineError("this is no JSON, and YAML needs PyYAML; type: pip install pyyaml") from None
    try:
        return yaml.safe_load(io.BytesIO(data))
    except yaml.YAMLError as error:
        raise MachineError(f"no YAML: {' '.join(str(error).split())}") from None


def _all(tests: Any, directory: str | None) -> Iterator[Any]:
    """The tests, those in files beside the configuration too."""
    for test in tests if isinstance(tests, list) else [tests]:
        if not isinstance(test, str):
            yield test
            continue
        try:
            yield from _of_file(test.removeprefix("file://"), directory)
        except Unfit as error:
            yield error


def _of_file(name: str, directory: str | None) -> Iterator[Any]:
    top = os.path.realpath(directory) if directory is not None else None
    path = os.path.realpath(os.path.join(top or "", name))
    if top is None or not path.startswith(f"{top}/") or not os.path.isfile(path):
        raise Unfit(f"its tests are in '{name}', which is no file beside it; import that one by itself")
    with open(path, "rb") as file:
        data = file.read()
    kind = name.rsplit(".", 1)[-1]
    if kind == "csv":
        yield from map(_of_table, table(data))
    elif kind == "jsonl":
        yield from (Unfit(row.error) if row.error else row.value for row in json_lines(data))
    elif kind in ("yaml", "yml", "json"):
        found = _parsed(data)
        yield from found if isinstance(found, list) else [found]
    else:
        raise Unfit(f"its tests are made by '{name}'; run promptfoo and import what it writes")


def _of_table(row: Row) -> Any:
    """A test from a line of promptfoo's CSV, whose columns with two underscores are no variables."""
    if row.error is not None:
        return Unfit(row.error)
    variables = {name: value for name, value in row.value.items() if not name.startswith("__")}
    asserts = [_assertion(value) for name, value in row.value.items() if name.startswith("__expected")]
    test: Record = {"vars": variables, "assert": asserts}
    if "__description" in row.value:
        test["description"] = row.value["__description"]
    return test


def _assertion(text: str) -> Record:
    kind, colon, value = text.partition(":")
    if colon and re.fullmatch(r"[a-z-]+", kind.strip()):
        return {"type": kind.strip(), "value": value.strip()}
    return {"type": "equals", "value": text}


def _cases(test: Any, default: Mapping[str, Any], columns: Columns) -> Iterator[Record]:
    if not isinstance(test, Mapping) or not isinstance(test.get("vars") or default.get("vars"), Mapping):
        raise Unfit("a test is an object with 'vars'")
    variables = {**(default.get("vars") or {}), **(test.get("vars") or {})}
    asserts = [*(default.get("assert") or []), *(test.get("assert") or [])]
    lists = {name: value for name, value in variables.items() if isinstance(value, list)}
    ways = 1
    for value in lists.values():
        ways *= len(value)
    if ways > _MOST:
        raise Unfit(f"its lists of values make {ways} tests")
    for chosen in itertools.product(*lists.values()):
        yield _case({**variables, **dict(zip(lists, chosen, strict=True))}, test, asserts, columns)


def _case(
    variables: Mapping[str, Any], test: Mapping[str, Any], asserts: Sequence[Any], columns: Columns
) -> Record:
    source = field(variables, columns.input, _USUAL, "input") or (
        next(iter(variables)) if len(variables) == 1 else None
    )
    if source is None:
        raise Unfit(f"which variable is the input? --input {'|'.join(sorted(variables)) or 'NAME'}")
    goal = field(variables, columns.target, ("target", "expected"), "target")
    case: Record = {"input": variables[source]}
    if isinstance(case["input"], str) and case["input"].startswith("file://"):
        raise Unfit(f"its input is in '{case['input']}'; only texts can come along")
    case["input"] = _as_input(case["input"])
    metadata = dict(test.get("metadata") or {})
    name = metadata.pop("id", None)
    if name is not None:
        case = {"id": str(name), **case}
    if goal is not None:
        case["target"] = variables[goal]
    elif "target" in metadata:
        case["target"] = metadata.pop("target")
    else:
        for said in asserts:
            if isinstance(said, Mapping) and said.get("type") in _SAYS_TARGET and "value" in said:
                case["target"] = said["value"]
                break
    rest = {n: value for n, value in variables.items() if n not in (source, goal)}
    metadata = {**rest, **metadata}
    if asserts:
        metadata["assert"] = list(asserts)
    if test.get("description"):
        metadata["description"] = test["description"]
    return {**case, "metadata": metadata} if metadata else case


def _as_input(value: Any) -> Any:
    """A text, or the messages that a text of JSON holds, as promptfoo takes it."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            found = loads(value.encode())
        except RecordError:
            return value
        if found and all(isinstance(m, dict) and "role" in m and "content" in m for m in found):
            return found
    if isinstance(value, str):
        return value
    return canonical(value).decode() if isinstance(value, Mapping) else str(value)


# out ------------------------------------------------------------------------------------


def configuration(machine: str, tests: Sequence[Record]) -> Record:
    """A configuration that promptfoo runs as it is, with its own echo for a model."""
    return {
        "description": f"cases of {machine}",
        "prompts": ["{{input}}"],
        "providers": ["echo"],
        "tests": list(tests),
    }


def as_test(case: Mapping[str, Any]) -> Record:
    """A case as a test. Raises Unfit for what promptfoo would change: templates, names of files."""
    if case.get("files"):
        raise Unfit("it has files, which promptfoo's variables have no place for")
    given = case["input"]
    variables: Record = {"input": given if isinstance(given, str) else canonical(given).decode()}
    metadata = dict(case.get("metadata") or {})
    if isinstance(case.get("target"), str):
        variables["target"] = case["target"]
    elif "target" in case:
        metadata["target"] = case["target"]  # as a variable, a list of values would multiply the test
    test: Record = {}
    if isinstance(metadata.get("description"), str):
        test["description"] = metadata.pop("description")
    test["vars"] = variables
    if isinstance(metadata.get("assert"), list):
        test["assert"] = metadata.pop("assert")
    test["metadata"] = {"id": case["id"], **metadata}
    if _FILLED.search(canonical(test).decode()) or any(v.startswith("file://") for v in variables.values()):
        raise Unfit("it has a template or a file:// that promptfoo would fill in")
    return test

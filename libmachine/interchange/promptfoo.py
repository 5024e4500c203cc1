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

from libmachine.canon import OUTER_DEPTH, Record, RecordError, canonical, loads
from libmachine.errors import MachineError
from libmachine.interchange.rows import Columns, Row, Unfit, field, json_lines, mapping, sequence, table

_USUAL = ("input", "question", "query", "prompt", "message")
_SAYS_TARGET = ("equals", "contains", "icontains", "contains-any", "icontains-any", "similar", "factuality")
_FILLED = re.compile(r"\{\{-?\s*(?:input|target|env)\b")
"""What promptfoo fills in wherever it stands in a test of ours: variables, and the environment."""
_LARGEST = 200_000
"""Values of a test, a hundred characters counting for one."""
_MOST = 10_000
"""Tests that lists of values may multiply one test to."""


def read(data: bytes, columns: Columns, directory: str | None) -> Iterator[Row]:
    """Cases of a promptfooconfig (YAML or JSON), or of a file of tests. Numbers count its tests.

    Raises MachineError if there is none, or no YAML reader.
    """
    config = _loaded(data)
    tests = config if isinstance(config, list) else _tests(config) if isinstance(config, dict) else None
    if not tests:
        raise MachineError("no 'tests' in it; name a promptfooconfig or a file of tests")
    default = config.get("defaultTest") if isinstance(config, dict) else None
    try:
        default = _plain(default) if isinstance(default, dict) else {}
    except Unfit as error:
        raise MachineError(f"its defaultTest is no test: {error}") from None
    for number, test in enumerate(_all(tests, directory), 1):
        try:
            if isinstance(test, Unfit):
                raise test
            yield from (Row(number, case) for case in _cases(_plain(test), default, columns))
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
            try:
                found.setdefault(canonical(test["vars"]), test)
            except RecordError:  # told where it is read
                found[b"%d" % len(found)] = test
    return list(found.values())


def _plain(value: Any) -> Any:
    """A value of YAML as JSON has it: every name a text, dates as they are written. Raises Unfit."""
    room = _LARGEST

    def walk(value: Any, depth: int) -> Any:
        nonlocal room
        room -= 1 + (len(value) // 100 if isinstance(value, str) else 0)
        if room < 0 or not depth:  # a few aliases of aliases make billions
            raise Unfit("it is too large, or nested too deeply")
        if isinstance(value, Mapping):
            return {str(name): walk(item, depth - 1) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(item, depth - 1) for item in value]
        return value if isinstance(value, str | int | float | None) else str(value)

    return walk(value, OUTER_DEPTH)


def _loaded(data: bytes) -> Any:
    """A value from JSON, else from YAML. Raises MachineError."""
    try:
        return _parsed(data)
    except RecursionError:
        raise MachineError("its lists and objects are nested too deeply") from None
    except ValueError as error:  # what YAML takes for a date or number, and is none
        raise MachineError(f"no YAML: {' '.join(str(error).split())}") from None


def _parsed(data: bytes) -> Any:
    """A value from JSON, else from YAML. Raises MachineError, ValueError and RecursionError."""
    try:
        return loads(data)
    except RecordError:
        pass
    try:
        import yaml
    except ImportError:
        raise MachineError("this is no JSON, and YAML needs PyYAML; type: pip install pyyaml") from None
    try:
        # the loader in C, where there is one: the other takes the square of the depth
        return yaml.load(io.BytesIO(data), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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
    if "\0" in name:
        raise Unfit("its tests are in a file whose name has a zero byte")
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
        found = _loaded(data)
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
    variables = {
        **mapping(default.get("vars"), "'vars' of defaultTest"),
        **mapping(test.get("vars"), "'vars'"),
    }
    asserts = [
        *sequence(default.get("assert"), "'assert' of defaultTest"),
        *sequence(test.get("assert"), "'assert'"),
    ]
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
    metadata = dict(mapping(test.get("metadata"), "'metadata'"))
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

"""Cases: what a machine is run on, and what makes two of them the same.

A case is {id?, input (text or messages), target?, files? {path: text}, metadata?}; a bare
text is a case. Its identity is the hash of input (as messages) and files: selection,
split and holdout compare identities, never names or positions.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from libmachine import jsonl
from libmachine.canon import OUTER_DEPTH, Record, RecordError, called, hash_of, plain
from libmachine.console import one_line
from libmachine.githash import EMPTY_TREE, blob_id
from libmachine.record import odd_message, problems

CASE_FIELDS = ("id", "input", "target", "files", "metadata")
LONGEST_PATH, DEEPEST_PATH = 1000, 100
"""Bytes and directories of a file's path."""
ROLES = ("system", "developer", "user", "assistant", "tool")


def as_messages(case_input: Any) -> list[Record]:
    """A case's input as messages: a text is one user message."""
    return [{"role": "user", "content": case_input}] if isinstance(case_input, str) else case_input


def identity(case_input: Any, files: Mapping[str, str] | None = None) -> str:
    """Identity of a case: hash of its input as messages and of its files (path -> blob id)."""
    blobs = {path: blob_id(text.encode()) for path, text in (files or {}).items()}
    return hash_of({"input": as_messages(case_input), "files": blobs})


def label(case: Mapping[str, Any], room: int) -> str:
    """What a table calls a case, in at most room columns: its id; one that is only the beginning of its
    identity says nothing to people, so what was asked follows it."""
    if case["id"] != case["identity"][:12]:
        return one_line(case["id"], room)
    asked = case.get("input") or ""
    if not isinstance(asked, str):
        texts = [m.get("content") for m in asked if m["role"] == "user" and isinstance(m.get("content"), str)]
        asked = str(texts[-1]) if texts else ""
    return one_line(f"{case['id'][:8]} {asked}", room)


def read_case(value: Any) -> Record:
    """A case from a line: a text, an object, or a run whose case is meant.

    Returns {id, identity, input, target?, files?, metadata?}. Raises RecordError.
    """
    if isinstance(value, str):
        value = {"input": value}
    if not isinstance(value, dict):
        raise RecordError(f"a case is a text or an object, not {called(value)}")
    if value.get("type") == "run" and isinstance(value.get("case"), dict):
        trees = value.get("workspace")
        if isinstance(trees, dict) and trees.get("before", EMPTY_TREE) != EMPTY_TREE:
            raise RecordError("run had files, which its line does not carry; take the case from its file")
        value = {name: item for name, item in value["case"].items() if name in CASE_FIELDS}
    case: Record = plain(value, OUTER_DEPTH)
    unknown = [name for name in case if name not in CASE_FIELDS]
    if unknown:
        raise RecordError(
            f"case has an unknown field '{unknown[0]}'; it may have {', '.join(CASE_FIELDS)} "
            "(put the rest under metadata)"
        )
    if case.get("input") is None:
        raise RecordError("case has no 'input'")
    _check_input(case["input"])
    files = case.get("files")
    if files is not None and not (
        isinstance(files, dict) and all(isinstance(t, str) for t in files.values())
    ):
        raise RecordError("'files' of a case maps paths to texts")
    for path in files or ():
        parts = path.split("/")
        if path.startswith("/") or not path or {"", ".", "..", ".git"} & set(parts) or "\0" in path:
            raise RecordError(f"file '{path}' of a case is outside its directory; use a relative path")
        if len(path.encode()) > LONGEST_PATH or len(parts) > DEEPEST_PATH:
            raise RecordError(
                f"file '{path[:40]}...' of a case has a path too long for most systems; shorten it"
            )
    folders = {path[:end] for path in files or () for end, letter in enumerate(path) if letter == "/"}
    if twice := folders & set(files or ()):
        raise RecordError(f"case has '{min(twice)}' both as a file and as a directory; rename one")
    if not isinstance(case.get("metadata") or {}, dict):
        raise RecordError("'metadata' of a case is an object")
    case["identity"] = identity(case["input"], files)
    name = case.get("id")
    if name is None or name == "":
        case["id"] = case["identity"][:12]
    elif not isinstance(name, str | int) or isinstance(name, bool):
        raise RecordError("'id' of a case is a text")
    else:
        case["id"] = str(name)
    return case


def _check_input(value: Any) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not value:
        raise RecordError("'input' of a case is a text or a list of messages")
    for number, message in enumerate(value, 1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise RecordError(f"message {number} of 'input' has no role of {', '.join(ROLES)}")
        if fault := odd_message(message) or next(iter(problems("message", message)), None):
            raise RecordError(f"message {number} of 'input': {fault}")


def cases_in(data: bytes | None) -> Iterator[Record]:
    """The cases in the bytes of a file of cases; none of None. Raises RecordError for a line that is none."""
    for line in jsonl.parsed(io.BytesIO(data or b"")):
        if line.error is not None:
            raise RecordError(f"line {line.number}: {line.error}")
        yield read_case(line.value)


def is_kept_out(case: Mapping[str, Any]) -> bool:
    """Has the case failed a control, so that no gate judges by it? `machine-suite --keep-out` marks it."""
    metadata = case.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("kept_out"))

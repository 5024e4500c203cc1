"""machine-cases' files: rows in from a file of some tool, lines out at the end of a machine's own.

A file is rewritten whole and renamed into place under a lock, its old lines byte for byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from libmachine import jsonl
from libmachine.canon import Record, RecordError, dump_line
from libmachine.case import read_case
from libmachine.errors import MachineError
from libmachine.folder import Folder
from libmachine.intake import EXAM, PRACTICE, line_of
from libmachine.interchange import evals, inspect_read, promptfoo
from libmachine.interchange.rows import Columns, Row, Unfit, json_lines, put, table

FROM = ("inspect", "promptfoo", "openai-evals")


def rows(
    data: bytes, source: str | None, as_table: bool, columns: Columns, path: str | None
) -> Iterator[Row]:
    """Rows of a file. source: one of FROM, None: cases as they are. path: where it lies, None: stdin.

    Raises MachineError if the file as a whole cannot be read.
    """
    directory = os.path.dirname(os.path.abspath(path)) if path is not None else None
    tabs = bool(path and path.endswith(".tsv"))
    as_table = as_table or bool(path and path.endswith((".csv", ".tsv")))
    if source == "inspect":
        return inspect_read.read(data, columns, directory, as_table)
    if source == "promptfoo":
        return promptfoo.read(data, columns, directory)
    if source == "openai-evals":
        return evals.read(data, columns)
    if as_table:
        return _put(table(data, tabs), columns)
    found = json_lines(data)
    return found if columns == Columns() else _put(found, columns)


def _put(found: Iterator[Row], columns: Columns) -> Iterator[Row]:
    for row in found:
        if row.error is None and not isinstance(row.value, dict):
            row = Row(row.number, None, "it is no object, so it has no such field")
        try:
            yield row if row.error is not None else Row(row.number, put(row.value, columns))
        except Unfit as error:
            yield Row(row.number, None, str(error))


def read_sides(folder: Folder) -> tuple[dict[str, Sequence[Record]], list[str]]:
    """The cases of both files by side, and what is wrong with their lines, each with file and line.

    Lines that are no case, or whose id another input has, are left out of the first.
    """
    sides: dict[str, Sequence[Record]] = {}
    faults: list[str] = []
    for side in (PRACTICE, EXAM):
        cases: list[Record] = []
        path = folder.file(f"{side}.jsonl")
        ids: dict[str, tuple[str, int]] = {}
        seen: dict[str, int] = {}
        for line in jsonl.read_file(path) if os.path.exists(path) else ():
            try:
                if line.error:
                    raise RecordError(line.error)
                case = read_case(line.value)
                identity, number = ids.setdefault(case["id"], (case["identity"], line.number))
                if identity != case["identity"]:
                    raise RecordError(f"id '{case['id']}' is taken by line {number} with another input")
                if case["identity"] in seen:
                    raise RecordError(f"case '{case['id']}' is line {seen[case['identity']]} again")
            except RecordError as error:
                faults.append(f"{path}:{line.number}: {error}")
                continue
            seen[case["identity"]] = line.number
            cases.append(case)
        sides[side] = cases
    return sides, faults


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Hold the folder, so that two imports at once lose no line."""
    fd = os.open(folder.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_sample(case: Any) -> bool:
    """Is this one of machine-new's sample cases, which wait to be replaced?"""
    metadata = case.get("metadata") if isinstance(case, dict) else None
    return isinstance(metadata, dict) and metadata.get("replace") == "me"


def append(folder: Folder, side: str, cases: Sequence[Record]) -> None:
    """Add cases to the end of a side's file, whole or not at all, and take machine-new's samples out.

    The other lines stay as they are. A file that would be empty goes. Raises MachineError for a JSON array.
    """
    path = os.path.realpath(folder.file(f"{side}.jsonl"))
    old = folder.read(f"{side}.jsonl") or b""
    if old.lstrip().startswith(b"["):
        raise MachineError(f"{path} is a JSON array; make it lines first: jq -c '.[]' {path}")
    lines = list(jsonl.parsed(io.BytesIO(old)))
    if any(is_sample(line.value) for line in lines):
        old = b"".join(line.raw for line in lines if not is_sample(line.value))
    text = old + (b"" if not old or old.endswith(b"\n") else b"\n") + b"".join(map(line_of, cases))
    _replace(path, text)


def mark_kept_out(folder: Folder, name: str, tried: Mapping[str, str | None]) -> int:
    """Write into the cases of a file whether they failed a control; how many lines changed.

    name: `holdout.jsonl`, say. tried: identity -> the control that failed, None if all held; then a mark of
    before goes. Lines that stay alike stay byte for byte. Raises MachineError for a JSON array.
    """
    path = os.path.realpath(folder.file(name))
    old = folder.read(name) or b""
    if old.lstrip().startswith(b"["):
        raise MachineError(f"{path} is a JSON array; make it lines first: jq -c '.[]' {path}")
    lines, changed = [], 0
    for line in jsonl.parsed(io.BytesIO(old)):
        raw = line.raw if line.error else _marked(line.raw, line.value, tried)
        changed += raw != line.raw
        lines.append(raw)
    if changed:
        _replace(path, b"".join(lines))
    return changed


def _marked(raw: bytes, value: Any, tried: Mapping[str, str | None]) -> bytes:
    """The line of a case with its mark as it should be; the same bytes if that is so."""
    case = read_case(value)
    metadata = dict(case.get("metadata") or {})
    if case["identity"] not in tried or tried[case["identity"]] == metadata.get("kept_out"):
        return raw
    metadata["kept_out"] = tried[case["identity"]]
    if metadata["kept_out"] is None:
        del metadata["kept_out"]
    kept = dict(value) if isinstance(value, dict) else {"input": value}
    kept["metadata"] = metadata
    if not metadata:
        del kept["metadata"]
    return dump_line(kept)


def _replace(path: str, text: bytes) -> None:
    """Put a text in the place of a file, whole or not at all; an empty one takes the file away."""
    if not text.strip():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o666
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(path):
            os.chmod(temporary, mode)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

"""What readers of other tools' files yield: a row with its number, and a case or why it is none."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from libmachine import jsonl
from libmachine.canon import Record, called
from libmachine.errors import MachineError


class Row(NamedTuple):
    """number: from 1, of the line, or of the element where the file is one value. value: what
    libmachine.case.read_case takes, or None with the error."""

    number: int
    value: Any
    error: str | None = None


class Unfit(Exception):
    """A row that is no case; the message says why."""


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """A value that has to be an object, or is absent. Raises Unfit."""
    if value is not None and not isinstance(value, Mapping):
        raise Unfit(f"{what} is {called(value)}, not an object")
    return value or {}


def sequence(value: Any, what: str) -> Sequence[Any]:
    """A value that has to be a list, or is absent. Raises Unfit."""
    if value is not None and not isinstance(value, list):
        raise Unfit(f"{what} is {called(value)}, not a list")
    return value or []


class Columns(NamedTuple):
    """Fields that are named by the user: of the input and of the target; None: the tool's own."""

    input: str | None = None
    target: str | None = None


def json_lines(data: bytes) -> Iterator[Row]:
    """Rows of JSON lines, or of one JSON array."""
    for line in jsonl.parsed(io.BytesIO(data)):
        yield Row(line.number, line.value, line.error)


def table(data: bytes, tabs: bool = False) -> Iterator[Row]:
    """Rows of a CSV file with a header line, each an object of its non-empty cells.

    Raises MachineError if it is no UTF-8, has no header, or a column twice.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MachineError(f"the file is no UTF-8 at byte {error.start}; iconv -t utf-8 mends it") from None
    lines = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",", strict=True)
    csv.field_size_limit(1 << 30)
    header: list[str] | None = None
    while True:
        start = lines.line_num + 1
        try:
            cells = next(lines)
        except StopIteration:
            break
        except csv.Error as error:
            yield Row(start, None, f"no CSV: {error}")
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            if twice := {name for name, count in Counter(header).items() if count > 1}:
                raise MachineError(f"column '{min(twice)}' is there twice; rename one")
        elif len(cells) > len(header):
            yield Row(start, None, f"{len(cells)} cells under {len(header)} columns; quote cells with commas")
        else:
            yield Row(start, {name: cell for name, cell in zip(header, cells, strict=False) if cell.strip()})
    if header is None:
        raise MachineError("the file is empty; its first line names the columns")


def field(values: Mapping[str, Any], name: str | None, usual: Sequence[str], what: str) -> str | None:
    """The field that holds the input or target: the named one, else the first usual one that is there.

    Raises Unfit if a named one is not there.
    """
    if name is not None:
        if name not in values:
            raise Unfit(f"no '{name}' for the {what}; there is {', '.join(sorted(values)) or 'nothing'}")
        return name
    return next((known for known in usual if known in values), None)


def put(values: Mapping[str, Any], columns: Columns, targets: Sequence[str] = ("target",)) -> Record:
    """A case from flat fields: input, target, id; `group` and the rest are metadata. Raises Unfit."""
    source = field(values, columns.input, ("input",), "input")
    if source is None:
        raise Unfit(f"no 'input'; say which field is: --input {'|'.join(sorted(values)) or 'NAME'}")
    # a row may lack its target where the column is there
    goal = columns.target if columns.target in values else field(values, None, targets, "target")
    case: Record = {}
    if "id" in values and source != "id":
        case["id"] = str(values["id"])
    case["input"] = values[source]
    if goal is not None and goal != source:
        case["target"] = values[goal]
    rest = {name: value for name, value in values.items() if name not in ("id", source, goal)}
    metadata = rest.pop("metadata", None)
    if isinstance(metadata, str) and metadata.lstrip().startswith("{"):
        try:
            metadata = json.loads(metadata)
        except ValueError:
            pass
    if metadata is not None:
        rest = {**rest, **metadata} if isinstance(metadata, dict) else {**rest, "metadata": metadata}
    return {**case, "metadata": rest} if rest else case

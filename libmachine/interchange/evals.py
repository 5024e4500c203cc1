"""openai-evals: samples as JSON lines, {input: text or messages, ideal: text or texts}, both ways.

The hosted form, {item: {...}}, is read too; the fields of its items have whatever names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from libmachine.canon import Record
from libmachine.case import as_messages
from libmachine.interchange.rows import Columns, Row, Unfit, json_lines, put

_IDEALS = ("ideal", "ground_truth", "target")


def read(data: bytes, columns: Columns) -> Iterator[Row]:
    """Cases of a file of samples."""
    for row in json_lines(data):
        if row.error is not None:
            yield row
            continue
        try:
            sample = row.value
            if isinstance(sample, dict) and isinstance(sample.get("item"), dict):
                sample = sample["item"]
            if not isinstance(sample, dict):
                raise Unfit("a sample is an object with 'input' and 'ideal'")
            yield Row(row.number, put(sample, columns, _IDEALS))
        except Unfit as error:
            yield Row(row.number, None, str(error))


def sample(case: Mapping[str, Any]) -> Record:
    """A case as a sample. Raises Unfit for files."""
    if case.get("files"):
        raise Unfit("it has files, which openai-evals has no place for")
    row: Record = {"id": case["id"], "input": as_messages(case["input"])}
    if "target" in case:
        row["ideal"] = case["target"]
    return {**row, "metadata": case["metadata"]} if case.get("metadata") else row

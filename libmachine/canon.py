"""Canonical JSON: the one way to turn a value into bytes, and bytes into a value.

UTF-8, sorted keys, no spaces, shortest round-trip floats, integral floats as integers,
integers within 2^53, no NaN or Infinity, lone surrogates replaced on the way in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any

import orjson

from libmachine.errors import MachineError
from libmachine.githash import blob_id

Record = dict[str, Any]
MAX_INTEGER = 2**53
MAX_DEPTH = 200
"""Of lists and objects in a record; orjson and jq end at about 250. What comes from outside and is
put into records has to stay well below (OUTER_DEPTH)."""
OUTER_DEPTH = 100


class RecordError(MachineError):
    """A value that is no record; the message says which field and why."""


def loads(data: bytes) -> Any:
    """Parse JSON. Lone surrogates become U+FFFD; NaN, Infinity and broken UTF-8 raise RecordError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as first:
        # orjson is stricter than JSON about surrogates: \ud800 alone is valid JSON.
        if b"\\ud" not in data and b"\\uD" not in data:
            raise RecordError(f"no JSON: {first.msg}") from None
        try:
            return plain(json.loads(data, parse_constant=_no_constant))
        except (ValueError, RecursionError):
            raise RecordError(f"no JSON: {first.msg}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def plain(value: Any, depth: int = MAX_DEPTH, exact: bool = True) -> Any:
    """The value as canonical JSON holds it: integral floats as integers, lone surrogates replaced.

    Raises RecordError for NaN, infinities, what JSON cannot hold, what is nested deeper than depth,
    and integers beyond 2^53; exact=False takes those for floats, as other tools write large floats.
    """
    if isinstance(value, str):
        return value if value.isascii() else _whole(value)
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _NESTED):
        if not depth:
            raise RecordError("lists and objects are nested too deeply")
        if isinstance(value, dict):
            return {
                name if type(name) is str and name.isascii() else _name(name): (
                    item
                    if ((kind := type(item)) is str and item.isascii()) or kind in _ATOMS
                    else plain(item, depth - 1, exact)
                )
                for name, item in value.items()
            }
        return [plain(item, depth - 1, exact) for item in value]
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise RecordError(f"{value} is no number JSON can hold")
        return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value
    if isinstance(value, int):
        if abs(value) <= MAX_INTEGER:
            return value
        if exact or abs(value) >= 2**64:
            raise RecordError(f"integer {str(value)[:40]} is beyond 2^53; write it as a string")
        return float(value)
    raise RecordError(f"a {type(value).__name__} is nothing JSON can hold")


_ATOMS = frozenset((bool, NoneType))
_NESTED = (dict, list, tuple)  # `dict | list` in the call would be made anew each time


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise RecordError(f"field name {name!r} is no string")
    return _whole(name)


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # surrogate pairs that belong together are joined, lone ones replaced
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def canonical(value: Any) -> bytes:
    """Canonical JSON: UTF-8, sorted keys, no spaces, shortest floats. Raises RecordError."""
    return encode(plain(value))


def encode(value: Any) -> bytes:
    """The canonical JSON of a value that is `plain` already."""
    data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    # orjson wrote 1e16 up to 3.12 and writes 1e+16 since: ids must not depend on it
    # (the single byte is looked for first: that is twenty times faster, and most records have none)
    return _PLUS.sub(_without_plus, data) if b"+" in data and b"e+" in data else data


_PLUS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|e\+')


def _without_plus(found: re.Match[bytes]) -> bytes:
    return b"e" if found[0] == b"e+" else found[0]


def dump_line(record: Mapping[str, Any]) -> bytes:
    """One line for a pipe, in the record's own field order, newline included."""
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, of a path say, or a value that is none of JSON's
        return orjson.dumps(plain(record), option=orjson.OPT_APPEND_NEWLINE)


def usd(amount: float | None) -> float | None:
    """Money as records hold it: rounded to 6 decimals."""
    return None if amount is None else round(amount, 6)


def now() -> str:
    """The time as records hold it: UTC to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hash_of(value: Any) -> str:
    """Hash (40 hex) of a value: the blob id of its canonical JSON."""
    return blob_id(canonical(value))


def called(value: Any) -> str:
    """What kind of JSON value this is, in words for a message."""
    names = {dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), "a text")

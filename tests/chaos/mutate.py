"""Bytes that are nearly what a reader expects: JSON with one node exchanged, words of its grammar in odd
places, one small piece over and over (what takes the square of its length shows there)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

ODD: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**53,
        -(2**63),
        2**64,
        10**30,
        0.5,
        -0.0,
        1e308,
        "",
        " ",
        "x",
        "null",
        "0",
    ),
    *(
        "\ud800",
        "\u0000",
        "\u2028",
        "é" * 50,
        "../../x",
        "a/b",
        ".git",
        "[",
        "{}",
        [],
        {},
        [[]],
        [None],
        [{}],
        [""],
    ),
    *(
        {"": None},
        {"a": {}},
        {"id": []},
        {"type": "run"},
        "x" * 3000,
        [0] * 50,
        "ab" * 20,
        "-",
        "a\nb",
        "\x1b[2J",
    ),
]


def mutated(data: bytes, words: Sequence[bytes], chance: Random, most: int) -> bytes:
    """The bytes after a few changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = _as_json(data, chance) if chance.random() < 0.6 else _as_bytes(data, words, chance)
    return data[:most]


def repeated(words: Sequence[bytes], chance: Random, size: int) -> bytes:
    """A small piece over and over, between a head and a tail."""
    pick = lambda least, most: b"".join(chance.choices(words, k=chance.randint(least, most)))  # noqa: E731
    piece = (pick(1, 3) or b"x")[:200]
    return pick(0, 3) + piece * (size // len(piece)) + pick(0, 3)


def _as_json(data: bytes, chance: Random) -> bytes:
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    head = b"data: " if lines[at].startswith(b"data: ") else b""
    whole = chance.random() < 0.3
    try:
        value = json.loads(data if whole else lines[at].removeprefix(head))
    except (ValueError, RecursionError):
        return data
    new = json.dumps(_changed(value, chance)).encode()
    return new if whole else b"\n".join([*lines[:at], head + new, *lines[at + 1 :]])


def _changed(value: Any, chance: Random) -> Any:
    """The value with one of its nodes changed."""
    box = [value]
    places: list[tuple[Any, Any]] = []

    def walk(holder: Any, key: Any) -> None:
        places.append((holder, key))
        item = holder[key]
        for inner in (
            list(item)
            if isinstance(item, dict)
            else range(min(len(item), 20))
            if isinstance(item, list)
            else ()
        ):
            walk(item, inner)

    walk(box, 0)
    holder, key = chance.choice(places)
    how = chance.random()
    if how < 0.6:
        holder[key] = chance.choice(ODD)
    elif how < 0.7 and holder is not box:
        del holder[key]
    elif how < 0.8:
        holder[key] = [holder[key]] * chance.choice((1, 2, 30))
    elif how < 0.85:
        for _ in range(chance.choice((50, 90, 150, 260))):
            holder[key] = [holder[key]]
    elif how < 0.95:
        other, name = chance.choice(places)
        try:
            copied = json.loads(json.dumps(other[name]))
        except (LookupError, TypeError):
            copied = None
        holder[key] = copied
    elif isinstance(holder, dict):
        holder[str(chance.choice(["", "id", "type", "v", "x", "\u2028", "error"]))] = holder[key]
    return box[0]


def _as_bytes(data: bytes, words: Sequence[bytes], chance: Random) -> bytes:
    at = chance.randint(0, len(data))
    to = min(len(data), at + chance.choice((1, 1, 2, 8, 64)))
    how = chance.randrange(5)
    if how == 0:
        return data[:at] + chance.choice(words or [b"x"]) + data[at:]
    if how == 1:
        return data[:at] + data[to:]
    if how == 2:
        return data[:at] + data[at:to] * chance.choice((2, 3, 100)) + data[to:]
    if how == 3:
        return data[:at] + bytes(chance.randrange(256) for _ in range(to - at)) + data[to:]
    return data[:at]

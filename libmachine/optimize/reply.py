"""What an author's reply says: the new instructions, between <instructions> and </instructions>. Pure.

Used by the verb that reads the reply and by the checks of the built-in machine `optimizer`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OPEN, CLOSE = "<instructions>", "</instructions>"
MOST_WORDS = 600
QUOTED = 24
"""Characters of a case's input that must stand in the instructions to be called quoted."""
PHRASE = 12
"""Characters from which an answer is no word that may stand there by chance."""
KEY = 3
"""Cases whose short answers stand there: as many are an answer key."""
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


class Reading(NamedTuple):
    """text: the instructions, None if there are none to use. fault: why not."""

    text: str | None
    fault: str


def read(reply: str) -> Reading:
    """The instructions of a reply: its only block, without blank lines around it."""
    head, closing, tail = reply.rpartition("</think>")
    reply = (
        _THINKING.sub("", head + closing) + tail
    )  # behind it nothing ends, and looking for an end takes long
    opened, closed = reply.count(OPEN), reply.count(CLOSE)
    if not opened and not closed:
        return Reading(None, f"no {OPEN} block")
    if opened != 1 or closed != 1:
        return Reading(None, f"{opened} {OPEN} and {closed} {CLOSE}, where one block is wanted")
    before, _, rest = reply.partition(OPEN)
    inside, _, _ = rest.partition(CLOSE)
    if CLOSE in before:
        return Reading(None, f"{CLOSE} stands before {OPEN}")
    text = _unfenced(inside.strip())
    return Reading(text, "") if text else Reading(None, "the block is empty")


def _unfenced(text: str) -> str:
    """The text without a code fence around all of it."""
    fenced = re.fullmatch(r"(`{3,}|~{3,})[^\n`]*\n(.*)\n\1", text, re.DOTALL)
    return fenced[2].strip() if fenced and fenced[1] not in fenced[2] else text


def same(one: str, other: str) -> bool:
    """Are two texts the same instructions, white space at ends of lines and around them aside?"""
    return [line.rstrip() for line in one.strip().splitlines()] == [
        line.rstrip() for line in other.strip().splitlines()
    ]


def quoted(text: str, inputs: Iterable[str], answers: Sequence[Sequence[str]], known: str) -> str:
    """What of the cases stands in instructions; empty if nothing does.

    answers: of each case, what a right answer is. known: text in which a word may stand anyway (the old
    instructions, the rubric, the purpose).
    """
    here, there = _plain(text), _plain(known)
    for given in inputs:
        plain = _plain(given)
        if len(plain) >= QUOTED and plain in here and plain not in there:
            return f"the input of a case: {given[:60]!r}"
    short = []
    for answer in answers:
        found = [word for word in answer if _stands(word, here) and not _stands(word, there)]
        if long := next((word for word in found if len(word) >= PHRASE), None):
            return f"the answer of a case: {long[:60]!r}"
        short += [word for word in found if len(word) > 3][:1]
    return f"answers of {len(short)} cases: {', '.join(map(repr, short[:5]))}" if len(short) >= KEY else ""


def _stands(word: str, text: str) -> bool:
    plain = _plain(word)
    return bool(plain) and re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", text) is not None


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text).casefold()).strip()


def answers_of(target: object) -> list[str]:
    """The texts of a case's target: itself, or those in it."""
    if isinstance(target, str):
        return [target]
    if isinstance(target, dict):
        return [text for value in target.values() for text in answers_of(value)]
    if isinstance(target, list):
        return [text for value in target for text in answers_of(value)]
    return []

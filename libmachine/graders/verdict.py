"""Read the score out of a judge's reply, or say why there is none.

A reply is untrusted text: it may be cut off, hold several objects, quote a verdict that the
graded output planted, or give a number on a scale of its own. The rule is to read what is
stated without doubt and to call everything else unusable; the caller asks again and at last
records an error. Never 0 for a missing score, never clamped, never a guessed scale.

The verdict is a JSON object with a `score` key at its top level; failing that, a line
`Score: 0.8`. With a call id only objects that repeat the id count, the last of them: text
written before the call cannot know it, so a quoted verdict is not one.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any, NamedTuple

READ = 200_000  # characters read, from the end: the verdict comes last
SLACK = 1e-9  # 1.0000000001 is float dust, 1.2 another scale
EFFORT = 8 * READ  # characters the JSON reader may scan in vain before the reply counts as broken
COST = 1000  # of one failure, in such characters: the reader counts the lines before it

_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_STOP = re.compile(r"[{}]|" + _THINK.pattern, re.IGNORECASE)
_JSON_START = re.compile(r'\{\s*"')
_STATED = re.compile(r'"score"\s*:\s*(?:["\d.+-]|NaN|Infinity|true|false|null)')
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.?+)*+(?:"|\Z)|[{}]', re.DOTALL)  # an open string runs to the end
_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_VALUE = re.compile(
    rf"(?:(?P<part>{_NUMBER})[ \t]*(?:/|out[ \t]+of)[ \t]*(?P<whole>{_NUMBER})"
    rf"|(?P<percent>{_NUMBER})[ \t]*%|(?P<plain>[+-]?(?:{_NUMBER})(?:e[+-]?\d+)?))(?![\w/%]|[.,]\w)",
    re.ASCII | re.IGNORECASE,
)
_MARKER = re.compile(
    r"(?:(?P<start>^[ \t>#*_`-]*(?:final[ \t]+)?)|(?<![\w-]))score[*_`]*[ \t]*[:=][ \t*_`]*(?![ \t]|$)",
    re.IGNORECASE | re.MULTILINE,
)
_LINE_END = re.compile(r"[ \t*_`]*(?:[.;!]?[ \t*_`]*$|[.;!][*_`]*[ \t])", re.MULTILINE)
_IGNORABLE = dict.fromkeys(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)]
)


class Reading(NamedTuple):
    """What a reply says: exactly one of score (0..1) and problem is set; reasoning may go with both."""

    score: float | None
    reasoning: str | None
    problem: str | None


class Unusable(Exception):
    """Why the reply cannot be used; never leaves the readers."""


class _Object(dict[str, Any]):
    """A JSON object that remembers a key given twice with different values, and where it begins."""

    conflict = False
    start = 0


def parse_verdict(
    reply: str | None, call_id: str | None = None, finish_reason: str | None = None
) -> tuple[float | None, str | None]:
    """(score in 0..1, None), or (None, why the reply is unusable). Raises nothing, whatever the text.

    call_id: the random id the verdict must repeat under "id". finish_reason: as the endpoint gave it.
    """
    reading = read_verdict(reply, call_id, finish_reason)
    return reading.score, reading.problem


def read_verdict(reply: str | None, call_id: str | None = None, finish_reason: str | None = None) -> Reading:
    """As parse_verdict, with the judge's reasoning where it gave one."""
    try:
        if finish_reason in ("length", "content_filter", "error"):
            raise Unusable(finish_reason)
        if not isinstance(reply, str) or not reply.strip():
            raise Unusable("empty")
        text, cut = visible(reply)
        verdict = _choose(text, cut, call_id)
        score = score_of(verdict["score"])
    except Unusable as problem:
        return Reading(None, None, str(problem))
    except RecursionError:
        return Reading(None, None, "broken json")
    return Reading(score, reasoning_of(verdict), None)


def reasoning_of(verdict: dict[str, Any]) -> str | None:
    """What a verdict gives as its reason, None if nothing."""
    reasons = (verdict.get(key) for key in ("reasoning", "reason", "explanation", "rationale"))
    return next((r for r in reasons if isinstance(r, str) and r.strip()), None)


def visible(reply: str) -> tuple[str, bool]:
    """The end of the reply without invisible characters, and whether its beginning was left out."""
    tail = reply[-READ:]
    return _strip_invisible(tail), len(tail) < len(reply)


def _strip_invisible(text: str) -> str:
    if text.isascii():
        return text
    return "".join(c for c in text.translate(_IGNORABLE) if unicodedata.category(c) != "Cf")


def _choose(text: str, cut: bool, call_id: str | None) -> dict[str, Any]:
    """The object that holds the verdict. Raises Unusable when none does, or several disagree."""
    scan = Scan(text, cut, call_id)
    found = scan.objects()
    if call_id is not None:
        ours = [(end, o) for end, o in found if isinstance(o.get("id"), str) and o["id"].strip() == call_id]
        if not ours:
            raise Unusable("no verdict with this call's id")
        end, verdict = ours[-1]
        if call_id in scan.text[end:]:
            raise Unusable("the call's id again after the verdict")  # a later one that cannot be read?
        if verdict.conflict:
            raise Unusable("duplicate keys")
        return verdict
    verdicts = [o for _, o in found]
    if scan.broken:
        raise Unusable("broken json")
    if any(v.conflict for v in verdicts):
        raise Unusable("duplicate keys")
    if verdicts:
        if len({score_of(v["score"]) for v in verdicts}) > 1:
            raise Unusable("several scores that differ")
        return verdicts[-1]
    if '"score"' in scan.text[scan.start :]:
        raise Unusable("broken json")
    return {"score": _line(scan.text[scan.start :])}


class Scan:
    """One pass over a reply for the objects with a `score` key that stand on their own.

    Reasoning between <think> tags is passed over, and so is everything before a lone closing
    tag (the opening one was part of the prompt). What lies inside a JSON object, read or
    broken, is never taken for a verdict.
    """

    def __init__(self, text: str, cut: bool, call_id: str | None) -> None:
        self.text = text
        self.cut = cut
        self.call_id = call_id
        self.start = 0  # where the part that counts begins
        self.broken = False  # an object that states a score cannot be read
        self._spent = 0

    def objects(self) -> list[tuple[int, _Object]]:
        """(end, object) in order of the text. Raises Unusable for reasoning without an end."""
        found: list[tuple[int, _Object]] = []
        stray = False
        at = 0
        while match := _STOP.search(self.text, at):
            at = match.end()
            if match.group() == "{":
                value, at = self._object(match.start())
                if value is not None and "score" in value:
                    value.start = match.start()
                    found.append((at, value))
            elif match.group() == "}":
                stray = True
            elif match.group(1):  # a lone closing tag
                found, stray, self.broken, self.start = [], False, False, at
            else:
                at = self._after_thinking(match.start(), at)
        if stray and self.cut:
            raise Unusable("broken json")  # the cut fell inside an object: what is left may be its inside
        return found

    def _after_thinking(self, opening: int, at: int) -> int:
        for match in _THINK.finditer(self.text, at):
            if match.group(1):
                self.text = self.text[:opening] + " " * (match.end() - opening) + self.text[match.end() :]
                return match.end()
        raise Unusable("unfinished reasoning")

    def _object(self, at: int) -> tuple[_Object | None, int]:
        """The object at a brace and where to read on. None for a brace that opens nothing readable."""
        if not _JSON_START.match(self.text, at):
            return None, at + 1
        try:
            return _DECODER.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            self._spent += COST + error.pos - at
        except ValueError:  # NaN, Infinity
            self._spent += COST
        if self._spent > EFFORT:
            raise Unusable("broken json")
        if self.call_id is not None:
            brace = self.text.find("{", at + 1)
            if self.call_id not in self.text[at : brace if brace >= 0 else None]:
                return None, at + 1  # not the judge's own verdict: something it quotes
        end = self._end_of_broken(at)
        self.broken = self.broken or bool(_STATED.search(self.text, at, end))
        return None, end

    def _end_of_broken(self, at: int) -> int:
        """Where the braces of an unreadable object balance, strings passed over; else the end of the text."""
        depth = 0
        for token in _TOKEN.finditer(self.text, at):
            depth += {"{": 1, "}": -1}.get(token.group(), 0)
            if depth == 0:
                return token.end()
        return len(self.text)


def _pairs(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object()
    for key, value in pairs:
        key = _strip_invisible(key)
        if key in result and (type(result[key]) is not type(value) or result[key] != value):
            result.conflict = True
        result[key] = value
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"'{constant}' is no JSON")


# int() refuses 5,000 digits and float() turns them into inf, which no scale contains. Raw newlines
# in strings are read: models write them, and they leave no doubt.
_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=float, parse_constant=_refuse, strict=False)


def score_of(value: object) -> float:
    """A number in 0..1, or a string that holds one or names its scale (8/10, 4 out of 5, 85%)."""
    if isinstance(value, str):
        text = _plain_width(_strip_invisible(value)).strip()
        match = _VALUE.match(text)
        if not match or match.end() != len(text):
            raise Unusable("score not in 0..1")
        return _in_range(_number(match))
    if isinstance(value, bool) or not isinstance(value, float):
        raise Unusable("score not in 0..1")
    return _in_range(value)


def _number(match: re.Match[str]) -> float:
    if match["part"]:
        whole = float(match["whole"])
        return float(match["part"]) / whole if whole > 0 else math.nan
    if match["percent"]:
        return float(match["percent"]) / 100
    return float(match["plain"])


def _in_range(value: float) -> float:
    if not -SLACK <= value <= 1 + SLACK:  # false for NaN too
        raise Unusable("score not in 0..1")
    return min(max(value, 0.0), 1.0) + 0.0  # -0.0 becomes 0.0


def _plain_width(text: str) -> str:
    """Fullwidth and mathematical characters as plain ones. Not superscripts: 0.8² is not 0.82."""
    if text.isascii():
        return text
    plain = ("<wide>", "<narrow>", "<font>")
    return "".join(
        unicodedata.normalize("NFKC", c) if unicodedata.decomposition(c).startswith(plain) else c
        for c in text
    )


def _line(text: str) -> float:
    """The score of a line `Score: VALUE`. Every mention of the marker must agree, one must begin its line."""
    text = _plain_width(text)
    values = set()
    begins = False
    for marker in _MARKER.finditer(text):
        value = _VALUE.match(text, marker.end())
        if not value or not _LINE_END.match(text, value.end()):
            raise Unusable("no score")
        values.add(_in_range(_number(value)))
        begins = begins or marker["start"] is not None
    if not begins:
        raise Unusable("no score")
    if len(values) > 1:
        raise Unusable("several scores that differ")
    return values.pop()

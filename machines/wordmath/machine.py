"""wordmath: solve a word problem and give the number on the last line."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from libmachine import Machine, Run, check

MOST_DIGITS = 40

_MINUS = str.maketrans("−–—﹣－", "-----")
_GAP = "[,'’\u00a0\u2009\u202f]"
_UNSIGNED = rf"(?>(?:[1-9]\d{{0,2}}(?:{_GAP}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_SIGN = r"-?+(?:[$€£¥]\s?)?+"
# A number begins after no letter, digit or ^ (cm2, m^2). `odd`: it is only a part of 2^10, 1e9 or 1.2.3.
_NUMBER = re.compile(
    rf"(?<![^\W_])(?<![\^.])(?P<sign>{_SIGN})(?P<number>{_UNSIGNED})"
    rf"(?:\s+(?P<part>\d++\s*/\s*\d++)|\s*/\s*(?P<under>{_UNSIGNED}))?+(?P<odd>\^(?!\{{?\\circ)|[eE][+-]?\d|\.\d)?+"
)
_PLAINER = (
    (re.compile(r"\{,\}|\\[,;!:]"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
    (re.compile(r"(\d)\s*(?=\\[dt]?frac)"), r"\1 "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"\b(?:negative|minus)\s+(?=[$€£¥]?[\d.])", re.IGNORECASE), "-"),
    (re.compile(r"([:=][*_\s]*)-\s+(?=[$€£¥]?[\d.])"), r"\1-"),
)


def answer(run: Run) -> tuple[bool, str] | None:
    """The one number on the last line equals the case's target; None without a target.

    A target that is no number is the author's mistake and raises, which leaves the run ungraded.
    """
    if run.target is None:
        return None
    wanted = number_of_target(run.target)
    line = last_line(run.output)
    found = numbers(line)
    if len(found) != 1:
        fault = "different numbers" if found else "no readable number"
        return False, f"{fault} on the last line: {line[:80]!r}"
    return found == {wanted}, f"{_shown(min(found))}, target {_shown(wanted)}"


def last_line(text: str) -> str:
    """The last line that has a letter or digit: closing fences and LaTeX brackets are passed over."""
    lines = [line.strip() for line in text.splitlines() if any(char.isalnum() for char in line)]
    return lines[-1] if lines else ""


def numbers(line: str) -> set[Fraction]:
    """The different numbers a line names. Empty also if one of them cannot be read."""
    values = {_value(match) for match in _NUMBER.finditer(_plain(line))}
    return set() if None in values else {value for value in values if value is not None}


def number_of_target(target: object) -> Fraction:
    """A target (int, float or text such as 3/4) as an exact number."""
    found = numbers(str(target))
    if len(found) != 1:
        raise ValueError(f"target {target!r} is not a number")
    return found.pop()


def _plain(line: str) -> str:
    """The line with LaTeX, written-out signs and ½ turned into plain digits and signs."""
    line = re.sub("[¼-¾⅐-⅞]", lambda m: " " + unicodedata.normalize("NFKC", m[0]), line)
    line = line.translate(_MINUS).replace("⁄", "/")
    for pattern, replacement in _PLAINER:
        line = pattern.sub(replacement, line)
    return line


def _value(match: re.Match[str]) -> Fraction | None:
    """The number a match stands for; None if it cannot be read or is absurdly long."""
    if match["odd"] or sum(char.isdigit() for char in match[0]) > MOST_DIGITS:
        return None
    value = _fraction(match["number"])
    try:
        if match["part"]:
            value += _fraction(match["part"])
        if match["under"]:
            value /= _fraction(match["under"])
    except ZeroDivisionError:
        return None
    return -value if "-" in match["sign"] else value


def _fraction(text: str) -> Fraction:
    return Fraction(re.sub(rf"{_GAP}|\s", "", text))


def _shown(value: Fraction) -> str:
    """A number as people write it: 7, 4.5 or 1/3."""
    decimal = str(float(value))
    return decimal if value.denominator > 1 and Fraction(decimal) == value else str(value)


machine = Machine(
    intent="Solve a word problem and end with the number.",
    graders={"answer": check(answer)},
)

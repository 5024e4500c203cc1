"""red: call the tool exactly once if the message mentions the word red, and never otherwise."""

from __future__ import annotations

import re
import unicodedata

from libmachine import Machine, Run, check

_RED = re.compile("red", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"


def red_mentioned(word: str) -> str:
    """Report that the user's message mentions the word red.

    word: the word as the message writes it.
    """
    return f"noted: {word}"


def calls_tool(run: Run) -> tuple[bool, str]:
    """Exactly one call, of red_mentioned, on a message with the word red; no call on any other."""
    names = [call.name for call in run.tool_calls]
    mentioned = has_red(run.input)
    wanted = ["red_mentioned"] if mentioned else []
    made = ", ".join(names) or "no call"
    return names == wanted, f"{'the word red' if mentioned else 'no word red'} in the message, {made}"


def has_red(text: str) -> bool:
    """Whether "red" stands in the text as a word: in any case, with no letter or digit directly beside it.

    Letters of all scripts count, with their accents. The underscore is punctuation, so red_mentioned
    has the word.
    """
    return any(
        not _letter_before(text, match.start()) and not _letter_after(text, match.end())
        for match in _RED.finditer(text)
    )


def _letter_before(text: str, position: int) -> bool:
    """Whether a letter or digit, seen through its accents, ends at the position."""
    while position and (_is_mark(text[position - 1]) or _is_invisible(text[position - 1])):
        position -= 1
    return position > 0 and text[position - 1].isalnum()


def _letter_after(text: str, position: int) -> bool:
    """Whether a letter or digit begins at the position; an accent there makes "d" another letter."""
    while position < len(text) and _is_invisible(text[position]):
        position += 1
    return position < len(text) and (text[position].isalnum() or _is_mark(text[position]))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


def _is_invisible(char: str) -> bool:
    """Soft hyphens, joiners and direction marks do not part a word; a zero-width space does."""
    return unicodedata.category(char) == "Cf" and char != _ZERO_WIDTH_SPACE


machine = Machine(
    intent="Notice the word red, and only the word red.",
    graders={"calls_tool": check(calls_tool)},
    tools=[red_mentioned],
)

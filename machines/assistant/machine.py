"""assistant: help with files, pages of the web and questions. One check of length, and three judges."""

from __future__ import annotations

import re

from libmachine import Machine, Run, check, judge
from libmachine.sandbox.toolbox import edit_file, list_files, read_file, run, write_file
from libmachine.web import web_fetch

TIERS = ((120, 1.0), (200, 0.7), (300, 0.4))
"""At most so many words -> the score; with more it is 0."""

# A character of Chinese or Japanese is a word, as they put no blanks between
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


def count_words(text: str) -> int:
    """The words of a text, code and URLs included: what stands between blanks and has a letter or digit."""
    return sum(any(map(str.isalnum, word)) for word in _WORD.findall(text))


def concise(run: Run) -> tuple[float, str]:
    """The reply says something, in few words."""
    count = count_words(run.output)
    told = f"{count} word" + "s" * (count != 1)
    return next((score for most, score in TIERS if 0 < count <= most), 0.0), told


machine = Machine(
    intent="Help with the files at hand, with public web pages and with questions, and say where it is from.",
    tools=[list_files, read_file, edit_file, write_file, run, web_fetch],
    graders={
        "helpful": judge(),
        "grounded": judge(),
        "acts_on_request": judge(),
        "concise": check(concise),
    },
)

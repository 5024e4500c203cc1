"""brief: answer in exactly one short sentence. Two checks of style and an audit of truth."""

from __future__ import annotations

import re
import unicodedata

from libmachine import Machine, Run, check

MOST_WORDS = 12

_CLOSERS = "\"'”’»›)]}*_`"
_OPENERS = "\"'“‘«‹([{*_`"
_QUESTION_MARKS = "?？؟‽⁇⁈⁉"
_ELLIPSIS = re.compile(r"\.(?:\s?\.){2,}")
_TERMINATOR = re.compile(r"[.!。！]+([" + re.escape(_CLOSERS) + r"]*)")
_BULLET = re.compile(r"(?:[-*+•–—]|\(?\d{1,3}[.)]|\(?[a-zA-Z]\))\s")
_NUMBERED = re.compile(r"\s\(?\d{1,2}\)\s.*\s\(?\d{1,2}\)\s")
# Questions that lost their mark: what the model echoes or asks back, closed with a full stop.
_QUESTION = re.compile(
    r"(?:who|what|which|where|when|why|how|whose)(?:['’]s|\s+(?:is|are|was|were|do|does|did|can|could|will|would"
    r"|should|has|have|had|may|might|many|much))\b"
    r"|(?:would|do|does|did|can|could|will|shall|are|have)\s+(?:you|i|we)\b",
    re.IGNORECASE,
)

# Abbreviations, by what their full stop means when something follows.
_BEFORE_NAMES = re.compile(
    r"dr|mr|mrs|ms|prof|gen|sen|rep|gov|lt|col|sgt|capt|rev|hon|pres|vs|e\.g|i\.e|cf|ca|approx"
)
_BEFORE_NUMBERS = re.compile("nos?|fig|vol|pp?|ch")
_UNITS = re.compile("etc|ft|lbs?|oz|km|cm|mm|kg|mi|min|hrs?|sec|yd|in")
_IN_NAMES = re.compile(
    r"[^\W\d_](?:\.[^\W\d_])*|ph\.d|st|mt|jr|sr|inc|co|ltd|corp|bros"
    r"|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec"
)
_STARTER = re.compile(
    r"(?:the|an?|it|its|he|she|his|her|they|their|we|our|i|you|your|this|that|these|those|there|here|in|on|at"
    r"|for|but|and|so|because|however|if|when|while|as|yes|no|not|some|many|most|all|both|each)\b",
    re.IGNORECASE,
)
_DIGIT_WORDS = "one|two|three|four|five|six|seven|eight|nine"


def one_sentence(run: Run) -> tuple[bool, str]:
    """The answer is exactly one sentence on one line, ends in one full stop or "!", and asks nothing."""
    fault = sentence_fault(run.output)
    return not fault, fault or "one sentence"


def short(run: Run) -> tuple[bool, str]:
    """The answer has at least one word and at most twelve."""
    count = count_words(run.output)
    return 0 < count <= MOST_WORDS, f"{count} word" + "s" * (count != 1)


def states_fact(run: Run) -> tuple[bool, str] | None:
    """A keyword of the target occurs in the answer as a whole word; None without a target."""
    keywords = keywords_of(run.target)
    if not keywords:
        return None
    for keyword in keywords:
        if has_keyword(run.output, keyword):
            return True, f"says {keyword!r}"
    return False, "says none of " + ", ".join(repr(keyword) for keyword in keywords)


def sentence_fault(answer: str) -> str:
    """Why the text is not exactly one sentence that ends as it should; empty if it is."""
    text = _ELLIPSIS.sub("…", answer.strip())
    if not any(char.isalpha() for char in text):
        return "no words"
    if len(text.splitlines()) > 1:
        return "more than one line"
    if any(mark in text for mark in _QUESTION_MARKS) or _QUESTION.match(text.lstrip(_OPENERS)):
        return "a question"
    if _BULLET.match(text) or " • " in text or _NUMBERED.search(text):
        return "a list"
    bare = text.rstrip(_CLOSERS)
    if not bare.endswith((".", "!")):
        return "does not end in a full stop or exclamation mark"
    if bare[-2:-1] in tuple(".!…。！"):
        return "ends in more than one mark"
    ends = [match for match in _TERMINATOR.finditer(text) if match.end() < len(text) and _ends(text, match)]
    return f"{len(ends) + 1} sentences" if ends else ""


def _ends(text: str, match: re.Match[str]) -> bool:
    """Whether the mark, which stands inside the text, closes a sentence there."""
    start, end = match.start(), match.end()
    follows = text[end : end + 40].lstrip().lstrip(_OPENERS)
    before = re.split(r"[^\w.'’-]", text[max(0, start - 40) : start])[-1].strip("'’-").casefold()
    full_stop = text[start] == "."
    if not text[end].isspace():
        return _ends_glued(before, full_stop, follows)
    if match.group(1) and follows[:1].islower():
        return False  # a quoted sentence inside this one: "Stop!" is what it says.
    return not full_stop or _full_stop_ends(before, follows)


def _ends_glued(before: str, full_stop: bool, follows: str) -> bool:
    """The same for a mark with no blank after it, as in "It is big.It is old."; not in 3.5, U.S. or a.com."""
    if not full_stop:
        return follows[:1].isalnum()
    if _BEFORE_NAMES.fullmatch(before) or _IN_NAMES.fullmatch(before) or before == "ph":
        return False
    return follows[:1].isupper()


def _full_stop_ends(before: str, follows: str) -> bool:
    """Whether "before." closes a sentence when `follows` comes next.

    After U.S., Jr. or an initial both readings exist; it closes if a word follows that begins sentences.
    """
    if _BEFORE_NAMES.fullmatch(before):
        return False
    if _BEFORE_NUMBERS.fullmatch(before):
        return not follows[:1].isdigit()
    if _UNITS.fullmatch(before):
        return follows[:1].isupper()
    if _IN_NAMES.fullmatch(before):
        return follows[:1].isupper() and _STARTER.match(follows) is not None
    return True


def count_words(text: str) -> int:
    """Number of words. A hyphenated word and a number are one; dashes, slashes and commas divide."""
    pieces = re.split(r"[\s—–/…]+|--+|\.{2,}|[,;:](?!\d)", text)
    return sum(any(char.isalnum() for char in piece) for piece in pieces)


def keywords_of(target: object) -> list[str]:
    """The alternatives of a target: a list of keywords, or one keyword by itself."""
    listed = target if isinstance(target, list) else [target]
    return [str(item) for item in listed if item is not None and str(item).strip()]


def has_keyword(text: str, keyword: str) -> bool:
    """Whether the keyword occurs as a whole word, in any case.

    seven occurs in seven-day, but not in twenty-seven; 7 not in 7.5, 1,007 or 7-8.
    """
    words = r"\s+".join(re.escape(word) for word in _folded(keyword).split())
    before = r"(?<![^\W_])(?<![^\W_][-‐])(?<!\d[.,])"
    after = rf"(?![^\W_])(?![.,]\d)(?![-‐](?:\d|(?:{_DIGIT_WORDS})\b))"
    return re.search(before + words + after, _folded(text)) is not None


def _folded(text: str) -> str:
    """The text with compatible forms, case and apostrophes made equal."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).replace("’", "'")


machine = Machine(
    intent="Answer in exactly one short sentence.",
    graders={
        "one_sentence": check(one_sentence),
        "short": check(short),
        "states_fact": check(states_fact),
    },
)

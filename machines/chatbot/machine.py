"""chatbot: answer questions in a running conversation. Two judges, and checks of length and filler."""

from __future__ import annotations

import re
import unicodedata

from libmachine import Machine, Run, check, judge

MOST_WORDS = 150

# The phrases that are filler, in lower case with straight apostrophes. What is not listed is none, and
# none is listed that is also what an answer may have to say ("You asked about Peru", "Feel free to use oil").
INTERJECTIONS = (  # at the beginning, when a mark and more follow: "Sure, ..." but not "Sure enough ..."
    *("absolutely", "certainly", "definitely", "of course", "sure", "sure thing", "no problem", "gladly"),
    *("great", "awesome", "perfect", "wonderful", "happy to help", "glad to help"),
)
OPENERS = (  # at the beginning
    *("great question", "good question", "excellent question", "interesting question"),
    *("that's a great question", "that's a good question", "that's an excellent question"),
    *("that's an interesting question", "that is a great question", "that is a good question"),
    *("what a great question", "what a good question", "what an interesting question"),
    *("thanks for asking", "thank you for asking", "thanks for your question", "thank you for your question"),
    *("thanks for reaching out", "thank you for reaching out", "glad you asked", "i'm glad you asked"),
    *("i'd be happy to", "i would be happy to", "i'm happy to help", "i am happy to help"),
    *("i'd be glad to", "i would be glad to", "i'd love to help", "i can certainly help"),
    *("as an ai language model", "as a language model", "as a large language model"),
    *("let's dive in", "let's break it down", "let's break this down", "let's break that down"),
    *("let me explain", "let me break it down", "let me break this down", "let me break that down"),
    *("here's a breakdown", "here is a breakdown", "here's an overview", "here is an overview"),
    *("here's the answer", "here is the answer", "here's what you need to know"),
)
CLOSERS = (  # at the beginning of the last sentence
    *("let me know if", "let me know how i can", "let me know what else"),
    *("feel free to ask", "feel free to reach out", "feel free to let me know"),
    *("don't hesitate to ask", "don't hesitate to reach out", "don't hesitate to let me know"),
    *("do not hesitate to ask", "do not hesitate to reach out", "do not hesitate to let me know"),
    *("i hope this helps", "i hope that helps", "i hope this clarifies", "i hope this answers"),
    *("hope this helps", "hope that helps", "hopefully this helps", "hopefully that helps"),
    *("is there anything else", "anything else i can", "do you have any other questions"),
    *("do you have any more questions", "do you have any further questions", "any other questions"),
    *("if you have any questions", "if you have any other questions", "if you have any more questions"),
    *("if you have any further questions", "if you have more questions", "if you have further questions"),
    *("if you need any help", "if you need more help", "if you need further help", "if you need anything"),
    *("if you'd like to know more", "if you would like to know more", "if you want to know more"),
    *("if you'd like more details", "if you want more details", "if you need more details"),
    *("if you'd like more information", "if you want more information", "if you need more information"),
    *("if anything is unclear", "would you like to know more", "would you like more details"),
    *("i'm here to help", "i am here to help", "i'm here if", "i'm always here"),
    *("i'm happy to help", "i'd be happy to", "i would be happy to", "happy to help", "always happy to help"),
    *("have a great day", "have a good day", "have a nice day", "have a wonderful day"),
)

_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_GREETING = re.compile(r"(?:hi|hello|hey|good (?:morning|afternoon|evening))(?: there| again)?[,.!]+ ?")
_LINK = re.compile(r"(?:and|but|so|also|anyway|well|please|now),? ")
_MARK = re.compile(r" ?(?:[,.!:;—–]|-+\s)")
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED_LINE = re.compile(r"^ {0,3}>.*$", re.MULTILINE)
_QUOTATION = re.compile(
    r"“[^“”]*”|„[^“„]*“|«[^«»]*»|「[^「」]*」|‘[^‘’]*’|`[^`]+`"
    r"|(?<!\w)\"[^\"]*\"(?!\w)|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w))*'(?!\w)"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
_QUOTE = "\x02"  # stands for a quotation


def concise(run: Run) -> tuple[bool, str]:
    """The reply has at least one word and at most 150."""
    count = count_words(run.output)
    return 0 < count <= MOST_WORDS, f"{count} word" + "s" * (count != 1)


def no_filler(run: Run) -> tuple[bool, str]:
    """The reply says something, and neither begins nor ends with a phrase of filler."""
    if not any(char.isalnum() for char in run.output):
        return False, "an empty reply"
    found = filler(run.output)
    return not found, f"filler: {found!r}" if found else "no filler"


def count_words(text: str) -> int:
    """Number of words. A hyphenated word and a number are one; dashes, slashes and commas divide. Of
    Chinese and Japanese, which put no blanks, each character counts."""
    pieces = re.split(r"[\s—–/…]+|--+|\.{2,}|[,;:](?!\d)", text)
    others, single = zip(*(_CHARACTER.subn("", piece) for piece in pieces), strict=True)
    return sum(single) + sum(any(char.isalnum() for char in piece) for piece in others)


def filler(reply: str) -> str:
    """The listed phrase that the reply begins or ends with; empty if there is none.

    Case, bold, headings, emoji and curly apostrophes do not matter, nor does a greeting before it. What
    stands in code, in a quoted block or between quotation marks is quoted and no filler, unless the
    marks are around a whole reply of several sentences.
    """
    text = _QUOTED_LINE.sub("", _CODE.sub("", _plain(reply)))
    text = _QUOTATION.sub(_quote, _unwrapped(text))
    text = re.sub('["“”«»]', "", text)
    sentences = [bare for part in _SENTENCE_END.split(text) if (bare := _bare(part))]
    if not sentences:
        return ""
    return _opener(" ".join(sentences)) or _closer(sentences[-1])


def _opener(text: str) -> str:
    while greeting := _GREETING.match(text):
        text = text[greeting.end() :]
    for phrase in INTERJECTIONS:
        after = text.removeprefix(phrase)
        if after != text and _MARK.match(after) and any(char.isalnum() for char in after):
            return phrase
    return _begins(text, OPENERS)


def _closer(sentence: str) -> str:
    while link := _LINK.match(sentence):
        sentence = sentence[link.end() :]
    return _begins(sentence, CLOSERS)


def _begins(text: str, phrases: tuple[str, ...]) -> str:
    """The phrase with which the text begins, as whole words; empty if with none."""
    return next(
        (phrase for phrase in phrases if text.startswith(phrase) and not text[len(phrase) :][:1].isalnum()),
        "",
    )


def _plain(text: str) -> str:
    """Plain apostrophes and letters, no invisible characters, no bold or italics."""
    text = unicodedata.normalize("NFKC", text)
    text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    text = re.sub(r"(?<=\w)[’ʼ´`](?=\w)", "'", text)
    return re.sub(r"\*+|(?<!\w)_+|_+(?!\w)", "", text)


def _unwrapped(text: str) -> str:
    """The text without quotation marks around all of it, if it is more than one sentence."""
    whole = re.fullmatch('\\s*["“«]([^"“”«»]*)["”»]\\s*', text)
    return whole[1] if whole and re.search(r"[.!?]\s+\S", whole[1]) else text


def _quote(quotation: re.Match[str]) -> str:
    """What stands for a quotation; its last mark stays if a sentence ends there: He says "no." We go."""
    mark = quotation[0][-2:-1]
    after = quotation.string[quotation.end() :].lstrip()[:1]
    return _QUOTE + (mark if mark in ".!?" and after.isupper() else "")


def _bare(part: str) -> str:
    """A sentence in lower case from its first letter, digit or quotation on; empty if it has none."""
    return re.sub(r"\s+", " ", re.sub(rf"^[^\w{_QUOTE}]+", "", part)).strip().lower()


machine = Machine(
    intent="Answer questions in a running conversation, briefly and honestly.",
    graders={
        "answers": judge(),
        "honesty": judge(),
        "concise": check(concise),
        "no_filler": check(no_filler),
    },
)

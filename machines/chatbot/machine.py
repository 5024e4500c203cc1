"""chatbot: answer questions in a running conversation. Two judges, and checks of length and filler."""

from __future__ import annotations

import re
import unicodedata

from libmachine import Machine, Run, check, judge

MOST_WORDS = 150

# The phrases of filler, in plain lower case with straight apostrophes; `*` stands for any ending
# of the sentence. What is not listed is no filler.
INTERJECTIONS = (  # at the beginning, when a mark follows: "Sure, ..." but not "Sure enough ..."
    *("absolutely", "certainly", "definitely", "of course", "sure", "sure thing", "no problem", "gladly"),
    *("great", "awesome", "perfect", "wonderful", "got it", "understood", "okay", "alright", "no worries"),
    *("happy to help", "glad to help", "good one", "thanks", "thank you"),
)
OPENERS = (  # at the beginning
    *("great question", "good question", "excellent question", "interesting question", "fantastic question"),
    *("that's a great", "that's a good question", "that is a great", "that is a good question"),
    *("that's an excellent", "that's an interesting question", "what a great", "what a good question"),
    *("thanks for asking", "thank you for asking", "thanks for your question", "thank you for your question"),
    *("thanks for reaching out", "thank you for reaching out", "glad you asked", "i'm glad you asked"),
    *("i'd be happy to", "i would be happy to", "i'm happy to help", "i am happy to help", "i'll be happy to"),
    *("i'd be glad to", "i would be glad to", "i'd love to help", "i can help you with", "i can certainly"),
    *("as an ai", "as a language model", "as a large language model", "as your assistant"),
    *("i understand that you", "i understand you", "you asked about", "you are asking", "you're asking"),
    *("let's dive", "let's explore", "let's break", "let me explain", "let me break", "allow me to"),
    *("here's a breakdown", "here is a breakdown", "here's an overview", "here is an overview"),
    *("here's the answer", "here is the answer", "here's what you need to know"),
)
CLOSERS = (  # at the beginning of the last sentence
    *("let me know", "just let me know", "feel free to", "don't hesitate to", "do not hesitate to"),
    *("i hope this", "i hope that helps", "hope this", "hope that helps", "hopefully this"),
    *("is there anything else", "anything else i can", "do you have any other questions"),
    *("do you have any more questions", "do you have any further questions"),
    *("if you have any", "if you need any", "if you'd like more", "if you would like more"),
    *("if you'd like to know more", "if you would like to know more", "if you want to know more"),
    *("if anything is unclear", "if something is unclear", "if you want more", "if you need more"),
    *("i'm here to help", "i am here to help", "i'm here if", "i'm always here", "i'm happy to help"),
    *("i'd be happy to", "i would be happy to", "happy to help", "always happy to help", "glad to help"),
    *("feel welcome to", "have a great", "have a good", "have a nice", "have a wonderful", "good luck"),
    *("in summary", "in conclusion", "to summarize", "overall"),
)

_GREETING = re.compile(r"(?:hi|hello|hey|good (?:morning|afternoon|evening))(?: there| again)?[,.!]+ ?")
_LINK = re.compile(r"(?:and|but|so|also|anyway|well|please|now),? ")
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED_LINE = re.compile(r"^ {0,3}>.*$", re.MULTILINE)
_QUOTATION = re.compile(
    r"“[^“”]*”|„[^“„]*“|«[^«»]*»|「[^「」]*」|‘[^‘]*?’(?!\w)|(?<!\w)\"[^\"]*\"(?!\w)|(?<!\w)'[^'\n]*?'(?!\w)|`[^`]+`"
)
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|\n+")
_QUOTE = "\x02"  # stands for a quotation


def concise(run: Run) -> tuple[bool, str]:
    """The reply has at least one word and at most 150."""
    count = count_words(run.output)
    return 0 < count <= MOST_WORDS, f"{count} word" + "s" * (count != 1)


def no_filler(run: Run) -> tuple[bool, str]:
    """The reply does not begin or end with a phrase of filler, and says something."""
    if not any(char.isalnum() for char in run.output):
        return False, "an empty reply"
    found = filler(run.output)
    return not found, f"filler: {found!r}" if found else "no filler"


def count_words(text: str) -> int:
    """Number of words. A hyphenated word and a number are one; dashes, slashes and commas divide. Of
    Chinese and Japanese, which put no blanks, each character counts."""
    pieces = re.split(r"[\s—–/…]+|--+|\.{2,}|[,;:](?!\d)", text)
    return sum(
        max(1, len(re.findall("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]", piece)))
        for piece in pieces
        if any(char.isalnum() for char in piece)
    )


def filler(reply: str) -> str:
    """The listed phrase that the reply begins or ends with; empty if it does neither.

    Case, bold, headings, emoji and curly apostrophes do not matter, nor does a greeting before it. What
    stands in code, in a quoted block or between quotation marks is quoted and no filler, unless the
    marks are around the whole reply of several sentences.
    """
    text = _QUOTED_LINE.sub("", _CODE.sub("", _plain(reply)))
    text = _unwrapped(text)
    text = _QUOTATION.sub(_QUOTE, text).replace('"', "").replace("“", "").replace("”", "")
    sentences = [s for s in (_bare(part) for part in _SENTENCE_END.split(text)) if s]
    if not sentences:
        return ""
    start = " ".join(sentences)
    while greeting := _GREETING.match(start):
        start = start[greeting.end() :]
    return _opener(start) or _closer(sentences[-1])


def _opener(start: str) -> str:
    for phrase in sorted((*INTERJECTIONS, *OPENERS), key=len, reverse=True):
        if start.startswith(phrase):
            after = start[len(phrase) :]
            if phrase in INTERJECTIONS and re.match(r" ?(?:[,.!:;…—–]|-+(?:\s|$))|$", after):
                return phrase
            if phrase in OPENERS and not after[:1].isalnum():
                return phrase
    return ""


def _closer(sentence: str) -> str:
    while link := _LINK.match(sentence):
        sentence = sentence[link.end() :]
    for phrase in CLOSERS:
        if sentence.startswith(phrase) and not sentence[len(phrase) : len(phrase) + 1].isalnum():
            return phrase
    return ""


def _plain(text: str) -> str:
    """Lower case, plain apostrophes, no invisible characters, no bold or italics."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = "".join(char for char in text if unicodedata.category(char) != "Cf")
    text = re.sub("(?<=\\w)[’ʼ´](?=\\w)", "'", text)
    return re.sub(r"\*+|(?<!\w)_+|_+(?!\w)", "", text)


def _unwrapped(text: str) -> str:
    """The text without quotation marks around all of it, if it is more than one sentence."""
    whole = re.fullmatch(r"\s*([\"“«])(.*)[\"”»]\s*", text, re.DOTALL)
    if whole and not re.search("[\"“”«»]", whole[2]) and re.search(r"[.!?…]\s+\S", whole[2]):
        return whole[2]
    return text


def _bare(part: str) -> str:
    """A sentence from its first letter, digit or quotation on; empty if it has no letter or digit."""
    if not any(char.isalnum() or char == _QUOTE for char in part):
        return ""
    return re.sub(r"\s+", " ", re.sub(rf"^[^\w{_QUOTE}]+", "", part)).strip()


machine = Machine(
    intent="Answer questions in a running conversation, briefly and honestly.",
    graders={
        "answers": judge(),
        "honesty": judge(),
        "concise": check(concise),
        "no_filler": check(no_filler),
    },
)

"""Julia source as tokens: enough of the language to tell code from comments, text and quoted symbols.

Interpolated code in a string is code, so its tokens come after the string's, in brackets.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

NAME, KEYWORD, NUMBER, TEXT, SYMBOL, MACRO, OPERATOR, OPEN, CLOSE, NEWLINE = (
    *("name", "keyword", "number", "text", "symbol", "macro", "operator", "open", "close", "newline"),
)
KEYWORDS = frozenset(
    (
        *("baremodule", "begin", "break", "catch", "const", "continue", "do", "else", "elseif", "end"),
        *("export", "false", "finally", "for", "function", "global", "if", "import", "let", "local"),
        *("macro", "module", "quote", "return", "struct", "true", "try", "using", "while"),
    )
)
_VALUES = ("true", "false", "begin", "end")
"""Keywords after which an operand is complete: a value, or a place in a[begin:end]."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPERATORS = tuple(
    sorted(
        (
            *(">>>=", "<-->", "===", "!==", "...", "<<=", ">>=", ">>>", "-->", "<--", "//=", "||=", "&&="),
            *(
                "==",
                "!=",
                "<=",
                ">=",
                "::",
                "<:",
                ">:",
                "->",
                "=>",
                "+=",
                "-=",
                "*=",
                "/=",
                "\\=",
                "^=",
                "%=",
            ),
            *("|=", "&=", "$=", "÷=", "⊻=", ":=", "~=", "&&", "||", "|>", "<|", "<<", ">>", "//", "++", ".."),
            *"=<>+-*/\\^%|&!~?:.$",
        ),
        key=len,
        reverse=True,
    )
)
# With a dot before it each of them is an operator on every element, these excepted.
_UNDOTTED = ("::", "->", "...", "..", ".", "?", ":", "$", ":=", "<--", "-->", "<-->", "&&=", "||=")
_NUMBER = re.compile(
    r"0[xX][\da-fA-F_]+(?:\.[\da-fA-F_]*)?(?:[pP][+-]?\d+)?|0[bB][01_]+|0[oO][0-7_]+"
    r"|(?:\d[\d_]*(?:\.(?![.A-Za-z_+\-*/\\^%&|<>=!÷'\"([]))?(?:(?<=\.)\d[\d_]*)?|\.\d[\d_]*)(?:[eEf][+-]?\d+)?"
)
_NAME_SYMBOLS = frozenset("∂∇∑∏∐∞∫∬∭∮⊤⊥∅∆∀∃")
_CHARACTER = re.compile(
    r"'(?:\\(?:x[\da-fA-F]{1,2}|u[\da-fA-F]{1,4}|U[\da-fA-F]{1,8}|[0-7]{1,3}|.)|[^\\'\n]+)'"
)


class SourceError(Exception):
    """What is no Julia source; the message says where and why."""


class Token(NamedTuple):
    """kind: one of the names above. text: a name without `var`, a macro by its last part (`@time`),
    nothing of a text. tight: nothing stands between it and the token before. line: counted from 1."""

    kind: str
    text: str
    tight: bool
    line: int


def tokens(source: str) -> list[Token]:
    """The tokens of a program. Raises SourceError for a text, comment or bracket that does not end."""
    scan = _Scan(source)
    scan.until(None)
    return scan.found


class _Scan:
    """One way through a program. at: where; open: the brackets and interpolations around it."""

    def __init__(self, source: str) -> None:
        self.source = source.replace("\r\n", "\n")
        self.at, self.line = 0, 1
        self.open: list[str] = []
        self.found: list[Token] = []
        self.tight = False

    def until(self, closing: str | None) -> None:
        """Take all tokens to the closing bracket of an interpolation, or to the end."""
        depth, began = len(self.open), self.line
        while self.at < len(self.source):
            char = self.source[self.at]
            if char == "\n":
                self.add(NEWLINE, "\n", 1)
                self.tight = False
            elif char.isspace():
                self.at += 1
                self.tight = False
            elif char == "#":
                self.comment()
            elif char in _CLOSING:
                self.open.append(_CLOSING[char])
                self.add(OPEN, char, 1)
            elif char in ")]}":
                if len(self.open) == depth and char == closing:
                    return
                if len(self.open) <= depth or self.open.pop() != char:
                    raise SourceError(f"line {self.line}: '{char}' closes nothing")
                self.add(CLOSE, char, 1)
            else:
                self.word(char)
        if closing or len(self.open) > depth:
            raise SourceError(
                f"line {began}: a bracket is not closed" if closing else "a bracket is not closed"
            )

    def add(self, kind: str, text: str, length: int) -> None:
        self.found.append(Token(kind, text, self.tight, self.line))
        self.line += self.source.count("\n", self.at, self.at + length)
        self.at += length
        self.tight = True

    def comment(self) -> None:
        self.tight = False
        if not self.source.startswith("#=", self.at):
            end = self.source.find("\n", self.at)
            self.at = len(self.source) if end < 0 else end
            return
        began, depth = self.line, 0
        for found in re.compile(r"#=|=#|\n").finditer(self.source, self.at):
            if found[0] == "\n":
                self.line += 1
                continue
            depth += 1 if found[0] == "#=" else -1
            if depth == 0:
                self.at = found.end()
                return
        raise SourceError(f"line {began}: a comment is not closed")

    def word(self, char: str) -> None:
        """A token that is no bracket."""
        if char in '"`':
            self.text(char, raw=False)
        elif char == "'":
            self.quote()
        elif char == "@":
            self.macro()
        elif char.isdigit() or (char == "." and self.source[self.at + 1 : self.at + 2].isdigit()):
            number = _NUMBER.match(self.source, self.at)
            self.add(NUMBER, number[0] if number else char, len(number[0]) if number else 1)
        elif _starts(char):
            self.name()
        elif char == ":" and self.quotes():
            self.symbol()
        else:
            self.operator(char)

    def after_operand(self) -> bool:
        """Does the token before end an operand, with nothing between?"""
        if not self.tight or not self.found:
            return False
        last = self.found[-1]
        return last.kind in (NAME, NUMBER, TEXT, CLOSE, SYMBOL, MACRO) or (
            (last.kind == KEYWORD and last.text in _VALUES) or (last.kind, last.text) == (OPERATOR, "'")
        )

    def quote(self) -> None:
        """A character, or the mark of an adjoint after an operand."""
        if self.after_operand():
            self.add(OPERATOR, "'", 1)
            return
        found = _CHARACTER.match(self.source, self.at)
        if not found:
            raise SourceError(f"line {self.line}: a character is not closed")
        self.add(TEXT, "", len(found[0]))

    def name(self) -> None:
        end = self.at + 1
        source = self.source
        while end < len(source) and _goes_on(source[end]):
            if source.startswith("!=", end):  # x!=y compares x
                break
            end += 1
        text = source[self.at : end]
        field = bool(self.found) and self.tight and self.found[-1].text == "." and not self.spread()
        if source[end : end + 1] in ('"', "`") and not (text in KEYWORDS and not field):
            self.prefixed(text, end)
            return
        self.add(KEYWORD if text in KEYWORDS and not field else NAME, text, end - self.at)

    def spread(self) -> bool:
        """Does the dot before stand alone, with no operand before it?"""
        return len(self.found) < 2 or self.found[-2].kind not in (NAME, CLOSE, TEXT, NUMBER)

    def prefixed(self, prefix: str, end: int) -> None:
        """A text with a name before it (r"...", raw"..."), in which nothing is code; var"..." is a name."""
        tight, line = self.tight, self.line
        self.at = end
        inner = self.text(self.source[end], raw=True)
        self.found.pop()
        if prefix == "var":
            self.found.append(Token(NAME, inner, tight, line))
            return
        flags = re.compile(r"\w*").match(self.source, self.at)
        self.at = flags.end() if flags else self.at
        self.found.append(Token(TEXT, "", tight, line))

    def text(self, mark: str, raw: bool) -> str:
        """A string or command, and after it what it interpolates. Gives what is between the marks."""
        closing = mark * 3 if self.source.startswith(mark * 3, self.at) else mark
        if closing == mark and self.source.startswith(mark * 2, self.at):
            self.add(TEXT, "", 2)
            return ""
        began = self.line
        self.add(TEXT, "", len(closing))
        start = self.at
        while self.at < len(self.source):
            if self.source.startswith(closing, self.at):
                inner = self.source[start : self.at]
                self.at += len(closing)
                self.tight = True
                return inner
            char = self.source[self.at]
            if char == "\\":
                self.line += self.source.startswith("\n", self.at + 1)
                self.at += 2
            elif char == "$" and not raw and self.source.startswith("(", self.at + 1):
                self.at += 1
                self.tight = False
                self.add(OPEN, "(", 1)
                self.until(")")
                self.add(CLOSE, ")", 1)
            else:
                self.line += char == "\n"
                self.at += 1
        raise SourceError(f"line {began}: a text is not closed")

    def macro(self) -> None:
        """@name, @Module.name, @. and the like, called by its last part; Module.@name alike."""
        end = self.at + 1
        while end < len(self.source) and (_goes_on(self.source[end]) or self.source[end] == "."):
            end += 1
        path = self.source[self.at + 1 : end]
        last = path.rpartition(".")[2]
        while (
            self.tight and len(self.found) > 1 and (self.found[-1].text, self.found[-2].kind) == (".", NAME)
        ):
            del self.found[-2:]
        self.add(MACRO, f"@{last}", end - self.at)

    def quotes(self) -> bool:
        """Does a colon here quote what follows, as in :name or :(x + 1)?"""
        following = self.source[self.at + 1 : self.at + 2]
        if self.after_operand() or self.source.startswith("::", self.at) or not following:
            return False
        return _starts(following) or following == "(" or following in "+-*/\\^%<>=!&|~÷'"

    def symbol(self) -> None:
        if self.source.startswith("(", self.at + 1):
            self.add(SYMBOL, "", 1)
            self.tight = False
            return
        end = self.at + 1
        if _starts(self.source[end]):
            while (
                end < len(self.source)
                and _goes_on(self.source[end])
                and not self.source.startswith("!=", end)
            ):
                end += 1
        else:
            end += next(len(word) for word in (*_OPERATORS, "'") if self.source.startswith(word, end))
        self.add(SYMBOL, self.source[self.at + 1 : end], end - self.at)

    def operator(self, char: str) -> None:
        dotted = char == "." and not self.source.startswith("..", self.at)
        start = self.at + dotted
        for word in _OPERATORS:
            if self.source.startswith(word, start) and not (dotted and word in _UNDOTTED):
                self.add(OPERATOR, "." * dotted + word, len(word) + dotted)
                return
        if dotted and start < len(self.source) and unicodedata.category(self.source[start]) == "Sm":
            self.add(OPERATOR, f".{self.source[start]}", 2)
            return
        if char in ",;":
            self.add(NEWLINE if char == ";" and not self.open else OPERATOR, char, 1)
            return
        self.add(OPERATOR, "." if dotted else char, 1)


def _starts(char: str) -> bool:
    """May a name begin with it?"""
    if char.isascii():
        return char.isalpha() or char == "_"
    kind = unicodedata.category(char)
    return kind[0] == "L" or kind in ("Nl", "So", "Sc") or char in _NAME_SYMBOLS


def _goes_on(char: str) -> bool:
    """May it stand in a name after its beginning?"""
    if char.isascii():
        return char.isalnum() or char in "_!"
    return (
        _starts(char)
        or unicodedata.category(char) in ("Mn", "Mc", "Me", "Nd", "No", "Sk", "Pc")
        or char in "′″‴"
    )

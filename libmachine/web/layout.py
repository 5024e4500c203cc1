"""Text as blocks: paragraphs, headings, lists and rows, out of what is said and where elements begin."""

from __future__ import annotations

import re

_PARAGRAPHS = {
    *("p", "blockquote", "pre", "ul", "ol", "dl", "table", "figure", "hr", "article", "section", "fieldset"),
    *("h1", "h2", "h3", "h4", "h5", "h6"),
}
_LINES = {
    *("address", "aside", "body", "br", "caption", "dd", "details", "dialog", "div", "dt", "figcaption"),
    *("footer", "form", "header", "html", "head", "legend", "li", "main", "nav", "option", "summary"),
    *("tbody", "tfoot", "thead", "tr", "xmp", "optgroup", "search", "hgroup", "center"),
}
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_DEEPEST = 10
_FEW = 8  # pieces of a link's text that are compared with its URL: one that is long is another
_MOST_LINKED = 2_000_000  # characters of URLs in one page; a base that is long makes much of little


class Layout:
    """Takes the text of a page piece by piece; text() is all of it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._breaks = 2  # line ends that are due before the next word: at the beginning none is missing
        self._blank = False
        self._opening = ""  # what the next word begins with: the mark of a heading or a list
        self._lists: list[int] = []  # the number of the next item, 0 in a list without numbers
        self._rows: list[int] = []  # the cells so far of the row, one for each table that is open
        self._pre = 0
        self._fresh = False  # at the beginning of a pre, where a line end does not count
        self._linked = 0
        self._marks: list[int] = []  # how many pieces there were when each open link began

    def say(self, text: str) -> None:
        """Text as it stands in the source."""
        if self._pre:
            text = text[1:] if self._fresh and text.startswith("\n") else text
            self._fresh = False
            if text:
                self._word(text)
            return
        words = _SPACE.sub(" ", text)
        if not words.strip(" "):
            self._blank = self._blank or bool(words)
            return
        self._blank = self._blank or words[0] == " "
        self._word(words.strip(" "))
        self._blank = words[-1] == " "

    def start(self, tag: str) -> None:
        self._break(tag)
        if tag in ("ul", "ol"):
            self._lists.append(int(tag == "ol"))
        elif tag == "li":
            depth = "  " * (min(len(self._lists), _DEEPEST) - 1)
            number = self._lists[-1] if self._lists else 0
            self._opening = f"{depth}{number}. " if number else f"{depth}- "
            if number:
                self._lists[-1] += 1
        elif tag == "table":
            self._rows.append(0)
        elif tag == "tr" and self._rows:
            self._rows[-1] = 0
        elif tag in ("td", "th") and self._rows:
            if self._rows[-1]:
                self._opening += " | "
                self._breaks = 0
            self._rows[-1] += 1
        elif len(tag) == 2 and tag[0] == "h" and tag[1] in "123456":
            self._opening = "#" * int(tag[1]) + " "
        elif tag == "pre":
            self._pre += 1
            self._fresh = True
        elif tag == "a":
            self._marks.append(len(self._pieces))

    def end(self, tag: str, link: str = "") -> None:
        """An element ends. link: where one of `a` leads."""
        if tag == "a" and self._marks:
            mark = self._marks.pop()
            said = "".join(self._pieces[mark : mark + _FEW]).strip()
            same = said.removesuffix("/") == link.removesuffix("/")
            if link and said and not same and self._linked < _MOST_LINKED:
                self._pieces.append(f" ({link})")
                self._linked += len(link)
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag == "table" and self._rows:
            self._rows.pop()
        elif tag == "pre" and self._pre:
            self._pre -= 1
        elif tag == "li" or tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._opening = ""
        self._break(tag)

    def text(self) -> str:
        return "".join(self._pieces).strip("\n").rstrip()

    def _break(self, tag: str) -> None:
        wanted = 2 if tag in _PARAGRAPHS else 1 if tag in _LINES else 0
        nested = tag in ("ul", "ol") and len(self._lists) > 0
        in_row = bool(self._rows and self._rows[-1]) and tag in ("p", "div", "br", "section", "article")
        if in_row or (nested and wanted):
            wanted = 0 if in_row else 1
            self._blank = True
        if tag == "br" and not in_row and not self._pre:
            self._breaks = min(2, self._breaks + 1)
        elif tag == "br" and self._pre:
            self._pieces.append("\n")
        else:
            self._breaks = max(self._breaks, wanted)

    def _word(self, word: str) -> None:
        if self._breaks or not self._pieces:
            if self._pieces:
                self._pieces.append("\n" * self._breaks)
        elif self._blank and not self._opening:
            self._pieces.append(" ")
        self._pieces.append(self._opening + word)
        self._opening, self._breaks, self._blank = "", 0, False

"""HTML as text: what a reader sees of it, in time linear in its length. Pure; takes any text.

The scanner is our own. That of the standard library takes minutes for a megabyte of `<!-- ` (before
Python 3.13.6), and a page of the web is what somebody else wrote. Its rules are those of browsers
where text could hide: in scripts, comments, attributes, unclosed elements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple
from urllib.parse import urljoin

from libmachine.web.layout import Layout

_MARKUP = re.compile(r"<(?=[a-zA-Z!?/])")  # any other < is one
_NAME = re.compile(r"[a-zA-Z][^\s/>]*")
_ATTRIBUTE = re.compile(
    r"""[\s/]*(?:(>)|([^\s/>][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]*)))?)""", re.DOTALL
)
_SCRIPT = re.compile(r"<!(?=--)|-->|</?script(?=[\s/>])", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")  # int() refuses those of 4300 digits
_NOT_SHOWN = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)

_RAW = ("script", "style", "noscript", "iframe", "noembed", "noframes", "textarea", "title", "xmp")
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW}
_HIDDEN = {"template", "svg", "canvas", "audio", "video", "object", "datalist", "map"}
_VOID = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"),
    *("frame", "param", "basefont", "bgsound"),
}
_CLOSE_P = {
    *("address", "article", "aside", "blockquote", "div", "dl", "fieldset", "figure", "footer", "form"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section"),
    *("table", "ul"),
}
# A start that ends an open element of these names, if that is the innermost one
_ENDS = {
    **{name: {"p"} for name in _CLOSE_P},
    "li": {"li", "p"},
    "dt": {"dt", "dd", "p"},
    "dd": {"dt", "dd", "p"},
    "td": {"td", "th", "p"},
    "th": {"td", "th", "p"},
    "tr": {"td", "th", "tr", "p"},
    "tbody": {"td", "th", "tr", "thead", "tbody", "p"},
    "option": {"option"},
    "a": {"a"},
}


class Token(NamedTuple):
    """kind: text, start, end, or raw (all that is in an element of _RAW, name says which)."""

    kind: str
    name: str
    text: str = ""
    attributes: dict[str, str] | None = None


def tokens(html: str) -> Iterator[Token]:
    """What a page is made of. Comments, declarations and what is never closed are left out."""
    at = 0
    while at < len(html):
        markup = _MARKUP.search(html, at)
        start = markup.start() if markup else len(html)
        if start > at:
            yield Token("text", "", _plain(html[at:start]))
        if not markup:
            return
        is_end = html.startswith("/", start + 1)
        name = _NAME.match(html, start + 1 + is_end)
        if name is None:
            at = _comment(html, start)
            if at < 0:
                return
            continue
        tag = name[0].lower()
        attributes, at = _attributes(html, name.end())
        if at < 0:
            return
        if is_end:
            yield Token("end", tag)
            continue
        yield Token("start", tag, "", attributes)
        if tag == "plaintext":
            yield Token("text", "", html[at:])
            return
        if tag in _RAW_ENDS:
            end = _script_end(html, at) if tag == "script" else _raw_end(html, tag, at)
            yield Token("raw", tag, html[at:end])
            at = end


def _comment(html: str, start: int) -> int:
    """Where it goes on after a comment or declaration, -1 if that never ends."""
    if html.startswith("<!--", start):
        # <!--> and <!---> are whole comments
        end = html.find("-->", start + 2)
        return end + 3 if end >= 0 else -1
    end = html.find(">", start)
    return end + 1 if end >= 0 else -1


def _attributes(html: str, at: int) -> tuple[dict[str, str], int]:
    """The attributes of a tag by their names, the first of each, and where the tag ends; -1: never."""
    found: dict[str, str] = {}
    while match := _ATTRIBUTE.match(html, at):
        at = match.end()
        if match[1]:
            return found, at
        if len(found) < 50:
            value = next((text for text in match.group(3, 4, 5) if text is not None), "")
            found.setdefault(match[2].lower(), value)
    return found, -1


def _raw_end(html: str, tag: str, at: int) -> int:
    end = _RAW_ENDS[tag].search(html, at)
    return end.start() if end else len(html)


def _script_end(html: str, at: int) -> int:
    """Where a script ends: in one, `<!-- <script>` hides the next `</script>`, as in browsers."""
    state = 0  # 1 in a comment, 2 in a script in a comment
    for match in _SCRIPT.finditer(html, at):
        found = match[0].lower()
        if found == "</script" and state < 2:
            return match.start()
        if found == "-->":
            state = 0
        elif found == "<!":
            state = max(state, 1)
        elif state:
            state = 1 if found == "</script" else 2
    return len(html)


def _plain(text: str) -> str:
    return unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def title_and_text(html: str, url: str = "") -> tuple[str, str]:
    """The title of a page ("" without one) and its text. url: where it was, for its relative links."""
    reading = _Reading(url)
    for token in tokens(html):
        reading.take(token)
    reading.end()
    return reading.title, reading.layout.text()


class _Reading:
    """The open elements of a page, and with them what is shown."""

    def __init__(self, url: str) -> None:
        self.title = ""
        self.layout = Layout()
        self._base = url
        self._open: list[tuple[str, bool]] = []
        self._counts: Counter[str] = Counter()
        self._hidden = 0
        self._links: list[str] = []

    def take(self, token: Token) -> None:
        if token.kind == "start":
            self._start(token.name, token.attributes or {})
        elif token.kind == "end":
            self._end(token.name)
        elif token.kind == "raw":
            self._raw(token)
        elif not self._hidden:
            self.layout.say(token.text)

    def end(self) -> None:
        """The page is over: what is open ends."""
        while self._open:
            self._close()

    def _raw(self, token: Token) -> None:
        if token.name == "title" and not self._hidden and not self.title:
            self.title = " ".join(_plain(token.text).split())
        elif token.name == "xmp" and not self._hidden:
            self.layout.say(token.text)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        while self._open and self._open[-1][0] in _ENDS.get(tag, ()):
            self._close()
        hidden = (
            tag in _HIDDEN
            or "hidden" in attributes
            or (tag == "dialog" and "open" not in attributes)
            or _NOT_SHOWN.search(attributes.get("style", "")) is not None
        )
        if tag in _VOID:
            if not hidden and not self._hidden:
                self._void(tag, attributes)
            return
        self._open.append((tag, hidden))
        self._counts[tag] += 1
        self._hidden += hidden
        if tag == "a":
            self._links.append(self._address(attributes.get("href", "")) if not self._hidden else "")
        if not self._hidden:
            self.layout.start(tag)

    def _void(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "base" and attributes.get("href"):
            self._base = self._address(attributes["href"]) or self._base
        elif tag == "img" and attributes.get("alt", "").strip():
            self.layout.say(f"[{_plain(attributes['alt']).strip()}]")
        else:
            self.layout.start(tag)

    def _end(self, tag: str) -> None:
        if tag in ("p", "br") and not self._counts[tag]:
            if not self._hidden:
                self.layout.start(tag)  # as browsers do
            return
        while self._counts[tag]:  # more than one only on the way to it
            if self._close() == tag:
                return

    def _close(self) -> str:
        tag, hidden = self._open.pop()
        self._counts[tag] -= 1
        if not self._hidden:
            self.layout.end(tag, self._links[-1] if tag == "a" else "")
        if tag == "a":
            self._links.pop()
        self._hidden -= hidden
        return tag

    def _address(self, href: str) -> str:
        """Where a link leads, "" where that is nowhere on the web."""
        href = _plain(href).strip()
        if not href or href.startswith("#") or len(href) > 1000:
            return ""
        try:
            joined = urljoin(self._base, "".join(href.split()))
        except ValueError:
            return ""
        return joined if joined.lower().startswith(("http://", "https://", "mailto:")) else ""

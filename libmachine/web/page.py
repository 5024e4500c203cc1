"""The bytes of a page as text: which kinds are read, in which character set, and in parts. Pure."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from libmachine.errors import MachineError
from libmachine.web.html import title_and_text

_KINDS = re.compile(
    r"text/[^;]+|application/(?:json|xml|x-ndjson|jsonl|javascript)|[a-z]+/[a-z0-9.+-]+\+(?:json|xml)"
)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"<meta\b[^>]{0,300}?\bcharset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\b[^>]{0,200}?\bencoding\s*=\s*[\"']([\w.:-]{1,40})")
# Character sets of the web. Python has others that are none (punycode, unicode_escape, zlib).
_KNOWN = re.compile(
    r"utf-8|utf-16(?:-[lb]e)?|iso8859-\d+|cp125\d|cp874|cp866|cp932|cp949|koi8-[ru]|mac-(?:roman|cyrillic)|"
    r"gbk|gb2312|gb18030|big5|big5hkscs|euc_(?:jp|kr)|iso2022_jp|shift_jis"
)
_WIDER = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127])


class Page(NamedTuple):
    """A page that was read. url: where it was at last; cut: why it is not whole, None if it is."""

    url: str
    text: str
    cut: str | None


def kind_of(content_type: str) -> str:
    """The media type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_text(content_type: str) -> bool:
    """Whether a Content-Type is one that is read. None at all may be one."""
    kind = kind_of(content_type)
    return not kind or _KINDS.fullmatch(kind) is not None


def text_of(body: bytes, content_type: str, url: str) -> str:
    """The text of a page: of HTML what a reader sees, of all else the characters as they are.

    Raises MachineError for bytes of no stated kind that are no text.
    """
    kind = kind_of(content_type)
    if not kind:
        start = body[:1000].lstrip().lower()
        if b"\0" in start:
            raise MachineError(f"'{url}' does not say what it is, and is no text: {len(body)} bytes")
        kind = "text/html" if start.startswith((b"<!doctype html", b"<html", b"<head", b"<!--")) else ""
    is_html = kind in ("text/html", "application/xhtml+xml")
    text = body.decode(charset_of(body, content_type, is_html), "replace").removeprefix("\ufeff")
    if is_html:
        title, text = title_and_text(text, url)
        if title and not re.match(rf"#* ?{re.escape(title)}(?:\n|$)", text):
            text = f"{title}\n\n{text}" if text else title
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def charset_of(body: bytes, content_type: str, is_html: bool = False) -> str:
    """The character set: by the mark at the beginning, the header, the page itself, else UTF-8."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return name
    said = re.search(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", content_type, re.IGNORECASE)
    inside = _XML.match(body) or (_META.search(body[:4096]) if is_html else None)
    named = _codec(inside[1].decode("ascii", "replace")) if inside else None
    if named and named.startswith("utf-16"):  # it was read as ASCII, so it is not that
        named = None
    return (_codec(said[1]) if said else None) or named or "utf-8"


def _codec(name: str) -> str | None:
    """Python's name of a character set of the web, None if it is none."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    found = _WIDER.get(found, found)
    return found if _KNOWN.fullmatch(found) else None


def part(text: str, offset: int, most: int) -> tuple[str, int | None]:
    """At most so many characters from offset on, and where the next part begins, None at the end.
    Parts one after the other are the text."""
    end = offset + most
    return (text[offset:end], end) if end < len(text) else (text[offset:], None)

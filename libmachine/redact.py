"""Take secrets out of what is stored, printed or shown to a model.

The values of known secrets become `[redacted:NAME]`, in any form they travel in: as they are,
URL-encoded, inside base64 and inside JSON. Keys that nobody named are known by their shape and
become `[redacted:pattern]`. Where nothing is found the value itself comes back, after one pass
over its serialised text.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from libmachine import env

SHORTEST = 8
"""Characters of a value that is taken for a secret; shorter ones are placeholders, and too common."""
PATTERN = "[redacted:pattern]"

# Well-known shapes. What a person may write by chance (sk-toggleable-label) has no 16 letters and digits
# in a row with a digit among them.
_RANDOM = r"(?=[\w-]*?[A-Za-z0-9]{16})(?=[A-Za-z_-]*\d)[\w-]{20,}"
_SHAPE = re.compile(
    rf"(?<![\w-])(?:sk|tml)-{_RANDOM}"  # OpenAI, Anthropic, OpenRouter; Tinker
    r"|(?<!\w)gh[pousr]_[A-Za-z0-9]{30,}|(?<!\w)github_pat_\w{22,}"
    r"|(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    re.ASCII,
)
# A private key as a block, its lines parted by line ends or by the escapes of JSON for them; also one
# that was cut off. A text about such blocks has no line of letters and digits in them.
# What is repeated possessively takes nothing back inside: before 3.11.5 Python matches that wrongly.
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"(?:(?:(?!-----(?:BEGIN|END) )[\w+/=:,.\s\\-])*-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----"
    r"|(?:\s|\\++[nr])*+[A-Za-z0-9+/=]{24,}+(?:(?:\s|\\++[nr])++[A-Za-z0-9+/=]++(?=\s|\\|\Z))*+)",
    re.ASCII,
)
_PEM_LINE = re.compile(r"[A-Za-z0-9+/=]{24}")
# Whether there may be one, in serialised text: looser, as what stands before it may be an escape.
_HINT = re.compile(
    rb"(?:sk|tml)-[\w-]{20}|gh[pousr]_[A-Za-z0-9]{30}|github_pat_\w{22}|A[KS]IA[A-Z0-9]{16}"
    rb"|-----BEGIN [A-Z0-9 ]*PRIVATE KEY"
)
# What each of these has in it: looked for first, as that is fifty times faster than the pattern.
_BEGINS = (
    b"sk-",
    b"tml-",
    b"ghp_",
    b"gho_",
    b"ghu_",
    b"ghs_",
    b"ghr_",
    b"github_pat_",
    b"AKIA",
    b"ASIA",
    b"-----BEGIN ",
)
# The shape of a field's name, which no secret is.
_FIELD = re.compile(r"[a-z_]{1,24}")


def redactor(secrets: Mapping[str, str]) -> Callable[[Any], Any]:
    """A function that takes secrets out of any JSON value, texts included.

    secrets: name -> value, as of env.secrets(). Values shorter than SHORTEST are passed over. The
    function changes nothing in place and may be called from several threads.
    """
    return _Redactor(secrets).redact


def of_environment(value: Any) -> Any:
    """The value without the keys that the environment holds now."""
    return _of(tuple(sorted(env.secrets().items())))(value)


@functools.lru_cache(maxsize=4)
def _of(secrets: tuple[tuple[str, str], ...]) -> Callable[[Any], Any]:
    return redactor(dict(secrets))


class _Redactor:
    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.names: dict[str, str] = {}  # form -> the name that stands for it
        for name, value in sorted(secrets.items(), key=lambda item: (-len(item[1]), item[0])):
            if len(value) >= SHORTEST and value not in PATTERN and value not in f"[redacted:{name}]":
                for form in forms(value):
                    self.names.setdefault(form, name)
        self.needles = sorted({_serialised(form) for form in self.names})

    def redact(self, value: Any) -> Any:
        """The value without secrets; itself if it has none."""
        try:
            data = orjson.dumps(value)
        except TypeError:  # nothing of JSON's, or a lone surrogate: then the walk looks at each text
            return self._walk(value)
        hinted = any(begin in data for begin in _BEGINS) and _HINT.search(data) is not None
        if not hinted and not any(needle in data for needle in self.needles):
            return value
        return self._walk(value)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._name(name): self._walk(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._walk(item) for item in value]
        return value

    def _name(self, name: Any) -> Any:
        return self._text(name) if isinstance(name, str) and not _FIELD.fullmatch(name) else name

    def _text(self, text: str) -> str:
        """The text with every place that belongs to a secret replaced; places that overlap are one."""
        spans = [(start, -end, name) for start, end, name in self._places(text)]
        if not spans:
            return text
        pieces = []
        done = 0
        for start, minus_end, name in sorted(spans):  # where two begin together, the longer one names it
            if start >= done:
                pieces += [text[done:start], f"[redacted:{name}]"]
            done = max(done, -minus_end)
        return "".join([*pieces, text[done:]])

    def _places(self, text: str) -> Iterator[tuple[int, int, str]]:
        for form, name in self.names.items():
            at = text.find(form)
            while at >= 0:
                yield at, at + len(form), name
                at = text.find(form, at + 1)
        for match in _SHAPE.finditer(text):
            yield match.start(), match.end(), "pattern"
        for match in _PEM.finditer(text):
            if _PEM_LINE.search(match[0], len("-----BEGIN PRIVATE KEY-----")):
                yield match.start(), match.end(), "pattern"


def forms(value: str) -> set[str]:
    """The ways in which a value is written: plain, URL-encoded, JSON-escaped, and as it stands in base64."""
    found = {value}
    found |= {json.dumps(value, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    found |= {form.replace("/", "\\/") for form in list(found)}
    found |= {json.dumps(form)[1:-1] for form in list(found)}  # JSON inside JSON: a tool's arguments
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return found
    for safe in ("", "/", "/:@!$&'()*+,;=~"):
        encoded = quote(data, safe=safe)
        found |= {encoded, encoded.replace("%20", "+"), re.sub("%..", lambda m: m[0].lower(), encoded)}
    found.update(_in_base64(data))
    return found


def _in_base64(data: bytes) -> Iterator[str]:
    """What base64 of a text with the value in it always holds: by the three ways it can be aligned."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        # the first and last letters also depend on what stands around the value
        first = (before * 8 + 5) // 6
        last = (before + len(data)) * 8 // 6
        core = encoded[first:last]
        if len(core) >= SHORTEST:
            yield core
            yield core.replace("+", "-").replace("/", "_")
            yield core.replace("+", "%2B").replace("/", "%2F")


def _serialised(form: str) -> bytes:
    """A form as it stands in serialised JSON."""
    try:
        return orjson.dumps(form)[1:-1]
    except TypeError:
        return json.dumps(form)[1:-1].encode()

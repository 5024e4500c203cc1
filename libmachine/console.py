"""Text for people: made safe for a terminal, laid out in columns, no wider than the screen."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence

from libmachine import env

# Whole control sequences first (CSI; OSC, DCS, APC, PM, SOS up to their end), 7-bit and C1 forms.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?s:.*?)(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*(?:[0-~]|$)"
)
# Other controls, bidirectional overrides, zero-width and tag characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def safe(text: str) -> str:
    """Foreign text as a terminal may have it: no control sequences; newlines and tabs are kept."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub("\ufffd", _SEQUENCE.sub("", text))


def escaped(line: bytes) -> bytes:
    """A line of JSON as a terminal may have it: the same value, control characters as \\u escapes."""
    text = line.decode("utf-8", "replace")
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def one_line(text: str, width: int) -> str:
    """Safe text on one line of at most width columns, cut visibly."""
    return cut(" ".join(safe(text[: 4 * width + 200]).split()), width)


def cut(text: str, width: int) -> str:
    """Text of at most width columns; what is cut off shows as an ellipsis."""
    if columns(text) <= width:
        return text
    kept = ""
    used = 0
    for character in text:
        used += columns(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…"


def cut_middle(text: str, limit: int) -> tuple[str, bool]:
    """Text of about limit characters, head and tail kept, and whether anything was cut out."""
    if len(text) <= limit:
        return text, False
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}", True


def columns(text: str) -> int:
    """Columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def width(fd: int = 1) -> int:
    """Columns of the terminal, else COLUMNS, else 80."""
    try:
        return os.get_terminal_size(_product if fd == 1 else fd).columns or 80
    except OSError:
        wanted = env.get("COLUMNS") or ""
        return int(wanted) if wanted.isdigit() and int(wanted) > 0 else 80


def table(rows: Sequence[Sequence[str]], room: int, right: Sequence[int] = ()) -> str:
    """Rows as columns, the last one cut to the room left. right: numbers of right-aligned columns."""
    if not rows:
        return ""
    last = len(rows[0]) - 1
    widths = [max(columns(row[i]) for row in rows) for i in range(last)]
    left = max(room - sum(widths) - 2 * last, 8)
    lines = []
    for row in rows:
        cells = [_pad(cell, widths[i], i in right) for i, cell in enumerate(row[:-1])]
        lines.append("  ".join([*cells, cut(row[-1], left)]).rstrip())
    return "\n".join(lines) + "\n"


def _pad(text: str, wide: int, right: bool) -> str:
    gap = " " * (wide - columns(text))
    return gap + text if right else text + gap


def say(text: str) -> None:
    """A line of talk on stderr, without secrets and safe for a terminal, whatever it quotes.

    A closed or full stderr loses the talk, never the work."""
    from libmachine.redact import of_environment as redacted  # only talk needs it

    try:
        sys.stderr.write(safe(redacted(text)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


_product = 1


def product() -> int:
    """The descriptor that the product goes to: 1, or where `stdout_apart` has put it."""
    return _product


@contextlib.contextmanager
def stdout_apart() -> Iterator[None]:
    """While a command works, descriptor 1 is stderr: what a machine's code or a program that it starts
    prints is talk. The product's own descriptor reaches no child process."""
    global _product
    _product = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(_product, 1)
        os.close(_product)
        _product = 1


def is_terminal(fd: int) -> bool:
    """Is a person at this descriptor?"""
    try:
        return os.isatty(_product if fd == 1 else fd)
    except OSError:
        return False


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def money(amount: float | None) -> str:
    """US dollars for people: cents, and more digits where cents say nothing."""
    if amount is None:
        return "cost unknown"
    return f"${amount:.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.4f}"


class Progress:
    """A bar on stderr while a person waits; nothing where stderr is no terminal."""

    def __init__(self, label: str, total: int | None) -> None:
        self.label, self.total, self.done = label, total, 0
        self.shown = is_terminal(2)

    def step(self, note: str = "") -> None:
        """One more is done."""
        self.done += 1
        if not self.shown:
            return
        room = width(2)
        if self.total:
            filled = round(20 * min(1.0, self.done / self.total))
            head = f"{self.label} [{'#' * filled}{'.' * (20 - filled)}] {self.done}/{self.total}"
        else:
            head = f"{self.label} {self.done}"
        self._show(cut(f"{head} {one_line(note, room)}", room - 1))

    def _show(self, text: str) -> None:
        try:
            sys.stderr.write("\r\x1b[K" + text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self.shown = False

    def clear(self) -> None:
        """Take the bar away, before a line of talk or at the end."""
        if self.shown:
            self._show("")

"""Text for people: made safe for a terminal, laid out in columns, no wider than the screen."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from libmachine import env

# Whole control sequences first (CSI; OSC, DCS, APC, PM, SOS up to their end), 7-bit and C1 forms.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*(?:[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])(?s:.*?)(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*(?:[0-~]|$)"
)
# A command at the end of a line of talk, which must stay whole to be copied.
_COMMAND = re.compile(r"(?:^|[;.:] )((?:type|[Nn]ext|to go on): \S.*)$")
# Columns of a bar and its figures.
_FIGURES = 56
# Columns that a cut column keeps, and the last one.
_LEAST, _LAST = 12, 12
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


def table(
    rows: Sequence[Sequence[str]],
    room: int,
    right: Sequence[int] = (),
    shrink: Sequence[int] = (),
    wide: Sequence[int] = (),
) -> str:
    """Rows as columns, the last one cut to the room left. right: numbers of right-aligned columns.

    shrink: numbers of columns that are cut too, the widest first, where the last would have none. wide:
    widths() of more rows than these.
    """
    if not rows:
        return ""
    last = len(rows[0]) - 1
    needed = list(wide or widths(rows))
    wanted = min(_LAST, max(columns(row[last]) for row in rows))
    while room - sum(needed) - 2 * last < wanted:
        widest = max(sorted(shrink, reverse=True), key=lambda i: needed[i], default=None)
        if widest is None or needed[widest] <= _LEAST:
            break
        needed[widest] -= 1
    left = max(room - sum(needed) - 2 * last, 8)
    lines = []
    for row in rows:
        cells = [_pad(cut(cell, needed[i]), needed[i], i in right) for i, cell in enumerate(row[:-1])]
        lines.append("  ".join([*cells, cut(row[-1], left)]).rstrip())
    return "\n".join(lines) + "\n"


def fold(text: str, width: int) -> list[str]:
    """Prose on lines of at most width columns; what follows the first is indented.

    A word is never cut: one that no line holds stands where it is. Nor is a command to type: one that does
    not fit has a line of its own.
    """
    text = safe(text)
    if ("\n" not in text and columns(text) <= width) or text.startswith("  "):  # folded before
        return [text]
    found = _COMMAND.search(text)
    prose, command = (text[: found.start(1)].rstrip(" ;"), found[1]) if found else (text, "")
    lines: list[str] = []
    for word in prose.split():
        fits = lines and columns(lines[-1]) + 1 + columns(word) <= width
        if fits or (lines and columns(lines[-1]) <= width < columns(word) + 2):
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [*lines, f"  {command}"] if command else lines


def widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[int]:
    """Columns that each cell of a table's rows needs, the last left out; not below least."""
    needed = [max(columns(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [max(pair) for pair in zip(needed, least, strict=True)] if least else needed


def _pad(text: str, wide: int, right: bool) -> str:
    gap = " " * (wide - columns(text))
    return gap + text if right else text + gap


def say(text: str) -> None:
    """A line of talk on stderr, without secrets, safe for a terminal whatever it quotes, folded for a person.

    A closed or full stderr loses the talk, never the work."""
    from libmachine.redact import of_environment as redacted  # only talk needs it

    text = redacted(safe(text))
    if (listener := _listening()) is not None:
        listener(text)
        return
    if is_terminal(2):
        room = width(2)
        text = "\n".join(
            row for line in text.split("\n") for row in (fold(line, room) if columns(line) > room else [line])
        )
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


_listener: Callable[[str], None] | None = None


def talk_to(listener: Callable[[str], None] | None) -> None:
    """Hand each line of talk to a function, and show no bars; None: to stderr, as it is at the start.

    A command talks on stderr all the same, whatever the code of its machines says."""
    global _listener
    _listener = listener


def _listening() -> Callable[[str], None] | None:
    return _listener if _product == 1 else None


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


def duration(seconds: float) -> str:
    """A time for people: `12 s`, `3 min`, `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"


class Progress:
    """A bar on stderr while a person waits; nothing where stderr is no terminal.

    total: how many there will be, None if nobody knows. spent: US dollars so far, shown with the bar.
    """

    def __init__(
        self, label: str, total: int | None, spent: Callable[[], float | None] | None = None
    ) -> None:
        self.label, self.total, self.spent = label, total, spent
        self.done = self._before = 0
        self._began = time.monotonic()
        self.shown = is_terminal(2) and _listening() is None

    def more(self, number: int) -> None:
        """So many more are to be done than was known."""
        self.total = (self.total or 0) + number

    def resume(self, done: int) -> None:
        """So many were done before: they say nothing of the time left."""
        self.done = self._before = done

    def step(self, note: str = "") -> None:
        """One more is done."""
        self.done += 1
        if not self.shown:
            return
        room = width(2)
        label = cut(self.label, max(12, room - _FIGURES))
        if self.total:
            filled = round(20 * min(1.0, self.done / self.total))
            head = f"{label} [{'#' * filled}{'.' * (20 - filled)}] {self.done}/{self.total}"
        else:
            head = f"{label} {self.done}"
        notes = [money(self.spent())] if self.spent else []
        if self.total:
            pace = (time.monotonic() - self._began) / (self.done - self._before)
            notes.append(f"{duration(pace * max(0, self.total - self.done))} left")
        self._show(
            cut(f"{head} {', '.join([*notes, one_line(note, room)] if note else notes)}".rstrip(), room - 1)
        )

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

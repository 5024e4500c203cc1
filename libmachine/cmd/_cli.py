"""What every command shares: exit codes, errors, the option -C, output that survives its reader.

Imports nothing heavy: a filter in a pipe must start like one.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from libmachine.errors import (
    BUG,
    FATAL,
    INTERRUPTED,
    PARTIAL,
    READER_GONE,
    USAGE,
    MachineError,
    UsageError,
)

if TYPE_CHECKING:
    import click

    from libmachine.project import Project

Function = TypeVar("Function", bound=Callable[..., Any])
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 90}


def entry(command: click.Command) -> Callable[[], int]:
    """The main() of a command: runs it on sys.argv and returns the exit code, whatever happens."""

    def work() -> int:
        from click.exceptions import Abort, Exit
        from click.exceptions import UsageError as Misuse

        try:
            from libmachine import console

            context = command.make_context(command.name, sys.argv[1:])
            with context, console.stdout_apart():
                return command.invoke(context) or 0
        except Exit as leave:
            return leave.exit_code
        except Abort:
            raise KeyboardInterrupt from None
        except Misuse as error:
            raise UsageError(error.format_message().rstrip(".")) from error

    return guarded(work, command.name or "machine")


def guarded(work: Callable[[], int], name: str) -> Callable[[], int]:
    """A main() that turns whatever happens in work into text on stderr and an exit code."""

    def main() -> int:
        code = _run(work, name)
        try:
            sys.stdout.flush()
        except (OSError, AttributeError, ValueError):
            _drop_stdout()
            code = code or READER_GONE
        return code

    return main


def _run(work: Callable[[], int], name: str) -> int:
    try:
        _open_standard_files()
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except UsageError as error:
        return _fail(f"usage: {error}; see {name} --help", USAGE)
    except MachineError as error:
        return _fail(f"fatal: {error}", error.exit_code)
    except BrokenPipeError:
        _drop_stdout()
        return READER_GONE
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:  # what os.getcwd says
            return _fail("fatal: the current directory is gone; change to one that exists", FATAL)
        if error.errno is None or (error.filename is None and error.errno not in _DISK):
            return _bug(error)
        place = f"'{error.filename}': " if error.filename else ""
        hint = _HINTS.get(error.errno, "")
        return _fail(f"fatal: {place}{(error.strerror or '').lower()}{hint}", FATAL)
    except (Exception, SystemExit) as error:
        return _bug(error)


_DISK = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EIO)
_HINTS = {
    errno.ENOSPC: "; make room and run the command again: what was stored is kept",
    errno.EROFS: "; set MACHINE_DIR to a directory that may be written",
    errno.EACCES: "; set MACHINE_DIR to a directory that may be written",
}


def _fail(text: str, code: int) -> int:
    from libmachine import console

    if os.environ.get("MACHINE_DEBUG") == "1":
        import traceback

        console.say(traceback.format_exc().rstrip())
    console.say(text)
    return code


def _bug(error: BaseException) -> int:
    return _fail(f"bug: {type(error).__name__}: {error} (MACHINE_DEBUG=1 shows where; please report it)", BUG)


def _open_standard_files() -> None:
    """Put /dev/null where a standard descriptor is closed, else the next file opened would get its
    number and be read or printed into. Raises MachineError if that is stdout."""
    closed = [fd for fd in (0, 1, 2) if not _is_open(fd)]
    for fd in closed:
        got = os.open(os.devnull, os.O_RDWR)
        if got != fd:
            os.dup2(got, fd)
            os.close(got)
    if 1 in closed:
        raise MachineError("stdout is closed; send it to a file, a pipe or /dev/null")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _drop_stdout() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def workspace_option(function: Function) -> Function:
    """-C DIR, --workspace DIR."""
    import click

    option = click.option(
        "-C",
        "--workspace",
        metavar="DIR",
        help="Project directory, the one that holds machines/.",
    )
    return option(function)


def project(workspace: str | None) -> Project:
    """The project a command works in, with the fault plan of tests in force."""
    from libmachine import project as places
    from libmachine.store import disk

    disk.plan_fault(os.environ.get("MACHINE_FAULT"))
    return places.find(workspace)


def refuse_terminal(what: str, instead: str) -> None:
    """Raise UsageError if stdin is a terminal: nobody types JSON lines."""
    if os.isatty(0):
        raise UsageError(f"stdin is a terminal and {what} come from it; {instead}")


class Output:
    """Lines of a product on stdout. When the reader is gone or stdout cannot be written, `stop` is set
    and the rest is not printed: what is under way is finished and stored all the same."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.gone = False
        self.error: OSError | None = None
        self._terminal: bool | None = None

    def write(self, data: bytes) -> None:
        """Print a whole line, newline included, at once."""
        if self.gone:
            return
        from libmachine import console, jsonl

        if self._terminal is None:
            self._terminal = console.is_terminal(1)
        if self._terminal:
            data = console.escaped(data)
        try:
            jsonl.write(console.product(), data)
        except OSError as error:
            self.gone = True
            self.error = None if isinstance(error, BrokenPipeError) else error
            self.stop.set()

    def text(self, text: str) -> None:
        """Print a line for people, safe for a terminal whatever it quotes."""
        from libmachine import console

        self.write((console.safe(text) + "\n").encode("utf-8", "replace"))


class Interrupts:
    """The first ^C finishes what is under way, the second leaves at once."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.hit = False

    def __enter__(self) -> Interrupts:
        self._old = signal.signal(signal.SIGINT, self._on)
        return self

    def _on(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            os._exit(INTERRUPTED)
        self.hit = True
        self.stop.set()
        # What waits for the next line of stdin finds its end instead.
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)
        os.write(2, b"\ninterrupted: finishing what is under way; ^C again leaves at once\n")

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._old)


class Tally:
    """Bad lines and failed records of a stream: told as they come, counted for the exit code."""

    SHOWN = 20
    ALIKE = 3
    """Records told of one reason; further ones of it are counted."""

    def __init__(self, stop: threading.Event, allow: int = 0, strict: bool = False) -> None:
        self.stop, self.allow, self.strict = stop, allow, strict
        self.bad = 0
        self._shown = 0
        self._told: dict[str, int] = {}

    def bad_line(self, number: int, reason: str) -> None:
        """A line that is skipped."""
        self.note(f"line {number}: {reason}; skipped")

    def note(self, text: str, reason: str | None = None) -> None:
        """A record that failed, is ungraded or was skipped. reason: the part of text that others share."""
        from libmachine import console

        self.bad += 1
        alike = 0
        if reason is not None:
            alike = self._told[reason] = self._told.get(reason, 0) + 1
        self._shown += alike <= self.ALIKE
        if alike > self.ALIKE + 1:
            pass
        elif alike == self.ALIKE + 1:
            console.say("further ones for the same reason are counted, not shown")
        elif self._shown <= self.SHOWN:
            console.say(text)
        elif self._shown == self.SHOWN + 1:
            console.say("further ones are counted, not shown")
        if self.strict:
            self.stop.set()

    def code(self, interrupts: Interrupts | None = None, output: Output | None = None) -> int:
        """The exit code of the stream. Raises MachineError if stdout could not be written."""
        if output is not None and output.error is not None:
            why = (output.error.strerror or "").lower()
            raise MachineError(f"stdout: {why}; what was bought is stored: run the command again to have it")
        if interrupts is not None and interrupts.hit:
            return INTERRUPTED
        if output is not None and output.gone:
            _drop_stdout()
            return READER_GONE
        return PARTIAL if self.bad > self.allow or (self.strict and self.bad) else 0

"""The work behind machine-budget: a ledger file for the time of a command."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from libmachine import console, env
from libmachine.budget import ledger as budget
from libmachine.errors import UsageError

_CANNOT, _UNKNOWN = 126, 127  # as shells and env(1) say it
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_SHARED = (signal.SIGINT, signal.SIGQUIT)  # the terminal sends these to CMD as well


def main(usd: str, cmd: Sequence[str]) -> int:
    """Run cmd and return its exit code, 128 + N after signal N."""
    words = list(cmd[1:] if cmd[0] == "--" else cmd)
    if not words:
        raise UsageError("no command after the budget; type: machine-budget USD COMMAND...")
    limit = budget.read_limit(usd)
    with tempfile.TemporaryDirectory(prefix="machine-budget-", ignore_cleanup_errors=True) as folder:
        path = f"{folder}/ledger"
        book = budget.open_pipe(path, limit, env.get("MACHINE_LEDGER"))
        try:
            return _run(words, {**os.environ, "MACHINE_LEDGER": path})
        finally:
            figures = book.figures()
            of = "" if book.limit is None else f" of {budget.money(book.limit)}"
            busy = (
                f", {console.count(figures.in_flight, 'call')} still in flight" if figures.in_flight else ""
            )
            console.say(f"budget{of}: {budget.told(figures)} spent{busy}")


def _run(words: list[str], variables: dict[str, str]) -> int:
    with _signals() as child:
        try:
            # All descriptors that are open stay so, and the command stays in this process group:
            # it must not notice that anything stands before it.
            process = subprocess.Popen(words, stdout=console.product(), env=variables, close_fds=False)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            console.say(f"fatal: cannot run '{console.safe(words[0])}': {(error.strerror or '').lower()}")
            return _UNKNOWN if missing else _CANNOT
        child.append(process)
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Outlive the command: signals from the terminal are its own, others are passed on to it."""
    child: list[subprocess.Popen[bytes]] = []

    def on(number: int, frame: FrameType | None) -> None:
        if number in _PASSED_ON and child:
            child[0].send_signal(number)

    old = {}
    for number in (*_PASSED_ON, *_SHARED):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's wish is the command's to inherit
            old[number] = signal.signal(number, on)
    try:
        yield child
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

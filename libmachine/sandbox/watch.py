"""Attend a running command: feed it, take what it says, stop it at a limit, and see all of it gone."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from libmachine.errors import MachineError
from libmachine.sandbox import usage
from libmachine.sandbox.base import MIB, Limits, Result

MOST_DRAINED = 64 * MIB
"""Bytes of one stream that are read, and thrown away beyond what is kept, before the command is stopped."""

_CHUNK = 1 << 16
_FIRST_LOOK_S, _LOOK_S = 0.02, 0.2
_GONE_S = 10.0  # how long the kernel may take to end what was killed
_FLOOR = 384 * MIB  # memory that is left to the machine, whatever the limits are


class Ended(NamedTuple):
    """What attend() saw. code: as Popen has it (negative for a signal)."""

    code: int
    stdout: bytes
    stderr: bytes
    stdout_total: int
    stderr_total: int
    duration_s: float
    limit: str | None

    def result(self, code: int | None) -> Result:
        """As a provider returns it. code: the command's own; a limit leaves none."""
        return Result(None if self.limit else code, *self[1:])


class Capture:
    """The beginning and the end of a stream, at most `most` bytes with the line between them."""

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._head, self._tail = bytearray(), bytearray()

    def feed(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.most - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self.most + _CHUNK:
            del self._tail[: -self.most]

    def kept(self) -> bytes:
        """All of it, or head and tail with a line that says how many bytes are not there."""
        if self.total <= self.most:
            return bytes(self._head)
        gap = b"\n[... %d bytes left out ...]\n" % self.total
        half = max(0, self.most - len(gap)) // 2
        gap = b"\n[... %d bytes left out ...]\n" % (self.total - 2 * half)
        both = bytes(self._head) + bytes(self._tail)
        return (both[:half] + gap + both[len(both) - half :])[: self.most]


def attend(
    process: subprocess.Popen[bytes],
    leader: int,
    kill: Callable[[], None],
    directory: int,
    limits: Limits,
    stdin: bytes,
    stop: threading.Event | None = None,
) -> Ended:
    """Wait for process, stopping it at a limit, and return when it and all below leader are gone.

    leader: the pid under which the whole command is. kill: ends leader and what is below; it is called
    in any case, as what the command left running ends with it. directory: descriptor of what it fills.
    stop: set from another thread to give it up. Raises MachineError if something of it would not die.
    """
    watch = _Watch(leader, directory, limits)
    pump = _Pump(process, limits.output, stdin)
    own = os.pidfd_open(process.pid)
    began = time.monotonic()
    limit = None
    try:
        pump.watch(own)
        look, pause = began + _FIRST_LOOK_S, _FIRST_LOOK_S
        while not pump.turn(min(look, began + limits.wall_s) - time.monotonic()):
            now = time.monotonic()
            if now - began >= limits.wall_s:
                limit = "time"
            elif pump.most_read > MOST_DRAINED:
                limit = "output"
            elif now >= look:
                limit = watch.over()
                pause = max(min(2 * pause, _LOOK_S), 5 * (time.monotonic() - now))
                look = time.monotonic() + pause
            if limit or (stop is not None and stop.is_set()):
                break
        duration = time.monotonic() - began
    finally:
        kill()
        if not select.select([own], [], [], _GONE_S)[0]:
            process.kill()
        process.wait()
        os.close(own)
        pump.drain()
    limit = limit or watch.full()
    out, err = pump.captures
    code = process.returncode
    return Ended(code, out.kept(), err.kept(), out.total, err.total, duration, limit)


class Leader:
    """The process under which everything is: when it is killed, the kernel takes the rest."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill it and wait until it is gone, and with it all below. Raises MachineError if it stays."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        if not select.select([self.descriptor], [], [], _GONE_S)[0]:
            raise MachineError(f"process {self.pid} of a sandbox does not end: look at it with ps")

    def close(self) -> None:
        os.close(self.descriptor)


class _Watch:
    """The limits no kernel holds for us without cgroups: memory, processes and disk of the whole."""

    def __init__(self, leader: int, directory: int, limits: Limits) -> None:
        self.leader, self.directory, self.limits = leader, directory, limits
        self.before, total = usage.available()
        self.floor = min(_FLOOR, total // 8)

    def over(self) -> str | None:
        """The limit that is passed, None if none is."""
        seen = usage.tree(self.leader)
        if seen.tasks > self.limits.processes + 1:  # the one that reaps is not the command's
            return "processes"
        if seen.memory > self.limits.memory:
            # processes that share pages count them once each: look closer before killing
            share = usage.share(seen.pids)
            if share is None or share > self.limits.memory:
                return "memory"
        left = usage.available()[0]
        if left < self.floor and self.before - left > self.limits.memory // 2:
            return "memory"  # what it took is in no process (kernel buffers): the machine goes first
        return self.full()

    def full(self) -> str | None:
        """ "disk" if the directory holds more than it may."""
        found = usage.disk(self.directory, self.limits.disk, self.limits.files)
        over = found.bytes > self.limits.disk or found.files > self.limits.files or found.too_deep
        return "disk" if over else None


class _Pump:
    """Moves bytes both ways without ever waiting for one of them."""

    def __init__(self, process: subprocess.Popen[bytes], most: int, stdin: bytes) -> None:
        assert process.stdout and process.stderr
        self.captures = (Capture(most), Capture(most))
        self.selector = selectors.DefaultSelector()
        self.ended = False
        self.own: int | None = None
        self.input = memoryview(stdin)
        self.pipes = dict(zip((process.stdout.fileno(), process.stderr.fileno()), self.captures, strict=True))
        self.files = [process.stdout, process.stderr]
        for descriptor in self.pipes:
            os.set_blocking(descriptor, False)
            self.selector.register(descriptor, selectors.EVENT_READ)
        if process.stdin:
            self.files.append(process.stdin)
            os.set_blocking(process.stdin.fileno(), False)
            self.selector.register(process.stdin.fileno(), selectors.EVENT_WRITE, process.stdin)

    def watch(self, own: int) -> None:
        self.own = own
        self.selector.register(own, selectors.EVENT_READ)

    @property
    def most_read(self) -> int:
        return max(capture.total for capture in self.captures)

    def turn(self, timeout: float) -> bool:
        """Move what can be moved within timeout seconds. True when the process has ended."""
        for key, _ in self.selector.select(max(0.0, timeout)):
            if key.fd == self.own:
                self.ended = True
            elif key.fd in self.pipes:
                self._take(key.fd)
            else:
                self._give(key)
        return self.ended

    def _take(self, descriptor: int) -> bool:
        """One chunk. False when there is none now."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.selector.unregister(descriptor)
            return False
        self.pipes[descriptor].feed(chunk)
        return True

    def _give(self, key: selectors.SelectorKey) -> None:
        try:
            self.input = self.input[os.write(key.fd, self.input[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.input = self.input[:0]
        if not self.input:
            self.selector.unregister(key.fd)
            with contextlib.suppress(BrokenPipeError):
                key.data.close()

    def drain(self) -> None:
        """Take what is still in the pipes; all who wrote are gone."""
        for descriptor in self.pipes:
            while descriptor in self.selector.get_map() and self._take(descriptor):
                pass
        self.selector.close()
        for file in self.files:
            with contextlib.suppress(OSError):
                file.close()

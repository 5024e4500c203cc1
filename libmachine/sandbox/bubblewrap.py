"""Commands in bubblewrap: namespaces, an allowlisted file system, a system call filter and limits."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from libmachine.errors import MachineError
from libmachine.sandbox import limits as rlimits
from libmachine.sandbox import seccomp, view, watch
from libmachine.sandbox.base import DEFAULT, Isolation, Limits, Result

_START_S = 30.0


class Bubblewrap:
    """The provider that isolates. program: bwrap; None if there is none."""

    name = "bubblewrap"

    def __init__(self, program: str | None = None) -> None:
        self.program = program or shutil.which("bwrap", path=view.PATH)

    def isolation(self) -> Isolation:
        return Isolation(False, ("not measured",))

    def run(
        self,
        directory: Path,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        limits: Limits = DEFAULT,
        mounts: Sequence[Path] = (),
        environment: Sequence[tuple[str, str]] = (),
    ) -> Result:
        if self.program is None:
            raise MachineError("bubblewrap is not installed: apt-get install bubblewrap, or the like")
        place = view.checked_directory(directory)
        extra = view.checked_mounts(mounts)
        values = view.variables(place, environment)
        with contextlib.ExitStack() as stack:
            start = _Start(stack)
            parts = self.parts(start, place, place, extra, values, limits)
            command = self.command(argv, limits)
            return start.run(self.program, parts, command, place, limits, stdin)

    def parts(
        self,
        start: _Start,
        directory: str,
        source: str,
        mounts: Sequence[str],
        values: dict[str, str],
        limits: Limits,
    ) -> list[view.Part]:
        """The options, in bubblewrap's order: what comes later is mounted over what was there."""
        parts = [
            *view.namespaces(True),
            *view.system(),
            view.own_files({path: start.file(text.encode()) for path, text in view.FILES.items()}),
            *view.kernel(),
            *view.scratch(limits),
            *view.places(directory, source, mounts),
            *view.environment(values, directory),
        ]
        program = seccomp.program(os.uname().machine)
        if program is not None:
            parts.append(view.Part("system call filter", ("--seccomp", str(start.file(program)))))
        return parts

    def command(self, argv: Sequence[str], limits: Limits) -> list[str]:
        """The command as the sandbox starts it; through a shell, which says 127 where there is no program."""
        return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv]


class _Start:
    """One start: the descriptors it needs, and the run itself. outer: the environment of bwrap itself,
    which the command could read in /proc/1/environ."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.inherited: list[int] = []
        self.outer: dict[str, str] = {}

    def file(self, content: bytes) -> int:
        """A descriptor that bwrap inherits, to read content from."""
        return self._inherit(seccomp.memfd(content))

    def _inherit(self, descriptor: int) -> int:
        self.stack.callback(_close, descriptor)
        self.inherited.append(descriptor)
        return descriptor

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        for end in ends:
            self.stack.callback(_close, end)
        return ends

    def run(
        self,
        program: str,
        parts: Sequence[view.Part],
        command: Sequence[str],
        directory: str,
        limits: Limits,
        stdin: bytes,
    ) -> Result:
        status, status_end = self._pipe()
        gate_end, gate = self._pipe()
        inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.stack.callback(_close, inside)
        words = [word for part in parts for word in part.words]
        words += ["--json-status-fd", str(status_end), "--block-fd", str(gate_end)]
        # not in argv, where every user of the machine can read it
        arguments = self.file(b"".join(os.fsencode(word) + b"\0" for word in words))
        words = [program, "--args", str(arguments), "--", *command]
        process = self._spawn(words, stdin, status_end, gate_end)
        for end in (status_end, gate_end):
            _close(end)
        leader = None
        try:
            told = _Status(status)
            pid = told.number("child-pid", _START_S)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    leader = watch.Leader(pid)
                    rlimits.impose(pid, limits)
                    rlimits.yield_to_others(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(gate, b"1")
        except BaseException:
            process.kill()
            process.wait()
            raise

        def kill() -> None:
            if leader is not None:
                leader.kill()
            else:
                process.kill()

        try:
            ended = watch.attend(process, leader.pid if leader else process.pid, kill, inside, limits, stdin)
        finally:
            if leader is not None:
                leader.close()
        code = told.number("exit-code", 0.0)
        if code is None and ended.limit is None:
            # only a command that began has an exit code: this is bubblewrap itself
            text = ended.stderr.decode("utf-8", "replace").strip()
            raise MachineError(f"the sandbox did not start: {explained(text)}")
        return Result(
            None if ended.limit else code,
            ended.stdout,
            ended.stderr,
            ended.stdout_total,
            ended.stderr_total,
            ended.duration_s,
            ended.limit,
        )

    def _spawn(
        self, words: Sequence[str], stdin: bytes, status_end: int, gate_end: int
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.outer,
                cwd="/",
                start_new_session=True,
                pass_fds=[*self.inherited, status_end, gate_end],
            )
        except (OSError, ValueError) as error:
            raise MachineError(f"the sandbox did not start: {error}") from error


class _Status:
    """What bwrap says of itself: JSON objects, one after another, on a pipe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.text = ""

    def number(self, name: str, timeout: float) -> int | None:
        """A number it said, waiting for it at most timeout seconds; None if it never came."""
        until = time.monotonic() + timeout
        while True:
            for told in self._objects():
                number = told.get(name)
                if isinstance(number, int):
                    return number
            if not select.select([self.descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            chunk = os.read(self.descriptor, 4096)
            if not chunk:
                return None
            self.text += chunk.decode("utf-8", "replace")

    def _objects(self) -> Iterator[dict[str, object]]:
        decoder, at = json.JSONDecoder(), 0
        while at < len(self.text):
            try:
                told, at = decoder.raw_decode(self.text, at)
            except ValueError:
                return
            at += len(self.text[at:]) - len(self.text[at:].lstrip())
            yield told


def explained(text: str) -> str:
    """bwrap's own message, with what to do where we know it."""
    text = text.removeprefix("bwrap: ") or "bwrap ended without a word"
    if "uid map" in text or "RTM_NEWADDR" in text or "No permissions to create new namespace" in text:
        return f"{text} (are user namespaces allowed? see machine-doctor)"
    return text


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)

"""Commands in bubblewrap: namespaces, an allowlisted file system, a system call filter and limits."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from libmachine.errors import MachineError
from libmachine.sandbox import limits as rlimits
from libmachine.sandbox import measured, rootless, seccomp, view, watch
from libmachine.sandbox.base import DEFAULT, Isolation, Limits, Result

_START_S = 30.0
_AS_ROOT = (
    "run by root, which cannot be given up here: the command has real uid 0, reads root's files where they"
    " are mounted, and only a watchdog limits its processes"
)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Bubblewrap:
    """The provider that isolates. program: bwrap; None: the one on the system's path."""

    name = "bubblewrap"
    outer: Mapping[str, str] = {}
    """The environment of bwrap itself: the command could read it in /proc/1/environ."""

    def __init__(self, program: str | None = None) -> None:
        self.program = program or shutil.which("bwrap", path=view.PATH)
        self._lock = threading.Lock()
        self._measured: Isolation | None = None
        self._stage: rootless.Stage | None = None

    def isolation(self) -> Isolation:
        with self._lock:
            if self._measured is None:
                self._measured = self._measure()
            return self._measured

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
        if os.geteuid() == 0:
            self.isolation()  # which learns whether root can be given up
        return self._run(directory, argv, stdin, limits, mounts, environment)

    def _run(
        self,
        directory: Path,
        argv: Sequence[str],
        stdin: bytes,
        limits: Limits,
        mounts: Sequence[Path],
        environment: Sequence[tuple[str, str]],
    ) -> Result:
        if self.program is None:
            raise MachineError("bubblewrap is not installed: apt-get install bubblewrap, or the like")
        view.checked_command(argv)
        place = view.checked_directory(directory)
        extra = view.checked_mounts(mounts)
        values = view.variables(place, environment)
        start = _Start(self, place, extra, values, limits)
        if self._stage is None:
            return start.run({}, argv, stdin, None)
        stage = self._stage

        def as_nobody(stop: threading.Event) -> Result:
            sources: dict[str, str] = {}
            # where this file system cannot be mapped, root is kept: weaker, and still all that was measured
            with contextlib.suppress(OSError):
                sources = stage.mount(place, extra)
            return start.run(sources, argv, stdin, stop)

        return rootless.in_a_thread(as_nobody)

    def parts(
        self,
        files: Callable[[bytes], int],
        directory: str,
        mounts: Sequence[str],
        sources: Mapping[str, str],
        values: Mapping[str, str],
        limits: Limits,
    ) -> list[view.Part]:
        """The options, in bubblewrap's order: what comes later is mounted over what was there.

        files: makes a descriptor of bytes. sources: path -> where it is found, for those elsewhere.
        """
        assert self.program is not None
        parts = [
            *view.namespaces("--disable-userns" in _help(self.program)),
            *view.system(),
            view.own_files({path: files(text.encode()) for path, text in view.FILES.items()}),
            *view.kernel(),
            *view.scratch(limits),
            *view.places(directory, mounts, sources),
            *view.environment(values, directory),
        ]
        program = seccomp.program(os.uname().machine)
        if program is not None:
            parts.append(view.Part("system call filter", ("--seccomp", str(files(program)))))
        return parts

    def _measure(self) -> Isolation:
        if self.program is None:
            return Isolation(False, ("bubblewrap is not installed",))
        if os.geteuid() != 0:
            return self._probe(())
        why = "unshare and prlimit of util-linux are not here"
        if rootless.usable():
            self._stage = rootless.Stage()
            found = self._probe(())
            if found.isolated:
                return found
            self._stage, why = None, "; ".join(found.missing)
        return self._probe((f"{_AS_ROOT} ({why})",))

    def _probe(self, notes: tuple[str, ...]) -> Isolation:
        """What a command sees that is run as all are. notes: what to say of it beside."""
        with tempfile.TemporaryDirectory(prefix="machine-probe-") as place:
            directory = os.path.realpath(place)
            masked = ("MASKED", " ".join(view.MASKED))
            command = ["/bin/sh", "-c", measured.PROBE]
            try:
                result = self._run(Path(place), command, b"", measured.LIMITS, (), [masked])
            except (MachineError, OSError) as error:
                return Isolation(False, (str(error),), notes)
            seen = measured.found(result.stdout)
            faults = measured.missing(seen, measured.spaces(), directory)
            return Isolation(not faults, tuple(faults), notes)


class _Start:
    """One start of bubblewrap: the descriptors it needs, and the run itself."""

    def __init__(
        self,
        provider: Bubblewrap,
        directory: str,
        mounts: Sequence[str],
        values: Mapping[str, str],
        limits: Limits,
    ) -> None:
        assert provider.program is not None
        self.provider, self.program = provider, provider.program
        self.directory, self.mounts, self.values, self.limits = directory, mounts, values, limits
        self.inherited: list[int] = []

    def run(
        self,
        sources: Mapping[str, str],
        argv: Sequence[str],
        stdin: bytes,
        stop: threading.Event | None,
    ) -> Result:
        """sources: path -> where it is found, if root is given up for it."""
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(contextlib.ExitStack())
            parts = self.provider.parts(
                lambda content: self._file(stack, content),
                self.directory,
                self.mounts,
                sources,
                self.values,
                self.limits,
            )
            status, status_end = _pipe(stack, theirs)
            gate_end, gate = _pipe(theirs, stack)
            inside = os.open(sources.get(self.directory, self.directory), _DIRECTORY)
            stack.callback(os.close, inside)
            words = [word for part in parts for word in part.words]
            words += ["--json-status-fd", str(status_end), "--block-fd", str(gate_end)]
            # not in argv, where every user of the machine can read it
            arguments = self._file(stack, b"".join(os.fsencode(word) + b"\0" for word in words))
            command = [self.program, "--args", str(arguments), "--", *self._command(argv, bool(sources))]
            process = self._spawn(command, stdin, bool(sources), (status_end, gate_end))
            theirs.close()
            return self._attend(process, _Status(status), gate, inside, stdin, stop, bool(sources))

    def _file(self, stack: contextlib.ExitStack, content: bytes) -> int:
        """A descriptor that bwrap inherits, to read content from."""
        descriptor = seccomp.memfd(content)
        stack.callback(os.close, descriptor)
        self.inherited.append(descriptor)
        return descriptor

    def _command(self, argv: Sequence[str], dropped: bool) -> list[str]:
        """The command as the sandbox starts it: through what says 127 where there is no such program."""
        program = rootless.prlimit()
        if dropped and program is not None:
            return [*rlimits.words(program, self.limits), *argv]
        return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv]

    def _spawn(
        self, words: Sequence[str], stdin: bytes, dropped: bool, ends: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self.provider.outer),
                cwd="/",
                start_new_session=True,
                pass_fds=[*self.inherited, *ends],
                user=rootless.NOBODY if dropped else None,
                group=rootless.NOBODY if dropped else None,
                extra_groups=[] if dropped else None,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise MachineError(f"the sandbox did not start: {error}") from error

    def _attend(
        self,
        process: subprocess.Popen[bytes],
        told: _Status,
        gate: int,
        inside: int,
        stdin: bytes,
        stop: threading.Event | None,
        dropped: bool,
    ) -> Result:
        leader = None
        try:
            pid = told.number("child-pid", _START_S)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    leader = watch.Leader(pid)
                    if not dropped:
                        rlimits.impose(pid, self.limits)
                    rlimits.yield_to_others(pid)
                with contextlib.suppress(BrokenPipeError):
                    os.write(gate, b"1")
        except BaseException:
            if leader is not None:
                leader.kill()
            process.kill()
            process.wait()
            raise

        def kill() -> None:
            if leader is not None:
                leader.kill()
            else:
                process.kill()

        try:
            first = leader.pid if leader else process.pid
            ended = watch.attend(process, first, kill, inside, self.limits, stdin, stop)
        finally:
            if leader is not None:
                leader.close()
        code = told.number("exit-code", 0.0)
        if code is None and ended.limit is None and not (stop and stop.is_set()):
            # only a command that began has an exit code: this is bubblewrap itself
            text = ended.stderr.decode("utf-8", "replace").strip().removeprefix("bwrap: ")
            raise MachineError(f"the sandbox did not start: {text or 'bwrap ended without a word'}")
        return ended.result(code)


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


@functools.cache
def _help(program: str) -> str:
    """What this bubblewrap says it can do."""
    told = subprocess.run([program, "--help"], capture_output=True, text=True, env={}, check=False)
    return told.stdout + told.stderr


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe of which each stack closes an end: once, as another thread may have its number by then."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends

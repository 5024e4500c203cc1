"""A workspace: the directory of one run, its files, and the sandbox that its commands run in.

    def count_lines(path: str, workspace: Workspace) -> int:
        \"\"\"Count the lines of a file.\"\"\"
        return workspace.read(path).count(b"\\n")

An argument annotated Workspace is filled by the run; no model sees it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from libmachine.errors import MachineError
from libmachine.sandbox.base import DEFAULT, MIB, Limits, Provider, Result

if TYPE_CHECKING:
    from libmachine.sandbox.files import Entry, Root

MOST_READ = 16 * MIB
SHELL = ("/usr/bin/bash", "-o", "pipefail", "-c")
_PLAIN_SHELL = ("/bin/sh", "-c")


class Cut(str):
    """The text of a result that was cut, as the run then records."""


class Workspace:
    """One directory and a sandbox on it. Paths are relative to the directory; what would lead out of it,
    by `..`, a link or a full path, is refused with a MachineError.

    provider: what runs commands, the one of this computer if absent. deadline: when commands must have
    ended, by time.monotonic().
    """

    def __init__(
        self,
        directory: Path | str,
        provider: Provider | None = None,
        deadline: float | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self.directory = Path(directory)
        self.deadline, self.limits = deadline, limits
        self._provider = provider

    def until(self, deadline: float | None) -> Workspace:
        """The same workspace with another deadline."""
        return Workspace(self.directory, self._provider, deadline, self.limits)

    @property
    def provider(self) -> Provider:
        """What runs the commands."""
        if self._provider is None:
            self._provider = _provider()
        return self._provider

    @property
    def isolated(self) -> bool:
        """Is what runs here kept from everything else? Measured, once a process."""
        return self.provider.isolation().isolated

    def read(self, path: str | bytes, most: int = MOST_READ) -> bytes:
        """The bytes of a file. Raises MachineError for one of more than `most`."""
        with self._root() as root:
            data = root.read(path, most + 1)
        if len(data) > most:
            raise MachineError(f"'{_shown(path)}' has more than {most} bytes")
        return data

    def write(self, path: str | bytes, data: str | bytes, executable: bool = False) -> None:
        """Put a file there, whole or not at all, with the directories above it."""
        with self._root() as root:
            root.write(path, data.encode("utf-8", "replace") if isinstance(data, str) else data, executable)

    def remove(self, path: str | bytes) -> None:
        """Take a file, a link or a directory away."""
        with self._root() as root:
            root.remove(path)

    def exists(self, path: str | bytes) -> bool:
        """Is there anything of this name?"""
        from libmachine.sandbox.files import FileError

        with self._root() as root:
            try:
                return root.look(path) is not None
            except FileError as error:
                if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                    return False  # nor is a directory on the way
                raise

    def listing(self, path: str | bytes = ".", most: int = 20_000) -> list[Entry]:
        """What is in a directory and below it (path, kind, size, executable), at most so many."""
        with self._root() as root:
            return root.listing(path, depth=200, most=most)

    def search(
        self, text: str, path: str | bytes = ".", ignore_case: bool = False
    ) -> Iterator[tuple[str, int, str]]:
        """(path, line number, line) wherever a text occurs in the files of a directory, or in one file.
        Files of more than 1 MiB and those with a zero byte are passed over."""
        wanted = text.casefold() if ignore_case else text
        with self._root() as root:
            found = root.look(path)
            if found is None:
                raise MachineError(f"'{_shown(path)}': no such file or directory")
            entries = [found] if found.kind == "file" else root.listing(path, depth=200)
            for entry in entries:
                if entry.kind != "file" or entry.size > MIB:
                    continue
                data = root.read(entry.path, MIB)
                if b"\0" in data:
                    continue
                for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
                    if wanted in (line.casefold() if ignore_case else line):
                        yield _shown(entry.path), number, line.rstrip("\r")

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        mounts: Sequence[Path] = (),
        environment: Sequence[tuple[str, str]] = (),
    ) -> Result:
        """Run a program (a list of words) or a line of shell in the sandbox, and wait for its end and that
        of all it started.

        mounts: further paths it may read. Raises MachineError where the sandbox does not isolate: what a
        model wrote is run in one that does, or not at all.
        """
        if refusal := why_not(self.provider):
            raise MachineError(refusal)
        wall = self.limits.wall_s if timeout_s is None else min(timeout_s, self.limits.wall_s)
        if self.deadline is not None:
            wall = min(wall, self.deadline - time.monotonic())
        if wall <= 0:
            raise MachineError("the time of the run is over; no command was started")
        limits = replace(self.limits, wall_s=wall, cpu_s=max(1, min(self.limits.cpu_s, int(wall) + 1)))
        words = [*_shell(), command] if isinstance(command, str) else list(command)
        return self.provider.run(
            self.directory, words, stdin=stdin, limits=limits, mounts=mounts, environment=environment
        )

    def _root(self) -> Root:
        from libmachine.sandbox.files import Root

        return Root(self.directory)


def why_not(provider: Provider | None = None) -> str | None:
    """Why no command is run here, None if commands are. provider: absent, the one of this computer."""
    isolation = (provider or _provider()).isolation()
    if isolation.isolated:
        return None
    return f"commands are not run here, as the sandbox does not isolate: {', '.join(isolation.missing)}"


def _provider() -> Provider:
    from libmachine import env
    from libmachine.sandbox import choose

    return choose.provider(env.get("MACHINE_SANDBOX"))


def _shell() -> tuple[str, ...]:
    """bash with pipefail: the status of a pipe is that of the program that failed in it."""
    return SHELL if os.path.exists(SHELL[0]) else _PLAIN_SHELL


def _shown(path: str | bytes) -> str:
    return path if isinstance(path, str) else path.decode("utf-8", "backslashreplace")

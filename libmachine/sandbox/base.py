"""What a sandbox is: the thing that runs a command on a directory and lets nothing else out.

A provider is chosen once a process. Another one (a remote sandbox, say) implements Provider and
nothing else; the tests hold a second, tiny one to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one command may use. Beyond it the command fails or is killed, whatever it is.

    wall_s and cpu_s: seconds, of the clock and of each process. memory: bytes of the whole tree.
    file: bytes of one file; disk and files: bytes and number of all in the directory. output: bytes
    kept of each stream, head and tail.
    """

    wall_s: float = 60.0
    cpu_s: int = 60
    memory: int = 1024 * MIB
    processes: int = 128
    open_files: int = 1024
    file: int = 256 * MIB
    disk: int = 512 * MIB
    files: int = 20_000
    tmp: int = 64 * MIB
    output: int = 1 * MIB


DEFAULT = Limits()


@dataclass(frozen=True)
class Result:
    """How a command ended. code: its exit status (128 + signal where one killed it), None if it was
    stopped by a limit, which `limit` then names ("time", "memory", "processes", "disk", "output").

    stdout, stderr: what was kept; *_total: bytes that were written.
    """

    code: int | None
    stdout: bytes
    stderr: bytes
    stdout_total: int
    stderr_total: int
    duration_s: float
    limit: str | None = None

    @property
    def ok(self) -> bool:
        """Did it end by itself, with 0?"""
        return self.code == 0

    @property
    def truncated(self) -> bool:
        """Was more written than was kept?"""
        return len(self.stdout) < self.stdout_total or len(self.stderr) < self.stderr_total


@dataclass(frozen=True)
class Isolation:
    """What was measured of a provider here. isolated: every part is in force. missing: the parts that
    are not, each as a person reads it. notes: where it is weaker than elsewhere (root, say)."""

    isolated: bool
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Provider(Protocol):
    """Runs commands on directories."""

    name: str

    def isolation(self) -> Isolation:
        """What is in force, measured by running the real thing, once a process."""

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
        """Run argv in directory, which is all it can write, and wait until all it started is gone.

        mounts: further paths it may read, at their own place. environment: variables it gets beside
        the fixed few; never the caller's. Raises MachineError if it could not be started at all.
        """

"""Limits the kernel holds for each process, set from outside before the command begins."""

from __future__ import annotations

import contextlib
import os
import resource

from libmachine.sandbox.base import Limits

PROCESSES = resource.RLIMIT_NPROC
_NICER = 5  # so that the user's own work goes first
_PREFERRED = "1000"  # the first one to go when the machine's memory is out


def table(limits: Limits) -> dict[int, int]:
    """RLIMIT_* -> value. Memory as DATA, not AS: runtimes reserve far more addresses than they use."""
    return {
        resource.RLIMIT_DATA: limits.memory,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 8 << 20,
        resource.RLIMIT_MSGQUEUE: 800 << 10,
    }


def bounded(kind: int, value: int, hard: int) -> tuple[int, int]:
    """(soft, hard) for a value, never above the hard limit that is there: only root may raise it.

    The hard limit of CPU is two seconds later, when the signal of the soft one was ignored.
    """
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    late = value + 2 if kind == resource.RLIMIT_CPU else value
    return value, late if hard == resource.RLIM_INFINITY else min(late, hard)


def impose(pid: int, limits: Limits) -> None:
    """Put the limits on a process of ours that has not begun. Raises OSError if it may not."""
    for kind, value in table(limits).items():
        resource.prlimit(pid, kind, bounded(kind, value, resource.prlimit(pid, kind)[1]))


def words(program: str, limits: Limits) -> list[str]:
    """The same as a prefix of a command: util-linux's prlimit, for a process we may not touch."""
    names = {
        resource.RLIMIT_DATA: "data",
        resource.RLIMIT_NPROC: "nproc",
        resource.RLIMIT_NOFILE: "nofile",
        resource.RLIMIT_FSIZE: "fsize",
        resource.RLIMIT_CPU: "cpu",
        resource.RLIMIT_CORE: "core",
        resource.RLIMIT_MEMLOCK: "memlock",
        resource.RLIMIT_MSGQUEUE: "msgqueue",
    }
    chosen = []
    for kind, value in table(limits).items():
        soft, hard = bounded(kind, value, resource.getrlimit(kind)[1])
        chosen.append(f"--{names[kind]}={soft}:{hard}")
    return [program, *chosen, "--"]


def yield_to_others(pid: int) -> None:
    """Run it behind the user's own work, and let it go first when memory is out. As far as allowed."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(_PREFERRED)

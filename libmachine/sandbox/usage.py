"""What a tree of processes and a directory use, read from outside while hostile code changes them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

DEEPEST = 200
"""Directories in one another; more is taken for an attack, and each costs a descriptor to look into."""

_SIZES = re.compile(rb"^(?:RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)
_THREADS = re.compile(rb"^Threads:\s+(\d+)", re.MULTILINE)
_SHARES = re.compile(rb"^(?:Pss_Anon|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)
_AVAILABLE = re.compile(rb"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)


class Tree(NamedTuple):
    """tasks: processes and threads. memory: bytes; what several processes share counts once for each."""

    pids: tuple[int, ...]
    tasks: int
    memory: int


class Disk(NamedTuple):
    """bytes: what the files take on disk. files: their number, directories among them."""

    bytes: int
    files: int
    too_deep: bool = False


def tree(leader: int) -> Tree:
    """What leader and all below it use. What ends while we look is left out."""
    pids, tasks, memory = [], 0, 0
    for pid in descendants(leader):
        status = _read(f"/proc/{pid}/status")
        if status:
            pids.append(pid)
            tasks += sum(int(found) for found in _THREADS.findall(status))
            memory += sum(int(found) << 10 for found in _SIZES.findall(status))
    return Tree(tuple(pids), tasks, memory)


def descendants(leader: int) -> Iterator[int]:
    """leader and the processes below it, parents first. Orphans are there too: leader adopts them."""
    waiting, seen = [leader], {leader}
    while waiting:
        pid = waiting.pop()
        yield pid
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                for word in _read(f"/proc/{pid}/task/{thread}/children").split():
                    if int(word) not in seen:
                        seen.add(int(word))
                        waiting.append(int(word))


def share(pids: tuple[int, ...]) -> int | None:
    """Bytes these processes really take, each shared page split among those who share it.

    Slower than tree(), and None where the kernel does not tell us.
    """
    total = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        found = _SHARES.findall(text)
        if text and not found:
            return None
        total += sum(int(kilobytes) << 10 for kilobytes in found)
    return total or None


def available() -> tuple[int, int]:
    """(bytes of memory that programs can still have on this machine, bytes there are)."""
    found = {name: int(kilobytes) << 10 for name, kilobytes in _AVAILABLE.findall(_read("/proc/meminfo"))}
    return found.get(b"MemAvailable", 1 << 62), found.get(b"MemTotal", 1 << 62)


def disk(directory: int, most_bytes: int, most_files: int) -> Disk:
    """What the directory of this descriptor holds; links are not followed. Stops counting at a limit."""
    used = files = 0
    stack = [os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)]
    todo: list[list[str]] = [[]]
    seen: set[tuple[int, int]] = set()
    try:
        fresh = True
        while stack:
            if fresh:
                with contextlib.suppress(OSError), os.scandir(stack[-1]) as entries:
                    for entry in entries:
                        files += 1
                        with contextlib.suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            if status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                                used += status.st_blocks * 512
                            if status.st_nlink > 1:
                                seen.add((status.st_dev, status.st_ino))
                            if entry.is_dir(follow_symlinks=False):
                                todo[-1].append(entry.name)
                        if used > most_bytes or files > most_files:
                            return Disk(used, files)
            if not todo[-1]:
                os.close(stack.pop())
                todo.pop()
                fresh = False
                continue
            fresh = False
            name = todo[-1].pop()
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                stack.append(os.open(name, flags, dir_fd=stack[-1]))
                todo.append([])
                fresh = True
            if len(stack) > DEEPEST:
                return Disk(used, files, too_deep=True)
        return Disk(used, files)
    finally:
        for descriptor in stack:
            os.close(descriptor)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""

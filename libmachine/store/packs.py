"""Packs of the store: objects in few files, made by `git pack-objects` and checked before anything goes.

A pack is written under tmp/, read whole by `git verify-pack`, put in place, and only then are the
copies removed that it replaces. What it does not hold is never removed.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from libmachine.errors import MachineError
from libmachine.git import plumb
from libmachine.store import disk
from libmachine.store.layout import temporary

_LOOSE = re.compile(r"[0-9a-f]{38}")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_HOW = ("--quiet", "--window=10", "--depth=50", "--compression=6")


def loose(directory: str) -> Iterator[str]:
    """Ids of the loose objects."""
    try:
        folders = sorted(os.listdir(f"{directory}/objects"))
    except FileNotFoundError:  # who made the store died
        return
    for folder in folders:
        if _FOLDER.fullmatch(folder):
            for name in os.listdir(f"{directory}/objects/{folder}"):
                if _LOOSE.fullmatch(name):
                    yield folder + name


def packs(directory: str) -> list[str]:
    """Paths, without their ending, of the packs that have both files."""
    try:
        names = set(os.listdir(f"{directory}/objects/pack"))
    except FileNotFoundError:
        return []
    whole = [name[:-4] for name in names if name.endswith(".idx") and f"{name[:-4]}.pack" in names]
    return [f"{directory}/objects/pack/{name}" for name in sorted(whole)]


def half(directory: str) -> list[str]:
    """Paths of packs without an index: who wrote them died."""
    try:
        names = set(os.listdir(f"{directory}/objects/pack"))
    except FileNotFoundError:
        return []
    lone = [name for name in names if name.endswith(".pack") and f"{name[:-5]}.idx" not in names]
    return [f"{directory}/objects/pack/{name}" for name in sorted(lone)]


def ids(pack: str) -> list[str]:
    """Ids of the objects of a pack, by its index. Raises MachineError for an index that is none."""
    with open(f"{pack}.idx", "rb") as file:
        data = file.read()
    if data[:8] != b"\xfftOc\0\0\0\2" or len(data) < 1072:
        raise MachineError(f"'{pack}.idx' is no index of a pack; machine-fsck --repair makes it anew")
    number = struct.unpack(">I", data[1028:1032])[0]
    if len(data) < 1032 + 28 * number:
        raise MachineError(f"'{pack}.idx' is cut off; machine-fsck --repair makes it anew")
    names = data[1032 : 1032 + 20 * number].hex()
    return [names[at : at + 40] for at in range(0, len(names), 40)]


def write(
    directory: str, source: str, names: Sequence[tuple[str, str]], fsync: bool, how: Sequence[str] = _HOW
) -> str | None:
    """Pack objects of the repository at source into the store at directory; the pack's path.

    names: (id, a word that those alike share). None if there are none. Raises MachineError if one cannot
    be read.
    """
    if not names:
        return None
    base = os.path.abspath(temporary(directory))
    disk.step()
    asked = "".join(f"{oid} {like}\n" for oid, like in names).encode("utf-8", "replace")
    words = ("-c", "pack.writeReverseIndex=false", "--git-dir=.", "pack-objects", *how, base)
    told = plumb.run(source, *words, stdin=asked)
    made = f"{base}-{told.out.decode().strip()}"
    try:
        if told.code:
            raise MachineError(f"cannot pack: {told.reason()}; machine-fsck --repair, then again")
        disk.step()
        checked = plumb.run(source, "--git-dir=.", "verify-pack", f"{made}.idx")
        lost = {oid for oid, _ in names} - set(ids(made))
        if checked.code or lost:
            raise MachineError(f"the new pack is not sound: {checked.reason()}; nothing was removed")
        return install(directory, made, fsync)
    finally:
        for name in os.listdir(f"{directory}/tmp"):
            if name.startswith(os.path.basename(base)):
                os.unlink(f"{directory}/tmp/{name}")


def install(directory: str, made: str, fsync: bool) -> str:
    """Put a finished pack in its place; its path there. The index comes last: with it a pack counts."""
    place = f"{directory}/objects/pack/pack-{made.rsplit('-', 1)[1]}"
    disk.make_folder(f"{directory}/objects/pack", fsync)
    for ending in (".pack", ".idx"):
        os.chmod(made + ending, 0o400)
        if fsync:
            fd = os.open(made + ending, os.O_RDONLY)
            try:
                disk.sync(fd)
            finally:
                os.close(fd)
        disk.rename(made + ending, place + ending)
    if fsync:
        disk.sync_directory(f"{directory}/objects/pack")
    return place


def finish_half(directory: str) -> list[str]:
    """Give packs without an index theirs. Returns the paths of those that are too damaged."""
    bad = []
    for path in half(directory):
        disk.step()
        if plumb.run(directory, "--git-dir=.", "index-pack", path).code:
            bad.append(path)
        else:
            os.chmod(f"{path[:-5]}.idx", 0o400)
    return bad


def remove_loose(directory: str, names: Iterable[str], step: Callable[[], object] = lambda: None) -> int:
    """Remove loose copies; how many there were."""
    count = 0
    for oid in names:
        path = f"{directory}/objects/{oid[:2]}/{oid[2:]}"
        if os.path.exists(path):
            disk.unlink(path)
            count += 1
            step()
    return count


def remove(pack: str) -> None:
    """Remove a pack. Its index goes first: without one it does not count."""
    for ending in (".idx", ".rev", ".bitmap", ".mtimes", ".keep", ".pack"):
        disk.unlink(pack + ending)

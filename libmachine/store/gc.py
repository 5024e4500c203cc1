"""machine-gc: small commits of the chains put together, objects put into packs. Only copies are deleted.

Beside writers and readers: an object is in a pack, checked, before its loose file goes, and who looks
for the file meanwhile finds the pack. After a kill -9 anywhere the next one goes on.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from libmachine.errors import MachineError
from libmachine.store import chain, forget, keep, layout, log, packs
from libmachine.store.objects import Objects

WORTH = 2000
"""Loose objects from which packing is worth a hint."""


class Sizes(NamedTuple):
    """What a store takes. bytes: on the disk. files: of all kinds. loose: objects in files of their own."""

    bytes: int
    files: int
    loose: int
    packs: int


def measure(directory: str) -> Sizes:
    """What a store takes."""
    total = files = 0
    for here, folders, names in os.walk(directory):
        for name in [*names, *folders]:
            try:
                total += os.lstat(f"{here}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue  # of a writer, and finished meanwhile
        files += len(names)
    return Sizes(total, files, sum(1 for _ in packs.loose(directory)), len(packs.packs(directory)))


def is_worth(directory: str) -> int | None:
    """The number of loose objects, if packing them is worth it."""
    number = sum(1 for _ in packs.loose(directory))
    return number if number >= WORTH or len(packs.packs(directory)) >= 50 else None


def collect(
    directory: str, fsync: bool, say: Callable[[str], object], step: Callable[[], object]
) -> tuple[int, int]:
    """Fold, pack, and remove the copies. Returns commits of the chains before and after.

    say: takes a line about what is being done. step: called for each copy that is removed. To be called
    as the keeper. Raises MachineError if an object cannot be read.
    """
    layout.sweep(directory)
    for path in packs.finish_half(directory):
        raise MachineError(f"'{path}' is damaged; machine-fsck --repair sets it aside")
    objects = Objects(directory, fsync)
    try:
        folded = chain.fold(directory, objects, f"{directory}/records", fsync)
    except KeyError as error:
        raise MachineError(f"object {error.args[0]} of a chain is missing; machine-fsck --repair") from None
    packs.remove_loose(directory, _twice(directory, objects), step)
    found = dict.fromkeys(packs.loose(directory))
    old = _small(directory, len(found))
    for pack in old:
        found |= dict.fromkeys(packs.ids(pack))
    if found and (old or found):
        say(f"packing {len(found)} objects")
        made = packs.write(directory, directory, list(_named(directory, found)), fsync)
        for pack in old:
            if pack != made:
                packs.remove(pack)
        packs.remove_loose(directory, found, step)
    return folded


def _twice(directory: str, objects: Objects) -> list[str]:
    """The loose objects that a pack has too, and sound: they were written again, or who removed them died."""
    packed = {oid for pack in packs.packs(directory) for oid in packs.ids(pack)}
    found = []
    for oid in packs.loose(directory) if packed else ():
        if oid in packed:
            try:
                objects.read_packed(oid)
            except (KeyError, MachineError):
                continue
            found.append(oid)
    return found


def _small(directory: str, more: int) -> list[str]:
    """The packs that go into the new one: so many that each that stays has twice as many objects as
    all that are smaller. So an object is packed again a few times only, and packs stay few. And those
    that have an object in common: who made one of the other died."""
    contents = {pack: packs.ids(pack) for pack in packs.packs(directory)}
    had = Counter(oid for ids in contents.values() for oid in ids)
    taken = [pack for pack, ids in contents.items() if any(had[oid] > 1 for oid in ids)]
    total = more + sum(len(contents[pack]) for pack in taken)
    for pack in sorted(contents.keys() - set(taken), key=lambda pack: len(contents[pack])):
        if total and len(contents[pack]) >= 2 * total:
            break
        taken.append(pack)
        total += len(contents[pack])
    return taken if more or len(taken) > 1 else []


def _named(directory: str, found: dict[str, None]) -> Iterator[tuple[str, str]]:
    """Each object with a word that those alike share, by which git looks for what they have in common.

    Git weighs the end of the word most: what sets records apart stands there.
    """
    rest = dict(found)
    for _, _, row in log.read(f"{directory}/records"):
        if row is None or log.problem(row):
            continue
        kind = row["type"]
        like = f"{row['machine']}.{str(row.get('identity', row.get('run', '')))[:8]}.{kind}"
        for _, name, oid in chain.entries_of(row):
            if oid in rest:
                del rest[oid]
                yield oid, like if name == row["id"] else f"{row['machine']}.{name.partition('.')[2]}"
    for oid in rest:
        yield oid, ""


def run(
    directory: str, fsync: bool, say: Callable[[str], object], step: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Collect as the keeper; a record of what it did."""
    with keep.keeper(directory, lambda: say("waiting for another keeper of this store")):
        forget.finish(directory, fsync)
        before = measure(directory)
        commits = collect(directory, fsync, say, step)
        after = measure(directory)
    return {
        "v": 1,
        "type": "gc",
        "before": before._asdict(),
        "after": after._asdict(),
        "commits": {"before": commits[0], "after": commits[1]},
    }

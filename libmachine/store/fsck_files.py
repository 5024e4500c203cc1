"""Checking the files around the objects and the log: packs, index, modes, what the dead left."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from libmachine.errors import MachineError
from libmachine.store import gc, keep, layout, packs
from libmachine.store.findings import Finding
from libmachine.store.index import Index

_BY_GIT = re.compile(r"tmp_\w+")
_TRIES = 5


def layout_of(directory: str) -> Iterator[Finding]:
    """Whether the store is a repository that git takes nothing from."""
    made = os.path.exists(f"{directory}/format")  # the last one; the next writer finishes what is half made
    for name, needed in layout.FILES.items() if made else ():
        try:
            with open(f"{directory}/{name}", errors="replace") as file:
                there = needed in file.read()
        except OSError:
            there = False
        if not there:
            yield Finding("layout-broken", f"'{name}' is missing, or lacks {needed.strip()!r}", place=name)
    if keep.forgetting(directory) is not None:
        yield Finding("forget-unfinished", "a machine-forget was cut off")


def files_of(directory: str) -> Iterator[Finding]:
    """What is wrong with packs, index and modes, and what is left lying about."""
    yield from _packs(directory)
    yield from _index(directory)
    yield from _modes(directory)
    yield from _left(directory)
    if number := gc.is_worth(directory):
        yield Finding("gc-worth", f"{number} objects lie in files of their own")


def _packs(directory: str) -> Iterator[Finding]:
    for pack in packs.packs(directory):
        try:
            yield from _pack(directory, pack)
        except FileNotFoundError:
            continue  # machine-gc has put it into another meanwhile
    for path in packs.half(directory):
        place = os.path.relpath(path, directory)
        yield Finding("pack-half", f"'{place}' has no index: who wrote it died", place=place)


def _pack(directory: str, pack: str) -> Iterator[Finding]:
    place = os.path.relpath(pack, directory)
    try:
        packs.ids(pack)
    except MachineError as error:
        yield Finding("pack-damaged", str(error), place=place)
        return
    for ending in (".pack", ".idx"):
        if not is_sealed(pack + ending):
            yield Finding(
                "pack-damaged", f"'{place}{ending}' has bytes that were not written so", place=place
            )


def is_sealed(path: str) -> bool:
    """Does a pack or its index end with the hash of what stands before?"""
    left = os.path.getsize(path) - 20
    if left < 0:
        return False
    sum_ = hashlib.sha1()
    with open(path, "rb") as file:
        while left:
            chunk = file.read(min(left, 1 << 20))
            if not chunk:
                return False
            sum_.update(chunk)
            left -= len(chunk)
        return file.read() == sum_.digest()


def _index(directory: str) -> Iterator[Finding]:
    """Is the index what the log makes of it? A second one is made, and the two compared row by row."""
    if not os.path.exists(f"{directory}/index.db") or not os.access(directory, os.W_OK):
        return
    beside = layout.temporary(directory)
    os.makedirs(beside, 0o700)
    try:
        os.symlink(f"{os.path.abspath(directory)}/records", f"{beside}/records")
        differs = _compare(directory, beside)
    finally:
        for name in os.listdir(beside):
            os.unlink(f"{beside}/{name}")
        os.rmdir(beside)
    if differs:
        yield Finding("index-differs", f"the index and the log differ in {differs}", place="index.db")


def _compare(directory: str, beside: str) -> str | None:
    with closing(Index(directory)) as old, closing(Index(beside)) as new:
        for _ in range(_TRIES):  # the log may grow between the two
            old.catch_up()
            new.catch_up()
            if old.offset == new.offset:
                break
        else:
            return None
        if not os.path.exists(f"{beside}/index.db"):
            return None  # it can only be kept in memory here, and is made anew each time
        db = sqlite3.connect(f"file:{quote(beside)}/index.db?mode=ro", uri=True)
        with closing(db):
            db.execute("ATTACH ? AS old", (f"file:{quote(directory)}/index.db?mode=ro",))
            tables = (
                "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%' ORDER BY 1"
            )
            names = [row[0] for row in db.execute(tables) if row[0] != "state"]
            try:
                for name in names:
                    for one, other in (("main", "old"), ("old", "main")):
                        both = f"SELECT * FROM {one}.{name} EXCEPT SELECT * FROM {other}.{name}"
                        if db.execute(f"SELECT count(*) FROM ({both})").fetchone()[0]:
                            return str(name)
            except sqlite3.Error as error:
                return str(error)
    return None


_SHUT_ABOVE = ("tmp/", "defined/")
"""Below these the folder itself is shut, and what git writes has git's modes."""


def _modes(directory: str) -> Iterator[Finding]:
    for path in [directory, *walk(directory)]:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        place = os.path.relpath(path, directory)
        if mode & 0o077 and not os.path.islink(path) and not place.startswith(_SHUT_ABOVE):
            yield Finding(
                "mode-open", f"'{place}' may be used by others (mode {mode & 0o777:o})", place=place
            )


def walk(directory: str) -> Iterator[str]:
    """Every path below a directory; links are not followed."""
    for here, folders, names in os.walk(directory):
        for name in sorted([*folders, *names]):
            yield f"{here}/{name}"


def _left(directory: str) -> Iterator[Finding]:
    tmp = f"{directory}/tmp"
    for name in sorted(os.listdir(tmp)) if os.path.isdir(tmp) else ():
        try:
            is_folder, stale = os.path.isdir(f"{tmp}/{name}"), layout.is_stale(f"{tmp}/{name}")
        except FileNotFoundError:
            continue
        kind, what = ("sandbox-left", "directory") if is_folder else ("temp-left", "write")
        if stale or not is_folder:
            yield Finding(kind, f"unfinished {what} 'tmp/{name}'", place=f"tmp/{name}")
    for path in left_by_git(directory):
        place = os.path.relpath(path, directory)
        yield Finding("temp-left", f"unfinished write '{place}' of git", place=place)


def left_by_git(directory: str) -> list[str]:
    """Unfinished objects and packs of git that are older than an hour."""
    found = []
    for path in walk(f"{directory}/objects"):
        try:
            if _BY_GIT.match(os.path.basename(path)) and layout.is_stale(path):
                found.append(path)
        except FileNotFoundError:
            continue  # it is finished
    return found

"""Which states a hook or a CI job asks about: lines of git's hooks and ranges as pairs of commits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libmachine.errors import MachineError, Untestable
from libmachine.git import notes
from libmachine.git.objects import read_commits
from libmachine.git.repository import NOTHING, Repository, head, list_refs, read_ref, resolve

_FREE = ("refs/tags/", "refs/machine/", "refs/notes/", "refs/machine-remotes/", "refs/machine-synced/")
"""Refs that make nothing live: a branch does."""
_OID = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Update:
    """A ref that goes from one commit to another. old: None where there was nothing. ref: its name, ""
    for a range. parents: other parents of new, when it is a merge, that the receiver has already."""

    old: str | None
    new: str
    ref: str = ""
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pushed:
    """A line of a hook: what the receiver has and what it would get, 40 zeros for nothing."""

    ref: str
    old: str
    new: str


def read_lines(data: bytes) -> list[Pushed]:
    """The lines of pre-push (`local_ref local remote_ref remote`) or pre-receive (`old new ref`).

    Raises MachineError for a line that is neither."""
    found = []
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        words = line.split(" ")
        if len(words) == 4 and _OID.fullmatch(words[1]) and _OID.fullmatch(words[3]):
            found.append(Pushed(words[2], words[3], words[1]))
        elif len(words) == 3 and _OID.fullmatch(words[0]) and _OID.fullmatch(words[1]):
            found.append(Pushed(words[2], words[0], words[1]))
        elif line.strip():
            raise MachineError(f"line {number} of stdin is none of git's pre-push or pre-receive hook")
    return found


def updates(repo: Repository, lines: Sequence[Pushed], remote: str | None) -> Iterator[Update]:
    """What to judge of a push. remote: the one that receives it, None where this repository does.

    Deleted refs, tags, notes and our own refs are not judged. A new branch is judged from where it
    left those that the receiver has. Raises Untestable, MachineError."""
    known = _receivers(repo, remote)
    for line in lines:
        if line.new == NOTHING or line.ref.startswith(_FREE):
            continue
        new = resolve(repo, line.new)
        old = _where_it_left(repo, new, known, remote) if line.old == NOTHING else resolve(repo, line.old)
        yield Update(old, new, line.ref, _known_parents(repo, new, known))


def of_range(repo: Repository, text: str) -> Update:
    """The update of `OLD..NEW`, or `OLD...NEW` for where both parted. Raises MachineError, Untestable."""
    old, dots, new = text.partition("...") if "..." in text else text.partition("..")
    if not dots:
        raise MachineError(f"'{text}' is no range; write OLD..NEW, or - for a hook's lines on stdin")
    tip = resolve(repo, new or "HEAD")
    if old == NOTHING:
        return Update(None, tip)
    base = resolve(repo, old or "HEAD")
    if dots == "...":
        done = repo.run("merge-base", base, tip)
        if done.code:
            raise Untestable(f"'{old}' and '{new}' have no common commit here; git fetch --unshallow")
        base = done.out.decode().split()[0]
    return Update(base, tip)


def pushed_notes(repo: Repository, lines: Sequence[Pushed]) -> str | None:
    """The notes commit that comes with this very push, if it only adds to those that are here."""
    for line in lines:
        if line.ref == notes.REF and line.new != NOTHING:
            tip = read_ref(repo, notes.REF)
            if tip is None or not repo.run("merge-base", "--is-ancestor", tip, line.new).code:
                return line.new
    return None


def merging(repo: Repository) -> list[str]:
    """The other parents of a merge that is being committed."""
    where = repo.ask("rev-parse", "--path-format=absolute", "--git-path", "MERGE_HEAD")
    try:
        with open(where.decode("utf-8", "surrogateescape").rstrip("\n")) as file:
            return file.read().split()
    except OSError:
        return []


def _receivers(repo: Repository, remote: str | None) -> list[str]:
    """The commits of the receiver's branches, its default branch's first."""
    if remote is None:
        first = head(repo)
        tips = [ref.oid for ref in list_refs(repo, "refs/heads/")]
    else:
        where = f"refs/remotes/{remote}/"
        found = list_refs(repo, where) or list_refs(repo, "refs/remotes/")
        first = next((ref.oid for ref in found if ref.name == f"{where}HEAD"), None)
        tips = [ref.oid for ref in found]
    return list(dict.fromkeys([*([first] if first else []), *tips]))


def _where_it_left(repo: Repository, new: str, known: Sequence[str], remote: str | None) -> str | None:
    """The commit at which a new branch left the known ones; the default branch's if it never was on one."""
    stdin = "".join([f"{new}\n", *(f"^{oid}\n" for oid in known)]).encode()
    fresh = repo.ask("rev-list", "--first-parent", "--stdin", stdin=stdin).decode().split()
    if not fresh:
        return new
    parents = read_commits(repo, [fresh[-1]])[0].parents
    if parents:
        return resolve(repo, parents[0])
    return known[0] if known else None


def _known_parents(repo: Repository, new: str, known: Sequence[str]) -> tuple[str, ...]:
    """The parents of a merge that are on a branch of the receiver: what they hold was judged there."""
    parents = read_commits(repo, [new])[0].parents
    if len(parents) < 2:
        return ()
    without = "".join(f"^{oid}\n" for oid in known)
    return tuple(
        parent
        for parent in parents
        if known and not repo.ask("rev-list", "-n1", "--stdin", stdin=f"{parent}\n{without}".encode()).strip()
    )

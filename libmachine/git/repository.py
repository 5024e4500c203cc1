"""A git repository as the versions need it: where it is, its commits, its refs by compare-and-swap.

Works in work trees, linked worktrees, submodules and bare repositories. Reading takes no lock and
writes nothing, so that a pre-receive hook may do it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from libmachine.errors import MachineError, Untestable
from libmachine.git import plumb

NOTHING = "0" * 40
OID = re.compile(r"[0-9a-f]{40}")
_LAST_SECOND = 253402300799
_SEGMENT = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Repository:
    """directory: the project, where git is asked. common: the git directory all worktrees share.
    inside: the project's path from the top, "" or with a slash at its end. extra: GIT_* that git gets."""

    directory: str
    common: str
    inside: str
    bare: bool
    shallow: bool
    extra: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> plumb.Done:
        """Run a git command, whatever it answers."""
        return plumb.run(self.directory, *words, stdin=stdin, extra={**self.extra, **(extra or {})})

    def ask(self, *words: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> bytes:
        """What a git command prints. Raises MachineError."""
        return plumb.ask(self.directory, *words, stdin=stdin, extra={**self.extra, **(extra or {})})

    def objects(self, queries: Sequence[str]) -> list[plumb.Found | None]:
        """The objects that queries name, None for those that are not there."""
        return plumb.read_objects(self.directory, queries, self.extra)

    def find(self, queries: Sequence[str]) -> list[str | None]:
        """The ids of the objects that queries name, None for those that are not there."""
        return plumb.find_objects(self.directory, queries, self.extra)


def open_repository(
    directory: str, inside: str | None = None, extra: Mapping[str, str] | None = None
) -> Repository:
    """The repository that a directory belongs to.

    inside: the project's path from the top where it cannot be asked for (a bare repository, GIT_DIR in
    extra); "" by default there. extra: the GIT_* of a pre-receive hook, so that its quarantine is read.
    Raises MachineError if there is none or git layouts we cannot read yet (SHA-256, reftable).
    """
    asked = ("--git-common-dir", "--is-bare-repository", "--is-shallow-repository", "--show-object-format")
    words = ("rev-parse", "--path-format=absolute", *asked, "--show-prefix")
    done = plumb.run(directory, *words, extra=extra)
    if done.code:
        if "refstorage" in done.err.lower():
            raise MachineError(f"repository of '{directory}' keeps its refs as reftable: not supported yet")
        raise MachineError(f"no git repository at '{directory}': {done.reason()} (git init makes one)")
    rows = done.out.decode("utf-8", "surrogateescape").split("\n")
    common, bare, shallow, kind = rows[:4]
    if kind != "sha1":
        raise MachineError(f"repository '{common}' uses {kind} ids: not supported yet")
    if os.path.isdir(f"{common}/reftable"):
        raise MachineError(f"repository '{common}' keeps its refs as reftable: not supported yet")
    if inside is None:
        inside = "" if "GIT_DIR" in (extra or {}) else rows[4]
    inside = inside.strip("/")
    return Repository(
        os.path.abspath(directory),
        common,
        f"{inside}/" if inside else "",
        bare == "true",
        shallow == "true",
        dict(extra or {}),
    )


def check_name(name: str) -> None:
    """Raise MachineError if a name is none a machine may have: it becomes part of a ref."""
    for segment in name.split("/"):
        if (
            not _SEGMENT.fullmatch(segment)
            or segment.endswith((".lock", "."))
            or ".." in segment
            or re.fullmatch("v[0-9]+", segment)
        ):
            raise MachineError(
                f"'{name}' is no machine name; use a-z, 0-9, '.', '_', '-' in segments joined by '/', no 'vN'"
            )


def is_name(name: str) -> bool:
    """Whether a machine may have this name."""
    try:
        check_name(name)
    except MachineError:
        return False
    return True


# commits --------------------------------------------------------------------------------


def resolve(repo: Repository, commitish: str) -> str:
    """The id of a commit. Raises Untestable if it exists but not in this clone, else MachineError."""
    if commitish.startswith("-") or not commitish or "\n" in commitish:
        raise MachineError(f"'{commitish}' names no commit; git log --oneline lists them")
    asked = ("rev-parse", "--verify", "-q", "--end-of-options")
    done = repo.run(*asked, f"{commitish}^{{commit}}")
    if not done.code:
        return done.out.decode().strip()
    if repo.shallow:
        raise Untestable(f"commit '{commitish}' is not in this shallow clone; git fetch --unshallow")
    known = repo.run(*asked, commitish)
    kind = repo.run("cat-file", "-t", known.out.decode().strip()) if not known.code else known
    if not kind.code:
        raise MachineError(f"'{commitish}' is a {kind.out.decode().strip()}, no commit; git log lists them")
    if re.fullmatch(r"[0-9a-f]{7,40}", commitish) or not known.code:
        raise Untestable(f"commit '{commitish}' is not in this repository; git fetch origin {commitish}")
    if commitish == "HEAD":
        raise MachineError("HEAD has no commit yet; git commit makes the first")
    raise MachineError(f"no commit '{commitish}'; git branch -a and git tag list the names there are")


def head(repo: Repository) -> str | None:
    """The commit of HEAD, None while there is none. Raises Untestable if it is named but not there."""
    if repo.run("rev-parse", "--verify", "-q", "HEAD").code:
        return None
    return resolve(repo, "HEAD")


def iso(seconds: int) -> str:
    """Seconds since 1970 as ISO 8601 UTC; what no calendar has is the nearest it has."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LAST_SECOND), UTC).isoformat().replace("+00:00", "Z")


# refs -----------------------------------------------------------------------------------


class Ref(NamedTuple):
    """A ref: its full name, what it points to, the tree of that commit ("" if it is none), when (UTC)."""

    name: str
    oid: str
    tree: str
    when: str


def list_refs(repo: Repository, *patterns: str) -> list[Ref]:
    """The refs at or below patterns, by name. A pattern is a whole ref or ends in a slash."""
    shape = "--format=%(refname)%00%(objectname)%00%(tree)%00%(committerdate:unix)"
    found = []
    # lines end with a newline and nothing else: a ref's name may have other characters that part lines
    told = repo.ask("for-each-ref", shape, *patterns).decode("utf-8", "surrogateescape")
    for line in told.removesuffix("\n").split("\n") if told else ():
        name, oid, tree, seconds = line.split("\0")
        found.append(Ref(name, oid, tree, iso(int(seconds or 0))))
    return found


def read_ref(repo: Repository, ref: str) -> str | None:
    """What a ref points to, None if it is not there."""
    # not rev-parse: a tag of that very name would answer for a ref that is absent
    return next((found.oid for found in list_refs(repo, ref) if found.name == ref), None)


def move(repo: Repository, ref: str, new: str | None, old: str | None, why: str = "machine") -> bool:
    """Point a ref at new (None: delete it) if it is at old (None: absent). False if it was elsewhere."""
    return move_all(repo, {ref: (new, old)}, why)


def move_all(
    repo: Repository, moves: Mapping[str, tuple[str | None, str | None]], why: str = "machine"
) -> bool:
    """Move refs together: ref -> (new, old), as `move`. False, and nothing moved, if one was elsewhere.

    Raises MachineError if git refuses for another reason (a lock file left behind, no permission)."""
    rows = [f"{ref} {new or NOTHING} {old or NOTHING}" for ref, (new, old) in moves.items()]
    if not rows:
        return True
    stdin = "".join(f"update {row}\n" for row in rows).encode()
    done = repo.run("update-ref", "--no-deref", "-m", why, "--stdin", stdin=stdin)
    if not done.code:
        return True
    now = {found.name: found.oid for found in list_refs(repo, *moves)}
    if any(now.get(ref) != old for ref, (_, old) in moves.items()):
        return False
    raise MachineError(f"cannot move {next(iter(moves))}: {done.reason()}")


@contextmanager
def locked(repo: Repository) -> Iterator[None]:
    """Hold the lock under which this program writes refs of a repository. Never across the network."""
    path = f"{repo.common}/machine.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise MachineError(f"cannot lock '{path}': {(error.strerror or '').lower()}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

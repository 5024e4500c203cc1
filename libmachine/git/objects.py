"""Objects of the project's repository, written by plumbing that runs no filter: blobs, trees, commits."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from libmachine.errors import MachineError, Untestable
from libmachine.git.repository import Repository, iso
from libmachine.githash import DIRECTORY, FILE, tree_id

Entry = tuple[str, str, str]
"""(mode, name, id) of a tree, as libmachine.githash has it."""

_NEUTRAL = {
    "GIT_AUTHOR_NAME": "machine",
    "GIT_AUTHOR_EMAIL": "machine@localhost",
    "GIT_COMMITTER_NAME": "machine",
    "GIT_COMMITTER_EMAIL": "machine@localhost",
}
_COMMITTED = re.compile(r"^committer .* ([0-9]+) [+-][0-9]+$", re.MULTILINE)


class Commit(NamedTuple):
    """A commit, parsed. when: the committer's, ISO 8601 UTC to the second. author: the raw line's value."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    author: str
    when: str
    message: str


def read_commits(repo: Repository, oids: Sequence[str]) -> list[Commit]:
    """Commits by id, in order. Raises Untestable for one that is not there."""
    commits = []
    for oid, found in zip(oids, repo.objects(oids), strict=True):
        if found is None or found.kind != "commit":
            raise Untestable(f"commit '{oid}' is not in this repository; git fetch, then try again")
        header, _, message = found.data.decode("utf-8", "replace").partition("\n\n")
        fields = [line.partition(" ")[::2] for line in header.split("\n")]
        first = dict(reversed(fields))
        parents = tuple(value for name, value in fields if name == "parent")
        when = _COMMITTED.search(header)
        commits.append(
            Commit(
                oid,
                first.get("tree", ""),
                parents,
                first.get("author", ""),
                iso(int(when[1]) if when else 0),
                message.rstrip("\n"),
            )
        )
    return commits


def write_blob(repo: Repository, data: bytes) -> str:
    """Store bytes as they are; their id."""
    return repo.ask("hash-object", "-w", "--stdin", "--no-filters", stdin=data).decode().strip()


def write_blobs(repo: Repository, contents: Sequence[bytes]) -> list[str]:
    """Store the contents of several files; their ids. Many cost one process."""
    if len(contents) < 4:
        return [write_blob(repo, data) for data in contents]
    with tempfile.TemporaryDirectory() as directory:
        paths = [f"{directory}/{number}" for number in range(len(contents))]
        for path, data in zip(paths, contents, strict=True):
            with open(path, "wb") as file:
                file.write(data)
        names = "".join(f"{path}\n" for path in paths).encode()
        return repo.ask("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=names).decode().split()


def write_trees(repo: Repository, trees: Iterable[Sequence[Entry]]) -> list[str]:
    """Store trees, those that others name first; their ids. Raises MachineError if a part is missing."""
    rows = b""
    wanted = []
    for entries in trees:
        wanted.append(tree_id(entries))
        for mode, name, oid in entries:
            kind = "tree" if mode == DIRECTORY else "commit" if mode == "160000" else "blob"
            rows += f"{mode} {kind} {oid}\t{name}\0".encode("utf-8", "surrogateescape")
        rows += b"\0"
    if not wanted:
        return []
    made = repo.ask("mktree", "-z", "--batch", stdin=rows).decode().split()
    if made != wanted:
        raise MachineError(f"git made tree {made} where {wanted} was meant; run git fsck")
    return wanted


def write_files(repo: Repository, files: Mapping[str, bytes]) -> str:
    """Store files (path -> bytes) as a tree; its id."""
    ids = write_blobs(repo, list(files.values()))
    return write_nested(repo, {path: (FILE, oid) for path, oid in zip(files, ids, strict=True)})


def write_nested(repo: Repository, blobs: Mapping[str, tuple[str, str]]) -> str:
    """Store a tree of blobs that are there. blobs: path -> (mode, id)."""
    folders: dict[str, list[Entry]] = {"": []}
    for path, (mode, oid) in blobs.items():
        above, _, name = path.rpartition("/")
        folders.setdefault(above, []).append((mode, name, oid))
        while above:
            above = above.rpartition("/")[0]
            folders.setdefault(above, [])
    deepest = sorted(folders, key=lambda path: path.count("/") + bool(path), reverse=True)
    for path in deepest[:-1]:
        above, _, name = path.rpartition("/")
        folders[above].append((DIRECTORY, name, tree_id(folders[path])))
    return write_trees(repo, [folders[path] for path in deepest])[-1]


def write_commit(
    repo: Repository,
    tree: str,
    parents: Sequence[str],
    message: str,
    extra: Mapping[str, str] | None = None,
) -> str:
    """Store a commit of a tree in the user's name, or a neutral one if git knows none.

    extra: GIT_AUTHOR_*, GIT_COMMITTER_DATE where they are not now's."""
    words = ["-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree, "-F", "-"]
    words += [word for parent in parents for word in ("-p", parent)]
    done = repo.run(*words, stdin=message.encode("utf-8", "replace"), extra=extra)
    if done.code and repo.run("var", "GIT_COMMITTER_IDENT").code:
        given = {**_NEUTRAL, **repo.extra, **(extra or {})}
        done = repo.run(*words, stdin=message.encode("utf-8", "replace"), extra=given)
    if done.code:
        raise MachineError(f"cannot write to '{repo.common}': {done.reason()}")
    return done.out.decode().strip()


def dated(when: str) -> dict[str, str]:
    """`extra` of a commit that is dated when (ISO 8601 UTC)."""
    return {"GIT_COMMITTER_DATE": f"@{_seconds(when)} +0000"}


def dated_after(when: str | None) -> dict[str, str]:
    """`extra` of a commit that is dated now, but later than when (ISO 8601 UTC)."""
    return dated(iso(max(int(time.time()), _seconds(when) + 1 if when else 0)))


def _seconds(when: str) -> int:
    return int(datetime.fromisoformat(when).timestamp())

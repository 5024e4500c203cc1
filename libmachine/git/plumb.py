"""Asking git, safely: the only module that starts git.

Only commands that run nothing of the repository's (no filter, hook, textconv or
fsmonitor): rev-parse, ls-tree, cat-file, log --raw. GIT_* is stripped, because inside a
hook those variables name another tree.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator

from libmachine import env

_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")


def git(directory: str, *words: str, stdin: bytes = b"") -> bytes | None:
    """What a git command prints, or None if it fails or there is no git."""
    command = ["git", *_SAFE, "-C", directory, *words]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, env=env.child_environment(), check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def position(directory: str) -> tuple[str, str | None] | None:
    """(path of the directory inside its work tree, commit of HEAD or None). None: no work tree here."""
    where = git(directory, "rev-parse", "--show-prefix")
    if where is None:
        return None
    head = git(directory, "rev-parse", "--verify", "-q", "HEAD^{commit}")
    return where.decode("utf-8", "surrogateescape").rstrip("\n"), head.decode().strip() if head else None


def common_directory(directory: str) -> str | None:
    """The absolute path of the git directory that all worktrees share, or None."""
    found = git(directory, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return found.decode("utf-8", "surrogateescape").rstrip("\n") if found else None


def files_at(directory: str, commit: str) -> dict[str, str]:
    """Path (relative to the directory) -> blob id of the files of a directory at a commit.

    Hidden files are left out."""
    listed = git(directory, "ls-tree", "-r", "-z", commit) or b""
    files = {}
    for line in listed.split(b"\0"):
        head, _, path = line.partition(b"\t")
        hidden = any(part.startswith(b".") for part in path.split(b"/"))
        if head.startswith(b"100") and not hidden:
            files[path.decode("utf-8", "surrogateescape")] = head.split()[2].decode()
    return files


def versions_of(directory: str, path: str) -> set[str]:
    """Blob ids that a file has had in the history of HEAD."""
    listed = git(
        directory, "log", "--format=", "--raw", "--no-abbrev", "--no-renames", "-m", "HEAD", "--", path
    )
    ids: set[str] = set()
    for line in (listed or b"").splitlines():
        if line.startswith(b":"):
            ids.update(oid.decode() for oid in line.split()[2:4])
    return {oid for oid in ids if set(oid) != {"0"}}


def read_blobs(directory: str, ids: Iterable[str]) -> Iterator[bytes]:
    """The contents of blobs; absent ones are left out."""
    wanted = "".join(f"{oid}\n" for oid in ids).encode()
    data = git(directory, "cat-file", "--batch", stdin=wanted) or b""
    while data:
        head, _, data = data.partition(b"\n")
        words = head.split()
        if len(words) == 3:
            size = int(words[2])
            yield data[:size]
            data = data[size + 1 :]

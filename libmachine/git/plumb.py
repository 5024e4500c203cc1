"""Asking git, safely: the only module that starts git.

Only commands that run nothing of the repository's (no filter, hook, textconv, fsmonitor or gpg):
rev-parse, ls-tree, ls-files -s, cat-file, log --raw, rev-list, for-each-ref, update-ref, hash-object
--no-filters, mktree, commit-tree, merge-base, var; and fetch and push, which start the transport.
GIT_* is stripped, because inside a hook those variables name another tree; who needs them (the
quarantine of a pre-receive hook) hands them in.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from libmachine import env
from libmachine.errors import MachineError, Untestable

_SAFE = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false"),
    "--no-optional-locks",
)
# A replaced object has another content under the same id; a lazy fetch starts what the config names.
_PLAIN = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
WHOLE = "git fetch --refetch --no-filter gets what a partial clone lacks"


class Done(NamedTuple):
    """What a git command left: its exit code, stdout, and stderr as text."""

    code: int
    out: bytes
    err: str

    def reason(self) -> str:
        """The line of stderr that says why, without git's own `fatal:`."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines or [""]
        return told[0].removeprefix("fatal:").removeprefix("error:").strip() or f"exit {self.code}"


class Found(NamedTuple):
    """An object: its id, its kind (blob, tree, commit, tag), its bytes."""

    oid: str
    kind: str
    data: bytes


def run(directory: str, *words: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> Done:
    """Run a git command, whatever it answers. extra: variables it gets besides the plain ones.

    Raises MachineError if there is no git.
    """
    command = ["git", *_SAFE, "-C", directory, *words]
    variables = {**env.child_environment(), **_PLAIN, **(extra or {})}
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=variables, check=False)
    except FileNotFoundError:
        raise MachineError("there is no 'git' on PATH; install it (apt-get install git)") from None
    return Done(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))


def ask(directory: str, *words: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> bytes:
    """What a git command prints. Raises MachineError with git's reason if it fails."""
    done = run(directory, *words, stdin=stdin, extra=extra)
    if done.code and "promisor" in done.err:
        raise Untestable(f"an object is not in '{directory}': {done.reason()}; {WHOLE}")
    if done.code:
        raise MachineError(f"git {words[0]} failed in '{directory}': {done.reason()}")
    return done.out


def read_objects(
    directory: str, queries: Sequence[str], extra: Mapping[str, str] | None = None
) -> list[Found | None]:
    """The objects that queries (ids, `COMMIT:path`) name, in their order; None for one that is not there.

    One process, however many there are.
    """
    data = _batch(directory, "--batch", queries, extra)
    found: list[Found | None] = []
    at = 0
    while len(found) < len(queries):
        end = data.index(b"\n", at)
        words = data[at:end].split(b" ")
        at = end + 1
        if len(words) == 3 and words[2].isdigit():
            size = int(words[2])
            found.append(Found(words[0].decode(), words[1].decode(), data[at : at + size]))
            at += size + 1
        else:
            found.append(None)
    return found


def find_objects(
    directory: str, queries: Sequence[str], extra: Mapping[str, str] | None = None
) -> list[str | None]:
    """The ids of the objects that queries name, None for those that are not there. Contents are not read."""
    rows = [line.split(b" ") for line in _batch(directory, "--batch-check", queries, extra).split(b"\n")[:-1]]
    return [words[0].decode() if len(words) == 3 and words[2].isdigit() else None for words in rows]


def _batch(directory: str, how: str, queries: Sequence[str], extra: Mapping[str, str] | None) -> bytes:
    if not queries:
        return b""
    if any("\n" in query for query in queries):
        raise MachineError("a path with a line break cannot be asked for; rename the file")
    asked = "".join(f"{query}\n" for query in queries).encode("utf-8", "surrogateescape")
    return ask(directory, "cat-file", how, stdin=asked, extra=extra)


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

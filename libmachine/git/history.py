"""The versions a machine has had in the history of a commit, from blobs."""

from __future__ import annotations

from typing import NamedTuple

from libmachine.errors import Untestable
from libmachine.git.place import VERSIONED
from libmachine.git.repository import Repository, check_name, iso, resolve
from libmachine.githash import DIRECTORY, FILE, tree_id


class Past(NamedTuple):
    """A commit that touched what a version is made of. when: ISO 8601 UTC. version: None without machine."""

    commit: str
    when: str
    version: str | None


def history(
    repo: Repository,
    name: str,
    commitish: str = "HEAD",
    prefix: str = "machines",
    shallow_too: bool = False,
) -> list[Past]:
    """The commits, newest first, that changed versioned files of a machine or its parents, side branches too.

    Raises Untestable in a shallow clone, where older ones are missing, unless shallow_too.
    """
    check_name(name)
    if repo.shallow and not shallow_too:
        raise Untestable(f"the history of '{name}' is cut off in this shallow clone; git fetch --unshallow")
    segments = name.split("/")
    folders = [f"{repo.inside}{prefix}/{'/'.join(segments[: n + 1])}" for n in range(len(segments))]
    files = [f"{folder}/{file}" for folder in folders for file in ("machine.py", *VERSIONED)]
    pathspecs = [f":(top,literal){file}" for file in files]
    words = ("rev-list", "--full-history", "--timestamp", resolve(repo, commitish), "--", *pathspecs)
    commits = [line.split(" ") for line in repo.ask(*words).decode().splitlines()]
    ids = repo.find([f"{commit}:{file}" for _, commit in commits for file in files])
    found = []
    for number, (seconds, commit) in enumerate(commits):
        at = dict(zip(files, ids[number * len(files) :], strict=False))
        found.append(Past(commit, iso(int(seconds)), _version(folders, at)))
    return found


def _version(folders: list[str], at: dict[str, str | None]) -> str | None:
    """The version of the last of nested folders. at: path of a file -> its blob id."""
    above: str | None = None
    for folder in folders:
        if at[f"{folder}/machine.py"] is None:
            above = None
            continue
        entries = [(FILE, file, oid) for file in VERSIONED if (oid := at[f"{folder}/{file}"])]
        above = tree_id([*entries, *([(DIRECTORY, "parent", above)] if above else [])])
    return above

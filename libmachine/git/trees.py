"""The places machines are read from: the work tree, an index, any commit, and these with changes.

    place = commit(".", "HEAD~3")
    place.machines(), place.version("brief"), place.holdout("brief")

Git is asked for names and blobs only, so that no filter, hook or code of the repository runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from libmachine.errors import MachineError, Untestable
from libmachine.git.place import LINK, VERSIONED, Place
from libmachine.git.plumb import WHOLE
from libmachine.git.repository import Repository, head, open_repository, resolve
from libmachine.githash import FILE, blob_id

_INTENT_TO_ADD = 0x20000000
_EMPTY = blob_id(b"")


class _WorkTree(Place):
    def __init__(self, directory: str, prefix: str) -> None:
        super().__init__(f"'{directory}'", prefix)
        self.directory = directory

    def _list(self, path: str) -> dict[str, str]:
        top = os.path.join(self.directory, path)
        if os.path.islink(top):
            return {path: LINK}
        return dict(self._walk(path)) if os.path.isdir(top) else {path: FILE} if os.path.isfile(top) else {}

    def _walk(self, path: str) -> Iterator[tuple[str, str]]:
        try:
            with os.scandir(os.path.join(self.directory, path)) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise MachineError(f"cannot read '{error.filename}': {(error.strerror or '').lower()}") from None
        for entry in found:
            inner = f"{path}/{entry.name}"
            if entry.is_symlink():
                yield inner, LINK
            elif entry.is_dir() and entry.name.startswith((".", "__pycache__")):
                continue
            elif entry.is_dir():
                yield from self._walk(inner)
            elif entry.is_file():
                yield inner, "100755" if entry.stat().st_mode & 0o100 else FILE

    def oid(self, path: str) -> str | None:
        data = self.read(path)
        return None if data is None else blob_id(data)

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for path in paths:
            try:
                with open(os.path.join(self.directory, path), "rb") as file:
                    found[path] = file.read()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                continue
            except OSError as error:
                raise MachineError(f"cannot read '{path}': {(error.strerror or '').lower()}") from None
        return found


class _InGit(Place):
    """A commit or an index. oids: path -> id, filled by _list."""

    def __init__(self, repo: Repository, label: str, prefix: str) -> None:
        super().__init__(label, prefix)
        self.repo = repo
        self.oids: dict[str, str] = {}

    def oid(self, path: str) -> str | None:
        return self.oids.get(path) if self.mode(path) is not None else None

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        there = [path for path in paths if self.mode(path) is not None]
        found = self.repo.objects([self.oids[path] for path in there])
        for path, blob in zip(there, found, strict=True):
            if blob is None:
                raise Untestable(
                    f"'{path}' of {self.label} is not in this clone; git fetch --refetch --no-filter"
                )
        return {path: blob.data for path, blob in zip(there, found, strict=True) if blob is not None}

    def _take(self, rows: bytes) -> dict[str, str]:
        """Rows `MODE [KIND] ID [STAGE]<tab>PATH`, path from the top, NUL-separated."""
        modes = {}
        inside = self.repo.inside
        for row in filter(None, rows.split(b"\0")):
            about, _, raw = row.partition(b"\t")
            words = about.decode().split(" ")
            path = raw.decode("utf-8", "surrogateescape")
            if path.startswith(inside):
                path = path[len(inside) :]
                modes[path] = words[0]
                self.oids[path] = words[2] if words[1] in ("blob", "commit", "tree") else words[1]
        return modes


class _Commit(_InGit):
    def __init__(self, repo: Repository, commit: str, label: str, prefix: str) -> None:
        super().__init__(repo, label, prefix)
        self.commit = commit

    def _list(self, path: str) -> dict[str, str]:
        words = ("ls-tree", "-r", "-z", "--full-tree", self.commit, "--", f"{self.repo.inside}{path}")
        done = self.repo.run(*words)
        if done.code:
            raise Untestable(f"cannot read {self.label}: {done.reason()}; {WHOLE}")
        return self._take(done.out)


class _Index(_InGit):
    def __init__(self, repo: Repository, file: str | None, prefix: str) -> None:
        super().__init__(repo, "the index", prefix)
        self.extra = {"GIT_INDEX_FILE": file} if file else {}

    def _list(self, path: str) -> dict[str, str]:
        where = f":(top,literal){self.repo.inside}{path}"
        asked = ("ls-files", "--stage", "--full-name", "-z")
        rows = self.repo.ask(*asked, "--", where, extra=self.extra)
        for row in filter(None, rows.split(b"\0")):
            about, _, raw = row.partition(b"\t")
            if not about.endswith(b" 0"):
                file = raw.decode("utf-8", "surrogateescape")
                raise Untestable(f"'{file}' is unmerged in the index; resolve it, then git add it")
        modes = self._take(rows)
        for empty in [found for found in modes if self.oids[found] == _EMPTY]:
            # `git add -N` shows as the empty blob and is in no commit; only --debug tells it
            where = f":(top,literal){self.repo.inside}{empty}"
            told = self.repo.ask(*asked, "--debug", "--", where, extra=self.extra)
            flags = re.search(rb"flags: ([0-9a-f]+)", told)
            if flags and int(flags[1], 16) & _INTENT_TO_ADD:
                del modes[empty]
        return modes


class _Overlay(Place):
    def __init__(self, base: Place, changes: Mapping[str, bytes | None]) -> None:
        super().__init__(f"{base.label} with changes", base.prefix)
        self.base = base
        self.changes = dict(changes)

    def _list(self, path: str) -> dict[str, str]:
        kept = self.base.modes() if path == self.prefix else self.base._list(path)
        new = {name: FILE for name, data in self.changes.items() if data is not None}
        modes = {name: mode for name, mode in kept.items() if name not in self.changes}
        return modes | {name: mode for name, mode in new.items() if f"{name}/".startswith(f"{path}/")}

    def oid(self, path: str) -> str | None:
        if path not in self.changes:
            return self.base.oid(path)
        data = self.changes[path]
        return None if data is None else blob_id(data)

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        asked = list(paths)
        found = self.base.read_many(path for path in asked if path not in self.changes)
        changed = {path: data for path in asked if (data := self.changes.get(path)) is not None}
        return found | changed


def work_tree(directory: str, prefix: str = "machines") -> Place:
    """The files as they lie in a project, whether git knows them or not."""
    return _WorkTree(os.path.abspath(directory), prefix)


def index(where: Repository | str, index_file: str | None = None, prefix: str = "machines") -> Place:
    """What `git commit` would take. index_file: the hook's GIT_INDEX_FILE, relative to where it runs.

    Raises MachineError in a bare repository, Untestable if index_file is not there."""
    repo = _opened(where)
    if repo.bare:
        raise MachineError(f"'{repo.common}' is bare and has no index; name a commit")
    file = os.path.abspath(index_file) if index_file else None
    if file and not os.path.exists(file) and head(repo) is not None:
        # git takes an absent index for an empty one: every machine would look deleted
        raise Untestable(f"no index '{file}'; GIT_INDEX_FILE names it")
    return _Index(repo, file, prefix)


def commit(where: Repository | str, commitish: str = "HEAD", prefix: str = "machines") -> Place:
    """A commit of any repository, bare ones included. Raises as `repository.resolve`."""
    repo = _opened(where)
    oid = resolve(repo, commitish)
    label = f"commit '{commitish}'" if commitish != oid else f"commit {oid[:12]}"
    return _Commit(repo, oid, label, prefix)


def projects(where: Repository | str, commitish: str, prefix: str = "machines") -> list[str]:
    """The directories (from the top; "" is the top) whose machines a commit holds: for bare repositories.

    Open each with open_repository(directory, inside=...). Raises as `repository.resolve`."""
    repo = _opened(where)
    listed = repo.ask("ls-tree", "-r", "-z", "--full-tree", "--name-only", resolve(repo, commitish))
    paths = [f"/{path}" for path in listed.decode("utf-8", "surrogateescape").split("\0")]
    held = [path.split(f"/{prefix}/", 1)[0] for path in paths if re.search(f"/{prefix}/.+/machine.py$", path)]
    return sorted({path.strip("/") for path in held})


def _opened(where: Repository | str) -> Repository:
    return where if isinstance(where, Repository) else open_repository(where)


def overlay(place: Place, changes: Mapping[str, bytes | None]) -> Place:
    """A place with some files (path from the project -> bytes) put in, replaced, or None: taken away."""
    return _Overlay(place, changes)


def with_version(place: Place, name: str, files: Mapping[str, bytes]) -> Place:
    """A place whose machine has another version: today's code and cases, that version's text and model.

    files: as refs.version_files gives them. Raises MachineError if its parents were others then.
    """
    family = place.family(name)
    if any(path.count("parent/") >= len(family) for path in files):
        raise MachineError(f"that version of '{name}' has a parent it no longer has; name a commit instead")
    changes = {}
    for depth, member in enumerate(family):
        for file in VERSIONED:
            changes[f"{place.prefix}/{member}/{file}"] = files.get("parent/" * depth + file)
    return overlay(place, changes)


def materialise(place: Place, name: str, directory: str) -> str:
    """Write the files of a machine and of the folders around it into an empty directory, to load them from.

    Child machines, hidden folders and byte code stay out. Returns the directory of machines in it.
    Raises MachineError for a machine that is not there, for links, and for names that lead outside.
    """
    family = place.family(name)
    wanted = {path for member in family for path in place.own(member)}
    folders = {place.prefix, *(f"{place.prefix}/{above}" for above in _above(name))}
    wanted.update(
        path for path in place.modes() if path.rpartition("/")[0] in folders and place.is_file(path)
    )
    paths = sorted(path for path in wanted if place.is_file(path))
    for path, data in place.read_many(paths).items():
        parts = path.split("/")
        if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
            raise MachineError(f"'{path}' of {place.label} is no path a file may have; remove it there")
        target = os.path.join(directory, *parts)
        mode = 0o755 if place.mode(path) == "100755" else 0o644
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
        except OSError as error:
            raise MachineError(f"cannot write '{target}': {(error.strerror or '').lower()}") from None
    return os.path.join(directory, place.prefix)


def _above(name: str) -> Iterator[str]:
    while name := name.rpartition("/")[0]:
        yield name

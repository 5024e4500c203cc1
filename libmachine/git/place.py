"""What every place that machines are read from can answer, from names and blob ids, without running code.

A version is the tree {instructions.md, model.json, rubric.toml, parent} of the blobs as they are in
that place (`parent`: the parent machine's version tree). Work trees are read as bytes: no filter runs.
A symbolic link or a submodule where a machine's file is expected is refused: what it leads to may
change while the version stays.
"""

from __future__ import annotations

import hashlib
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from libmachine.errors import MachineError, Untestable
from libmachine.git.objects import Entry
from libmachine.git.repository import is_name
from libmachine.githash import DIRECTORY, FILE, tree_id

VERSIONED = ("instructions.md", "model.json", "rubric.toml")
LINK = "120000"


class Place(ABC):
    """Where machines are read from. Paths are relative to the project and use '/'.

    label: what to call it in messages. prefix: the directory of machines, "machines".
    """

    def __init__(self, label: str, prefix: str) -> None:
        self.label = label
        self.prefix = prefix
        self._modes: dict[str, str] | None = None

    # What a kind of place provides: modes below a path, ids, contents.

    @abstractmethod
    def _list(self, path: str) -> dict[str, str]: ...

    @abstractmethod
    def oid(self, path: str) -> str | None:
        """The blob id of a file, None if it is absent."""

    @abstractmethod
    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Path -> bytes of those files that are there."""

    # What every place can answer from that.

    def modes(self) -> Mapping[str, str]:
        """Path -> git's mode of everything below prefix; links and submodules are entries of their own."""
        if self._modes is None:
            self._modes = self._list(self.prefix)
        return self._modes

    def mode(self, path: str) -> str | None:
        """Git's mode of a file, None if it is absent."""
        if path.startswith(f"{self.prefix}/"):
            return self.modes().get(path)
        return self._list(path).get(path)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None if it is absent. Raises MachineError for a link."""
        return self.read_many([path]).get(path) if self.is_file(path) else None

    def machines(self) -> list[str]:
        """The names of the machines: the folders that hold a machine.py, by name."""
        ends = len("/machine.py")
        start = len(self.prefix) + 1
        names = [path[start:-ends] for path in self.modes() if path.endswith("/machine.py")]
        return sorted(name for name in names if is_name(name))

    def foreign(self) -> list[str]:
        """Paths of links and submodules at or below prefix: behind them may be machines no version covers."""
        return sorted(path for path, mode in self.modes().items() if not mode.startswith("100"))

    def has(self, name: str) -> bool:
        """Whether there is a machine of this name."""
        return is_name(name) and f"{self.prefix}/{name}/machine.py" in self.modes()

    def parent(self, name: str) -> str | None:
        """The machine that this one is a child of, if the folder around it is one."""
        above = name.rpartition("/")[0]
        return above if above and self.has(above) else None

    def family(self, name: str) -> list[str]:
        """A machine and its parents, nearest first. Raises MachineError if it is not there."""
        if not self.has(name):
            known = ", ".join(self.machines()) or "none"
            raise MachineError(f"no machine '{name}' in {self.label}; there are: {known}")
        members = [name]
        while (above := self.parent(members[-1])) is not None:
            members.append(above)
        return members

    def version_trees(self, name: str) -> list[list[Entry]]:
        """Entries (mode, name, id) of the version trees of a machine's family, the topmost parent's first.

        Raises as `family`, and Untestable for a link or submodule in place of a file."""
        trees: list[list[Entry]] = []
        for member in reversed(self.family(name)):
            entries = [(DIRECTORY, "parent", tree_id(trees[-1]))] if trees else []
            for file in VERSIONED:
                path = f"{self.prefix}/{member}/{file}"
                if self.is_file(path) and (oid := self.oid(path)) is not None:
                    entries.append((FILE, file, oid))
            trees.append(entries)
        return trees

    def version_tree(self, name: str) -> list[Entry]:
        """The entries of a machine's version tree. Raises as `version_trees`."""
        return self.version_trees(name)[-1]

    def version(self, name: str) -> str:
        """The id of a machine's version. Raises as `version_trees`."""
        return tree_id(self.version_tree(name))

    def versions(self) -> dict[str, str]:
        """Name -> version of every machine."""
        return {name: self.version(name) for name in self.machines()}

    def others(self, name: str) -> str:
        """Hash (40 hex) of the .py files of a machine and its parents: its graders and tools.

        The same as libmachine.load's `source`."""
        digest = hashlib.sha1()
        here = f"{self.prefix}/{name}"
        for member in self.family(name):
            for path in self.own(member, "__"):
                if path.endswith(".py") and self.is_file(path):
                    row = f"{posixpath.relpath(path, here)} {self.oid(path)}\n"
                    digest.update(row.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def holdout(self, name: str) -> bytes | None:
        """The bytes of a machine's holdout.jsonl, None if it has none."""
        return self.read(f"{self.prefix}/{name}/holdout.jsonl")

    def cases(self, name: str) -> bytes | None:
        """The bytes of a machine's cases.jsonl, None if it has none."""
        return self.read(f"{self.prefix}/{name}/cases.jsonl")

    def own(self, name: str, hidden: str = "__pycache__") -> list[str]:
        """Files of a folder without child machines, hidden folders and those that begin with `hidden`.

        In the order of a walk: the files of a folder, then its folders."""
        start = f"{self.prefix}/{name}/"
        found = []
        for path in self.modes():
            if path.startswith(start):
                folders = path[len(start) :].split("/")[:-1]
                inner = [f"{start}{'/'.join(folders[: n + 1])}" for n in range(len(folders))]
                if not any(part.startswith((".", hidden)) for part in folders) and not any(
                    f"{folder}/machine.py" in self.modes() for folder in inner
                ):
                    found.append(path)
        return sorted(found, key=_walk_order)

    def is_file(self, path: str) -> bool:
        """Whether there is a file. Raises Untestable for a link or a submodule."""
        mode = self.mode(path)
        if mode is None or mode.startswith("100"):
            return mode is not None
        what = "a symbolic link" if mode == LINK else "a submodule"
        raise Untestable(f"'{path}' is {what} in {self.label}; put a copy of the file there")


def _walk_order(path: str) -> list[tuple[int, str]]:
    *folders, name = path.split("/")
    return [*((1, folder) for folder in folders), (0, name)]

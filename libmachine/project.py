"""Where things are: the project, its store, the places machines are looked for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from libmachine import env
from libmachine.errors import MachineError
from libmachine.folders import make_private
from libmachine.git import plumb
from libmachine.store import layout
from libmachine.store.store import Store


@dataclass(frozen=True)
class Project:
    """root: the directory that holds machines/ (or the current one). store: the store's directory.
    places: directories of machines, the first that has a name wins."""

    root: str
    store: str
    places: tuple[str, ...]

    def open_store(self) -> Store:
        """The project's store. It is made at the first write. What runs that crashed left of their
        directories goes."""
        _sweep(self.store)
        return Store(self.store, env.get("MACHINE_FSYNC") != "0", lambda: hide_from_git(self.store))

    def trained(self, adapter: str) -> str:
        """The GGUF file of a locally trained adapter, by the id of the tree in the store that holds it.

        Raises MachineError if the store does not have it."""
        path = f"{env.cache_dir()}/adapters/{_adapter(adapter)}.gguf"
        if not os.path.exists(path):
            data = self.trained_file(adapter, "adapter.gguf")
            make_private(os.path.dirname(path))
            temporary = f"{path}.{os.getpid()}.tmp"
            with open(temporary, "wb") as file:
                file.write(data)
            os.rename(temporary, path)
        return path

    def trained_file(self, adapter: str, name: str) -> bytes:
        """A file of the tree in the store that holds a locally trained adapter. Raises MachineError."""
        return self.open_store().read_file(_adapter(adapter), name)


def _adapter(adapter: str) -> str:
    if not re.fullmatch("[0-9a-f]{40}", adapter):
        raise MachineError(f"'{adapter}' is no id of an adapter; it has 40 hex digits")
    return adapter


def _sweep(store: str) -> None:
    try:
        left = os.listdir(f"{store}/sandboxes")
    except OSError:
        return
    if left:
        from libmachine.sandbox import rooms  # not for each start

        rooms.sweep(store)


def find(workspace: str | None = None) -> Project:
    """The project of a command. workspace: the value of -C; else MACHINE_WORKSPACE, else upward.

    Raises MachineError if the named directory is not there.
    """
    chosen = workspace or env.get("MACHINE_WORKSPACE")
    if chosen is not None:
        root = os.path.abspath(chosen)
        if not os.path.isdir(root):
            raise MachineError(
                f"no directory '{chosen}'; -C and MACHINE_WORKSPACE name the one that holds machines/"
            )
    else:
        root = _upward(os.getcwd())
    store = env.get("MACHINE_DIR")
    places = [f"{root}/machines", *(env.get("MACHINE_PATH") or "").split(":"), built_in()]
    return Project(root, os.path.abspath(store) if store else _store_of(root), tuple(p for p in places if p))


def _upward(start: str) -> str:
    here = start
    while True:
        if os.path.isdir(f"{here}/machines") or os.path.isdir(f"{here}/.machine"):
            return here
        above = os.path.dirname(here)
        if above == here:
            return start
        here = above


def built_in() -> str:
    """Directory of the machines that come with the package: in the wheel, or beside it in a checkout."""
    package = os.path.dirname(os.path.abspath(__file__))
    shipped = f"{package}/_machines"
    return shipped if os.path.isdir(shipped) else f"{os.path.dirname(package)}/machines"


def _store_of(root: str) -> str:
    """.machine in the project; in a linked worktree the main one's, so that runs are shared."""
    top = root
    while not os.path.lexists(f"{top}/.git") and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    if os.path.isfile(f"{top}/.git"):
        common = plumb.common_directory(root)
        if common and os.path.basename(common) == ".git":
            main = os.path.join(os.path.dirname(common), os.path.relpath(root, top))
            return os.path.normpath(f"{main}/.machine")
    return f"{root}/.machine"


def hide_from_git(store: str) -> bool:
    """Name a store in info/exclude, once. False outside git or where it may not be written."""
    above, name = os.path.split(store)
    common = plumb.common_directory(above)
    where = plumb.position(above)
    if common is None or where is None:
        return False
    line = "/" + re.sub(r"([*?\[\]\\])", r"\\\1", f"{where[0]}{name}/")
    path = f"{common}/info/exclude"
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except OSError:
        return False
    if line in text.splitlines():
        return True
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a") as file:
            file.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    except OSError:
        return False
    return True


def ignore(root: str, store: str) -> bool:
    """Name a store in .gitignore, for a project that is in no repository yet: `git init` would take the
    store for a repository inside, and `git add -A` fail at it. False if nothing had to be written."""
    name = os.path.relpath(store, root)
    if name.startswith("..") or plumb.common_directory(root) is not None:
        return False
    line = f"/{name}/"
    path = f"{root}/.gitignore"
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    if line in text.splitlines():
        return False
    with open(path, "a") as file:
        file.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    return True


def make_store(project: Project) -> bool:
    """Make the project's store now, private and hidden from git. True if it was not there."""
    layout.refuse_foreign(project.store) if os.path.lexists(project.store) else None
    made = layout.create(project.store)
    hide_from_git(project.store)
    return made

"""The files of a store: making them, refusing foreign ones, sweeping up after the dead."""

from __future__ import annotations

import functools
import itertools
import os
import re
import time

from libmachine.errors import MachineError
from libmachine.store import disk

FORMAT = "1\n"
_CONFIG = """[core]
\trepositoryformatversion = 1
\tfilemode = true
\tbare = true
\tsharedRepository = 0600
[extensions]
\tpreciousObjects = true
[gc]
\tauto = 0
"""
_STALE_S = 3600


def create(directory: str, fsync: bool = True) -> bool:
    """Make the store's directory if it is not there, private to its owner. True if it was made."""
    made = not os.path.exists(f"{directory}/format")
    # Also in one that is there: git and backup programs take empty directories away.
    for path in ("", "/tmp", "/objects/pack", "/objects/info", "/refs/heads", "/refs/runs"):
        disk.make_folder(directory + path, fsync)
    if not made:
        return False
    os.chmod(directory, 0o700)
    for name in ("config", ".git", "HEAD", "format"):
        write_file(directory, name, fsync)
    return True


def write_file(directory: str, name: str, fsync: bool) -> None:
    """Write one of the files that make a directory a store, as it is in a new one."""
    text = {
        "config": _CONFIG,
        # A directory with a .git in it is left alone by `git clean -fdx` of the project around it.
        ".git": "gitdir: .\n",
        "HEAD": "ref: refs/heads/none\n",
        "format": FORMAT,
    }[name]
    disk.put(f"{directory}/{name}", text.encode(), 0o600, fsync, lambda: temporary(directory))


FILES = {"config": "preciousObjects = true", ".git": "gitdir: .", "HEAD": "ref: refs/"}
"""What these files must have in them, for git to read the store and to take nothing from it."""


def refuse_foreign(directory: str) -> None:
    """Raise MachineError if the directory is no store of ours, or one of a newer program."""
    if os.path.islink(directory):
        raise MachineError(f"'{directory}' is a symbolic link; set MACHINE_DIR to where it leads")
    found = _format_of(directory)
    if found is None and os.path.isdir(directory) and not _half_made(directory):
        found = _format_of(directory)  # unless another process has just finished making it
        if found is None:
            raise MachineError(f"'{directory}' exists and is no store; move it, or set MACHINE_DIR")
    if found is None:
        return
    if found != FORMAT:
        raise MachineError(
            f"store '{directory}' is of format {found.strip()[:20]!r}; this program knows {FORMAT.strip()}: "
            "update it, or set MACHINE_DIR"
        )


def _format_of(directory: str) -> str | None:
    try:
        with open(f"{directory}/format", errors="replace") as file:
            return file.read(100)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise MachineError(f"'{directory}' is no directory; move it, or set MACHINE_DIR") from None


_BEFORE_FORMAT = {
    "objects",
    "refs",
    "tmp",
    "config",
    "HEAD",
    ".git",
    "index.db",
    "index.db-wal",
    "index.db-shm",
}


def _half_made(directory: str) -> bool:
    """Empty, or left by a process that died while it made the store."""
    return set(os.listdir(directory)) <= _BEFORE_FORMAT


def check_name(machine: str) -> None:
    """Raise MachineError if a machine's name is none that may stand in the name of a ref."""
    for segment in machine.split("/"):
        if not _SEGMENT.fullmatch(segment) or ".." in segment or segment.endswith((".", ".lock")):
            raise MachineError(f"'{machine}' is no machine name; the store has no place for it")


_SEGMENT = re.compile(r"[a-z0-9][a-z0-9._-]*")
_counter = itertools.count()


def temporary(directory: str) -> str:
    """A new name for an unfinished write. It begins with pid namespace and pid, so that others see
    whether its writer lives."""
    return f"{directory}/tmp/{_namespace()}-{os.getpid()}-{next(_counter)}"


@functools.cache
def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_stale(path: str) -> bool:
    """Is an unfinished write one of a dead process, or of an unknown one and an hour old? Raises OSError."""
    namespace, pid = (*os.path.basename(path).split("-"), "", "")[:2]
    if namespace == str(_namespace()) and pid.isdigit():
        return not _alive(int(pid))
    return time.time() - os.lstat(path).st_mtime > _STALE_S


def sweep(directory: str) -> None:
    """Remove unfinished writes of processes that are dead; of unknown ones after an hour."""
    try:
        names = os.listdir(f"{directory}/tmp")
    except OSError:
        return
    for name in names:
        path = f"{directory}/tmp/{name}"
        try:
            stale = is_stale(path)
            if stale and os.path.isdir(path) and not os.path.islink(path):
                _remove_folder(path)
            elif stale:
                os.unlink(path)
        except OSError:
            continue  # it was finished meanwhile, or this is a store that may only be read


def _remove_folder(path: str) -> None:
    import shutil  # seldom needed, and not quick to import

    shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""The files of a store: making them, refusing foreign ones, sweeping up after the dead."""

from __future__ import annotations

import os
import time

from libmachine.errors import MachineError

FORMAT = "1\n"
_CONFIG = """[core]
\trepositoryformatversion = 1
\tfilemode = true
\tbare = true
[extensions]
\tpreciousObjects = true
[gc]
\tauto = 0
"""
_STALE_S = 3600


def create(directory: str) -> bool:
    """Make the store's directory if it is not there, private to its owner. True if it was made."""
    if os.path.exists(f"{directory}/format"):
        return False
    for path in (
        "",
        "/objects",
        "/objects/pack",
        "/objects/info",
        "/refs",
        "/refs/heads",
        "/refs/runs",
        "/tmp",
    ):
        os.makedirs(directory + path, 0o700, exist_ok=True)
        os.chmod(directory + path, 0o700)
    _put(f"{directory}/config", _CONFIG)
    # A directory with a .git in it is left alone by `git clean -fdx` of the project around it.
    _put(f"{directory}/.git", "gitdir: .\n")
    _put(f"{directory}/HEAD", "ref: refs/heads/none\n")
    _put(f"{directory}/format", FORMAT)
    return True


def _put(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.rename(temporary, path)


def refuse_foreign(directory: str) -> None:
    """Raise MachineError if the directory is no store of ours, or one of a newer program."""
    if os.path.islink(directory):
        raise MachineError(f"'{directory}' is a symbolic link; set MACHINE_DIR to where it leads")
    try:
        with open(f"{directory}/format") as file:
            found = file.read()
    except FileNotFoundError:
        if os.path.isdir(directory) and not _half_made(directory):
            raise MachineError(f"'{directory}' exists and is no store; move it, or set MACHINE_DIR") from None
        return
    except NotADirectoryError:
        raise MachineError(f"'{directory}' is no directory; move it, or set MACHINE_DIR") from None
    if found != FORMAT:
        raise MachineError(
            f"store '{directory}' is of format {found.strip()[:20]!r}; this program knows {FORMAT.strip()}"
        )


def _half_made(directory: str) -> bool:
    """Empty, or left by a process that died while it made the store."""
    strangers = set(os.listdir(directory)) - {"objects", "refs", "tmp", "config", "HEAD", ".git"}
    return all(name.endswith(".tmp") for name in strangers)


def temporary_prefix() -> str:
    """How this process's temporary names begin: pid namespace and pid, so that others see if it lives."""
    return f"{_namespace()}-{os.getpid()}"


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def sweep(directory: str) -> None:
    """Remove unfinished writes of processes that are dead; of unknown ones after an hour."""
    folder = f"{directory}/tmp"
    here = _namespace()
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        namespace, pid = (*name.split("-"), "", "")[:2]
        try:
            if namespace == str(here) and pid.isdigit():
                stale = not _alive(int(pid))
            else:
                stale = time.time() - os.stat(path).st_mtime > _STALE_S
            if stale:
                os.unlink(path)
        except FileNotFoundError:
            continue


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

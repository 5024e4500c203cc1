"""As root: give up root before bubblewrap begins, and still write in a directory that only root may enter.

Real uid 0 in a sandbox owns the system's files and is under no limit of processes. So the command runs as
nobody, and sees its directory through an id-mapped mount: what its owner has on disk is nobody's there, and
the other way round. Nothing is chowned, and the path need not be one that nobody could walk.

The mounts are made in a mount namespace of a thread of its own, which ends with the run.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")

NOBODY = 65534
STAGE = "/tmp"
"""Covered in the thread's own namespace only; every path that is needed is opened before."""

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # alike on every architecture
_CLONE_NEWNS, _MS_REC, _MS_SLAVE, _MS_NOSUID, _MS_NODEV = 0x20000, 0x4000, 0x80000, 2, 4
_AT_FDCWD, _AT_EMPTY_PATH, _FROM_EMPTY_PATH = -100, 0x1000, 0x4
_TREE_CLONE, _TREE_CLOEXEC, _IDMAP = 1, 0x80000, 0x100000
_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("descriptor", ctypes.c_uint64),
    )


class Stage:
    """Id-mapped mounts of paths, made by mount() in the thread that calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: dict[tuple[int, int], int] = {}

    def mount(self, directory: str, others: Sequence[str]) -> dict[str, str]:
        """Path -> where nobody finds it. Others that cannot be mapped stay as they are. Raises OSError
        where this is not allowed or the directory's file system does not know it.

        Only for a thread that ends soon: its view of the file system is its own from here on.
        """
        trees = [(directory, self._tree(directory, True))]
        try:
            trees += [(path, self._tree(path, False)) for path in others]
            _check(_libc.unshare(_CLONE_NEWNS))
            _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None))
            _check(
                _libc.mount(b"none", STAGE.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=1m,mode=755")
            )
            found = {}
            for number, (path, tree) in enumerate(trees):
                place = f"{STAGE}/{number}"
                if os.stat(tree).st_mode & 0o170000 == 0o040000:
                    os.mkdir(place, 0o755)
                else:
                    os.close(os.open(place, os.O_CREAT | os.O_CLOEXEC, 0o644))
                _syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, place.encode(), _FROM_EMPTY_PATH)
                found[path] = place
            return found
        finally:
            for _, tree in trees:
                os.close(tree)

    def _tree(self, path: str, must: bool) -> int:
        """A detached copy of the mount at path, mapped from the owner of path to nobody."""
        tree = _syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _TREE_CLONE | _TREE_CLOEXEC)
        try:
            status = os.stat(tree)
            wanted = _Attributes(_IDMAP, 0, 0, self._map(status.st_uid, status.st_gid))
            size = ctypes.sizeof(wanted)
            _syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(wanted), size)
        except OSError:
            if must:
                os.close(tree)
                raise
        return tree

    def _map(self, uid: int, gid: int) -> int:
        """A user namespace in which uid and gid are nobody, kept for the next time."""
        with self._lock:
            if (uid, gid) not in self._maps:
                self._maps[uid, gid] = _user_namespace(uid, gid)
            return self._maps[uid, gid]


def _user_namespace(uid: int, gid: int) -> int:
    holder = subprocess.Popen(
        ["/usr/bin/unshare", "--user", "/bin/sh", "-c", "echo; read -r end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
    )
    with holder:
        assert holder.stdin and holder.stdout
        holder.stdout.readline()
        try:
            for name, number in (("uid_map", uid), ("gid_map", gid)):
                with open(f"/proc/{holder.pid}/{name}", "w") as file:
                    file.write(f"{number} {NOBODY} 1\n")
            return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()


def in_a_thread(work: Callable[[threading.Event], Value]) -> Value:
    """What work returns or raises, done in a thread of its own. Its event is set when the caller is
    interrupted; then it is still waited for."""
    outcome: list[Any] = []
    failure: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            outcome.append(work(stop))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="sandbox")
    thread.start()
    try:
        thread.join()
    except BaseException:
        stop.set()
        thread.join()
        raise
    if failure:
        raise failure[0]
    value: Value = outcome[0]
    return value


def usable() -> bool:
    """Are we root, with the programs that this takes?"""
    return os.geteuid() == 0 and os.access("/usr/bin/unshare", os.X_OK) and prlimit() is not None


def prlimit() -> str | None:
    """The program that sets limits from inside: root may lack the right to do it for another user."""
    return next((path for path in ("/usr/bin/prlimit", "/bin/prlimit") if os.access(path, os.X_OK)), None)


def _syscall(number: int, *arguments: Any) -> int:
    return _check(_libc.syscall(number, *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

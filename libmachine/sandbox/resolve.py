"""One way through a directory that hostile code changes meanwhile: component by component, by descriptors.

Links are resolved by hand, inside the directory, and `..` goes back to a descriptor we hold, so there is
no moment between a check and a use in which a link could be put in.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque

from libmachine.errors import MachineError

MOST_LINKS = 40
DEEPEST = 200
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class FileError(MachineError, ValueError):
    """A path that is refused or a file that cannot be used so; the message is for a model to read."""


class Walk:
    """One way through the directory. stack: descriptors of the folders we are in, the root first."""

    def __init__(self, root: int, place: bytes, todo: deque[bytes]) -> None:
        self.stack = [os.dup(root)]
        self.place, self.todo = place, todo
        self.links = 0
        self.last: int | None = None

    def close(self) -> None:
        for descriptor in (*self.stack, *([] if self.last is None else [self.last])):
            os.close(descriptor)
        self.stack, self.last = [], None

    def to_the_end(self, make: bool, follow: bool) -> tuple[int, bytes, int | None]:
        while self.todo:
            name = self.todo.popleft()
            if name == b"..":
                self._up()
                continue
            found = self._look(name)
            if found is None:
                if not self.todo:
                    return self.stack[-1], name, None
                if not make:
                    raise FileNotFoundError(2, "No such file or directory")
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=self.stack[-1])
                self.todo.appendleft(name)
                make = self._still(name)
                continue
            mode = os.fstat(found).st_mode
            if stat.S_ISLNK(mode) and (follow or self.todo):
                self._through(found)
            elif not self.todo:
                self.last = found
                return self.stack[-1], name, found
            elif stat.S_ISDIR(mode):
                self.stack.append(found)
                if len(self.stack) > DEEPEST:
                    raise FileError(f"a path may have at most {DEEPEST} directories")
            else:
                os.close(found)
                raise NotADirectoryError(20, "Not a directory")
        self.last = os.dup(self.stack[-1])
        return self.stack[-1], b".", self.last

    def _look(self, name: bytes) -> int | None:
        try:
            return os.open(name, LOOK, dir_fd=self.stack[-1])
        except FileNotFoundError:
            return None

    def _still(self, name: bytes) -> bool:
        """Go on making directories, but not for ever where another one takes them away."""
        self.links += 1
        if self.links > DEEPEST + MOST_LINKS:
            raise FileError(f"'{shown(name)}' goes away while it is made")
        return True

    def _up(self) -> None:
        if len(self.stack) == 1:
            raise FileError("it leads out of the working directory")
        os.close(self.stack.pop())

    def _through(self, found: int) -> None:
        """Go on with what a link says, from here, or from the root if it names that by its full path."""
        try:
            target = os.readlink(b"", dir_fd=found)
        finally:
            os.close(found)
        self.links += 1
        if self.links > MOST_LINKS:
            raise FileError("it goes through too many symbolic links")
        if target.startswith(b"/"):
            if target != self.place and not target.startswith(self.place + b"/"):
                raise FileError("it is a symbolic link that leads out of the working directory")
            target = target[len(self.place) :]
            while len(self.stack) > 1:
                os.close(self.stack.pop())
        self.todo.extendleft(part for part in reversed(target.split(b"/")) if part not in (b"", b"."))


def components(path: bytes | str) -> deque[bytes]:
    raw = encoded(path)
    if raw.startswith(b"/"):
        raise FileError("it is an absolute path: name it relative to the working directory")
    if b"\0" in raw:
        raise FileError("a path cannot hold a zero byte")
    if not raw:
        raise FileError("the path is empty")
    parts = deque(part for part in raw.split(b"/") if part not in (b"", b"."))
    if len(parts) > DEEPEST:  # before any directory is made
        raise FileError(f"a path may have at most {DEEPEST} parts")
    return parts


def encoded(path: bytes | str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeError as error:
        raise FileError(f"a path cannot hold {path!a}") from error


def shown(path: bytes | str) -> str:
    if isinstance(path, str):
        return path.encode("utf-8", "backslashreplace").decode()
    return path.decode("utf-8", "backslashreplace")

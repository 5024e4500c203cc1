"""Files of a directory that hostile code changes meanwhile, reached by descriptors and never past its edge.

Only regular files are opened: a FIFO or a device is looked at, and cannot block. Names are bytes; a str is
encoded as the file system does it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from libmachine.sandbox.resolve import DEEPEST, LOOK, FileError, Walk, components, encoded, shown

__all__ = ["DEEPEST", "Entry", "FileError", "Root"]

_TEMPORARY = b".machine-tmp-"
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class Entry(NamedTuple):
    """One name in a listing. path: relative to the root. kind: file, directory, link or other (a FIFO, a
    device, a socket). size: bytes. executable: by its owner."""

    path: bytes
    kind: str
    size: int
    executable: bool


class Root:
    """A directory and what is in it. Not for several threads at once.

    All paths are relative to it. Raises FileError for what cannot be done, and nothing else that a path
    could cause.
    """

    def __init__(self, directory: Path | str | bytes) -> None:
        self.place = os.path.realpath(os.fsencode(directory))
        try:
            self.descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FileError(f"'{shown(self.place)}' cannot be opened: {_why(error)}") from error

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> Root:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, path: bytes | str, limit: int) -> bytes:
        """The first `limit` bytes of a file (ask for one more to learn whether there are more)."""
        with _told(path), self._found(path) as (_, _, descriptor):
            if descriptor is None:
                raise FileNotFoundError(2, "No such file or directory")
            _regular(path, descriptor)
            # the same file whatever has its name by now, as /proc names the descriptor and not the path
            file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(file, "rb", buffering=0) as opened:
                return _read(opened.fileno(), limit)

    def write(self, path: bytes | str, data: bytes, executable: bool = False) -> None:
        """Put a file there, whole or not at all, with the directories above it. A file that was there
        keeps its permissions; a link is followed to what it names inside."""
        with _told(path), self._found(path, make=True) as (folder, name, descriptor):
            mode = 0o755 if executable else 0o644
            if descriptor is not None:
                mode = _regular(path, descriptor).st_mode & 0o777 | (0o111 if executable else 0)
            temporary = _TEMPORARY + secrets.token_hex(8).encode()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                file = os.open(temporary, flags, 0o600, dir_fd=folder)
                try:
                    _write(file, data)
                    os.fchmod(file, mode)
                finally:
                    os.close(file)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def make(self, path: bytes | str) -> None:
        """A directory, with those above it; fine if it is there."""
        with _told(path), self._found(path, make=True) as (folder, name, descriptor):
            if descriptor is None:
                os.mkdir(name, 0o755, dir_fd=folder)
            elif not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise NotADirectoryError(20, "Not a directory")

    def link(self, path: bytes | str, target: bytes | None = None) -> bytes:
        """What a symbolic link says; with target, make one that says it (it may say anything: it is
        resolved inside when it is used)."""
        with _told(path), self._found(path, make=target is not None, follow=False) as (folder, name, there):
            if target is None:
                return os.readlink(name, dir_fd=folder)
            if there is not None:
                raise FileExistsError(17, "File exists")
            os.symlink(target, name, dir_fd=folder)
            return target

    def look(self, path: bytes | str) -> Entry | None:
        """What has this name, None if nothing. A link is followed."""
        with _told(path), self._found(path) as (_, _, descriptor):
            return None if descriptor is None else _entry(encoded(path), os.fstat(descriptor))

    def listing(self, path: bytes | str = b"", depth: int = 1, most: int = 20_000) -> list[Entry]:
        """What is in a directory, `depth` levels of it, each directory before what is in it, names in
        order. Ends after `most` entries."""
        entries: list[Entry] = []
        with _told(path), self._found(path or b".") as (_, _, descriptor):
            if descriptor is None:
                raise FileNotFoundError(2, "No such file or directory")
            top = encoded(path).strip(b"/")
            with _opened(".", descriptor) as opened:
                for entry in _below(opened, b"" if top == b"." else top, depth):
                    entries.append(entry)
                    if len(entries) >= most:
                        break
        return entries

    def walk(self) -> Iterator[Entry]:
        """Everything, as listing() orders it. Links are named, not followed. Raises FileError for more
        than DEEPEST directories in one another."""
        with _told(b"."), _opened(".", self.descriptor) as opened:
            for entry in _below(opened, b"", DEEPEST):
                if entry.path.count(b"/") >= DEEPEST - 1 and entry.kind == "directory":
                    raise FileError(f"'{shown(entry.path[:80])}...' is nested too deep to be read")
                yield entry

    def remove(self, path: bytes | str) -> None:
        """Take a file, a link (not what it names) or a directory with all in it away."""
        with _told(path), self._found(path, follow=False) as (folder, name, descriptor):
            if descriptor is None:
                raise FileNotFoundError(2, "No such file or directory")
            if name == b".":
                raise FileError("it is the working directory itself")
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                _unlock(name, folder)
                with _opened(name, folder) as opened:
                    self._clear(opened)
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def clear(self) -> None:
        """Take everything in it away, however deep it is nested."""
        with _told(b"."), _opened(".", self.descriptor) as opened:
            self._clear(opened)

    def _clear(self, top: int) -> None:
        """Level by level: what a directory holds is moved up before it goes, so depth costs nothing."""
        while True:
            with os.scandir(top) as found:
                entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]
            if not entries:
                return
            for name, is_directory in entries:
                if not is_directory:
                    os.unlink(name, dir_fd=top)
                    continue
                _unlock(name, top)
                with _opened(name, top) as opened:
                    self._raise(opened, top)
                os.rmdir(name, dir_fd=top)

    def _raise(self, folder: int, top: int) -> None:
        with os.scandir(folder) as found:
            entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]
        for name, is_directory in entries:
            if is_directory:
                _unlock(name, folder)  # moving a directory writes to it
                risen = _TEMPORARY + secrets.token_hex(8).encode()
                os.rename(name, risen, src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def _found(
        self, path: bytes | str, make: bool = False, follow: bool = True
    ) -> Iterator[tuple[int, bytes, int | None]]:
        """(descriptor of the folder, name in it, O_PATH descriptor of what is there or None).

        make: directories on the way that are not there are made. follow: a link at the end too.
        """
        walk = Walk(self.descriptor, self.place, components(path))
        try:
            yield walk.to_the_end(make, follow)
        finally:
            walk.close()


def _regular(path: bytes | str, descriptor: int) -> os.stat_result:
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise FileError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise FileError("it is no regular file")
    return status


def _entry(path: bytes, status: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
    return Entry(path, kind, status.st_size, kind == "file" and bool(status.st_mode & 0o100))


@contextlib.contextmanager
def _opened(name: str | bytes, folder: int) -> Iterator[int]:
    descriptor = os.open(name, _LIST, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unlock(name: bytes, folder: int) -> None:
    """Let ourselves into a directory whose mode shuts its owner out."""
    descriptor = os.open(name, LOOK, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _below(folder: int, path: bytes, depth: int) -> Iterator[Entry]:
    for name in sorted(os.fsencode(name) for name in os.listdir(folder)):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        entry = _entry(path + b"/" + name if path else name, status)
        yield entry
        if entry.kind == "directory" and depth > 1:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), _opened(name, folder) as opened:
                yield from _below(opened, entry.path, depth - 1)


def _read(descriptor: int, limit: int) -> bytes:
    chunks, left = [], limit
    while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _told(path: bytes | str) -> Iterator[None]:
    """Errors as a model reads them: which path, and why."""
    try:
        yield
    except FileError as error:
        raise FileError(f"'{shown(path)}': {error}") from error
    except (OSError, RecursionError) as error:
        raise FileError(f"'{shown(path)}': {_why(error)}") from error


def _why(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]

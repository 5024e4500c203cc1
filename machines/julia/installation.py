"""Where Julia is on this computer, and nothing more of it than that.

What is found is mounted in a sandbox, so it has to be a directory that holds Julia alone: not a home,
not ~/.julia (with a user's registries, environments and logs), not a prefix that other programs share.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from libmachine.errors import MachineError

NOT_RUN = "no program was run"
_IN_EVERY_SANDBOX = ("/usr", "/nix/store", "/gnu/store")
_REMEDY = "unpack Julia in a directory of its own"
_HOPS = 10


class Installation(NamedTuple):
    """program: what is started. mounts: what a sandbox has to show of it, beside the system's own."""

    program: str
    mounts: tuple[Path, ...]


def find() -> Installation:
    """The Julia that `julia` starts. Raises MachineError where there is none, or none that can be shown
    without other things."""
    program = shutil.which("julia")
    if program is None:
        raise MachineError(f"{NOT_RUN}: Julia is not installed here (there is no 'julia' on PATH)")
    real = os.path.realpath(program)
    if os.path.basename(real).startswith("julialauncher") or _is_juliaup(real):
        real = _of_juliaup()
    if any(real.startswith(f"{top}/") for top in _IN_EVERY_SANDBOX):
        return Installation(real, ())
    prefix = os.path.dirname(os.path.dirname(real))
    if fault := _fault(real, prefix):
        raise MachineError(f"{NOT_RUN}: '{real}' {fault}")
    return Installation(real, (Path(prefix),))


def is_found() -> bool:
    """Is there one that can be used?"""
    try:
        find()
    except MachineError:
        return False
    return True


def _fault(real: str, prefix: str) -> str:
    """Why a program and the directory above its `bin` are no Julia of its own; empty if they are."""
    own = os.path.basename(os.path.dirname(real)) == "bin" and all(
        os.path.isdir(os.path.join(prefix, part)) for part in ("lib", "share/julia")
    )
    if not own:
        return f"is not in an installation of Julia (bin, lib, share/julia): {_REMEDY}"
    others = [name for name in os.listdir(os.path.join(prefix, "bin")) if not name.startswith("julia")]
    hidden = [name for name in os.listdir(prefix) if name.startswith(".")]
    home = os.path.realpath(os.path.expanduser("~"))
    if others or hidden or f"{home}/".startswith(f"{prefix}/"):
        return f"shares its directory with other things: {_REMEDY}"
    return ""


def _is_juliaup(real: str) -> bool:
    return os.path.exists(os.path.join(os.path.dirname(real), "juliaup"))


def _of_juliaup() -> str:
    """The program that juliaup's launcher starts for its default channel, by its own file."""
    depot = os.environ.get("JULIAUP_DEPOT_PATH") or os.path.expanduser("~/.julia")
    place = os.path.join(depot, "juliaup")
    try:
        with open(os.path.join(place, "juliaup.json"), "rb") as file:
            told = json.loads(file.read())
        name = os.environ.get("JULIAUP_CHANNEL") or told["Default"]
        channel = told["InstalledChannels"][name]
        for _ in range(_HOPS):
            if "Target" not in channel:
                break
            channel = told["InstalledChannels"][channel["Target"]]
        if "Command" in channel:
            return os.path.realpath(channel["Command"])
        path = channel.get("Path") or told["InstalledVersions"][channel["Version"]]["Path"]
        return os.path.realpath(os.path.join(place, path, "bin", "julia"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MachineError(
            f"{NOT_RUN}: juliaup is here, but '{place}/juliaup.json' names no Julia ({error!r})"
        ) from None

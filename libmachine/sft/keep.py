"""Keeping the weights of what was committed: hosted checkpoints end after a while if they are let.

By the tinker SDK, so in another Python where this one has none, as training is.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

from libmachine import console, env
from libmachine.canon import Record
from libmachine.errors import NO, OK, MachineError
from libmachine.sft import elsewhere, service

_LIMIT_S = 300  # of the other Python: its start, a question, and each path


def keep(candidate: Record) -> None:
    """Lift the end of a committed candidate's checkpoints. What goes wrong is told, loudly, and no more."""
    weights = candidate.get("weights") or {}
    paths = [str(weights[name]) for name in ("state_path", "sampler_path") if weights.get(name)]
    if not weights.get("expires_at") or not paths:
        return
    why = "interrupted"
    code = None
    try:
        python = elsewhere.other()
        if python is None:
            code = lift(paths)
        else:
            words = elsewhere.words(python, "_keep", [sys.argv[0], *paths])
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=2, timeout=_LIMIT_S, check=False)
            code = done.returncode
            why = f"{python} ended with {code}"
    except (MachineError, OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    finally:
        if code not in (OK, NO):
            warn(paths, why, str(weights["expires_at"]))


def lift(paths: Sequence[str]) -> int:
    """Lift the end of checkpoints, in this Python. OK, or NO if that failed and was told."""
    address = service.Address(env.get("TINKER_BASE_URL") or service.DEFAULT_URL, env.key_of("tinker") or "")
    failed: list[str] = []
    why = ""
    for path in paths:
        try:
            service.lift_expiry(address, path)
        except MachineError as error:
            failed.append(path)
            why = str(error)
    if failed:
        warn(failed, why)
        return NO
    console.say(f"the checkpoint is kept: {paths[-1]} no longer expires")
    return OK


def warn(paths: Sequence[str], why: str, when: str | None = None) -> None:
    """Say what will be lost, and what to type."""
    end = f"on {when[:10]}" if when else "soon"
    console.say(f"WARNING: the weights that are live now expire {end}: {why}")
    url = env.get("TINKER_BASE_URL")
    before = f"TINKER_BASE_URL={shlex.quote(url)} " if url else ""
    for path in paths:
        console.say(f"  to keep them: {before}tinker checkpoint set-ttl --remove {path}")

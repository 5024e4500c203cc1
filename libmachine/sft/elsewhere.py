"""Where training runs: in this Python if it has the extra `sft`, else in $MACHINE_PYTHON."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence

from libmachine import env
from libmachine.errors import MachineError

NEEDED = ("tinker", "tinker_cookbook", "torch", "tokenizers")
INSTALL = "pip install 'libmachine[sft]'"
_CHECK = "import importlib.util as u, sys\nprint(' '.join(m for m in sys.argv[1:] if u.find_spec(m) is None))"
_CORE = ("click", "orjson", "pydantic", "httpx", "pygit2")
_CHECK_S = 60


def words(python: str, verb: str, argv: Sequence[str]) -> list[str]:
    """The command that runs libmachine/cmd/VERB.py of here in another Python. argv: with the name first."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [python, f"{folder}/boot.py", verb, *argv]


def other() -> str | None:
    """None if this Python can train, else the path of one that can. Raises MachineError if neither can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    chosen = env.get("MACHINE_PYTHON")
    if chosen is None:
        raise MachineError(
            f"training needs the python package '{missing[0]}': {INSTALL}, or set MACHINE_PYTHON to a Python "
            "that has it"
        )
    python = shutil.which(chosen)
    if python is None:
        raise MachineError(f"MACHINE_PYTHON '{chosen}' is no program")
    try:
        done = subprocess.run(
            [python, "-I", "-c", _CHECK, *NEEDED, *_CORE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_CHECK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"MACHINE_PYTHON '{chosen}' does not start: {error}") from None
    if done.returncode or done.stdout.strip():
        lacks = done.stdout.split()[0] if done.stdout.strip() else done.stderr.strip()[-200:]
        raise MachineError(f"MACHINE_PYTHON '{chosen}' has no '{lacks}' either: {python} -m {INSTALL}")
    return python

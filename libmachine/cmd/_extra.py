"""Commands that need the extra `sft`: in this Python if it has it, else in $MACHINE_PYTHON."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

from libmachine import console, env
from libmachine.errors import MachineError

NEEDED = ("tinker", "tinker_cookbook", "torch", "tokenizers")
INSTALL = "pip install 'libmachine[sft]'"
_CHECK = "import importlib.util as u, sys\nprint(' '.join(m for m in sys.argv[1:] if u.find_spec(m) is None))"
# Only libmachine comes from here: the other Python has its own of everything else.
_START = """
import importlib.util, sys
folder, verb, name, *rest = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "libmachine", folder + "/__init__.py", submodule_search_locations=[folder]
)
module = sys.modules["libmachine"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.argv = [name, *rest]
sys.exit(importlib.import_module("libmachine.cmd." + verb).main())
"""
_CORE = ("click", "orjson", "pydantic", "httpx", "pygit2")
_CHECK_S = 60


def ensure(verb: str) -> None:
    """Return if this Python can train; else run the command again in one that can, and do not return.

    Raises MachineError, before anything is read or spent, if neither can.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return
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
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.dup2(console.product(), 1)
    # -I would drop PYTHONPATH, which may hold what the user means it to find
    os.execv(python, [python, "-P", "-c", _START, folder, verb, sys.argv[0], *sys.argv[1:]])

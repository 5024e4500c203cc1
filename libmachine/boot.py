"""Start a command: `python libmachine/boot.py VERB NAME ARGUMENT...`; NAME is what it calls itself.

A checkout's stubs start so, and an installed package when it needs another process: another Python may
run it, which has its own of everything else.
"""

import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))

# Not on the path: this folder, whose select.py would hide the standard module; and not the one around it,
# which in an install is the site-packages of one Python alone. Only the package comes from here.
if sys.path and os.path.realpath(sys.path[0]) == HERE:
    del sys.path[0]
_spec = importlib.util.spec_from_file_location(
    "libmachine", f"{HERE}/__init__.py", submodule_search_locations=[HERE]
)
assert _spec is not None and _spec.loader is not None
sys.modules["libmachine"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["libmachine"])


def main() -> int:
    verb, name = sys.argv[1], sys.argv[2]
    sys.argv[:3] = [name]
    try:
        from importlib import import_module

        return int(import_module(f"libmachine.cmd.{verb}").main())
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("libmachine"):
            raise
        root = os.path.dirname(HERE)
        sys.stderr.write(
            f"fatal: python package '{error.name}' is missing; type: python3 -m venv {root}/.venv && "
            f"{root}/.venv/bin/pip install -e '{root}[local]'\n"
        )
        return 128


sys.exit(main())

"""Start a command of a checkout: `python libmachine/boot.py VERB ARGUMENT...` (VERB empty: machine)."""

import os
import sys

# This folder must not be on the path: libmachine/select.py would hide the standard module.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def main() -> int:
    verb, name = sys.argv[1], sys.argv[2]
    sys.argv[:3] = [name]
    try:
        from importlib import import_module

        return int(import_module(f"libmachine.cmd.{verb}").main())
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("libmachine"):
            raise
        root = sys.path[0]
        sys.stderr.write(
            f"fatal: python package '{error.name}' is missing; type: python3 -m venv {root}/.venv && "
            f"{root}/.venv/bin/pip install -e '{root}[local]'\n"
        )
        return 128


sys.exit(main())

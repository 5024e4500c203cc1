"""Commands that need the extra `sft`: run again in another Python where this one has not got it."""

from __future__ import annotations

import os
import sys

from libmachine import console
from libmachine.sft import elsewhere


def ensure(verb: str) -> None:
    """Return if this Python can train; else run the command again in one that can, and do not return.

    Raises MachineError, before anything is read or spent, if neither can.
    """
    python = elsewhere.other()
    if python is not None:
        os.dup2(console.product(), 1)
        os.execv(python, elsewhere.words(python, verb, sys.argv))

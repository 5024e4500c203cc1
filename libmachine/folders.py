"""Directories that are private to their owner, and those made on the way to them too.

os.makedirs gives its mode to the last one only.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def make_private(path: str, made: Callable[[str], object] = lambda above: None) -> None:
    """Make a directory and those above it that are missing, each of mode 0700. made: called with the
    directory in which one was made. Raises OSError."""
    above = os.path.dirname(path)
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            make_private(above, made)
            os.mkdir(path, 0o700)
    except FileExistsError:
        return
    made(above)

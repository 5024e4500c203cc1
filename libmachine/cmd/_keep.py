"""What another Python does for libmachine.sft.keep: lift the end of the checkpoints that are named."""

from __future__ import annotations

import sys

from libmachine.sft.keep import lift


def main() -> int:
    """The other Python's part."""
    return lift(sys.argv[1:])

"""Which provider runs commands here: bubblewrap if it works, else the plain one, which says it is weak."""

from __future__ import annotations

import functools

from libmachine.errors import UsageError
from libmachine.sandbox.base import Provider
from libmachine.sandbox.bubblewrap import Bubblewrap
from libmachine.sandbox.plain import Plain

NAMES = ("bubblewrap", "plain")


@functools.cache
def provider(name: str | None = None) -> Provider:
    """The provider of this name, or the best one that works; one object a process, so that it is
    measured once. Raises UsageError for another name.

    One that is asked for by name is given even if it does not work: its isolation() says why.
    """
    if name == "bubblewrap":
        return Bubblewrap()
    if name == "plain":
        return Plain()
    if name is not None:
        raise UsageError(f"'{name}' is no sandbox: MACHINE_SANDBOX is {' or '.join(NAMES)}")
    best = provider("bubblewrap")
    return best if best.isolation().isolated else provider("plain")


def bubblewrap() -> str | None:
    """Where bubblewrap is, None if it is not installed."""
    return Bubblewrap().program

"""What can be wrong with a store: kinds with names that stay, each with what mends it."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of finding. remedy: what to type, or who mends it. note: no fault, the next command mends it."""

    remedy: str
    note: bool = False


_REPAIR = "machine-fsck --repair"
KINDS = {
    "object-damaged": Kind(_REPAIR),
    "object-missing": Kind(_REPAIR),
    "workspace-dangling": Kind(_REPAIR),
    "pack-damaged": Kind(_REPAIR),
    "pack-half": Kind(_REPAIR),
    "log-torn": Kind(_REPAIR),
    "log-torn-end": Kind("the next write cuts it off, machine-fsck --repair keeps it"),
    "log-shape": Kind(_REPAIR),
    "log-type": Kind("update this program"),
    "log-differs": Kind(_REPAIR),
    "log-lacks": Kind(_REPAIR),
    "record-bad": Kind(_REPAIR),
    "record-forged": Kind(_REPAIR),
    "run-unknown": Kind(_REPAIR),
    "chain-lacks": Kind(_REPAIR),
    "chain-broken": Kind(_REPAIR),
    "index-differs": Kind(_REPAIR),
    "layout-broken": Kind(_REPAIR),
    "mode-open": Kind(_REPAIR),
    "forget-unfinished": Kind(_REPAIR),
    "note-bad": Kind("git notes --ref=machine edit TREE"),
    "temp-left": Kind("the next run sweeps it", note=True),
    "sandbox-left": Kind("the next run sweeps it", note=True),
    "gc-worth": Kind("machine-gc", note=True),
}


class Finding(NamedTuple):
    """One thing that is wrong.

    at: where its line of the log begins, None if it is about none. oid: the object it is about. part:
    what of a record that is, None for the record itself. place: a machine's chain, or a path below the
    store.
    """

    kind: str
    text: str
    at: int | None = None
    oid: str | None = None
    part: str | None = None
    place: str | None = None

    @property
    def note(self) -> bool:
        """Is it no fault?"""
        return KINDS[self.kind].note

    @property
    def remedy(self) -> str:
        """What to type."""
        tree = self.oid or "TREE"
        return KINDS[self.kind].remedy.replace("TREE", tree)

    def line(self) -> str:
        """The finding for people, in one line."""
        place = "" if self.at is None else f"log line at byte {self.at}: "
        return f"{'note: ' if self.note else ''}{self.kind}: {place}{self.text}; {self.remedy}"

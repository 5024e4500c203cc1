"""The work behind machine-forget's options."""

from __future__ import annotations

import getpass
import os
import re
import socket
import threading
from collections.abc import Sequence

from libmachine import console, env
from libmachine.canon import dump_line
from libmachine.cmd import _cli
from libmachine.errors import MachineError
from libmachine.store import forget, keep, layout
from libmachine.store.store import Store


def main(workspace: str | None, ids: Sequence[str], dry_run: bool, force: bool, as_json: bool) -> int:
    """Forget."""
    directory = _cli.project(workspace).store
    if not os.path.isdir(directory):
        raise MachineError(f"no store at '{directory}'; nothing to forget")
    layout.refuse_foreign(directory)
    fsync = env.get("MACHINE_FSYNC") != "0"

    def planned() -> forget.Plan:
        whole, known = _whole(directory, ids)
        plan = forget.plan(directory, whole)
        for oid in known:
            console.say(f"{oid} is forgotten already")
        _refuse(plan, force)
        return plan

    plan = planned() if dry_run else forget.forget(directory, fsync, planned, _who(), console.say)
    output = _cli.Output(threading.Event())
    row = forget.summary(plan)
    if as_json:
        output.write(dump_line({**row, "dry_run": dry_run}))
    else:
        told = ", ".join(console.count(number, kind) for kind, number in sorted(row["counts"].items()))
        output.text(
            f"{'would forget' if dry_run else 'forgot'}: {told or 'nothing'}; "
            f"{console.count(len(plan.objects), 'object')} of nobody else"
        )
        for oid, kind in plan.records.items():
            output.text(f"  {kind} {oid}")
    for kind, oid in plan.named:
        console.say(f"{kind} {oid} names it and stays; it may quote it: machine-show {oid[:12]}")
    if not dry_run and plan.records:
        console.say(
            "clones, remotes, copies and backups of this store keep theirs; sync does not bring it back"
        )
    return _cli.Tally(output.stop).code(output=output)


def _whole(directory: str, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """The whole ids that are meant: of records that are here, and of those forgotten already.

    Raises MachineError for one that means none, or several."""
    store = Store(directory)
    forgotten = keep.forgotten(directory)
    whole: list[str] = []
    known: list[str] = []
    try:
        for text in ids:
            if not re.fullmatch("[0-9a-f]{4,40}", text):
                raise MachineError(f"'{text}' names no record; give 4 to 40 hex digits of its id")
            found = store.index.matching(text) if store.has_records() else []
            if len(found) > 1:
                shown = ", ".join(f"{kind} {oid[:12]}" for kind, oid in found)
                raise MachineError(f"'{text}' begins several ids: {shown}; give more digits")
            gone = [oid for oid in forgotten if oid.startswith(text)]
            if not found and not gone:
                raise MachineError(f"no record '{text}' in this store; machine-runs lists the runs")
            whole += [oid for _, oid in found]
            known += gone if not found else []
    finally:
        store.close()
    return whole, known


def _refuse(plan: forget.Plan, force: bool) -> None:
    """Raise MachineError if a verdict or a candidate rests on what is to go, unless it is forced."""
    resting = [(kind, oid) for kind, oid in plan.named if kind in forget.KEPT]
    resting += [(kind, oid) for oid, kind in plan.records.items() if kind in forget.KEPT]
    if resting and not force:
        kind, oid = resting[0]
        more = f" and {len(resting) - 1} more" if len(resting) > 1 else ""
        raise MachineError(f"{kind} {oid[:12]}{more} rests on it; --force removes it all the same")


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"

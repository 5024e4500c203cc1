"""The way out of machine-sync --runs: what the remote lacks, as commits on top of what it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from libmachine.errors import MachineError
from libmachine.git import plumb
from libmachine.git.sync import TRANSPORT
from libmachine.store import chain, disk, keep, layout, log, ref
from libmachine.store.objects import Objects

_BATCH = 2000


class Remote(NamedTuple):
    """name: as refs of it are kept here. url: where it is. extra: variables that reach it."""

    name: str
    url: str
    extra: Mapping[str, str]

    @property
    def shown(self) -> str:
        """Where it is, without the name and password that a URL may hold."""
        return re.sub(r"//[^/@]*@", "//", self.url)


def tracking(remote: str, machine: str) -> str:
    """The ref that says what of a remote's chain was taken in."""
    return chain.ref_of(machine).replace("refs/runs/", f"refs/runs-remotes/{remote}/", 1)


_MOVED = ("stale info", "cannot lock ref", "fetch first", "transaction failed", "failed to update ref")
"""How git says that another push was there first: before it asked, or between its look and its write."""


def push(
    directory: str, remote: Remote, theirs: Mapping[str, str], went: dict[str, int], fsync: bool
) -> bool:
    """Send what the remote lacks. False if it has moved since it was fetched; then nothing was sent.

    theirs: machine -> commit that it has, and that is here. went: type -> number sent, added to.
    Raises MachineError if it refuses.
    """
    path = f"{directory}/records"
    objects = Objects(directory, fsync)
    end = log.size(path)
    tips, sent = _commits(directory, objects, remote.name, theirs, end)
    if tips:
        words = ["--porcelain", "--atomic", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
        words += ["--no-signed", "--quiet", "--receive-pack=git-receive-pack"]
        refs = {chain.ref_of(machine): machine for machine in tips}
        words += [f"--force-with-lease={to}:{theirs.get(machine, '')}" for to, machine in refs.items()]
        specs = [f"{tips[machine]}:{to}" for to, machine in refs.items()]
        disk.step()
        done = plumb.run(
            directory, "--git-dir=.", *TRANSPORT, "push", *words, "--", remote.url, *specs, extra=remote.extra
        )
        if done.code:
            told = done.out.decode("utf-8", "replace")
            if any(word in told for word in _MOVED):
                return False
            why = [line for line in told.splitlines() if line.startswith("!") and "atomic" not in line]
            raise MachineError(
                f"cannot send runs to '{remote.shown}': {why[0].split(chr(9))[-1] if why else done.reason()}"
            )
    with chain.locked(directory):
        for machine, tip in tips.items():
            ref.write(directory, tracking(remote.name, machine), tip, fsync)
    _note(directory, remote.name, {**theirs, **tips}, end, fsync)
    for kind, number in sent.items():
        went[kind] = went.get(kind, 0) + number
    return True


def _commits(
    directory: str, objects: Objects, name: str, theirs: Mapping[str, str], end: int
) -> tuple[dict[str, str], dict[str, int]]:
    """Machine -> commit to send, and type -> number of the records in them."""
    path = f"{directory}/records"
    start, there = _start(directory, name, theirs), {}
    batches: dict[str, chain.Batch] = {}
    tips: dict[str, str] = {}
    sent: dict[str, int] = {}

    def put(machine: str) -> None:
        parent = tips.get(machine) or theirs.get(machine)
        tips[machine] = batches.pop(machine).commit(objects, machine, [parent] if parent else [])

    for offset, _, row in log.read(path, start):
        if offset >= end:
            break
        if row is None or not chain.has_place(row):
            continue
        machine = row["machine"]
        if machine not in there:
            there[machine] = _ids_there(objects, theirs.get(machine))
        if row["id"] in there[machine]:
            continue
        there[machine].add(row["id"])
        sent[row["type"]] = sent.get(row["type"], 0) + 1
        batches.setdefault(machine, chain.Batch()).add(row)
        if len(batches[machine].lines) >= _BATCH:
            put(machine)
    for machine in list(batches):
        put(machine)
    return tips, sent


def _ids_there(objects: Objects, tip: str | None) -> set[str]:
    """Ids of the records that the remote has of a machine."""
    found: set[str] = set()
    try:
        for _, entries in chain.history(objects, tip) if tip else ():
            found.update(chain.ids_of(entries))
    except KeyError as error:
        raise MachineError(f"object {error.args[0]} of what came is missing; machine-fsck --repair") from None
    return found


def _start(directory: str, name: str, theirs: Mapping[str, str]) -> int:
    """Offset in the log up to which all is on the remote, as far as is known: 0 if that is in doubt."""
    rows = [row for row in keep.read_lines(f"{directory}/shared") if row.get("remote") == name]
    known: dict[str, Any] = rows[0] if rows else {}
    start = known.get("offset", 0)
    path = f"{directory}/records"
    tips = known.get("tips")
    if not isinstance(start, int) or start < 0 or not log.is_boundary(path, start):
        return 0
    if known.get("mark") != log.mark(path, start) or not isinstance(tips, dict):
        return 0
    if any(theirs.get(ref_) != oid for ref_, oid in tips.items()):
        return 0
    return start


def _note(directory: str, name: str, tips: Mapping[str, str], end: int, fsync: bool) -> None:
    path = f"{directory}/records"
    row = {"remote": name, "offset": end, "mark": log.mark(path, end), "tips": dict(tips)}
    others = [other for other in keep.read_lines(f"{directory}/shared") if other.get("remote") != name]
    if [row] == [other for other in keep.read_lines(f"{directory}/shared") if other.get("remote") == name]:
        return
    data = b"".join(orjson.dumps(other, option=orjson.OPT_APPEND_NEWLINE) for other in [*others, row])
    disk.put(f"{directory}/shared", data, 0o600, fsync, lambda: layout.temporary(directory))

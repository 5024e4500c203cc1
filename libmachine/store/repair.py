"""machine-fsck --repair: mends what can be mended, sets aside what cannot, deletes nothing that was bought.

Each step leaves a store that the next run of it goes on from: files are moved before others take their
place, lines are set aside before the log goes on without them, and chains are made of the log. Writers
may be at work: what they add meanwhile stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import orjson

from libmachine.errors import MachineError
from libmachine.record import VERSIONS
from libmachine.store import chain, disk, forget, fsck, fsck_files, keep, layout, log, packs, rows
from libmachine.store.findings import Finding
from libmachine.store.objects import Objects

Fetch = Callable[[], Objects | None]
"""Gives the objects of a copy of this store elsewhere, None if there is none."""

_LOST = ("object-damaged", "object-missing", "workspace-dangling", "chain-broken")
_ASIDE = ("log-torn", "log-shape", "record-bad", "record-forged", "run-unknown")


class Outcome(NamedTuple):
    """What became of a finding: mended, aside (taken out and kept in aside/), or left."""

    finding: Finding
    what: str


def repair(directory: str, fsync: bool, fetch: Fetch = lambda: None) -> list[Outcome]:
    """Mend a store, as its keeper; what became of each finding. fetch: asked once, if an object is lost.

    What is `left` is to be looked for again with fsck.check: mending one thing may bring out another.
    """
    layout.sweep(directory)
    forget.finish(directory, fsync)
    found = list(fsck.check(directory, fsck.Report()))
    work = _Work(directory, fsync)
    work.files_of(found)
    work.objects_of(found, fetch)
    work.log_of(found)
    work.chains_of(found)
    told = dict.fromkeys(finding for finding in found if not finding.note) | work.outcomes
    return [Outcome(finding, what or "left") for finding, what in told.items()]


class _Work:
    def __init__(self, directory: str, fsync: bool) -> None:
        self.directory, self.fsync = directory, fsync
        self.log = f"{directory}/records"
        self.objects = Objects(directory, fsync)
        self.outcomes: dict[Finding, str] = {}
        self.anew: set[str] = set()  # machines whose chain is to be made anew

    def files_of(self, found: list[Finding]) -> None:
        """Mend the files around the objects and the log: the rest needs some of them."""
        for finding in found:
            path = f"{self.directory}/{finding.place}"
            if finding.kind == "index-differs":
                keep.drop_index(self.directory)
            elif finding.kind == "layout-broken" and finding.place:
                if os.path.exists(path):
                    self._move_aside(path, finding.place.lstrip("."))
                layout.write_file(self.directory, finding.place, self.fsync)
            elif finding.kind == "mode-open":
                if os.path.exists(path):
                    os.chmod(path, os.stat(path).st_mode & 0o700)
            else:
                continue
            self.outcomes[finding] = "mended"
        for path in fsck_files.left_by_git(self.directory):
            disk.unlink(path)
        if any(finding.kind == "pack-half" for finding in found):
            for path in packs.finish_half(self.directory):
                self._move_aside(path, os.path.basename(path))
            self.outcomes |= dict.fromkeys((f for f in found if f.kind == "pack-half"), "mended")

    # objects ----------------------------------------------------------------------------

    def objects_of(self, found: list[Finding], fetch: Fetch) -> None:
        """Bring back objects that are lost and lie elsewhere."""
        lost = {finding.oid: None for finding in found if finding.kind in _LOST and finding.oid}
        elsewhere: Objects | None = None
        asked = False
        for oid in lost:
            if self._is_sound(oid):
                continue
            loose = self.objects.path(oid)
            if os.path.exists(loose):
                self._move_aside(loose, oid)
            if not self._is_sound(oid):
                if not asked:
                    asked, elsewhere = True, fetch()
                if elsewhere is not None:
                    self._copy(oid, elsewhere)
        for finding in found:
            if finding.kind == "pack-damaged":
                self._salvage(finding)
        self.objects = Objects(self.directory, self.fsync)
        for finding in found:
            if finding.kind in _LOST and finding.oid and self._is_sound(finding.oid):
                self.outcomes[finding] = "mended"

    def _is_sound(self, oid: str) -> bool:
        try:
            self.objects.read(oid)
        except (KeyError, MachineError):
            return False
        return True

    def _copy(self, oid: str, elsewhere: Objects) -> None:
        try:
            kind, data = elsewhere.read(oid)
        except (KeyError, MachineError):
            return
        self.objects.write(kind, data)

    def _move_aside(self, path: str, name: str) -> None:
        disk.make_folder(f"{self.directory}/aside", self.fsync)
        disk.rename(path, f"{self.directory}/aside/{name}")

    def _salvage(self, finding: Finding) -> None:
        """Give a pack a new index, or put what can be read of it into files of their own, and it aside."""
        pack = f"{self.directory}/{finding.place}"
        aside = f"{self.directory}/aside/{os.path.basename(pack)}.idx"
        if os.path.exists(f"{pack}.idx") and not fsck_files.is_sealed(f"{pack}.idx"):
            self._move_aside(f"{pack}.idx", os.path.basename(aside))
            if f"{pack}.pack" not in packs.finish_half(self.directory):
                self.outcomes[finding] = "mended"
                return
            disk.rename(aside, f"{pack}.idx")
        fresh = Objects(self.directory, self.fsync)
        try:
            names = packs.ids(pack)
        except (MachineError, OSError):  # moved aside before, or neither of the two is of use
            names = []
        for oid in names:
            try:
                kind, data = fresh.read(oid)
            except (KeyError, MachineError):
                continue  # named by whoever needs it
            fresh.write(kind, data)
        for ending in (".idx", ".pack"):
            if os.path.exists(pack + ending):
                self._move_aside(pack + ending, os.path.basename(pack + ending))
        self.objects = Objects(self.directory, self.fsync)
        self.outcomes[finding] = "mended"

    # the log ----------------------------------------------------------------------------

    def log_of(self, found: list[Finding]) -> None:
        """Take out the lines that are no use, put in those that are lost, mend those that differ."""
        at: dict[int, list[Finding]] = {}
        for finding in found:
            if finding.at is not None and finding not in self.outcomes and finding.kind != "log-type":
                at.setdefault(finding.at, []).append(finding)
        lacking = [finding for finding in found if finding.kind == "log-lacks"]
        lost, chained = self._chained(lacking, at)
        if not at and not lost:
            return
        lines: list[tuple[int | None, bytes]] = []
        gone: set[str] = set()
        end = 0
        for offset, end, row in log.read(self.log):
            line = self._line(offset, end)
            wrong = [finding for finding in at.get(offset, ()) if finding.kind != "chain-lacks"]
            if row is not None and row.get("type") == "scorecard" and row.get("run") in gone:
                text = f"scorecard {row['id']} is of a run that was set aside"
                wrong.append(Finding("run-unknown", text, offset, row["id"]))
            if wrong:
                kept = self._mended(row, wrong, lost)
                if kept is None:
                    keep.set_aside(self.directory, line, wrong[0].kind, self.fsync)
                    if row is not None:
                        gone.add(str(row.get("id")))
                        if isinstance(row.get("machine"), str):
                            self.anew.add(row["machine"])
                    continue
                if kept != line:
                    keep.set_aside(self.directory, line, wrong[0].kind, self.fsync)
                    self.anew.add(orjson.loads(kept)["machine"])
                line = kept
            lines.append((offset, line))
        keep.rewrite_log(self.directory, _placed(lines, lost, chained), end, self.fsync)
        for finding in found:
            if finding.kind == "log-torn-end":
                self.outcomes[finding] = "aside"

    def _line(self, start: int, end: int) -> bytes:
        with open(self.log, "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def _mended(self, row: log.Row | None, wrong: list[Finding], lost: dict[str, log.Row]) -> bytes | None:
        """The line as it should be; None if there is no such. Says what becomes of its findings."""
        if row is not None and row.get("run") in lost:  # its run comes back, and stands before it
            for finding in [finding for finding in wrong if finding.kind == "run-unknown"]:
                self.outcomes[finding] = "mended"
                wrong.remove(finding)
        if row is None or any(map(_is_useless, wrong)):
            self.outcomes |= dict.fromkeys(wrong, "aside")
            return None
        row = _without(row, wrong)
        if any(finding.kind == "log-differs" for finding in wrong):
            record = fsck.parse(self.objects.read(row["id"])[1], row["id"], row["type"])
            row = rows.again(record, row)
        for finding in wrong:
            self.outcomes[finding] = "aside" if finding.part is not None else "mended"
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

    def _chained(
        self, lacking: list[Finding], at: dict[int, list[Finding]]
    ) -> tuple[dict[str, log.Row], list[list[str]]]:
        """The rows of records that are on a chain and in no whole line, and each chain's order of ids."""
        wanted = {finding.oid for finding in lacking}
        damaged = bool(at)
        order: list[list[str]] = []
        lost: dict[str, log.Row] = {}
        if not wanted and not damaged:
            return lost, order
        known = _whole_ids(self.log, at)
        forgotten = keep.forgotten(self.directory)
        for machine, tip in chain.machines(self.directory).items():
            ids: list[str] = []
            for entries, found in self._commits(tip):
                here = {row["id"]: row for row in found}
                for oid in reversed([*here, *(i for i in chain.ids_of(entries) if i not in here)]):
                    ids.append(oid)
                    if oid in known or oid in forgotten or oid in lost:
                        continue
                    row = here.get(oid) or self._bare(oid, entries)
                    wrong = list(fsck.judge(row, self.objects)) if row else []
                    if row is not None and row["machine"] == machine and all(f.part for f in wrong):
                        lost[oid] = _without(row, wrong)
            order.append(list(dict.fromkeys(reversed(ids))))
        gone = {f.oid for found in at.values() for f in found if _is_useless(f)}
        there = (known - gone) | lost.keys()
        for oid in [oid for oid, row in lost.items() if row.get("run", oid) not in there]:
            del lost[oid]  # a scorecard, and its run is lost for good
        for finding in lacking:
            self.outcomes[finding] = "mended" if finding.oid in lost else "aside"
            if finding.oid not in lost and finding.place:
                self.anew.add(finding.place)
        return lost, order

    def _commits(self, tip: str) -> list[tuple[dict[str, str], list[log.Row]]]:
        found = []
        try:
            for _, entries in chain.history(self.objects, tip):
                try:
                    found.append((entries, chain.rows_of(self.objects, entries)))
                except (KeyError, MachineError):
                    found.append((entries, []))
        except (KeyError, MachineError, ValueError, IndexError):
            pass  # the rest of it is out of reach; the chain is made anew
        return found

    def _bare(self, oid: str, entries: dict[str, str]) -> log.Row | None:
        try:
            data = self.objects.read(oid)[1]
            kind = str(orjson.loads(data)["type"])
            record = fsck.parse(data, oid, kind) if kind in VERSIONS else None
            begin = f"{oid}."
            parts = {
                name.removeprefix(begin): part for name, part in entries.items() if name.startswith(begin)
            }
            return rows.bare(record, oid, parts) if record else None
        except (KeyError, MachineError, orjson.JSONDecodeError, TypeError):
            return None

    # chains and the rest ----------------------------------------------------------------

    def chains_of(self, found: list[Finding]) -> None:
        """Make anew the chains that are broken, lack a record or have one too many."""
        wrong = [finding for finding in found if finding.kind in ("chain-broken", "chain-lacks")]
        names = self.anew | {finding.place for finding in wrong if finding.place}
        valid = {name for name in names if chain.has_place({"type": "", "id": "0" * 40, "machine": name})}
        if valid:
            chain.rebuild(self.directory, self.objects, self.log, valid, self.fsync)
        for finding in wrong:
            self.outcomes.setdefault(finding, "mended" if finding.place in valid else "left")


def _is_useless(finding: Finding) -> bool:
    """Is a line with this finding of no use?"""
    return finding.kind in _ASIDE or (finding.kind in _LOST and finding.part is None)


def _without(row: log.Row, wrong: list[Finding]) -> log.Row:
    """A row without the parts that are lost."""
    gone = {finding.part for finding in wrong if finding.kind in _LOST}
    parts = {name: oid for name, oid in (row.get("parts") or {}).items() if name not in gone}
    return {**row, "parts": parts} if "parts" in row else row


def _whole_ids(path: str, at: dict[int, list[Finding]]) -> set[str]:
    """Ids of the records that lines of the log name which stay."""
    found = set()
    for offset, _, row in log.read(path):
        if (
            row is None
            or log.problem(row)
            or (offset in at and any(f.kind == "log-shape" for f in at[offset]))
        ):
            continue
        found.add(row["id"])
    return found


def _placed(
    lines: list[tuple[int | None, bytes]], lost: dict[str, log.Row], chained: list[list[str]]
) -> list[tuple[int | None, bytes]]:
    """Lines with those that were lost, each behind the one before it on its chain."""
    if not lost:
        return lines
    ids = [_id_of(line) for _, line in lines]
    stays = {*ids, *lost}
    behind: dict[str | None, list[str]] = {}
    for order in chained:
        before: str | None = None
        for oid in order:
            if oid in lost:
                behind.setdefault(before, []).append(oid)
            if oid in stays:
                before = oid
    placed: list[tuple[int | None, bytes]] = []

    def put(oid: str | None) -> None:
        waiting = list(reversed(behind.pop(oid, [])))
        while waiting:
            following = waiting.pop()
            placed.append((None, orjson.dumps(lost[following], option=orjson.OPT_APPEND_NEWLINE)))
            waiting += reversed(behind.pop(following, []))

    put(None)
    for name, (offset, line) in zip(ids, lines, strict=True):
        placed.append((offset, line))
        if name is not None:
            put(name)
    return placed


def _id_of(line: bytes) -> str | None:
    try:
        found = orjson.loads(line).get("id")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return found if isinstance(found, str) else None

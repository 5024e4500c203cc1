"""Which side of the exam a case is on, by content: whichever way it came in.

A case is held out if its identity is in the holdout of the machine, of an ancestor or a
descendant, now or in a committed version; else it is practice if it is in cases.jsonl.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from libmachine import jsonl
from libmachine.canon import RecordError
from libmachine.case import read_case
from libmachine.errors import MachineError
from libmachine.folder import Folder
from libmachine.git import plumb


class Splits:
    """The two sides of one machine, read at the first question."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._sides: tuple[frozenset[str], frozenset[str]] | None = None

    def of(self, identity: str) -> str | None:
        """`holdout`, `cases` or None. Raises MachineError if the two files overlap."""
        if self._sides is None:
            self._sides = self._read()
        held, practice = self._sides
        return "holdout" if identity in held else "cases" if identity in practice else None

    def _read(self) -> tuple[frozenset[str], frozenset[str]]:
        practice = {case["identity"]: case["id"] for case in self.folder.cases("cases.jsonl")}
        exam = {case["identity"]: case["id"] for case in self.folder.cases("holdout.jsonl")}
        for identity in practice.keys() & exam.keys():
            raise MachineError(
                f"{self.folder.path}: case '{practice[identity]}' of cases.jsonl is '{exam[identity]}' of "
                "holdout.jsonl; remove it from one of them"
            )
        held = set(exam)
        family = [*self.folder.family(), *self.folder.descendants()]
        for folder in family[1:]:
            held.update(case["identity"] for case in folder.cases("holdout.jsonl"))
        held.update(_committed(family))
        return frozenset(held), frozenset(practice)


def _committed(family: Iterable[Folder]) -> Iterable[str]:
    """Identities in any holdout.jsonl that HEAD's history has had. Lines that are no case are passed over."""
    for folder in family:
        ids = plumb.versions_of(folder.path, "holdout.jsonl")
        for data in plumb.read_blobs(folder.path, ids) if ids else ():
            for line in jsonl.parsed(io.BytesIO(data)):
                try:
                    yield read_case(line.value)["identity"]
                except RecordError:
                    continue


def todays_cases(folder: Folder) -> dict[str, dict[str, object]]:
    """Identity -> case of both files as they stand: what grading uses, as a key may have been corrected."""
    cases = [*folder.cases("holdout.jsonl"), *folder.cases("cases.jsonl")]
    return {case["identity"]: case for case in cases}

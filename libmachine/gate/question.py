"""What a gate asks: which two versions, judged by what; and the answers that need no run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from libmachine.canon import Record, hash_of
from libmachine.case import cases_in
from libmachine.gate.proof import follows
from libmachine.git import notes, refs
from libmachine.git.history import history
from libmachine.git.place import Place
from libmachine.git.repository import Repository

BETTER = ("promote", "first", "same", "rubric_only", "revert", "forced")
"""Decisions with which a version may go live."""
BEHAVIOUR = ("instructions.md", "model.json")


@dataclass(frozen=True)
class Question:
    """Is `candidate` better than `baseline`? Places say where the files of each lie; judge is the place
    of rubric, graders and holdout, tools is that of the code both arms run."""

    name: str
    baseline: refs.Named
    candidate: refs.Named
    base_commit: str | None
    tools: Place
    judge: Place

    @property
    def holdout(self) -> str:
        """Hash of the exam: sorted identities with target and metadata."""
        return holdout_hash(exam_of(self.judge, self.name))


def exam_of(place: Place, name: str) -> bytes | None:
    """The holdout.jsonl that judges a machine: its own, else its nearest parent's; None without any."""
    return next((data for member in place.family(name) if (data := place.holdout(member))), None)


def holdout_hash(data: bytes | None) -> str:
    """Hash of a holdout.jsonl: its cases in any order, whole. Raises RecordError for a line that is none."""
    digests = [
        hash_of([case["identity"], case.get("target"), case.get("metadata")]) for case in cases_in(data)
    ]
    return hash_of(sorted(set(digests)))


def simple_answer(repo: Repository, question: Question) -> tuple[str, list[str]] | None:
    """(decision, reasons) of a question that needs no run: same, rubric_only, revert. None: measure."""
    old, new = question.baseline.tree, question.candidate.tree
    if old == new:
        return "same", ["nothing that decides behaviour differs"]
    before, after = refs.version_files(repo, old), refs.version_files(repo, new)
    if _behaviour(before) == _behaviour(after):
        return "rubric_only", ["only the rubric differs: instructions and model are the same"]
    if question.base_commit is not None:
        for past in history(repo, question.name, question.base_commit, shallow_too=True):
            if past.version == new:
                return "revert", [f"this version was live at {past.commit[:12]}"]
    return None


def control_of(candidate: Mapping[str, Any] | None) -> str | None:
    """Which control a candidate was trained as: `placebo`, ...; None if it was to help."""
    training = (candidate or {}).get("training")
    control = training.get("control") if isinstance(training, dict) else None
    return None if control is None else str(control)


def _behaviour(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a version that decide what it does, its parents' included."""
    return {path: data for path, data in files.items() if path.rpartition("/")[2] in BEHAVIOUR}


def stored_verdicts(repo: Repository, question: Question) -> list[Record]:
    """The measured verdicts on these two versions, oldest first, whatever judged them."""
    return [
        verdict
        for verdict in notes.read(repo, question.candidate.tree)
        if verdict.get("type") == "verdict"
        and verdict.get("machine") == question.name
        and verdict.get("baseline") == question.baseline.tree
        and verdict.get("arms")
    ]


def stored_verdict(repo: Repository, question: Question, wanted: Record) -> Record | None:
    """The newest honest verdict on exactly this question, or None.

    wanted: what it must say of graders, rubric, on and rule. One that does not follow from its own
    numbers was not made by a gate and is passed over.
    """
    for verdict in reversed(stored_verdicts(repo, question)):
        here = {**wanted, "holdout": question.holdout}
        if all(verdict.get(name) == value for name, value in here.items()) and follows(verdict):
            return verdict
    return None


def tries_so_far(
    repo: Repository,
    question: Question,
    identities: Sequence[str],
    looks: Iterable[tuple[str, Sequence[str]]] = (),
) -> int:
    """Distinct other candidates that were judged on an exam sharing at least half of these cases.

    looks: (candidate, exam) of those that no verdict is noted for: machine-optimize's.
    """
    here = set(identities)
    others = {
        candidate
        for candidate, exam in looks
        if candidate != question.candidate.tree and 2 * len(here & set(exam)) >= len(here)
    }
    others |= tries_of(notes.read_all(repo).values(), question.name, question.candidate.tree, here)
    return len(others)


def tries_of(
    noted: Iterable[Sequence[Record]], name: str, candidate: str, here: AbstractSet[str]
) -> set[str]:
    """The candidates that noted verdicts on a machine say were judged on half of these cases, but one.

    A note is anybody's: what is no verdict of a gate counts for nothing."""
    others = set()
    for verdict in (record for records in noted for record in records):
        arms = verdict.get("arms")
        if verdict.get("type") != "verdict" or verdict.get("machine") != name or not isinstance(arms, dict):
            continue
        other, cases = verdict.get("candidate"), arms.get("cases")
        if not isinstance(other, str) or other == candidate or not isinstance(cases, list):
            continue
        if 2 * len(here & {case for case in cases if isinstance(case, str)}) >= len(here):
            others.add(other)
    return others

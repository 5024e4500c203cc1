"""What a change of machines between two states asks for: the table of hooks and servers. Pure.

Both states are read as names and blobs; no machine is run, no model is asked. The answers are

    same, rubric_only, first, deleted, renamed, revert, merged, forced, promote     may pass
    refuse                                                                          may not
    untestable                                                                      cannot be said
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from libmachine.canon import Record, RecordError
from libmachine.errors import NO, OK, UNTESTABLE, MachineError, Untestable
from libmachine.folder import rubric_hash
from libmachine.gate.exam import differences, effective_criteria, groups_of, in_code
from libmachine.gate.proof import STORED, Exam, Policy, prove
from libmachine.gate.question import BEHAVIOUR, exam_of, holdout_hash
from libmachine.git.place import Place

Records = Callable[[str], Sequence[Record]]
"""Version tree -> the records of its note, oldest first. Raises Untestable if there are no notes at all."""
Past = Callable[[str], Sequence[str | None]]
"""Machine -> its versions in the base's history, newest first; None where it was absent."""


@dataclass(frozen=True)
class Answer:
    """code: 0 may pass, 1 refused, 125 cannot be said. remedy: what to type, "" if nothing.
    base, version: the machine's version trees in both states. verdict: what proves a promotion."""

    machine: str
    decision: str
    code: int = OK
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    remedy: str = ""
    base: str | None = None
    version: str | None = None
    verdict: Record | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Around:
    """What counts besides the two states. past: the base's history. merged: the other parents of a merge,
    where they are known to be judged. staged: the change is in an index, not yet anywhere.
    base_name: how to name the base in a command, "" for HEAD. gone: machines of the base, of other
    projects in the repository too, that are not there any more; None: see the base."""

    past: Past = lambda name: ()
    merged: Sequence[Place] = ()
    staged: bool = False
    base_name: str = ""
    gone: Sequence[tuple[Place, str]] | None = None

    def gate(self, name: str, again: bool = False) -> str:
        """What to type so that this change is measured, and the verdict is where it is looked for."""
        rerun = " --rerun" if again else ""
        if self.staged:
            return f"machine-gate {name}{rerun}"
        base = f" --base {self.base_name}" if self.base_name else ""
        return f"machine-gate {name}{base}{rerun} && machine-sync"


def changed(base: Place | None, new: Place, notes: Records, policy: Policy, around: Around) -> list[Answer]:
    """The answers on every machine of two states, and on links and submodules that are new among them."""
    before = set(base.machines()) if base is not None else set()
    answers = [
        judge_change(base, new, name, notes, policy, around) for name in sorted(before | {*new.machines()})
    ]
    old = {path: base.oid(path) for path in base.foreign()} if base is not None else {}
    for path in new.foreign():
        if new.oid(path) != old.get(path):
            why = "foreign: a link or a submodule; what is behind it no version covers"
            remedy = f"put a copy of the files at {path}"
            answers.append(Answer(path, "untestable", UNTESTABLE, (why,), (), remedy))
    return answers


def judge_change(
    base: Place | None,
    new: Place,
    name: str,
    notes: Records,
    policy: Policy,
    around: Around | None = None,
) -> Answer:
    """The answer on one machine between two states; base is None where there was nothing before."""
    around = around or Around()
    try:
        return _judge(base, new, name, notes, policy, around)
    except Untestable as error:
        return Answer(name, "untestable", UNTESTABLE, (str(error),), (), _remedy(str(error), around, name))
    except MachineError as error:
        return Answer(name, "untestable", UNTESTABLE, (f"not computable: {error}",), (), around.gate(name))


def _remedy(told: str, around: Around, name: str) -> str:
    """What to type, unless the error says so itself."""
    return "" if "git fetch" in told or "put a copy" in told else around.gate(name)


def _judge(
    base: Place | None, new: Place, name: str, notes: Records, policy: Policy, around: Around
) -> Answer:
    if not new.has(name):
        return Answer(name, "deleted", base=base.version(name) if base is not None else None)
    version = new.version(name)
    answer = Answer(name, "first", version=version, warnings=in_code(new, name))
    if base is None:
        return answer
    was, told = _former(base, new, name, version, around)
    if was is not None:
        old = was.place.version(was.name)
        answer = replace(answer, base=old, warnings=())
        if old == version:
            if (was.place, was.name) != (base, name):
                return replace(answer, decision="renamed", reasons=(f"it was {was.name}",))
            return replace(answer, decision="same", warnings=_tools_changed(was, new, name))
        if _behaviour(was.place, was.name) == _behaviour(new, name):
            return _rubric_only(was, new, answer)
    if any(place.has(name) and place.version(name) == version for place in around.merged):
        return replace(answer, decision="merged", reasons=("as in a parent of this merge",))
    past: Sequence[str | None] = ()
    cut_off: Untestable | None = None
    try:
        past = around.past(name)
    except Untestable as error:
        cut_off = error
    if version in past:
        return _revert(answer, past, notes, policy, around)
    if was is None:
        if cut_off is not None:
            raise cut_off
        last = next((tree for tree in past if tree is not None), None)
        if last is None:
            return answer
        # deleted in one push and back in the next is a change, not a new machine
        answer = replace(answer, base=last, warnings=())
        told = f"it is back: its last version was {last[:12]}"
    found = _promotion(was, new, answer, notes, policy, around, told)
    if found.code and cut_off is not None:
        raise cut_off  # it may be an earlier version, whose commit is not here
    return found


class _Was(NamedTuple):
    """Where a machine was in the base, and its name there."""

    place: Place
    name: str


def _former(base: Place, new: Place, name: str, version: str, around: Around) -> tuple[_Was | None, str]:
    """(what this machine was in the base, or None; what to say of it)."""
    if base.has(name):
        return _Was(base, name), ""
    gone = around.gone
    if gone is None:
        gone = [(base, other) for other in base.machines() if not new.has(other)]
    for place, other in gone:
        if place.version(other) == version:
            return _Was(place, other), ""
    exam = new.oid(f"{new.prefix}/{name}/holdout.jsonl")
    for place, other in gone:
        # the same exam under another name is the same task
        if exam is not None and place.oid(f"{place.prefix}/{other}/holdout.jsonl") == exam:
            return _Was(place, other), f"renamed from {other} and changed"
    return None, ""


def _behaviour(place: Place, name: str) -> list[list[Any]]:
    """What decides what a machine does, its parents' included."""
    return [[entry for entry in tree if entry[1] in BEHAVIOUR] for tree in place.version_trees(name)]


def _tools_changed(was: _Was, new: Place, name: str) -> tuple[str, ...]:
    """Warnings of changed code. Raises Untestable if that code says what the version should say."""
    try:
        if was.place.others(was.name) == new.others(name):
            return ()
    except Untestable as error:
        return (f"tools_unknown: {error}",)
    if hidden := in_code(new, name):
        raise Untestable(f"{hidden[0]}; put a copy of it into that file")
    return ("tools_changed: tools or graders differ; the version is the same, so nothing was measured",)


def _rubric_only(was: _Was, new: Place, answer: Answer) -> Answer:
    criteria = effective_criteria(new, answer.machine)
    warnings = _tools_changed(was, new, answer.machine)
    try:
        before = effective_criteria(was.place, was.name)
    except MachineError as error:
        reasons: tuple[str, ...] = ("the base's rubric cannot be read",)
        warnings = (f"base_rubric: {error}", *warnings)
        return replace(answer, decision="rubric_only", reasons=reasons, warnings=warnings)
    reasons = tuple(differences(before, criteria))
    return replace(
        answer,
        decision="rubric_only" if reasons else "same",
        reasons=reasons or ("the rubric differs in form only",),
        warnings=warnings,
    )


def _revert(
    answer: Answer, past: Sequence[str | None], notes: Records, policy: Policy, around: Around
) -> Answer:
    """An earlier version. One that no verdict ever let in may be a commit that only passed by."""
    known = [tree for tree in past if tree is not None]
    assert answer.version is not None
    warnings: tuple[str, ...] = ()
    if answer.version != known[-1] and not _was_judged(answer.version, notes):
        warnings = ("unjudged: it is in the history, but no verdict is noted on it",)
    if policy.strict and warnings:
        remedy = around.gate(answer.machine)
        return replace(answer, decision="refuse", code=NO, reasons=(f"strict: {warnings[0]}",), remedy=remedy)
    return replace(answer, decision="revert", reasons=("an earlier version",), warnings=warnings)


def _was_judged(version: str, notes: Records) -> bool:
    try:
        return any(
            record.get("type") == "verdict" and record.get("decision") in ("promote", "forced")
            for record in notes(version)
        )
    except Untestable:
        return False


def _promotion(
    was: _Was | None,
    new: Place,
    answer: Answer,
    notes: Records,
    policy: Policy,
    around: Around,
    former: str,
) -> Answer:
    """Another behaviour: a verdict has to prove it."""
    name = answer.machine
    exam = _exam(new, answer, frozenset({name, was.name if was else name}))
    proof = prove(notes(exam.candidate), exam, policy)
    warnings = [*_also_changed(was, exam), *proof.warnings]
    told = (former,) if former else ()
    if proof.forced is not None and (around.staged or policy.allow_forced):
        return replace(answer, decision="forced", reasons=(*told, proof.forced), warnings=tuple(warnings))
    if proof.verdict is None:
        reasons = [*told, *proof.reasons]
        if proof.forced is not None:
            reasons.append("forced: this repository does not allow it (machine.allowForced)")
        remedy = around.gate(name, proof.reasons[0].startswith(STORED))
        if proof.refused:
            other = f"machine-commit {name} --force WHY" if around.staged else f"machine-revert {name}"
            remedy = f"machine-suite {name}, or {other}"
        return replace(answer, decision="refuse", code=NO, reasons=tuple(reasons), remedy=remedy)
    if policy.strict and warnings:
        reasons = [*told, f"strict: {', '.join(warnings)}"]
        remedy = around.gate(name, True)
        return replace(answer, decision="refuse", code=NO, reasons=tuple(reasons), remedy=remedy)
    return replace(answer, decision="promote", reasons=told, warnings=tuple(warnings), verdict=proof.verdict)


def _exam(new: Place, answer: Answer, names: frozenset[str]) -> Exam:
    assert answer.base is not None and answer.version is not None
    criteria = effective_criteria(new, answer.machine)
    data = exam_of(new, answer.machine)
    return Exam(
        names=names,
        baseline=answer.base,
        candidate=answer.version,
        rubric=rubric_hash(criteria),
        holdout=holdout_hash(data),
        graders=new.others(answer.machine),
        groups=groups_of(data),
        guards={criterion.id: criterion.guard for criterion in criteria if criterion.guard is not None},
    )


def _also_changed(was: _Was | None, exam: Exam) -> list[str]:
    """Warnings about what was changed together with the behaviour."""
    if was is None:
        return []
    warned = []
    try:
        if rubric_hash(effective_criteria(was.place, was.name)) != exam.rubric:
            warned.append("rubric_changed: the rubric changed too; the verdict is under the new one")
        if holdout_hash(was.place.holdout(was.name)) != exam.holdout:
            warned.append("holdout_changed: held-out cases changed too; the verdict is on the new ones")
    except (RecordError, MachineError) as error:
        warned.append(f"base_unreadable: {error}")
    return warned

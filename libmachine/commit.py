"""machine-commit's and machine-revert's work: a version goes live if the gate let exactly it through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libmachine import console, promote
from libmachine.canon import Record, now, plain
from libmachine.errors import OK, CommitRefused, MachineError
from libmachine.gate import rule as gate_rule
from libmachine.gate.change import Around, judge_change
from libmachine.gate.policy import policy_of
from libmachine.gate.question import BETTER, control_of
from libmachine.gate.report import meaning
from libmachine.git import notes, refs, repository, trees
from libmachine.git.history import history
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.load import load
from libmachine.project import Project


@dataclass(frozen=True)
class Live:
    """What is live now: the number of its version here, the version's id, the commit, by which decision.

    children: machines below it, whose versions changed with it."""

    name: str
    number: int
    version: str
    commit: str
    decision: str
    children: Sequence[str] = ()


def commit(
    project: Project,
    repo: Repository,
    name: str,
    which: str | None = None,
    message: str | None = None,
    force: str | None = None,
) -> Live:
    """Commit a machine's version: a candidate by its id or, without one, what the work tree holds, else the
    newest candidate.

    message: first line of the commit's. force: why to go against the gate, which is recorded with who did.
    Raises CommitRefused if no verdict lets exactly this change through, MachineError if there is none.
    """
    work = trees.work_tree(project.root)
    head = repository.head(repo)
    base = trees.commit(repo, head) if head else None
    old = base.version(name) if base and base.has(name) else None
    place, pending = _place(repo, name, which, work, base, old)
    version = place.version(name)
    number = refs.record_version(repo, name, place)
    verdict = _allowing(repo, name, base, place, head)
    candidate = refs.candidate_of(repo, name, version)
    control = control_of(candidate)
    if control is not None:
        told = f"it is a control ({control}), made to be refused; type: machine-commit {name} --candidate ID"
        verdict = {"decision": "refuse", "reasons": [told]}
    if verdict["decision"] not in BETTER:
        if force is None:
            raise CommitRefused("; ".join(map(meaning, verdict["reasons"])))
        verdict = _forced(repo, name, old, version, force, verdict)
    if verdict["decision"] == "same" and base is not None and _folder(place, name) == _folder(base, name):
        raise MachineError(
            f"'{name}' has nothing to commit: HEAD holds this version; machine-propose makes a candidate"
        )
    words = promote.message_of(name, number, version, verdict, message)
    made = promote.commit_folder(repo, name, place, words)
    promote.log_live(repo, name, words, place, (base, old) if base and old else None)
    if pending:
        refs.drop_candidate(repo, name, pending)
    console.say(f"{name} v{number} is live: commit {made[:12]} ({verdict['decision']})")
    if candidate is not None and candidate.get("weights"):
        from libmachine.sft.keep import keep  # few have weights

        keep(candidate)
    changed = [child for child in place.machines() if child.startswith(f"{name}/")] if version != old else []
    if changed:
        console.say(
            f"warning: {', '.join(changed)} changed with it; hooks ask for their own verdicts: "
            f"machine-gate {changed[0]} --base HEAD~1"
        )
    return Live(name, number, version, made, verdict["decision"], changed)


def _folder(place: Place, name: str) -> dict[str, str | None]:
    return {path: place.oid(path) for path in place.own(name)}


def _place(
    repo: Repository, name: str, which: str | None, work: Place, base: Place | None, old: str | None
) -> tuple[Place, str | None]:
    """Where the version to commit lies, and the candidate's id if it is one."""
    if which is not None and work.has(name) and work.version(name).startswith(which):
        return work, None
    if which is None:
        if work.has(name) and work.version(name) != old:
            return work, None
        which = promote.newest_pending(repo, name, old)
        if which is None:
            if work.has(name):
                return work, None
            raise MachineError(
                f"no pending candidate of '{name}', and its work tree is live already; machine-propose"
            )
    if base is None or not base.has(name):
        raise MachineError(f"HEAD has no machine '{name}'; a candidate is a change of a committed one")
    record, _ = refs.read_candidate(repo, name, which)
    return trees.with_version(base, name, refs.version_files(repo, record["version"])), record["version"][:12]


def _allowing(repo: Repository, name: str, base: Place | None, place: Place, head: str | None) -> Record:
    """The verdict that lets this change through by the rule of hooks, or one that says why there is none."""
    around = Around(
        past=lambda machine: [past.version for past in history(repo, machine, head)] if head else [],
        staged=True,
    )
    policy = policy_of(repo, False, float(gate_rule.RULE["min_z"]), False)
    answer = judge_change(base, place, name, lambda tree: notes.read(repo, tree), policy, around)
    for warning in answer.warnings:
        console.say(f"warning: {warning}")
    reasons = list(answer.reasons)
    verdict = answer.verdict
    if verdict is not None and verdict.get("graders") != place.others(name):
        reasons = [f"the verdict is of other graders than these; type: machine-gate {name}"]
        return {"decision": "refuse", "reasons": reasons}
    if answer.code != OK:
        hint = f"; type: {answer.remedy}" if answer.remedy else ""
        told = "; ".join(map(meaning, reasons)) or answer.decision
        return {"decision": "refuse", "reasons": [told + hint]}
    return {**(verdict or {}), "decision": answer.decision, "reasons": reasons}


def _forced(repo: Repository, name: str, old: str | None, version: str, why: str, verdict: Record) -> Record:
    """A verdict that records who went against the gate, and why; noted on the version."""
    if not why.strip():
        raise MachineError(f"--force wants a reason, which is recorded: machine-commit {name} --force WHY")
    who = repo.run("var", "GIT_AUTHOR_IDENT").out.decode("utf-8", "replace").rpartition(" <")[0] or "unknown"
    forced = plain(
        {
            "v": 1,
            "type": "verdict",
            "machine": name,
            "baseline": old,
            "candidate": version,
            "decision": "forced",
            "reasons": verdict["reasons"],
            "warnings": [],
            "forced": {"by": who, "reason": why},
            "decided_at": now(),
        }
    )
    notes.append(repo, version, forced)
    return {**forced, "reasons": [f"forced by {who}: {why}"]}


def revert(project: Project, repo: Repository, name: str, to: str | None = None) -> Live:
    """Make an earlier version live again, by a commit that writes its files back.

    to: vN, a commit or an id; without one the version that was live before. Raises MachineError if there is
    none, or the work tree has changes that are not live.
    """
    head = repository.head(repo)
    base = trees.commit(repo, head) if head else None
    if base is None or not base.has(name):
        raise MachineError(
            f"HEAD has no machine '{name}' to go back from; commit it: git add machines/{name} && git commit"
        )
    live = base.version(name)
    if to is not None:
        target = refs.named(repo, f"{name}@{to}").tree
    else:
        earlier = promote.previous_versions(repo, name, live)
        if not earlier:
            raise MachineError(f"'{name}' has no earlier version; machine-versions {name} lists them")
        target = earlier[-1]
    if target == live:
        raise MachineError(
            f"that version of '{name}' is live already; machine-versions {name} lists the others"
        )
    work = trees.work_tree(project.root)
    if work.has(name) and work.version(name) != live:
        raise MachineError(
            f"the work tree of '{name}' has changes that are not live; machine-gate {name} and commit them, "
            f"or: git restore machines/{name}"
        )
    place = trees.with_version(base, name, refs.version_files(repo, target))
    number = refs.record_version(repo, name, place)
    words = f"{name}: revert to v{number}\n\n{promote.VERSION_TRAILER}: {name} v{number} {target}\n"
    words += f"{promote.REVERT_TRAILER}: {target}\n"
    made = promote.commit_folder(repo, name, place, words)
    promote.log_live(repo, name, words, place, (base, live))
    console.say(f"{name} v{number} is live again: commit {made[:12]}")
    load(name, project.places)  # the code may have moved on since: say so now, not at the next run
    return Live(name, number, target, made, "revert")

"""The work behind machine-commit and machine-revert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libmachine import console, gate_rule, jsonl, promote
from libmachine.canon import Record, now, plain
from libmachine.cmd import _cli
from libmachine.errors import NO, OK, MachineError, Untestable
from libmachine.folder import rubric_hash
from libmachine.gate_question import BETTER, Question, simple_answer, stored_verdicts
from libmachine.git import notes, refs, repository, trees
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.load import load
from libmachine.project import Project


def main(
    workspace: str | None, name: str | None, candidate: str | None, message: str | None, force: str | None
) -> int:
    """Commit each machine that is asked for; 1 if one was refused."""
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    asked = [(name, candidate)] if name is not None else list(_from_stdin())
    if not asked:
        raise Untestable("no verdict on stdin (did machine-gate fail?)")
    return max(_commit(project, repo, machine, which, message, force) for machine, which in asked)


def _from_stdin() -> Iterator[tuple[str, str]]:
    _cli.refuse_terminal("verdicts", "name a machine: machine-commit NAME")
    for line in jsonl.read(0):
        value = line.value
        if line.error or not isinstance(value, dict) or value.get("type") != "verdict":
            raise MachineError(f"line {line.number}: {line.error or 'no verdict'}; pipe machine-gate in")
        yield value["machine"], value["candidate"]


def _commit(
    project: Project,
    repo: Repository,
    name: str,
    which: str | None,
    message: str | None,
    force: str | None,
) -> int:
    work = trees.work_tree(project.root)
    head = repository.head(repo)
    base = trees.commit(repo, head) if head else None
    old = base.version(name) if base and base.has(name) else None
    place, pending = _place(repo, name, which, work, base, old)
    version = place.version(name)
    number = refs.record_version(repo, name, place)
    verdict = _allowing(repo, name, base, old, place, version, head)
    if verdict["decision"] not in BETTER:
        if force is None:
            console.say(f"refused: {'; '.join(verdict['reasons'])}")
            return NO
        verdict = _forced(repo, name, old, version, force, verdict)
    if verdict["decision"] == "same" and base is not None and _folder(place, name) == _folder(base, name):
        raise MachineError(
            f"'{name}' has nothing to commit: HEAD holds this version; machine-propose makes a candidate"
        )
    words = promote.message_of(name, number, version, verdict, message)
    commit = promote.commit_folder(repo, name, place, words)
    promote.log_live(repo, name, words, place, (base, old) if base and old else None)
    if pending:
        refs.drop_candidate(repo, name, pending)
    console.say(f"{name} v{number} is live: commit {commit[:12]} ({verdict['decision']})")
    return OK


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


def _allowing(
    repo: Repository,
    name: str,
    base: Place | None,
    old: str | None,
    place: Place,
    version: str,
    head: str | None,
) -> Record:
    """The verdict that lets this change through, or one that says why there is none."""
    if base is None or old is None:
        return {"decision": "first", "reasons": ["new machine"]}
    question = Question(
        name, refs.Named(name, old, base), refs.Named(name, version, place), head, place, place
    )
    answer = simple_answer(repo, question)
    if answer is not None:
        return {"decision": answer[0], "reasons": answer[1]}
    wanted = {
        "baseline": old,
        "graders": place.others(name),
        "holdout": question.holdout,
        "rubric": rubric_hash(place_criteria(place, name)),
    }
    refused = f"no verdict for exactly this change; machine-gate {name}"
    for verdict in reversed(stored_verdicts(repo, question)):
        differs = [field for field, value in wanted.items() if verdict.get(field) != value]
        if differs:
            refused = f"the verdict is for another {', '.join(differs)}; machine-gate {name}"
            continue
        figures = gate_rule.decide(verdict["arms"], verdict["tries"], verdict["rule"])
        if figures["decision"] != verdict["decision"]:
            refused = "the verdict does not follow from its own numbers"
        elif verdict["rule"]["no_worse"]:
            refused = f"the verdict only says that it is not worse; machine-gate {name} --rerun"
        elif figures["decision"] == "promote" and not gate_rule.needs_confirmation(figures, verdict["rule"]):
            return verdict
        else:
            return {**verdict, "decision": "refuse"}
    return {"decision": "refuse", "reasons": [refused]}


def place_criteria(place: Place, name: str) -> tuple[Any, ...]:
    """The effective criteria of a machine, from the blobs of its family's rubric.toml."""
    import tomllib

    from libmachine.folder import as_rubric

    criteria: tuple[Any, ...] = ()
    for member in reversed(place.family(name)):
        path = f"{place.prefix}/{member}/rubric.toml"
        data = place.read(path)
        if data is not None:
            try:
                criteria += as_rubric(tomllib.loads(data.decode()), path)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise MachineError(f"{path}: {error}") from None
    return criteria


def _forced(repo: Repository, name: str, old: str | None, version: str, why: str, verdict: Record) -> Record:
    """A verdict that records who went against the gate, and why; noted on the version."""
    if not why.strip():
        raise MachineError("--force wants a reason; it is recorded")
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


def revert(workspace: str | None, name: str, to: str | None) -> int:
    """Make an earlier version live again, by a commit that writes its files back."""
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    head = repository.head(repo)
    base = trees.commit(repo, head) if head else None
    if base is None or not base.has(name):
        raise MachineError(f"HEAD has no machine '{name}'; there is nothing to go back from")
    live = base.version(name)
    if to is not None:
        target = refs.named(repo, f"{name}@{to}").tree
    else:
        earlier = promote.previous_versions(repo, name, live)
        if not earlier:
            raise MachineError(f"'{name}' has no earlier version; machine-versions {name} lists them")
        target = earlier[-1]
    if target == live:
        raise MachineError(f"that version of '{name}' is live already")
    work = trees.work_tree(project.root)
    if work.has(name) and work.version(name) != live:
        raise MachineError(
            f"the work tree of '{name}' has changes that are not live; commit or restore them first"
        )
    place = trees.with_version(base, name, refs.version_files(repo, target))
    number = refs.record_version(repo, name, place)
    words = f"{name}: revert to v{number}\n\n{promote.VERSION_TRAILER}: {name} v{number} {target}\n"
    words += f"{promote.REVERT_TRAILER}: {target}\n"
    commit = promote.commit_folder(repo, name, place, words)
    promote.log_live(repo, name, words, place, (base, live))
    console.say(f"{name} v{number} is live again: commit {commit[:12]}")
    load(name, project.places)  # the code may have moved on since: say so now, not at the next run
    return OK

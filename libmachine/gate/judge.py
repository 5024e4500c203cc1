"""One question to the gate: which two versions, judged by what, measured under one purse."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from libmachine import console, env
from libmachine.canon import Record, now
from libmachine.converse_other import Others
from libmachine.errors import MachineError, Refused, Untestable
from libmachine.folder import Folder
from libmachine.gate.question import Question
from libmachine.gate.work import Gate, Terms
from libmachine.git import refs, repository, trees
from libmachine.git.repository import Repository
from libmachine.harness import choose
from libmachine.harness.base import Engine
from libmachine.judging import Judging
from libmachine.load import Loaded
from libmachine.project import Project
from libmachine.purse import Purse
from libmachine.record import record_id


def judge(
    project: Project,
    repo: Repository,
    name: str,
    options: Mapping[str, Any],
    stop: threading.Event,
    purse: Purse,
) -> Record:
    """The verdict on one machine, by machine-gate's options. Raises Untestable if it cannot be judged."""
    head = repository.head(repo)
    if head is None and options["base"] == "HEAD":
        return _first(name, trees.work_tree(project.root).version(name), "the repository has no commit yet")
    question = _question(project, repo, name, options)
    if question is None:
        return _first(name, trees.work_tree(project.root).version(name), "the base has no such machine")
    rule = {
        "min_z": options["min_z"],
        "strict": options["strict"],
        "no_worse": options["no_worse"],
        "confirm": not options["no_confirm"],
    }
    terms = Terms(
        options["trials"],
        options["on"],
        rule,
        options["concurrency"],
        options["seed"],
        options["rerun"],
        options["reuse_live"],
    )
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    store = project.open_store()
    progress = console.Progress(f"gate {name}", None, purse.ledger.spent)

    def open_engine(machine: Loaded, together: Sequence[str | None]) -> Engine:
        engine = choose.engine(
            machine.model,
            options["harness"],
            progress=console.say,
            trained=project.trained,
            together=together,
            store=project.store,
        )
        return purse.bill(engine, "run", name)

    others = Others(purse)
    home = Folder(f"{project.root}/machines", name)
    gate = Gate(repo, store, question, terms, open_engine, judging, home, others.of)
    try:
        return gate.verdict(stop, lambda run: progress.step(), progress.more)
    except Refused as error:
        raise Untestable(f"{error}; what was run is stored, the same command goes on from there") from None
    finally:
        progress.clear()
        purse.told(f"gate {name}")
        gate.close()
        others.close()
        judging.close()
        store.close()


def _question(project: Project, repo: Repository, name: str, options: Mapping[str, Any]) -> Question | None:
    """What is asked, or None if the base has no machine of that name."""
    work = trees.work_tree(project.root)
    if not work.has(name):
        raise MachineError(f"no machine '{name}' in '{project.root}/machines'; machine-list shows all")
    base = refs.named(repo, f"{name}@{options['base']}") if _has(repo, name, options["base"]) else None
    if base is None:
        return None
    if options["candidate"]:
        candidate = _pending(repo, name, options["candidate"])
    else:
        candidate = refs.named(repo, f"{name}@")
        pending = refs.candidates(repo, name)
        if candidate.tree == base.tree and pending and options["base"] == "HEAD":
            candidate = _pending(repo, name, pending[-1].id)
    judge_by = options["judge_by"]
    judge = trees.commit(repo, judge_by) if judge_by else _judging_place(candidate, work, repo, name)
    commit = repository.head(repo) if options["base"] == "HEAD" else _commit_of(repo, options["base"])
    return Question(name, base, candidate, commit, work, judge)


def _judging_place(candidate: refs.Named, work: Any, repo: Repository, name: str) -> Any:
    """Today's graders and exam, with the rubric that the candidate would have."""
    return (
        trees.with_version(work, name, refs.version_files(repo, candidate.tree))
        if candidate.place is None
        else work
    )


def _has(repo: Repository, name: str, which: str) -> bool:
    """Has the base this machine? A recorded version has."""
    try:
        place = trees.commit(repo, repository.resolve(repo, which))
    except Untestable:
        raise
    except MachineError:
        return True  # vN or an id: refs.named says if there is none
    return place.has(name)


def _commit_of(repo: Repository, which: str) -> str | None:
    try:
        return repository.resolve(repo, which)
    except MachineError:
        return None


def _pending(repo: Repository, name: str, id: str) -> refs.Named:
    record, _ = refs.read_candidate(repo, name, id)
    return refs.Named(name, record["version"], None)


def _first(name: str, version: str, why: str) -> Record:
    verdict: Record = {
        "v": 1,
        "type": "verdict",
        "machine": name,
        "baseline": version,
        "candidate": version,
        "base_commit": None,
        "holdout": "",
        "decision": "first",
        "reasons": [f"new machine: {why}"],
        "warnings": [],
        "decided_at": now(),
    }
    return {**verdict, "id": record_id(verdict)}

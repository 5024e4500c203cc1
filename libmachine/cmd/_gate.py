"""The work behind machine-gate NAME and machine-gate < candidates."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from libmachine import console, env, jsonl
from libmachine.canon import Record, dump_line, now
from libmachine.cmd import _cli
from libmachine.cmd._money import Purse
from libmachine.cmd._other import Others
from libmachine.errors import NO, OK, UNTESTABLE, MachineError, Refused, Untestable
from libmachine.folder import Folder
from libmachine.gate.question import BETTER, Question
from libmachine.gate.report import report
from libmachine.gate.work import Gate, Terms
from libmachine.git import refs, repository, trees
from libmachine.git.repository import Repository
from libmachine.harness import choose
from libmachine.harness.base import Engine
from libmachine.judging import Judging
from libmachine.load import Loaded
from libmachine.project import Project
from libmachine.record import arrange, record_id


def main(workspace: str | None, name: str | None, as_json: bool, **options: Any) -> int:
    """Judge each question and print its verdict; the worst answer is the exit code."""
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    output = _cli.Output(threading.Event())
    lines = as_json or not console.is_terminal(1)
    codes = []
    asked = [(name, options["candidate"])] if name is not None else list(_from_stdin())
    if not asked:
        raise Untestable("no candidate on stdin (did machine-sft fail?)")
    for machine, candidate in asked:
        verdict = judge(project, repo, machine, {**options, "candidate": candidate})
        console.say(console.safe(report(verdict, _case_names(project, machine), console.width(2))))
        if lines:
            output.write(dump_line(arrange("verdict", verdict)))
        codes.append(_code(verdict))
    return max(codes, key=[OK, NO, UNTESTABLE].index)


def _code(verdict: Record) -> int:
    if verdict["decision"] in BETTER:
        return OK
    return NO if verdict["decision"] == "refuse" else UNTESTABLE


def _from_stdin() -> Iterator[tuple[str, str]]:
    """(machine, candidate id) of the Candidates on stdin."""
    _cli.refuse_terminal("candidates", "name a machine: machine-gate NAME")
    for line in jsonl.read(0):
        value = line.value
        if line.error or not isinstance(value, dict) or value.get("type") != "candidate":
            raise MachineError(
                f"line {line.number}: {line.error or 'no candidate'}; pipe machine-propose or machine-sft in"
            )
        yield value["machine"], value["version"][:12]


def judge(project: Project, repo: Repository, name: str, options: dict[str, Any]) -> Record:
    """The verdict on one machine. Raises Untestable if it cannot be judged."""
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
        options["trials"], options["on"], rule, options["concurrency"], options["seed"], options["rerun"]
    )
    purse = Purse(project, "gate", options["budget"], options["price_as"])
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    store = project.open_store()
    progress = console.Progress(f"gate {name}", None)
    stop = threading.Event()

    def open_engine(machine: Loaded, together: Sequence[str | None]) -> Engine:
        engine = choose.engine(
            machine.model,
            options["harness"],
            progress=console.say,
            trained=project.trained,
            together=together,
        )
        return purse.bill(engine, "run", name)

    others = Others(purse)
    home = Folder(f"{project.root}/machines", name)
    gate = Gate(repo, store, question, terms, open_engine, judging, home, others.of)
    try:
        with _cli.Interrupts(stop):
            return gate.verdict(stop, lambda run: progress.step())
    except Refused as error:
        raise Untestable(f"{error}; what was run is stored, the same command goes on from there") from None
    finally:
        progress.clear()
        purse.told(f"gate {name}")
        gate.close()
        others.close()
        judging.close()
        store.close()


def _question(project: Project, repo: Repository, name: str, options: dict[str, Any]) -> Question | None:
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


def _case_names(project: Project, name: str) -> dict[str, str]:
    try:
        cases = Folder(f"{project.root}/machines", name).cases("holdout.jsonl")
    except MachineError:
        return {}
    return {case["identity"]: case["id"] for case in cases}

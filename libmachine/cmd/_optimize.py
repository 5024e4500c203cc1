"""The work behind machine-optimize's options."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from libmachine import console, env
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import Record, dump_line
from libmachine.case import is_kept_out
from libmachine.cmd import _cli
from libmachine.cmd._measure import Engines, no_cases, refuse_foreign, refuse_ungradable, warn_if_frozen
from libmachine.converse_other import Others
from libmachine.errors import INTERRUPTED, NO, OK, UNTESTABLE, Interrupted, MachineError
from libmachine.folder import Folder, read_cases
from libmachine.git import repository, trees
from libmachine.git.repository import Repository
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import Loaded, find, load_folder
from libmachine.optimize import Optimization, Sides, Terms
from libmachine.optimize_report import report
from libmachine.project import Project
from libmachine.promote import put_candidate
from libmachine.purse import Purse
from libmachine.record import arrange
from libmachine.splits import Splits
from libmachine.store.store import Store

AUTHOR = "optimizer"
FILE = "instructions.md"


def main(workspace: str | None, name: str, as_json: bool, no_write: bool, **options: Any) -> int:
    """Load, search, decide, write or leave a candidate, print."""
    project = _cli.project(workspace)
    folder = refuse_foreign(project.root, name)
    machine = load_folder(folder)
    refuse_ungradable(machine)
    before = _instructions(folder, machine)
    repo = _repository(project, name) if no_write else None
    cases, exam = _cases(folder), _exam(folder, options["holdout"])
    _refuse_shared(folder, cases, exam)
    names = ("rounds", "trials", "min_z", "screen", "pool", "merge", "confirm", "seed", "concurrency", "room")
    terms = Terms(**{field: options[field] for field in names})
    warn_if_frozen(machine.sampling(), terms.trials)
    if not exam:
        console.say(f"warning: '{name}' has no held-out cases; a gain is judged on its cases alone")
    purse = Purse(project, "optimize", options["budget"], options["price_as"])
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    engines = Engines(purse, options["harness"])
    others = Others(purse)
    authors = Engines(purse, options["author_harness"], options["author"], kind="author")
    stop = threading.Event()
    progress = console.Progress(f"optimize {name}", None)
    failure: BaseException | None = None
    search: Optimization | None = None

    def told(line: str) -> None:
        progress.clear()
        console.say(console.safe(line))

    def step(run: Record) -> None:
        progress.step(console.money(purse.ledger.spent()))

    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts:
            author = load_folder(find(AUTHOR, project.places))
            author_engine = authors.of(author)
            sides = Sides(
                machine,
                cases,
                exam,
                Grading(machine, judging),
                engines.of(machine),
                author,
                Grading(author, judging),
                author_engine,
                others.of(machine),
            )
            search = Optimization(sides, store, terms, stop, step, told)
            search.run(before.decode())
    except (BudgetReached, Interrupted) as error:
        failure = error
    except BaseException as error:
        failure = error
        raise
    finally:
        progress.clear()
        engines.close()
        authors.close()
        others.close()
        judging.close()
        if search is None or not isinstance(failure, BudgetReached | Interrupted | None):
            purse.told(f"optimize {name}", failure)
            store.close()
    assert search is not None or failure is not None
    if search is None:
        raise failure  # type: ignore[misc]
    try:
        record = _keep(search, folder, store, repo)
    finally:
        store.close()
    if search.instructions is not None and repo is None:
        try:
            _write(folder, before, search.instructions, record["id"])
        except BaseException:
            purse.told(_summary(record))
            raise
    output = _cli.Output(threading.Event())
    if as_json:
        output.write(dump_line(arrange("optimization", record)))
    else:
        output.text(console.safe(report(record, console.width())))
    purse.told(_summary(record), failure)
    if failure is not None:
        if interrupts.hit:
            console.say(f"fatal: {failure}")
            return INTERRUPTED
        raise failure
    code = _cli.Tally(output.stop).code(interrupts, output)
    return code or {"keep": OK, "discard": NO}.get(record["decision"], UNTESTABLE)


def _instructions(folder: Folder, machine: Loaded) -> bytes:
    """The bytes of instructions.md. Raises MachineError for a machine that says them elsewhere."""
    if machine.ungateable:
        raise MachineError(machine.ungateable)
    data = folder.read(FILE)
    if data is None:
        where = folder.file(FILE)
        raise MachineError(f"'{folder.name}' has no {FILE} to improve; write its instructions into '{where}'")
    folder.instructions()
    return data


def _repository(project: Project, name: str) -> Repository:
    """The repository for a candidate: asked for before anything is bought."""
    repo = repository.open_repository(project.root)
    if repository.head(repo) is None or not trees.commit(repo, "HEAD").has(name):
        raise MachineError(
            f"HEAD has no machine '{name}' to make a candidate of; commit it, or leave out --no-write"
        )
    return repo


def _cases(folder: Folder) -> list[Record]:
    """The practice cases, without those that were ever held out: no author may see them."""
    cases = folder.cases()
    if not cases:
        raise no_cases(folder, "cases")
    splits = Splits(folder)
    kept = [case for case in cases if splits.of(case["identity"]) != "holdout"]
    if len(kept) < len(cases):
        left = console.count(len(cases) - len(kept), "case")
        console.say(f"warning: {left} of cases.jsonl left out: held out in its family or its history")
    if not kept:
        raise no_cases(folder, "cases")
    return kept


def _exam(folder: Folder, given: str | None) -> list[Record]:
    """The held-out cases: of the file that was named, else of the machine or its nearest parent."""
    if given is not None:
        return read_cases(given)
    exams = (
        [case for case in member.cases("holdout.jsonl") if not is_kept_out(case)]
        for member in folder.family()
    )
    return next((found for found in exams if found), [])


def _refuse_shared(folder: Folder, cases: Sequence[Record], exam: Sequence[Record]) -> None:
    practice = {case["identity"]: case["id"] for case in cases}
    for case in exam:
        if case["identity"] in practice:
            raise MachineError(
                f"{folder.path}: case '{practice[case['identity']]}' of cases.jsonl is held-out case "
                f"'{case['id']}' too; remove it from one of them"
            )


def _keep(search: Optimization, folder: Folder, store: Store, repo: Repository | None) -> Record:
    """Store the record; with a repository what is kept is made a candidate first, which it then names."""
    record = search.record()
    if repo is not None and search.instructions is not None:
        base = trees.commit(repo, "HEAD")
        changes = {FILE: search.instructions.encode() + b"\n"}
        model = folder.read("model.json")
        if model is not None and model != base.read(f"{base.prefix}/{folder.name}/model.json"):
            changes["model.json"] = model  # what was measured is the work tree's
        candidate = store.add_record(put_candidate(repo, folder.name, changes, "optimize", base))
        record["pending"] = candidate["version"][:12]
        if candidate["version"] != record["candidate"]:
            record["warnings"].append(
                "other_base: the candidate is made from HEAD, whose rubric or parent differs from what was "
                "measured"
            )
    return store.add_record(record)


def _write(folder: Folder, before: bytes, text: str, record: str) -> None:
    """Write instructions.md. Raises MachineError, and writes nothing, if it is not what it was."""
    path = os.path.realpath(folder.file(FILE))
    if folder.read(FILE) != before:
        raise MachineError(
            f"'{folder.file(FILE)}' changed meanwhile and is left as it is; to see what would be kept: "
            f"machine-show {record[:12]} --json | jq -r .instructions"
        )
    temporary = f"{path}.machine-tmp"
    with open(temporary, "wb") as file:
        os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777)
        file.write(text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _summary(record: Record) -> str:
    bought = record["bought"]
    runs = f"{bought['runs'] - bought['runs_now']} runs stored, {bought['runs_now']} run"
    author = f"{bought['author'] - bought['author_now']} of the author stored, {bought['author_now']} run"
    return f"{record['machine']}: {runs}; {author}"

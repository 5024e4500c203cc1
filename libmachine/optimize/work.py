"""One optimization under one purse: what is searched on, by whom, and what becomes of the result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libmachine import console, env
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import Record
from libmachine.case import is_kept_out
from libmachine.converse_other import Others
from libmachine.errors import Interrupted, MachineError
from libmachine.folder import Folder, read_cases
from libmachine.git import repository, trees
from libmachine.git.repository import Repository
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import Loaded, find, load_folder
from libmachine.optimize.rounds import Optimization, Sides, Terms
from libmachine.project import Project
from libmachine.promote import put_candidate
from libmachine.purse import Engines, Purse
from libmachine.splits import Splits
from libmachine.store.store import Store
from libmachine.suite.cases import no_cases, refuse_foreign, refuse_ungradable, warn_if_frozen

AUTHOR = "optimizer"
FILE = "instructions.md"
TERMS = ("rounds", "trials", "min_z", "screen", "pool", "merge", "confirm", "seed", "concurrency", "room")


class Search:
    """Instructions of a machine of the project, to be improved. Nothing is bought before run().

    options: those of machine-optimize by their names with underscores. pend: what is kept becomes a pending
    candidate. Raises MachineError for a machine that cannot be optimised, Untestable for one without
    cases or criteria.
    """

    def __init__(self, project: Project, name: str, options: Mapping[str, Any], pend: bool) -> None:
        self.project, self.options = project, options
        self.folder = refuse_foreign(project.root, name)
        self.machine = load_folder(self.folder)
        refuse_ungradable(self.machine)
        self.before = _instructions(self.folder, self.machine)
        self.repo = _repository(project, name) if pend else None
        self.cases, self.exam = _cases(self.folder), _exam(self.folder, options["holdout"])
        _refuse_shared(self.folder, self.cases, self.exam)
        self.terms = Terms(**{field: options[field] for field in TERMS})
        warn_if_frozen(self.machine.sampling(), self.terms.trials)
        if not self.exam:
            console.say(f"warning: '{name}' has no held-out cases; a gain is judged on its cases alone")
        self.kept: str | None = None
        """The text that is kept, after run()."""

    def run(
        self, purse: Purse, stop: threading.Event, told: Callable[[str], None] = console.say
    ) -> tuple[Record, BudgetReached | Interrupted | None]:
        """Search and decide; the `optimization` that was stored, and what cut the search short, if anything.

        told: takes each line of talk. Raises what else goes wrong, and what does before the search began.
        """
        name, project, options = self.folder.name, self.project, self.options
        judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
        judging = Judging(judge_model, options["judge_effort"], purse.judge)
        engines = Engines(purse, options["harness"])
        others = Others(purse)
        authors = Engines(purse, options["author_harness"], options["author"], kind="author")
        progress = console.Progress(f"optimize {name}", None)

        def say(line: str) -> None:
            progress.clear()
            told(line)

        store = project.open_store()
        failure: BudgetReached | Interrupted | None = None
        search: Optimization | None = None
        try:
            try:
                author = load_folder(find(AUTHOR, project.places))
                author_engine = authors.of(author)
                sides = Sides(
                    self.machine,
                    self.cases,
                    self.exam,
                    Grading(self.machine, judging),
                    engines.of(self.machine),
                    author,
                    Grading(author, judging),
                    author_engine,
                    others.of(self.machine),
                )
                search = Optimization(
                    sides,
                    store,
                    self.terms,
                    stop,
                    lambda run: progress.step(console.money(purse.ledger.spent())),
                    say,
                )
                search.run(self.before.decode())
            except (BudgetReached, Interrupted) as error:
                if search is None:
                    raise
                failure = error
            finally:
                progress.clear()
                engines.close()
                authors.close()
                others.close()
                judging.close()
            self.kept = search.instructions
            return _keep(search, self.folder, store, self.repo), failure
        finally:
            store.close()

    def write(self, record: Record) -> None:
        """Write what is kept into instructions.md. Raises MachineError if that is not what it was."""
        assert self.kept is not None
        _write(self.folder, self.before, self.kept, record["id"])


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

"""machine-train's work: sample, grade, choose, train, gate, as the plumbing does, under one purse.

Each stage is the function that machine-run, -grade, -sft and -gate call, so that the verb and the
pipe it prints leave the same objects. Nothing of the machine changes: what comes of it is a pending
candidate and its verdict.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from libmachine import console, env, measure
from libmachine.canon import Record, now, plain, usd
from libmachine.converse import runner_of
from libmachine.converse_other import Others
from libmachine.define import is_earlier_turn
from libmachine.errors import Interrupted, MachineError, Untestable
from libmachine.export_runs import from_store
from libmachine.gate.judge import judge
from libmachine.git import repository
from libmachine.grade import Grading, grade_and_store
from libmachine.harness import choose
from libmachine.judging import Judging
from libmachine.load import Loaded, load
from libmachine.measure import passed_of
from libmachine.project import Project
from libmachine.purse import Purse
from libmachine.record import record_id
from libmachine.run import Settings
from libmachine.sft import work
from libmachine.sft.prepare import prepare
from libmachine.splits import Splits
from libmachine.store.store import Store

Options = Mapping[str, Any]
"""The options of machine-train, by their names with underscores."""


def train(
    project: Project, name: str, options: Options, purse: Purse, stop: threading.Event
) -> Record | None:
    """The report (a `training` record) of one round, or None (told) if there was nothing to learn from.

    Raises Untestable if the gate cannot judge: the candidate is there all the same. Raises Interrupted,
    BudgetReached and MachineError; what was bought until then is stored.
    """
    machine = load(name, project.places)
    repo = repository.open_repository(project.root)
    started_at = now()
    store = project.open_store()
    try:
        runs, bought, graded = _material(project, machine, store, options, purse, stop)
        _go_on(stop)
        job = prepare(project, name, runs, store, False, {**_NO_CONTROL, **options})
        if job is None:
            return None
        candidate = work.train(job, store, stop, purse)
        _go_on(stop)
    finally:
        store.close()
    try:
        gate = {**_GATE, **{n: options[n] for n in _GATE if n in options}}
        gate["candidate"] = candidate["version"][:12]
        verdict = judge(project, repo, name, gate, stop, purse)
    except Untestable as error:
        raise Untestable(f"{error} (candidate {candidate['version'][:12]} is pending)") from None
    return _report(name, candidate, verdict, purse, started_at, runs, bought, graded, options)


_NO_CONTROL = {"placebo": False, "shuffle_answers": False}
_GATE: dict[str, Any] = {
    "base": "HEAD",
    "trials": 3,
    "on": "score",
    "min_z": 2.0,
    "strict": False,
    "no_worse": False,
    "no_confirm": False,
    "judge_by": None,
    "judge_model": None,
    "judge_effort": None,
    "harness": None,
    "seed": 0,
    "concurrency": 4,
    "rerun": False,
    "reuse_live": None,
}
"""What machine-gate is asked with; options of the same names override."""


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("interrupted; what was bought is stored, the same command goes on from there")


def _material(
    project: Project, machine: Loaded, store: Store, options: Options, purse: Purse, stop: threading.Event
) -> tuple[list[Record], int, int]:
    """Graded runs to choose from, how many of them were sampled now, and how many graded now."""
    judging = Judging(
        options["judge_model"] or env.get("MACHINE_JUDGE_MODEL"), options["judge_effort"], purse.judge
    )
    grading = Grading(machine, judging)
    try:
        if options["samples"]:
            return _sampled(project, machine, store, options, purse, grading, stop)
        return _stored(project, machine, store, grading, stop)
    finally:
        judging.close()
        purse.told(f"train {machine.name}: sampled and graded")


def _sampled(
    project: Project,
    machine: Loaded,
    store: Store,
    options: Options,
    purse: Purse,
    grading: Grading,
    stop: threading.Event,
) -> tuple[list[Record], int, int]:
    cases = machine.folder.cases("cases.jsonl")
    if not cases:
        raise MachineError(f"'{machine.name}' has no cases; write {machine.folder.file('cases.jsonl')}")
    engine = purse.bill(
        choose.engine(
            machine.model,
            options["harness"],
            progress=console.say,
            trained=project.trained,
            store=project.store,
        ),
        "run",
        machine.name,
    )
    total = len({case["identity"] for case in cases}) * options["samples"]
    progress = console.Progress(f"sampling {machine.name}", total, purse.ledger.spent)
    others = Others(purse)
    try:
        settings = Settings(sampling=machine.sampling(), seed=options["seed"])
        arm = measure.Arm(machine.name, runner_of(machine, engine, store, settings, others.of(machine)))
        done = measure.measure(
            [arm],
            cases,
            options["samples"],
            grading,
            store,
            options["concurrency"],
            stop,
            lambda run: progress.step(),
        )
    finally:
        progress.clear()
        others.close()
        engine.close()
    runs = list(done.all(machine.name))
    console.say(f"{machine.name}: {len(runs) - done.bought} stored, {done.bought} run")
    return runs, done.bought, done.bought


def _stored(
    project: Project, machine: Loaded, store: Store, grading: Grading, stop: threading.Event
) -> tuple[list[Record], int, int]:
    """What is stored and not held out, graded where that is due."""
    splits = Splits(machine.folder)
    runs, graded = [], 0
    for run in from_store(project, machine.name, tree=False):
        _go_on(stop)
        if is_earlier_turn(run) or splits.of(run["case"]["identity"]) == "holdout":
            continue
        run, new = grade_and_store(grading, store, run, stop=stop)
        graded += new
        runs.append(run)
    if not runs:
        console.say(f"no stored run of '{machine.name}'; --samples N samples each case N times first")
    return runs, 0, graded


def _report(
    name: str,
    candidate: Record,
    verdict: Record,
    purse: Purse,
    started_at: str,
    runs: list[Record],
    bought: int,
    graded: int,
    options: Options,
) -> Record:
    passed = [passed_of(run) for run in runs]
    record = plain(
        {
            "v": 1,
            "type": "training",
            "machine": name,
            "base_version": candidate["base_version"],
            "version": candidate["version"],
            "candidate": candidate["id"],
            "samples": options["samples"],
            "runs": len(runs),
            "bought": bought,
            "graded": graded,
            "passed": sum(value is True for value in passed),
            "data": candidate["data"],
            "training": candidate["training"],
            "verdict": {key: value for key, value in verdict.items() if key != "evidence"},
            "decision": verdict["decision"],
            "cost_usd": usd(purse.ledger.spent()),
            "started_at": started_at,
            "measured_at": now(),
        }
    )
    return {**record, "id": record_id(record)}

"""The work behind machine-suite's options."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from libmachine import console, env, measure, suite
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import Record, dump_line, now, plain
from libmachine.cmd import _cli
from libmachine.cmd._measure import Watch
from libmachine.controls import control, read_references
from libmachine.converse import runner_of
from libmachine.converse_other import Others
from libmachine.errors import NO, OK, Untestable
from libmachine.folder import Folder
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import Loaded, find, load_folder
from libmachine.purse import Engines, Purse
from libmachine.run import Runner, Settings
from libmachine.store.store import Store
from libmachine.suite_cases import cases_of, no_cases, refuse_ungradable, warn_if_frozen, with_id
from libmachine.suite_report import report


@dataclass
class _Member:
    """One machine of the suite: what it is run on, how it is graded, the runs that came of it."""

    machine: Loaded
    cases: list[Record]
    grading: Grading
    runs: list[Record]


def main(workspace: str | None, name: str, as_json: bool, **options: Any) -> int:
    """Run, grade, print, count."""
    project = _cli.project(workspace)
    folder = find(name, project.places)
    if options["oracle"] is not None or options["noop"]:
        return _controls(folder, as_json, options)
    purse = Purse(project, "suite", options["budget"], options["price_as"])
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    members = _members(folder, options, judging)
    engines = Engines(purse, options["harness"], options["model"], options["base_url"])
    others = Others(purse)
    stop = threading.Event()
    tally = _cli.Tally(stop, options["allow_failed"])
    total = sum(len({c["identity"] for c in m.cases}) for m in members) * options["trials"]
    watch = Watch(f"suite {name}", total, purse, tally)
    heads: list[Record] = []
    failure: BaseException | None = None
    bought = 0
    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts:
            runners = [_runner(member.machine, engines, others, store, options) for member in members]
            heads = [_head(m, runner, options) for m, runner in zip(members, runners, strict=True)]
            for member, runner in zip(members, runners, strict=True):
                if not stop.is_set():
                    bought += _measure(member, runner, store, options, stop, watch)
    except BudgetReached as error:
        failure = error
    except BaseException as error:
        failure = error
        raise
    finally:
        watch.progress.clear()
        store.close()
        engines.close()
        others.close()
        judging.close()
        if not isinstance(failure, BudgetReached):
            purse.told(_summary(watch, bought, failure), failure)
    output = _cli.Output(threading.Event())
    if watch.runs:
        record = _family(folder, members, heads) if options["tree"] else _record(members[0], heads[0])
        if as_json:
            output.write(dump_line(record))
        else:
            told = watch.runs if options["verbose"] else []
            told = sorted(told, key=lambda run: (run["case"]["id"], run["trial"]))
            output.text(console.safe(report(record, console.width(), told, options["verbose"])))
    if failure is not None:
        purse.told(_summary(watch, bought, failure), failure)
        raise failure
    return tally.code(interrupts, output)


def _members(folder: Folder, options: dict[str, Any], judging: Judging) -> list[_Member]:
    """The machine, with --tree its descendants too. Raises Untestable if there is nothing to run or grade."""
    found = []
    for place in [folder, *folder.descendants()] if options["tree"] else [folder]:
        cases = cases_of(place, options["on"])
        machine = load_folder(place)
        if cases:
            refuse_ungradable(machine)
        elif options["tree"]:
            console.say(f"{place.name}: no cases, not run")
        found.append(_Member(machine, cases, Grading(machine, judging), []))
    if not any(member.cases for member in found):
        raise no_cases(folder, options["on"])
    return [member for member in found if member.cases]


def _runner(
    machine: Loaded, engines: Engines, others: Others, store: Store, options: dict[str, Any]
) -> Runner:
    sampling = machine.sampling(**{name: options[name] for name in ("temperature", "max_tokens", "effort")})
    warn_if_frozen(sampling, options["trials"])
    settings = Settings(sampling=sampling, seed=options["seed"], resume=options["resume"])
    return runner_of(machine, engines.of(machine), store, settings, others.of(machine))


def _measure(
    member: _Member,
    runner: Runner,
    store: Store,
    options: dict[str, Any],
    stop: threading.Event,
    watch: Watch,
) -> int:
    """Run and grade one machine's cases; how many runs were bought."""

    def step(run: Record) -> None:
        member.runs.append(run)
        watch.step(run)

    arms = [measure.Arm(member.machine.name, runner)]
    trials, concurrency = options["trials"], options["concurrency"]
    done = measure.measure(arms, member.cases, trials, member.grading, store, concurrency, stop, step)
    return done.bought


def _head(member: _Member, runner: Runner, options: dict[str, Any]) -> Record:
    return {
        "machine": member.machine.name,
        "version": member.machine.version,
        "revision": runner.revision,
        "engine": [runner.engine.model, runner.engine.name],
        "rubric": member.grading.rubric,
        "on": options["on"],
        "trials": options["trials"],
    }


def _record(member: _Member, head: Record) -> Record:
    """The record of one machine."""
    record = suite.suite(head, member.machine.criteria, member.cases, member.runs)
    return with_id("suite", {**record, "measured_at": now()})


def _family(folder: Folder, members: list[_Member], heads: list[Record]) -> Record:
    """The record of the machine, empty if it has no cases of its own, with those of the family in it."""
    done = [_record(member, head) for member, head in zip(members, heads, strict=True)]
    common = suite.family([(r, m.machine.criteria, m.runs) for r, m in zip(done, members, strict=True)])
    first = done[0]
    if first["machine"] != folder.name:
        head = {**heads[0], "machine": folder.name, "version": folder.version()}
        first = {**suite.suite(head, load_folder(folder).criteria, [], []), "measured_at": now()}
    return with_id("suite", {**first, "family": {"members": done, "criteria": common}})


def _summary(watch: Watch, bought: int, failure: BaseException | None) -> str:
    cases = len({(run["machine"], run["case"]["identity"]) for run in watch.runs})
    if failure is not None:
        return f"{console.count(cases, 'case')}: {console.count(len(watch.runs), 'run')} graded"
    return f"{console.count(cases, 'case')}: {len(watch.runs) - bought} stored, {bought} run"


def _controls(folder: Folder, as_json: bool, options: dict[str, Any]) -> int:
    """--oracle and --noop: name the cases that fail their controls. Calls no model, stores nothing."""
    machine = load_folder(folder)
    if machine.counterpart is not None:
        raise Untestable(f"'{machine.name}' has a counterpart: a conversation has no reference answer to try")
    cases = cases_of(folder, options["on"])
    if not cases:
        raise no_cases(folder, options["on"])
    grading = Grading(machine)
    found: list[Record] = []
    wanted: list[str] = []
    if options["oracle"] is not None:
        references = read_references(options["oracle"], cases)
        wanted.append(f"{console.count(len(references), 'reference')} of {console.count(len(cases), 'case')}")
        found += control(machine, grading, cases, references)
    if options["noop"]:
        wanted.append(f"an empty answer to {console.count(len(cases), 'case')}")
        found += control(machine, grading, cases, None)
    output = _cli.Output(threading.Event())
    failed = sorted({line["case"] for line in found})
    if as_json:
        record = {"v": 1, "type": "controls", "machine": machine.name, "on": options["on"]}
        output.write(dump_line(plain({**record, "cases": len(cases), "failed": failed, "failures": found})))
        return NO if found else OK
    if found:
        output.text(console.safe(_control_table(found)).rstrip("\n"))
        told = (
            f"{console.count(len(failed), 'case')} failed: mend the check or the case, then run this again."
        )
    else:
        told = f"Every control held. Next: machine-suite {machine.name}"
    output.text(f"controls of {machine.name}: {', '.join(wanted)}\n{told}")
    return NO if found else OK


def _control_table(found: list[Record]) -> str:
    rows = [["control", "score", "case", "why"]]
    for line in found:
        score = "-" if line["score"] is None else f"{line['score']:.2f}"
        why = f"{line['criterion']}: {line['why']}" if line["criterion"] else line["why"]
        room = console.width()
        rows.append(
            [line["control"], score, console.one_line(line["case"], room // 4), console.one_line(why, room)]
        )
    return console.table(rows, console.width(), right=(1,))

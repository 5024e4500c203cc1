"""The work behind machine-suite's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console, env
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import Record, dump_line, plain
from libmachine.case import label
from libmachine.cases import locked, mark_kept_out
from libmachine.cmd import _cli
from libmachine.cmd._measure import Watch
from libmachine.controls import control, read_references
from libmachine.errors import NO, OK, Untestable, UsageError
from libmachine.folder import Folder
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import find, load_folder
from libmachine.purse import Purse
from libmachine.suite.cases import cases_of, no_cases
from libmachine.suite.report import report
from libmachine.suite.work import Suite


def main(workspace: str | None, name: str, as_json: bool, **options: Any) -> int:
    """Run, grade, print, count."""
    project = _cli.project(workspace)
    folder = find(name, project.places)
    if options["keep_out"] and options["oracle"] is None and not options["noop"]:
        raise UsageError("--keep-out goes with --oracle or --noop")
    if options["oracle"] is not None or options["noop"]:
        return _controls(folder, as_json, options)
    purse = Purse(project, "suite", options["budget"], options["price_as"])
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    found = Suite(folder, options, judging)
    stop = threading.Event()
    tally = _cli.Tally(stop, options["allow_failed"])
    watch = Watch(f"suite {name}", found.total, purse, tally)
    failure: BaseException | None = None
    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts:
            found.run(purse, store, stop, watch.step)
    except BudgetReached as error:
        failure = error
    except BaseException as error:
        failure = error
        raise
    finally:
        watch.progress.clear()
        store.close()
        judging.close()
        if not isinstance(failure, BudgetReached):
            purse.told(_summary(watch, found.bought, failure), failure)
    output = _cli.Output(threading.Event())
    if watch.runs:
        record = found.record()
        if as_json:
            output.write(dump_line(record))
        else:
            told = watch.runs if options["verbose"] else []
            told = sorted(told, key=lambda run: (run["case"]["id"], run["trial"]))
            width = console.width()
            names = {c["identity"]: label(c, width) for member in found.members for c in member.cases}
            output.text(report(record, width, told, options["verbose"], names))
    if failure is not None:
        purse.told(_summary(watch, found.bought, failure), failure)
        raise failure
    return tally.code(interrupts, output)


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
    tried: set[str] = set()
    if options["oracle"] is not None:
        references = read_references(options["oracle"], cases)
        wanted.append(f"{console.count(len(references), 'reference')} of {console.count(len(cases), 'case')}")
        tried.update(references)
        found += control(machine, grading, cases, references)
    if options["noop"]:
        wanted.append(f"an empty answer to {console.count(len(cases), 'case')}")
        tried.update(case["identity"] for case in cases)
        found += control(machine, grading, cases, None)
    if options["keep_out"]:
        _keep_out(folder, options["on"], found, tried)
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


def _keep_out(folder: Folder, on: str, found: list[Record], tried: set[str]) -> None:
    """Mark the cases that failed in their file, and take the mark off those that hold now."""
    if on not in ("cases", "holdout"):
        raise UsageError("--keep-out marks the machine's own cases; say --on cases or --on holdout")
    failed: dict[str, str | None] = dict.fromkeys(tried)
    for line in found:
        failed.setdefault(line["identity"], None)
        failed[line["identity"]] = failed[line["identity"]] or line["control"]
    with locked(folder):
        changed = mark_kept_out(folder, f"{on}.jsonl", failed)
    console.say(f"{folder.file(f'{on}.jsonl')}: {console.count(changed, 'case')} marked or unmarked")


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

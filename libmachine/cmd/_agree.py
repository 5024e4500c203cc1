"""The work behind machine-agree's options."""

from __future__ import annotations

import difflib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, env, pool
from libmachine.agree.figures import Figures, held, record
from libmachine.agree.pairs import Pair, Pairing, Terms, candidate_of
from libmachine.agree.report import report
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import dump_line
from libmachine.cmd import _cli
from libmachine.define import is_earlier_turn
from libmachine.errors import INTERRUPTED, NO, UNTESTABLE, MachineError, Untestable
from libmachine.folder import Criterion
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import Loaded, load
from libmachine.purse import Purse
from libmachine.store.store import Store
from libmachine.suite.cases import with_id

Row = dict[str, Any]


def main(workspace: str | None, name: str, criterion: str, as_json: bool, **options: Any) -> int:
    """Grade again, compare, print."""
    project = _cli.project(workspace)
    machine = load(name, project.places)
    asked = _criterion(machine, criterion)
    model, effort = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL"), options["judge_effort"]
    terms = Terms(options["how"], options["against"], options["repeat"])
    grader = candidate_of(machine.graders[asked.id], terms.how, options["judge_model"], effort)
    purse = Purse(project, "agree", options["budget"], options["price_as"])
    # the options are of the candidate alone, unless both are one grader
    own = (model, effort) if terms.how == "same" else (env.get("MACHINE_JUDGE_MODEL"), None)
    judgings = [Judging(own[0], own[1], purse.judge), Judging(model, effort, purse.judge)]
    stop = threading.Event()
    tally = _cli.Tally(stop)
    figures = Figures()
    progress = console.Progress(f"agree {name}", None, purse.ledger.spent)
    failure: BaseException | None = None
    found: dict[str, Any] | None = None
    who = "nobody"
    store = project.open_store()
    try:
        reference, candidate = (Grading(machine, judging) for judging in judgings)
        pairing = Pairing(reference, candidate, asked, grader, store, terms)
        with _cli.Interrupts(stop) as interrupts:
            rows = _rows(store, machine, options["last"])
            for pair in pool.stream(pairing.pair, rows, options["concurrency"], True, stop):
                progress.clear()
                who = pairing.identity(pair.run) if pair and figures.sweep.n == 0 else who
                _count(figures, pair, terms, tally)
                progress.step()
        found = with_id("agreement", record(pairing, figures, who)) if figures.sweep.n else None
    except BudgetReached as error:
        failure = error
        found = with_id("agreement", record(pairing, figures, who)) if figures.sweep.n else None
    except BaseException as error:
        failure = error
        raise
    finally:
        progress.clear()
        purse.told(_summary(figures), failure)
        store.close()
        for judging in judgings:
            judging.close()
    output = _cli.Output(threading.Event())
    if found is not None:
        told = console.safe(report(found, console.width()))
        output.write(dump_line(found)) if as_json else output.text(told)
    if failure is not None:
        raise failure
    if found is None and interrupts.hit:
        return INTERRUPTED
    if found is None:
        raise Untestable(_nothing(figures, name, criterion, terms))
    code = tally.code(interrupts, output)
    return _verdict(found, options["require_kappa"], options["max_false_pass"]) or code


def _criterion(machine: Loaded, wanted: str) -> Criterion:
    for criterion in machine.criteria:
        if criterion.id == wanted:
            return criterion
    known = [criterion.id for criterion in machine.criteria]
    near = difflib.get_close_matches(wanted, known, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known) or 'none'}"
    raise MachineError(f"'{machine.name}' has no criterion '{wanted}'; {hint}")


def _rows(store: Store, machine: Loaded, last: int | None) -> Iterator[Row]:
    """Rows of the runs, newest first, page by page; of a conversation its last turn alone."""
    if store.has_records():
        rows = store.index.runs(machine.name)
        if machine.counterpart is not None:
            rows = (row for row in rows if not is_earlier_turn(store.load_run(row, scorecard=False)))
        yield from itertools.islice(rows, last)


def _count(figures: Figures, pair: Pair | None, terms: Terms, tally: _cli.Tally) -> None:
    wrong = figures.add(pair, same=terms.how == "same" and terms.against == "grader")
    if wrong is not None and pair is not None:
        tally.note(f"run {pair.run['id'][:12]}: {wrong}")


def _summary(figures: Figures) -> str:
    told = f"{console.count(figures.runs, 'run')}: {figures.sweep.n} compared"
    told += f", {figures.stored} reference grades stored" if figures.stored else ""
    return told


def _nothing(figures: Figures, name: str, criterion: str, terms: Terms) -> str:
    """Why there is no run to compare."""
    if not figures.runs:
        return f"'{name}' has no stored runs here; machine-run {name} makes some"
    counts = {
        "failed": figures.failed,
        "without a reference grade": figures.no_reference,
        "not concerned": figures.not_applicable,
        "with an error of the candidate": figures.candidate_errors,
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    remedy = f"; machine-mark RUN --criterion {criterion} --good|--bad" if terms.against == "marks" else ""
    return f"no usable run of {figures.runs} ({told}): there is nothing to compare{remedy}"


def _verdict(found: dict[str, Any], kappa: float | None, false_pass: float | None) -> int:
    """The exit code of what is required; 0 if it holds."""
    good, why = held(found, kappa, false_pass)
    if good:
        return 0
    console.say(why)
    return UNTESTABLE if good is None else NO

"""The work behind machine-compare's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console, env
from libmachine.canon import dump_line
from libmachine.case import label
from libmachine.cmd import _cli
from libmachine.cmd._measure import Watch
from libmachine.compare.comparison import Sides, Terms, compare, find_base, loaded_base
from libmachine.compare.report import report
from libmachine.converse_other import Others
from libmachine.errors import INTERRUPTED, UNTESTABLE, Untestable
from libmachine.git import repository
from libmachine.grade import Grading
from libmachine.judging import Judging
from libmachine.load import load_folder
from libmachine.purse import Engines, Purse
from libmachine.suite.cases import (
    cases_of,
    no_cases,
    refuse_foreign,
    refuse_ungradable,
    warn_if_frozen,
    with_id,
)


def main(workspace: str | None, name: str, as_json: bool, **options: Any) -> int:
    """Load both versions, measure, print."""
    project = _cli.project(workspace)
    folder = refuse_foreign(project.root, name)
    repo = repository.open_repository(project.root)
    base = find_base(repo, name, options["base"])
    work = load_folder(folder)
    refuse_ungradable(work)
    cases = cases_of(folder, options["cases"])
    if not cases:
        raise no_cases(folder, options["cases"])
    warn_if_frozen(work.sampling(), options["trials"])
    purse = Purse(project, "compare", options["budget"], options["price_as"])
    judge_model = options["judge_model"] or env.get("MACHINE_JUDGE_MODEL")
    judging = Judging(judge_model, options["judge_effort"], purse.judge)
    engines = Engines(purse, options["harness"])
    others = Others(purse)
    stop = threading.Event()
    tally = _cli.Tally(stop)
    total = 2 * options["trials"] * len({case["identity"] for case in cases})
    watch = Watch(f"compare {name}", total, purse, tally)
    terms = Terms(
        options["cases"], options["trials"], options["concurrency"], options["seed"], options["resume"]
    )
    failure: BaseException | None = None
    store = project.open_store()
    try:
        with _cli.Interrupts(stop) as interrupts, loaded_base(base, name) as old:
            grading = Grading(work, judging)
            sides = Sides(base, old, work)
            facing = others.of(work)
            record = compare(sides, cases, terms, grading, store, engines.of, stop, watch.step, facing)
    except BaseException as error:
        failure = error
        if isinstance(error, Untestable) and interrupts.hit:
            console.say(f"fatal: {error}")
            return INTERRUPTED
        raise
    finally:
        watch.progress.clear()
        purse.told(f"{console.count(len(watch.runs), 'run')} graded", failure)
        store.close()
        engines.close()
        others.close()
        judging.close()
    record = with_id("comparison", record)
    output = _cli.Output(threading.Event())
    if as_json:
        output.write(dump_line(record))
    else:
        width = console.width()
        names = {case["identity"]: label(case, width) for case in cases}
        output.text(report(record, width, names))
    code = tally.code(interrupts, output)
    return UNTESTABLE if record["mean_diff"] is None else code

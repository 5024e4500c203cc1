"""The work behind machine-optimize's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console
from libmachine.canon import Record, dump_line
from libmachine.cmd import _cli
from libmachine.errors import INTERRUPTED, NO, OK, UNTESTABLE
from libmachine.optimize.report import report
from libmachine.optimize.work import Search
from libmachine.purse import Purse
from libmachine.record import arrange


def main(workspace: str | None, name: str, as_json: bool, no_write: bool, **options: Any) -> int:
    """Search, write or leave a candidate, print."""
    project = _cli.project(workspace)
    search = Search(project, name, options, pend=no_write)
    purse = Purse(project, "optimize", options["budget"], options["price_as"])
    stop = threading.Event()
    try:
        with _cli.Interrupts(stop) as interrupts:
            record, failure = search.run(purse, stop, console.say)
    except BaseException as error:
        purse.told(f"optimize {name}", error)
        raise
    if search.kept is not None and not no_write:
        try:
            search.write(record)
        except BaseException:
            purse.told(_summary(record))
            raise
    output = _cli.Output(threading.Event())
    if as_json:
        output.write(dump_line(arrange("optimization", record)))
    else:
        output.text(report(record, console.width()))
    purse.told(_summary(record), failure)
    if failure is not None:
        if interrupts.hit:
            console.say(f"fatal: {failure}")
            return INTERRUPTED
        raise failure
    code = _cli.Tally(output.stop).code(interrupts, output)
    return code or {"keep": OK, "discard": NO}.get(record["decision"], UNTESTABLE)


def _summary(record: Record) -> str:
    bought = record["bought"]
    runs = f"{bought['runs'] - bought['runs_now']} runs stored, {bought['runs_now']} run"
    author = f"{bought['author'] - bought['author_now']} of the author stored, {bought['author_now']} run"
    return f"{record['machine']}: {runs}; {author}"

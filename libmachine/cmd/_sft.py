"""The work behind machine-sft's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console
from libmachine.canon import Record
from libmachine.cmd import _cli, _export, _sft_show
from libmachine.errors import NO, MachineError
from libmachine.export_runs import from_store
from libmachine.purse import Purse
from libmachine.sft.prepare import prepare
from libmachine.sft.work import train


def main(workspace: str | None, name: str | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Choose, check, price; then train, or say what would be done."""
    project = _cli.project(workspace)
    stop = threading.Event()
    tally = _cli.Tally(stop)
    if name is None:
        runs = list(_export.from_stdin(tally))
    else:
        runs = list(from_store(project, name, tree=False))
    machine = _machine_of(runs, name)
    if machine is None:
        console.say("no graded run to learn from")
        return tally.code() or NO
    store = project.open_store()
    try:
        job = prepare(project, machine, runs, store, dry_run, options)
        output = _cli.Output(stop)
        if job is None:
            return tally.code() or NO
        if dry_run:
            _sft_show.show_plan(job, output, as_json)
            return tally.code(output=output)
        purse = Purse(project, "sft", options["budget"], options["price_as"])
        with _cli.Interrupts(stop) as interrupts:
            record = train(job, store, stop, purse)
        _sft_show.show(record, output, as_json)
        return tally.code(interrupts, output)
    finally:
        store.close()


def _machine_of(runs: list[Record], name: str | None) -> str | None:
    """The one machine that is trained, None without runs."""
    names = sorted({run["machine"] for run in runs})
    if len(names) > 1:
        raise MachineError(
            f"runs of several machines: {', '.join(names[:5])}; name the one to train: machine-sft {names[0]}"
        )
    return names[0] if names else None

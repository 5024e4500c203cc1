"""The work behind machine-select's options."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from libmachine import console, jsonl
from libmachine.canon import Record, RecordError
from libmachine.cmd import _cli
from libmachine.errors import NO, UsageError
from libmachine.record import read_record
from libmachine.select import Counter, Wanted, identities, select
from libmachine.times import since as moment


def main(workspace: str | None, **options: Any) -> int:
    """Filter stdin."""
    _cli.refuse_terminal("runs", "pipe them in: ... | machine-grade | machine-select --best 2")
    stop = threading.Event()
    tally = _cli.Tally(stop)
    output = _cli.Output(stop)
    wanted = Wanted(
        best=options["best"],
        distinct=options["distinct"],
        min_score=options["min_score"],
        passing=options["passing"],
        since=moment(options["since"]) if options["since"] else None,
        at=version(options["at"], workspace) if options["at"] else None,
        split=options["split"],
        cases=identities(options["cases"]) if options["cases"] else None,
        not_cases=identities(options["not_cases"]) if options["not_cases"] else frozenset(),
    )
    runs: Iterator[tuple[bytes, Record]] = _runs(tally)
    counter = Counter()
    kept = 0
    for raw in select(counter.watch(runs) if options["verbose"] else runs, wanted):
        output.write(raw if raw.endswith(b"\n") else raw + b"\n")
        kept += 1
        if output.gone:
            break
    if options["verbose"]:
        console.say(counter.report())
    code = tally.code(output=output)
    return NO if options["fail_empty"] and not kept and not code else code


def _runs(tally: _cli.Tally) -> Iterator[tuple[bytes, Record]]:
    for line in jsonl.read(0):
        try:
            if line.error:
                raise RecordError(line.error)
            yield line.raw, read_record(line.value, "run")
        except RecordError as error:
            tally.bad_line(line.number, str(error))


def version(text: str, workspace: str | None) -> str:
    """The begin of a version id that --at names. Raises UsageError."""
    name, at, rest = text.partition("@")
    if at and not rest:
        from libmachine.load import find

        return find(name, _cli.project(workspace).places).version()
    if not (4 <= len(text) <= 40 and set(text) <= set("0123456789abcdef")):
        raise UsageError(f"'{text}' is no version; give 4 to 40 hex digits of its id, or NAME@")
    return text

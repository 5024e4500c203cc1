"""The work behind machine-export --to: cases and runs in the files of other tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from libmachine import console
from libmachine.canon import Record, dump_line
from libmachine.cmd import _cli, _export
from libmachine.errors import NO, MachineError, UsageError
from libmachine.interchange import evals, inspect_write, promptfoo
from libmachine.interchange.rows import Unfit
from libmachine.load import find

_CASES: dict[str, Callable[[Mapping[str, Any]], Record]] = {
    "inspect": inspect_write.sample,
    "promptfoo": promptfoo.as_test,
    "openai": evals.sample,
}
_RUNS = {
    "promptfoo": "promptfoo has no way in for results of others; --to inspect makes a log",
    "openai": "for OpenAI runs are training data: machine-export --format openai",
}


def main(workspace: str | None, name: str | None, to: str | None, on: str | None, out: str | None) -> int:
    """Write the cases of a machine, or the runs on stdin, in another tool's form."""
    if to is None:
        raise UsageError("--on goes with --to")
    if on not in (None, "cases", "holdout"):
        raise UsageError(f"--on is cases or holdout, not '{on}'")
    project = _cli.project(workspace)
    tally = _cli.Tally(threading.Event())
    output = _cli.Output(tally.stop)
    if name is not None:
        folder = find(name, project.places)
        rows = list(_cases(folder.cases(f"{on or 'cases'}.jsonl"), to, tally))
        count, what = len(rows), "case"
        if to == "promptfoo":
            rows = [promptfoo.configuration(name, rows)] if rows else []
    else:
        if on is not None:
            raise UsageError("--on goes with a machine's name: machine-export NAME --to ...")
        if to in _RUNS:
            raise UsageError(_RUNS[to])
        _cli.refuse_terminal(
            "runs", f"pipe them in, or name a machine for its cases: machine-export NAME --to {to}"
        )
        runs = list(_export.from_stdin(tally))
        _refuse_mixture(runs)
        rows, count, what = [inspect_write.log(runs)] if runs else [], len(runs), "run"
    _write(output, rows, out)
    console.say(f"{console.count(count, what)}; graders are code and stay here")
    return tally.code(output=output) or (0 if count else NO)


def _cases(found: list[Record], to: str, tally: _cli.Tally) -> Iterator[Record]:
    for case in found:
        try:
            yield _CASES[to](case)
        except Unfit as error:
            tally.note(f"case '{case['id']}': {error}; left out")


def _refuse_mixture(runs: list[Record]) -> None:
    """Raise MachineError for runs that are not of one machine, version and model: a log has one of each."""
    for field in ("machine", "version", "model"):
        values = sorted({str(run[field]) for run in runs})
        if len(values) > 1:
            told = " and ".join(f"'{value}'" for value in values[:2])
            raise MachineError(
                f"runs of {told} are two logs; choose: jq -c 'select(.{field} == \"{values[0]}\")'"
            )


def _write(output: _cli.Output, rows: list[Record], out: str | None) -> None:
    if out is None:
        for row in rows:
            output.write(dump_line(row))
        return
    _export._to_file(out, iter(rows))

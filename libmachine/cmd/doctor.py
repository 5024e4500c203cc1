"""machine-doctor: say what works here and how to mend the rest."""

from __future__ import annotations

import click

from libmachine.cmd import _cli

_MARGIN = 19
"""Columns of the state and the thing."""


@click.command("machine-doctor", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--prices", is_flag=True, help="Print the price table instead, dated, with its sources.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def command(workspace: str | None, prices: bool, as_json: bool) -> int:
    """One line for each thing the tools need: whether it works here, and the command that mends it."""
    import sys
    import threading

    from libmachine import console, doctor
    from libmachine.canon import dump_line

    if prices:
        return _prices(as_json)
    findings = doctor.examine(_cli.project(workspace))
    output = _cli.Output(threading.Event())
    if as_json:
        rows = [finding._asdict() for finding in findings]
        output.write(dump_line({"v": 1, "type": "doctor", "findings": rows}))
    else:
        room = console.width() - _MARGIN if console.is_terminal(1) else sys.maxsize
        for finding in findings:
            mark = {"ok": "ok  ", "missing": "miss", "broken": "FAIL"}[finding.state]
            head = f"{mark}  {finding.thing:<12} "
            for number, line in enumerate(console.fold(finding.detail, room)):
                output.text(f"{head if not number else ' ' * _MARGIN}{line}")
            if finding.remedy:  # whole, however long: it is to be copied
                output.text(f"      type: {console.safe(finding.remedy)}")
    code = _cli.Tally(output.stop).code(output=output)
    return code or int(any(finding.state == "broken" for finding in findings))


def _prices(as_json: bool) -> int:
    """The price table: USD per million tokens in, cached, out, trained."""
    import threading

    from libmachine import console
    from libmachine import prices as table
    from libmachine.canon import dump_line, plain

    output = _cli.Output(threading.Event())
    rows = [["model", "in", "cached", "out", "train", "date", "source"]]
    for model, price in sorted(table.table().items()):
        if as_json:
            output.write(dump_line(plain({"model": model, **price._asdict()})))
        figures = ["-" if usd is None else f"{usd:.3f}" for usd in price[:4]]
        rows.append([console.one_line(model, 36), *figures, price.date, console.one_line(price.source, 200)])
    if not as_json:
        output.text(console.table(rows, console.width(), right=(1, 2, 3, 4)).rstrip("\n"))
        output.text("USD per million tokens")
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

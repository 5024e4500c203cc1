"""machine-list: list machines."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli


@click.command("machine-list", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(workspace: str | None, as_json: bool) -> int:
    """List the machines of the project, of MACHINE_PATH and the built-in ones, running none of them."""
    import threading

    from libmachine import console
    from libmachine.canon import dump_line
    from libmachine.load import names

    project = _cli.project(workspace)
    tally = _cli.Tally(threading.Event())
    output = _cli.Output(tally.stop)
    rows = [["machine", "model", "criteria", "cases", "held out", "where"]]
    for name, folder in names(project.places).items():
        row = _describe(name, folder, tally)
        if as_json or not console.is_terminal(1):
            output.write(dump_line(row))
        else:
            cells = [
                name,
                row["model"] or "-",
                ", ".join(row["criteria"]) or "-",
                row["cases"],
                row["holdout"],
            ]
            rows.append([console.one_line(str(cell), 40) for cell in (*cells, row["where"])])
    if len(rows) > 1:
        output.text(console.table(rows, console.width(), right=(3, 4)).rstrip("\n"))
    return tally.code(output=output)


def _describe(name: str, folder: Any, tally: _cli.Tally) -> dict[str, Any]:
    """What a machine's files say; a file that is wrong is told and leaves its field empty."""
    from libmachine.errors import MachineError

    row: dict[str, Any] = {"name": name, "where": folder.path, "version": folder.version()}
    for field, read in (
        ("model", lambda: folder.model().model),
        ("criteria", lambda: [criterion.id for criterion in folder.criteria()]),
        ("cases", lambda: len(folder.cases("cases.jsonl"))),
        ("holdout", lambda: len(folder.cases("holdout.jsonl"))),
    ):
        try:
            row[field] = read()
        except MachineError as error:
            tally.note(str(error))
            row[field] = [] if field == "criteria" else None
    return row


main = _cli.entry(command)

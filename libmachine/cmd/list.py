"""machine-list: list machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from libmachine.cmd import _cli

if TYPE_CHECKING:
    from libmachine.project import Project


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
    rows = [["machine", "cases", "held out", "where", "model", "criteria"]]
    for name, folder in names(project.places).items():
        row = _describe(name, folder, tally)
        if as_json or not console.is_terminal(1):
            output.write(dump_line(row))
        else:
            cells = [name, *("-" if row[side] is None else str(row[side]) for side in ("cases", "holdout"))]
            cells += [_where(row["where"], project), row["model"] or "-", ", ".join(row["criteria"]) or "-"]
            rows.append([console.one_line(cell, 200) for cell in cells])
    if len(rows) > 1:
        output.text(console.table(rows, console.width(), right=(1, 2), shrink=(0, 3, 4)).rstrip("\n"))
    return tally.code(output=output)


def _where(path: str, project: Project) -> str:
    """Whose machine it is: the project's, one that came with the package, or the directory it lies in."""
    from libmachine.project import built_in

    for place, told in ((f"{project.root}/machines", "project"), (built_in(), "built-in")):
        if path.startswith(f"{place}/"):
            return told
    return path


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

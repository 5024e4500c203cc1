"""machine-tree: show a family of machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from libmachine.cmd import _cli

if TYPE_CHECKING:
    from libmachine.load import Loaded


@click.command("machine-tree", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead.")
def command(workspace: str | None, name: str, as_json: bool) -> int:
    """Show machine NAME and its descendants: what each inherits and what it adds."""
    import threading

    from libmachine import console
    from libmachine.canon import dump_line
    from libmachine.load import find, load_folder

    folder = find(name, _cli.project(workspace).places)
    output = _cli.Output(threading.Event())
    for member in [folder, *folder.descendants()]:
        row = describe(load_folder(member))
        if as_json:
            output.write(dump_line(row))
            continue
        indent = "  " * (member.name.count("/") - folder.name.count("/"))
        for line in _lines(row):
            output.text(console.cut(f"{indent}{line}", console.width()))
    return _cli.Tally(output.stop).code(output=output)


def _lines(row: dict[str, Any]) -> Iterator[str]:
    """A member for people."""
    from libmachine import console

    yield f"{row['name']}  {console.one_line(row['intent'], 200)}"
    for what in ("criteria", "tools"):
        inherited, adds = row["inherits"][what], row["adds"][what]
        if inherited or adds:
            told = ", ".join([*inherited, *(f"+{item}" for item in adds)])
            yield f"    {what:<9} {console.one_line(told, 200)}"
    yield f"    model     {row['model'] or 'none'}{'' if row['adds']['model'] else ' (inherited)'}"
    if row["adds"]["instructions"] and row["inherits"]["instructions"]:
        yield "    instructions of the parent, then its own"


def describe(machine: Loaded) -> dict[str, Any]:
    """A member of the family as a record."""
    parent = machine.parent
    names = {
        "criteria": ([c.id for c in machine.criteria], [c.id for c in parent.criteria] if parent else []),
        "tools": ([t.__name__ for t in machine.tools], [t.__name__ for t in parent.tools] if parent else []),
    }
    own = machine.folder.model().model is not None or parent is None
    return {
        "name": machine.name,
        "intent": machine.intent,
        "version": machine.version,
        "model": machine.model.model,
        "inherits": {
            **{what: inherited for what, (_, inherited) in names.items()},
            "instructions": bool(parent and parent.instructions.strip()),
        },
        "adds": {
            **{what: [n for n in all_ if n not in inherited] for what, (all_, inherited) in names.items()},
            "instructions": bool(machine.folder.instructions().strip()),
            "model": own,
        },
    }


main = _cli.entry(command)

"""machine-propose: make another model or other instructions a candidate."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-propose", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option("--model", metavar="ID", help="Model of the candidate.")
@click.option("--instructions", metavar="FILE", help="Instructions of the candidate.")
def command(workspace: str | None, name: str, model: str | None, instructions: str | None) -> int:
    """Store the live version of machine NAME with another model or other instructions as a pending
    candidate, and print it. No file of the project changes; machine-gate measures it."""
    import threading

    from libmachine import console
    from libmachine.canon import canonical, dump_line, loads
    from libmachine.errors import MachineError, UsageError
    from libmachine.folder import as_model
    from libmachine.git import repository, trees
    from libmachine.promote import put_candidate
    from libmachine.record import arrange

    if model is None and instructions is None:
        raise UsageError("nothing to propose; give --model ID or --instructions FILE")
    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    base = trees.commit(repo, "HEAD")
    if not base.has(name):
        raise MachineError(
            f"HEAD has no machine '{name}'; commit it first: git add machines/{name} && git commit"
        )
    changes: dict[str, bytes] = {}
    if model is not None:
        old = base.read(f"{base.prefix}/{name}/model.json")
        now = loads(old) if old else {}
        fields = {**(now if isinstance(now, dict) else {}), "model": model}
        as_model(fields, "--model")
        if fields != now:  # another order of the same fields is no other model
            changes["model.json"] = canonical(fields) + b"\n"
    if instructions is not None:
        try:
            with open(instructions, "rb") as file:
                changes["instructions.md"] = file.read()
        except FileNotFoundError:
            raise MachineError(f"no file '{instructions}'; --instructions wants the text in one") from None
    record = put_candidate(repo, name, changes, "propose", base)
    store = project.open_store()
    try:
        record = store.add_record(record)
    finally:
        store.close()
    output = _cli.Output(threading.Event())
    console.say(f"candidate {record['version'][:12]} of {name}. Next: machine-gate {name}")
    output.write(dump_line(arrange("candidate", record)))
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

"""machine-versions: list the versions of a machine."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-versions", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option("--log", is_flag=True, help="List the promotions instead, newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(workspace: str | None, name: str, log: bool, as_json: bool) -> int:
    """List the recorded versions of machine NAME in order and mark the live one (that of HEAD).

    What HEAD and the work tree hold is recorded first if it was not."""
    import threading

    from libmachine import console
    from libmachine.canon import dump_line
    from libmachine.git import refs, repository
    from libmachine.versions import versions

    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    output = _cli.Output(threading.Event())
    lines = as_json or not console.is_terminal(1)
    if log:
        table = [["version", "live since", "what"]]
        for promotion in refs.live_log(repo, name):
            subject = promotion.message.partition("\n")[0]
            entry = {
                "version": promotion.tree,
                "when": promotion.when,
                "subject": subject,
                "commit": promotion.commit,
            }
            when = promotion.when[:16].replace("T", " ")
            table.append([promotion.tree[:12], when, console.safe(subject)])
            if lines:
                output.write(dump_line(entry))
        if not lines and len(table) > 1:
            output.text(console.table(table, console.width()).rstrip("\n"))
        return _cli.Tally(output.stop).code(output=output)
    table = [["", "version", "recorded", "is", "verdicts"]]
    for version in versions(project, repo, name):
        row = {**vars(version), "verdicts": list(version.verdicts)}
        marks = ", ".join(word.replace("_", " ") for word in ("live", "work_tree") if row[word])
        told = console.safe(", ".join(version.verdicts))
        when = version.when[:16].replace("T", " ")
        table.append([f"v{version.number}", version.version[:12], when, marks, told])
        if lines:
            output.write(dump_line(row))
    if not lines:
        output.text(console.table(table, console.width()).rstrip("\n"))
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

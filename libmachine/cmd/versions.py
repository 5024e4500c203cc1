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
        for promotion in refs.live_log(repo, name):
            subject = promotion.message.partition("\n")[0]
            entry = {
                "version": promotion.tree,
                "when": promotion.when,
                "subject": subject,
                "commit": promotion.commit,
            }
            told = f"{promotion.tree[:12]}  {promotion.when[:16].replace('T', ' ')}  {console.safe(subject)}"
            output.write(dump_line(entry)) if lines else output.text(told)
        return _cli.Tally(output.stop).code(output=output)
    for version in versions(project, repo, name):
        row = {**vars(version), "verdicts": list(version.verdicts)}
        marks = [word for word in ("live", "work_tree") if row[word]]
        told = f"v{version.number:<4} {version.version[:12]}  {version.when[:16].replace('T', ' ')}  "
        told += f"{', '.join(marks).replace('_', ' '):<16} {' '.join(version.verdicts)}"
        output.write(dump_line(row)) if lines else output.text(console.safe(told).rstrip())
    return _cli.Tally(output.stop).code(output=output)


main = _cli.entry(command)

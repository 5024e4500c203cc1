"""machine-sync: share versions and verdicts with a remote."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-sync", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("remote", default="origin")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(workspace: str | None, remote: str, as_json: bool) -> int:
    """Fetch the versions, candidates and verdicts of REMOTE, merge, renumber, and push ours."""
    import threading

    from libmachine import console
    from libmachine.canon import dump_line
    from libmachine.cmd._git import transport
    from libmachine.git import repository, sync

    project = _cli.project(workspace)
    repo = repository.open_repository(project.root)
    counts = sync.sync(repo, remote, transport=transport())
    row = {**(counts if isinstance(counts, dict) else counts._asdict())}
    output = _cli.Output(threading.Event())
    if as_json or not console.is_terminal(1):
        output.write(dump_line({"remote": remote, **row}))
    else:
        output.text("\n".join(console.fold(f"{remote}: {_told(row)}", console.width())))
    return _cli.Tally(output.stop).code(output=output)


def _told(counts: dict[str, int]) -> str:
    """The counts that are not 0."""
    from libmachine import console

    told = []
    for name, number in counts.items():
        what, _, way = name.rpartition("_")
        if number and way in ("in", "out"):
            told.append(f"{console.count(number, what.removesuffix('s'))} {way}")
        elif number and name == "renumbered":
            told.append(f"{number} renumbered")
    return ", ".join(told) or "nothing new on either side"


main = _cli.entry(command)

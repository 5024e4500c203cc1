"""machine-fsck: check the store."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-fsck", context_settings=_cli.SETTINGS)
@_cli.workspace_option
def command(workspace: str | None) -> int:
    """Check every line of the log, every object it names and every id. Exit 1 if anything is wrong."""
    import os
    import threading

    from libmachine import console
    from libmachine.errors import NO, MachineError
    from libmachine.store import fsck, layout

    directory = _cli.project(workspace).store
    if not os.path.isdir(directory):
        raise MachineError(f"no store at '{directory}'; machine-run makes it")
    layout.refuse_foreign(directory)
    output = _cli.Output(threading.Event())
    report = fsck.Report()
    for finding in fsck.check(directory, report):
        output.text(console.safe(finding))
    counts = ", ".join(console.count(number, kind) for kind, number in sorted(report.counts.items()))
    console.say(f"{counts or 'no records'}; {console.count(report.findings, 'fault')}")
    return _cli.Tally(output.stop).code(output=output) or (NO if report.findings else 0)


main = _cli.entry(command)

"""machine-doctor: say what works here and how to mend the rest."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-doctor", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def command(workspace: str | None, as_json: bool) -> int:
    """One line for each thing the tools need: whether it works here, and the command that mends it."""
    import threading

    from libmachine import console, doctor
    from libmachine.canon import dump_line

    findings = doctor.examine(_cli.project(workspace))
    output = _cli.Output(threading.Event())
    if as_json:
        rows = [finding._asdict() for finding in findings]
        output.write(dump_line({"v": 1, "type": "doctor", "findings": rows}))
    else:
        for finding in findings:
            mark = {"ok": "ok  ", "missing": "miss", "broken": "FAIL"}[finding.state]
            output.text(f"{mark}  {finding.thing:<12} {console.safe(finding.detail)}")
            if finding.remedy:
                output.text(f"      {'':<12} -> {finding.remedy}")
    code = _cli.Tally(output.stop).code(output=output)
    return code or int(any(finding.state == "broken" for finding in findings))


main = _cli.entry(command)

"""The work behind machine-sync's options."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console, env, project
from libmachine.canon import dump_line
from libmachine.cmd import _cli, _git
from libmachine.errors import MachineError, UsageError


def main(workspace: str | None, remote: str | None, runs: bool, as_json: bool) -> int:
    """Share."""
    output = _cli.Output(threading.Event())
    tally = _cli.Tally(output.stop)
    where = _cli.project(workspace)
    if runs:
        if remote is not None:
            raise UsageError("--runs goes to the remote in git config machine.runs and to no other")
        remote, row = _runs(where, tally)
    else:
        from libmachine.git import repository, sync

        remote = remote or "origin"
        row = {**sync.sync(repository.open_repository(where.root), remote, transport=_git.transport())}
    if as_json or not console.is_terminal(1):
        output.write(dump_line({"remote": remote, **row}))
    else:
        output.text("\n".join(console.fold(f"{remote}: {_told(row)}", console.width())))
    return tally.code(output=output)


def _runs(where: project.Project, tally: _cli.Tally) -> tuple[str, dict[str, Any]]:
    from libmachine.store import share

    url = _git.runs_remote(where)
    if url is None:
        raise MachineError(
            "no remote for runs: they hold prompts and answers, so it is named by itself; "
            "git config machine.runs URL"
        )
    project.make_store(where)
    remote = share.remote_of(url, _git.transport())
    shared = share.share(where.store, remote, env.get("MACHINE_FSYNC") != "0")
    for refused in shared.refused:
        tally.note(f"refused: {refused.oid} of {refused.machine}: {refused.why}")
    return remote.shown, share.counts(shared)


def _told(counts: dict[str, Any]) -> str:
    """The counts that are not 0."""
    told = []
    for name, number in counts.items():
        what, _, way = name.rpartition("_")
        if number and way in ("in", "out"):
            told.append(f"{console.count(number, what.removesuffix('s'))} {way}")
        elif number and name in ("renumbered", "refused", "forgotten"):
            told.append(f"{number} {name}")
    return ", ".join(told) or "nothing new on either side"

"""The Python face: `from libmachine import machine`.

    >>> from libmachine import machine
    >>> brief = machine.load("brief", harness="echo")
    >>> run = brief.run("Rain is water that falls.").sync()
    >>> run.output, run.status
    ('Rain is water that falls.', 'ok')
    >>> [event.type for event in brief.run("Rain is water that falls.")]
    ['message', 'result']
    >>> [run.scorecard is None for run in brief.grade()], brief.pending()
    ([False], [])

What it does is what the commands do, by the same functions: the same runs under the same keys in the same
store, so a loop may be begun here and gone on with in a shell. Nothing is printed; talk goes to the logger
`libmachine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from libmachine import console, project
from libmachine import load as loading
from libmachine.define import Machine
from libmachine.errors import CommitRefused, MachineError, Untestable
from libmachine.sdk_candidate import Candidate
from libmachine.sdk_handle import Handle
from libmachine.sdk_open import Access, talk
from libmachine.sdk_run import Event, FinishedRun, Running
from libmachine.sdk_session import Session

__all__ = [
    "Candidate",
    "CommitRefused",
    "Event",
    "FinishedRun",
    "Handle",
    "MachineError",
    "Running",
    "Session",
    "Untestable",
    "define",
    "load",
    "names",
]


def load(name: str, workspace: str | None = None, **access: Any) -> Handle:
    """A machine that is a folder, by its name.

    workspace: the project's directory; else MACHINE_WORKSPACE, else the nearest upward that has machines/.
    access: model, harness, base_url, judge_model, judge_effort, budget, price_as, max_steps, timeout_s, seed,
    concurrency: what the options of the commands are. Raises MachineError, with file and remedy, for a
    machine that is not there or would go wrong later.
    """
    console.talk_to(talk)
    where = project.find(workspace)
    return Handle(where, loading.load(name, where.places), Access(**access))


def names(workspace: str | None = None) -> list[str]:
    """The names of the machines there are, without running one."""
    return list(loading.names(project.find(workspace).places))


def define(
    name: str,
    machine: Machine,
    *,
    cases: Iterable[Any] = (),
    holdout: Iterable[Any] = (),
    workspace: str | None = None,
    **access: Any,
) -> Handle:
    """A machine that is defined here, in code, and has no folder. Its versions are kept in the store.

    machine: with its instructions, its model and its rubric (criterion -> {"description", "weight", ...}).
    cases, holdout: texts or objects, as in the files of these names. The first time its version goes live as
    it is. Later the store's live instructions and model hold, as a candidate may have changed them; where
    the code says others than it did the last time, these go live. access: as in load(). Raises MachineError
    for a machine that would be refused as a folder.
    """
    from libmachine import sdk_define

    console.talk_to(talk)
    where = project.find(workspace)
    inside, loaded = sdk_define.define(where, name, machine, list(cases), list(holdout))
    return Handle(inside, loaded, Access(**access), in_code=True)

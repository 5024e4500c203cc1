"""Candidates in the Python face: a change that waits for its verdict, and goes live by it or not at all."""

from __future__ import annotations

from typing import Unpack

from libmachine import console
from libmachine.canon import Record
from libmachine.commit import Live, commit
from libmachine.errors import CommitRefused, MachineError
from libmachine.folder import Folder
from libmachine.gate.question import BETTER
from libmachine.git import refs
from libmachine.sdk_base import Base
from libmachine.sdk_options import Budget, GateOptions


class Candidate:
    """What train, optimize and update made. The live machine is as it was.

    version: the id of the version it would become, None where nothing was worth keeping. report: the
    record that says how it came to be (a `training`, an `optimization`, or a `candidate`). verdict: the
    gate's, None before gate() was asked.
    """

    def __init__(
        self, handle: Base, version: str | None, report: Record, verdict: Record | None = None
    ) -> None:
        self._handle = handle
        self.version, self.report, self.verdict = version, report, verdict

    @property
    def passed(self) -> bool:
        """Did the gate let it through?"""
        return self.verdict is not None and self.verdict["decision"] in BETTER

    def gate(self, trials: int = 3, budget: Budget = None, **options: Unpack[GateOptions]) -> Record:
        """Measure it against the live version on the held-out cases; the `verdict`, kept in `verdict` too.

        trials: runs of each case an arm. budget: US dollars. Raises Untestable if it cannot be judged (no
        held-out cases, money out, nothing to judge).
        """
        self.verdict = self._handle._gate(self._some(), trials, budget, options)
        return self.verdict

    def commit(self, message: str | None = None, force: str | None = None) -> Live:
        """Make it live: its files are written and committed in the project's repository.

        message: the first line of the commit. force: why to go against the gate; it is recorded with who
        did. Raises CommitRefused unless the gate passed for exactly this change, or if there is nothing to
        commit.
        """
        handle = self._handle
        live = commit(handle.project, handle.repository, handle.name, self._some()[:12], message, force)
        handle.reload()
        return live

    def discard(self) -> None:
        """Forget that it waits. Its version and verdicts stay. Raises MachineError if it does not wait."""
        refs.drop_candidate(self._handle.repository, self._handle.name, self._some())

    def format_report(self, width: int = 80) -> str:
        """The report as the command prints it, in at most so many columns."""
        from libmachine.gate.report import report as verdict_report
        from libmachine.optimize.report import report as of_optimization
        from libmachine.train.report import report as of_training

        names = _case_names(self._handle.machine.folder)
        if self.report["type"] == "training":
            return console.safe(of_training(self.report, names, width))
        told = [of_optimization(self.report, width)] if self.report["type"] == "optimization" else []
        told += [verdict_report(self.verdict, names, width)] if self.verdict else []
        if not told:
            told.append(f"candidate {self._some()[:12]} of {self._handle.name}, not measured yet")
        return console.safe("\n\n".join(told))

    def _some(self) -> str:
        if self.version is None:
            reasons = "; ".join(map(str, self.report.get("reasons", ()))) or "nothing was kept"
            raise CommitRefused(f"there is nothing to commit: {reasons}")
        return self.version

    def __repr__(self) -> str:
        what = self.version[:12] if self.version else "nothing kept"
        decision = self.verdict["decision"] if self.verdict else "not measured"
        return f"<candidate of {self._handle.name}: {what}, {decision}>"


def _case_names(folder: Folder) -> dict[str, str]:
    """Identity -> id of the held-out cases that a report names; none where they cannot be read."""
    try:
        for member in folder.family():
            if cases := member.cases("holdout.jsonl"):
                return {case["identity"]: case["id"] for case in cases}
    except MachineError:
        pass
    return {}

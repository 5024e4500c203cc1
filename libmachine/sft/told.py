"""What a training says before it begins: what was left out and why, what renders otherwise, warnings."""

from __future__ import annotations

from libmachine import console, export
from libmachine.errors import MachineError
from libmachine.sft import check
from libmachine.sft.candidate import instructions_of
from libmachine.sft.dataset import Dataset
from libmachine.sft.job import Job


def say_dropped(dropped: export.Dropped) -> None:
    """The runs that are no data, counted by reason."""
    for line in dropped.told():
        console.say(line)


def warn(job: Job) -> None:
    """The warnings of the plan, and runs that had other instructions."""
    for warning in job.warnings:
        console.say(f"warning: {warning.partition(': ')[2]}")
    wanted = job.instructions
    others = sum(instructions_of(run) != wanted for run in job.dataset.runs)
    if others:
        console.say(
            f"warning: {console.count(others, 'run')} of {len(job.dataset.runs)} had other instructions than "
            f"'{job.name}' has now"
        )


def judge_check(made: Dataset, allowed: bool, dry_run: bool) -> None:
    """Tell of runs that render otherwise. Raises MachineError if there are too many."""
    if made.uncompared:
        console.say(f"{console.count(made.uncompared, 'run')} with nothing to compare the rendering with")
    if not made.differences:
        return
    share = f"{len(made.differences)} of {made.compared} runs render to something else than what was sampled"
    first = made.differences[0]
    told = console.one_line(f"case {first.case}, step {first.step + 1}: {first.what}", 400)
    if made.mismatched > check.MOST_MISMATCHED and not allowed and not dry_run:
        raise MachineError(f"{share}; first: {told}; --allow-render-mismatch trains on the others")
    console.say(f"{share}; first: {told}")

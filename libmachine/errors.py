"""The errors a user can meet, each with the exit code it ends a command with.

Library code raises these for what is expected to go wrong (bad input, a missing
file, a full disk); anything else that escapes is a bug of ours and ends with 255.
One wrapper, libmachine.cmd._cli, turns them into text and exit codes.
"""

from __future__ import annotations

OK = 0
NO = 1
PARTIAL = 3
BUDGET = 4
UNTESTABLE = 125
FATAL = 128
USAGE = 129
INTERRUPTED = 130
READER_GONE = 141
BUG = 255


class MachineError(Exception):
    """Expected failure: printed as `fatal: ...` without a traceback. Exit 128.

    The message begins in lower case, quotes the thing it is about and says what to do.
    """

    exit_code = FATAL


class UsageError(MachineError):
    """The command line does not fit the command. Exit 129."""

    exit_code = USAGE


class Untestable(MachineError):
    """The question cannot be judged (no cases, provider down). Exit 125, as git bisect reads it."""

    exit_code = UNTESTABLE


class Interrupted(MachineError):
    """The user asked to stop; what was done is stored. Exit 130."""

    exit_code = INTERRUPTED


class CutShort(Interrupted):
    """A conversation that was told to stop between two turns; the same command goes on from there."""


class Refused(MachineError):
    """A call that was not made because of money. Never becomes a run or a grade."""


class CommitRefused(MachineError):
    """The gate did not let this change through, or has not judged it; the message says which. Exit 1."""

    exit_code = NO


class ProviderError(MachineError):
    """A model endpoint failed for good, retries included: the run becomes `failed`, never a score."""


class ContextOverflow(MachineError):
    """The conversation no longer fits the model's context: the run ends as `limit`."""

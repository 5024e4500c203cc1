"""optimizer: write better instructions for a machine. machine-optimize asks it; checks read its reply."""

from __future__ import annotations

from libmachine import Machine, Run, check
from libmachine.optimize.reply import MOST_WORDS, quoted, read, same


def one_block(run: Run) -> tuple[bool, str]:
    """The reply has exactly one block of instructions, and something is in it."""
    found = read(run.output)
    return found.text is not None, found.fault or "one block"


def within_length(run: Run) -> tuple[bool, str]:
    """The block has at least one word and at most as many as the case allows."""
    count = len((read(run.output).text or "").split())
    most = int(run.metadata.get("most_words") or MOST_WORDS)
    return 0 < count <= most, f"{count} word{'s' * (count != 1)}, at most {most}"


def changes(run: Run) -> tuple[bool, str] | None:
    """The block is not what was there before; None without a block, which is another fault."""
    text = read(run.output).text
    if text is None:
        return None
    old = [before for before in _key(run).get("instructions", ()) if same(text, before)]
    return not old, "unchanged" if old else "changed"


def no_case_text(run: Run) -> tuple[bool, str] | None:
    """No input or answer of a case stands in the block; None without a block."""
    text = read(run.output).text
    if text is None:
        return None
    key = _key(run)
    found = quoted(text, key.get("inputs", ()), key.get("answers", ()), key.get("known", ""))
    return not found, f"it quotes {found}" if found else "quotes no case"


def _key(run: Run) -> dict[str, list[str] | str]:
    """What the case's target says: the old instructions, inputs and answers of the cases shown."""
    return run.target if isinstance(run.target, dict) else {}


machine = Machine(
    intent="Write instructions with which a machine does better on cases it fails, and on others like them.",
    graders={
        "one_block": check(one_block),
        "within_length": check(within_length),
        "changes": check(changes),
        "no_case_text": check(no_case_text),
    },
)

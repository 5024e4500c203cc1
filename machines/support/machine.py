"""support: the help desk of a maker of coffee machines. The customer is the machine `customer`."""

from __future__ import annotations

import re

from libmachine import Counterpart, Machine, Run, check, judge

MOST_WORDS = 60

_REMEDY = re.compile(r"^\W*remedy\W*:\W*([a-z]+)\W*$", re.IGNORECASE | re.MULTILINE)


def gave_remedy(run: Run) -> bool:
    """The desk has named a remedy: its last message has a line `Remedy: CODE`."""
    return bool(remedies(run.output))


def remedies(text: str) -> list[str]:
    """The codes of the remedies that a message names, each once, in capitals."""
    return list(dict.fromkeys(code.upper() for code in _REMEDY.findall(text)))


def right_remedy(run: Run) -> tuple[bool, str] | None:
    """The conversation ends with the one remedy that the case has."""
    if run.target is None:
        return None
    named = remedies(run.output)
    told = f"named {', '.join(named) or 'none'}"
    return named == [run.target], told if named == [run.target] else f"{told}; {run.target} is right"


def no_guess(run: Run) -> tuple[bool, str] | None:
    """When the remedy was named, the customer had said the model and what the light does."""
    facts = [fact for fact in (run.metadata.get("model"), run.metadata.get("light")) if fact]
    if not facts or not gave_remedy(run):
        return None
    told = " ".join(turn.text for turn in run.turns if turn.side == "counterpart")
    missing = [fact for fact in facts if not says(told, fact)]
    return not missing, f"guessed: nobody said {' or '.join(missing)}" if missing else "both facts were told"


def brief(run: Run) -> tuple[float, str] | None:
    """The share of the desk's messages that have at most 60 words."""
    counts = [len(turn.text.split()) for turn in run.turns if turn.side == "machine"]
    if not counts:
        return None
    fitting = sum(0 < count <= MOST_WORDS for count in counts)
    return fitting / len(counts), f"{max(counts)} words in the longest of {len(counts)} messages"


def says(text: str, fact: str) -> bool:
    """Does a text hold a fact, as a word or the beginning of one (slow, slowly)?"""
    return re.search(rf"(?<![^\W_]){re.escape(fact)}", text, re.IGNORECASE) is not None


machine = Machine(
    intent="Find out what is wrong with a customer's coffee machine, and name the remedy.",
    graders={
        "right_remedy": check(right_remedy),
        "no_guess": check(no_guess),
        "brief": check(brief),
        "manner": judge(),
    },
    counterpart=Counterpart("customer", until=gave_remedy, max_turns=6),
)

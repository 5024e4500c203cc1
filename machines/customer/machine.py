"""customer: someone with a broken coffee machine who tells only what is asked; the other side of support."""

from __future__ import annotations

import re

from libmachine import Machine, Run, check, judge

_ASKS = {
    "model": re.compile(r"\bmodel|\bK[246]\b|\bwhich (?:coffee )?machine", re.IGNORECASE),
    "light": re.compile(r"\blights?\b|\blamp|\bblink|\bflash", re.IGNORECASE),
}


def withholds(run: Run) -> tuple[bool, str] | None:
    """The customer's first message says neither the model nor what the light does."""
    facts = _facts(run)
    if not facts:
        return None
    told = [fact for fact in facts.values() if _says(_messages(run)[0][1], fact)]
    return not told, f"told at once: {', '.join(told)}" if told else "nothing told at once"


def answers(run: Run) -> tuple[float, str] | None:
    """Of what the desk asked for, the share that the customer told in the message after it."""
    said = _messages(run)
    facts = _facts(run)
    asked: dict[str, bool] = {}
    for (_, question), (_, answer) in zip(said[1::2], said[2::2], strict=False):
        for name, fact in facts.items():
            if "?" in question and _ASKS[name].search(question):
                asked[name] = asked.get(name, False) or _says(answer, fact)
    if not asked:
        return None
    silent = [name for name, told in asked.items() if not told]
    words = f"asked for {' and '.join(asked)}"
    return 1 - len(silent) / len(asked), f"{words}; did not tell {' and '.join(silent)}" if silent else words


def _messages(run: Run) -> list[tuple[str, str]]:
    """(side, text) of a conversation, which the customer begins; of a run by itself its one message."""
    return [(turn.side, turn.text) for turn in run.turns] or [("counterpart", run.output)]


def _facts(run: Run) -> dict[str, str]:
    return {name: str(run.metadata[name]) for name in ("model", "light") if run.metadata.get(name)}


def _says(text: str, fact: str) -> bool:
    """Does a text hold a fact, as a word or the beginning of one (slow, slowly)?"""
    return re.search(rf"(?<![^\W_]){re.escape(fact)}", text, re.IGNORECASE) is not None


machine = Machine(
    intent="Play a customer with a hidden problem, who tells only what is asked.",
    graders={"withholds": check(withholds), "answers": check(answers), "in_role": judge()},
)

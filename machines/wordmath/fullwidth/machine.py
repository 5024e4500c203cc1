"""wordmath/fullwidth: solve a word problem, thinking in fullwidth letters and digits only."""

from __future__ import annotations

import unicodedata

from libmachine import Machine, Run, check

TO_FULLWIDTH = ord("Ａ") - ord("A")


def fullwidth_reasoning(run: Run) -> tuple[bool, str]:
    """Every letter a-z and digit of the captured reasoning has its fullwidth form, and there is one.

    Other letters and signs have no such form and do not matter. Without captured reasoning it fails:
    what was thought unseen is not known to be right.
    """
    thought = run.reasoning
    if not thought.strip():
        return False, "no reasoning was captured"
    narrow = [char for char in thought if _wide(char) != char]
    if narrow:
        shown = " ".join(dict.fromkeys(narrow[:8]))
        return False, f"{len(narrow)} letters and digits are not fullwidth: {shown}"
    wide = sum(_is_fullwidth(char) for char in thought)
    return wide > 0, f"{wide} fullwidth letters and digits"


def to_fullwidth(reasoning: str, run: Run) -> str:
    """The reasoning with every letter a-z and digit in its fullwidth form."""
    return "".join(map(_wide, reasoning))


def _wide(char: str) -> str:
    """The fullwidth form of a letter or digit in any style (bold, script, ...); others as they are."""
    if unicodedata.category(char) not in ("Lu", "Ll", "Nd"):
        return char
    plain = unicodedata.normalize("NFKC", char)
    return chr(ord(plain) + TO_FULLWIDTH) if plain.isascii() and len(plain) == 1 else char


def _is_fullwidth(char: str) -> bool:
    return "０" <= char <= "ｚ" and char.isalnum()


machine = Machine(
    intent="Solve a word problem, thinking in fullwidth letters and digits.",
    graders={"fullwidth_reasoning": check(fullwidth_reasoning)},
    transform_reasoning=to_fullwidth,
)

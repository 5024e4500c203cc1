"""What of an exam leaks into practice or instructions: warned of, as it makes a verdict too kind. Pure.

Near duplicates: inputs whose character 5-grams overlap by 0.8 (Jaccard) once letters are lower
case, digits are alike and blanks squeezed. Equal `metadata.group` on both sides. Held-out text of
some length in the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from libmachine.canon import Record
from libmachine.define import text_of

LIKE = 0.8
GRAM = 5
QUOTED = 24
"""Characters of a held-out input that must stand in the instructions to be called quoted."""
SHOWN = 5


def leaks(practice: Sequence[Record], exam: Sequence[Record], instructions: str) -> list[str]:
    """Warnings, each `code: words`; none if nothing leaks."""
    found = []
    if twins := near_duplicates(practice, exam):
        found.append(f"near_duplicates: {_shown([f'{a} ~ {b}' for a, b in twins])}")
    if groups := sorted(_groups(practice) & _groups(exam)):
        found.append(f"group_on_both_sides: {_shown(groups)}")
    if quoted := quotes(exam, instructions):
        found.append(f"held_out_text: the instructions quote {_shown(quoted)}")
    return found


def near_duplicates(practice: Sequence[Record], exam: Sequence[Record]) -> list[tuple[str, str]]:
    """(practice case, held-out case) by id, of inputs that are nearly the same."""
    grams = [(str(case["id"]), _grams(_plain(text_of(case["input"])))) for case in practice]
    pairs = []
    for case in exam:
        held = _grams(_plain(text_of(case["input"])))
        for name, other in grams:
            small, large = sorted((len(held), len(other)))
            # the overlap cannot reach LIKE where one is that much shorter
            if small >= LIKE * large and len(held & other) >= LIKE * len(held | other):
                pairs.append((name, str(case["id"])))
    return pairs


def quotes(exam: Sequence[Record], instructions: str) -> list[str]:
    """Ids of held-out cases whose input stands in the instructions."""
    text = _plain(instructions)
    return [
        str(case["id"])
        for case in exam
        if len(held := _plain(text_of(case["input"]))) >= QUOTED and held in text
    ]


def _groups(cases: Sequence[Record]) -> set[str]:
    return {str(group) for case in cases if (group := (case.get("metadata") or {}).get("group"))}


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\d+", "0", text.lower())).strip()


def _grams(text: str) -> frozenset[str]:
    return frozenset(text[i : i + GRAM] for i in range(max(1, len(text) - GRAM + 1)))


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

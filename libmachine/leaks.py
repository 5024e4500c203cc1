"""What of an exam leaks into practice or instructions: warned of, as it makes a verdict too kind. Pure.

Near duplicates: inputs whose character 5-grams overlap by 0.8 (Jaccard) once letters are lower
case, digits are alike and blanks squeezed. Equal `metadata.group` on both sides. Held-out text of
some length in the instructions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import ceil

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
    return [(str(practice[a]["id"]), str(exam[b]["id"])) for a, b in alike(practice, exam)]


def alike(these: Sequence[Record], those: Sequence[Record]) -> list[tuple[int, int]]:
    """(place in these, place in those) of inputs that are nearly the same, in the order of those.

    Sets that overlap by LIKE have one of their rarest grams in common, so only cases that share such a
    gram are compared: all pairs of thousands of cases would take minutes.
    """
    grams = [_grams(_plain(text_of(case["input"]))) for case in these]
    others = grams if these is those else [_grams(_plain(text_of(case["input"]))) for case in those]
    seen = Counter(gram for found in (*grams, *others) for gram in found)

    def rarest(found: frozenset[str]) -> list[str]:
        most = len(found) - ceil(LIKE * len(found) - 1e-9) + 1
        return sorted(found, key=lambda gram: (seen[gram], gram))[:most]

    having: dict[str, list[int]] = {}
    for place, found in enumerate(grams):
        for gram in rarest(found):
            having.setdefault(gram, []).append(place)
    pairs = []
    for place, held in enumerate(others):
        near = {other for gram in rarest(held) for other in having.get(gram, ())}
        for other in sorted(near):
            if len(held & grams[other]) >= LIKE * len(held | grams[other]):
                pairs.append((other, place))
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

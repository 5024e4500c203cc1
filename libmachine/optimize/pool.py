"""The search's arithmetic: a pool of instructions, its per-case front, the next move, the screen. Pure.

After GEPA (Agrawal 2025, arXiv 2507.19457): what is best on some case is kept, however it does on
the average, for its lesson can be carried further; parents are drawn from these by how many cases
they lead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, fsum
from random import Random
from typing import NamedTuple

from libmachine.stats import SLACK

Scores = Sequence[float | None]
"""Mean score of each case, the cases in one order; None: no trial of it has a score."""

_DIGITS = 9  # scores that differ by dust are equal
_MISSING = -1.0  # a case without a score is worse than any with one
FAILING_SHARE = 2 / 3
"""Of the cases of a screen: those that fail. The rest pass, so that a loss of them shows."""


@dataclass(frozen=True)
class Member:
    """One set of instructions that was measured on all cases. number: 0 is the baseline's."""

    number: int
    parents: tuple[int, ...]
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """Mean over the cases that have a score."""
        known = [score for score in self.scores if score is not None]
        return fsum(known) / len(known) if known else None


class Move(NamedTuple):
    """What to ask the author for: better instructions than one parent's, or one of two parents' both."""

    parents: tuple[int, ...]

    @property
    def kind(self) -> str:
        return "merge" if len(self.parents) == 2 else "reflect"


def _values(member: Member) -> list[float]:
    return [_MISSING if score is None else round(score, _DIGITS) for score in member.scores]


def front(members: Sequence[Member]) -> dict[int, list[int]]:
    """Number -> places of the cases on which no member is better, for the members on the front.

    One that leads only where others that stay lead too is left out, the lowest mean first: so none
    on the front is dominated, and every case that has a score keeps a leader.
    """
    values = {member.number: _values(member) for member in members}
    size = min((len(found) for found in values.values()), default=0)
    best = [max(found[case] for found in values.values()) for case in range(size)]
    leads = {
        number: [case for case in range(size) if found[case] == best[case] > _MISSING]
        for number, found in values.items()
    }
    leaders = [sum(case in cases for cases in leads.values()) for case in range(size)]
    for number in sorted(leads, key=lambda number: (fsum(values[number]), -number)):
        if all(leaders[case] > 1 for case in leads[number]):
            for case in leads.pop(number):
                leaders[case] -= 1
    return dict(sorted(leads.items()))


def trimmed(members: Sequence[Member], size: int) -> list[Member]:
    """At most size members: the baseline and the best mean always, then the front, then by the mean."""
    leads = front(members)
    top = max(members, key=_rank, default=None)

    def worth(member: Member) -> tuple[bool, int, float]:
        must = member.number == 0 or member is top
        return must, len(leads.get(member.number, ())), _rank(member)[0]

    kept = sorted(members, key=worth, reverse=True)[: max(2, size)]
    return sorted(kept, key=lambda member: member.number)


def _rank(member: Member) -> tuple[float, int]:
    mean = member.mean
    return (_MISSING if mean is None else round(mean, _DIGITS), -member.number)


def parent(members: Sequence[Member], chance: Random) -> int:
    """A member of the front, drawn by the number of cases it leads; the baseline of an empty front."""
    leads = front(members)
    numbers = [number for number, cases in leads.items() if cases]
    if not numbers:
        return min((member.number for member in members), default=0)
    return chance.choices(numbers, [len(leads[number]) for number in numbers])[0]


def pair(members: Sequence[Member], merged: Collection[tuple[int, ...]]) -> tuple[int, int] | None:
    """The two of the front that would gain most if each kept what it does better; None without such two.

    Neither is made from the other, and they were not merged before.
    """
    by_number = {member.number: member for member in members}
    above = {member.number: member.parents for member in members}
    best: tuple[float, tuple[int, int]] | None = None
    for a, b in combinations(front(members), 2):
        if (a, b) in merged or a in _ancestors(b, above) or b in _ancestors(a, above):
            continue
        gain = _joint_gain(_values(by_number[a]), _values(by_number[b]))
        if gain > SLACK and (best is None or gain > best[0] + SLACK):
            best = gain, (a, b)
    return best[1] if best else None


def _ancestors(number: int, above: Mapping[int, tuple[int, ...]]) -> set[int]:
    found: set[int] = set()
    waiting = [*above.get(number, ())]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += above.get(one, ())
    return found


def _joint_gain(one: Sequence[float], other: Sequence[float]) -> float:
    """What the better of both on each case has over the better of both on all; 0 if one leads everywhere."""
    return fsum(map(max, one, other)) - max(fsum(one), fsum(other))


def next_move(
    members: Sequence[Member],
    merged: Collection[tuple[int, ...]],
    grew: bool,
    merge: bool,
    chance: Random,
) -> Move:
    """What to try now. grew: the last move put a member into the pool: there may be two to join."""
    both = pair(members, merged) if merge and grew else None
    return Move(both if both else (parent(members, chance),))


# the screen -----------------------------------------------------------------------------


def screen_of(parents: Sequence[Scores], size: int, chance: Random) -> list[int]:
    """Places of the cases on which a proposal is tried first; none: a screen would not be cheaper.

    Of one parent: mostly cases that it fails, the worst first, and some that it passes. Of two: those
    on which they differ most.
    """
    scored = [case for case in range(len(parents[0])) if all(found[case] is not None for found in parents)]
    if not 0 < size < len(scored):
        return []
    chance.shuffle(scored)  # equal ones in no order of the file
    if len(parents) == 2:
        scored.sort(key=lambda case: -abs((parents[0][case] or 0.0) - (parents[1][case] or 0.0)))
        return sorted(scored[:size])
    scored.sort(key=lambda case: parents[0][case] or 0.0)
    failing = [case for case in scored if (parents[0][case] or 0.0) < 1.0 - SLACK]
    passing = [case for case in scored if (parents[0][case] or 0.0) >= 1.0 - SLACK]
    chance.shuffle(passing)
    worst = max(ceil(size * FAILING_SHARE), size - len(passing))
    chosen = failing[:worst]
    return sorted(chosen + passing[: size - len(chosen)])


class Screen(NamedTuple):
    """How a proposal did on the screen's cases against its parent (of two, the better). passed: it was
    higher. Means over the cases of which both have a score; None if there is none."""

    cases: int
    parent: float | None
    proposal: float | None
    passed: bool


def screened(parents: Sequence[Scores], proposal: Scores) -> Screen:
    """Judge a screen. parents, proposal: mean scores of its cases, in one order."""
    both = [case for case in range(len(proposal)) if all(s[case] is not None for s in (*parents, proposal))]
    if not both:
        return Screen(len(proposal), None, None, False)
    means = [fsum(found[case] or 0.0 for case in both) / len(both) for found in (*parents, proposal)]
    best = max(means[:-1])
    return Screen(len(proposal), best, means[-1], means[-1] > best + SLACK)

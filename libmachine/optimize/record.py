"""What a search says of itself: arms of a decision, lines of its pool, a round in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record
from libmachine.folder import Criterion
from libmachine.measure import criterion_score, score_of
from libmachine.optimize.pool import Member, front
from libmachine.run import Runner
from libmachine.suite.figures import mean_of


@dataclass
class Text:
    """A proposal, or the baseline: how it runs, what was measured of it."""

    text: str
    runner: Runner
    runs: dict[str, list[Record]] = field(default_factory=dict)

    def scores(self, identities: Sequence[str]) -> list[float | None]:
        return [mean_of(map(score_of, self.runs.get(identity, []))) for identity in identities]

    def trials(self, identities: Sequence[str], criterion: str | None = None) -> list[list[float | None]]:
        of = score_of if criterion is None else lambda run: criterion_score(run, criterion)
        return [[of(run) for run in self.runs.get(identity, [])] for identity in identities]


def arms(
    by_identity: Mapping[str, Record], texts: Sequence[Text], criteria: Sequence[Criterion] = ()
) -> Record:
    """The arms of a decision between two texts, as gate.rule.decide takes them, with the cases' names.

    criteria: those with a guard are in it too.
    """
    identities = sorted(by_identity)
    groups = [(by_identity[identity].get("metadata") or {}).get("group") for identity in identities]
    guards = {
        c.id: {"guard": c.guard, **sides(texts, identities, c.id)} for c in criteria if c.guard is not None
    }
    return {
        "cases": identities,
        "ids": [by_identity[identity]["id"] for identity in identities],
        **({"groups": groups} if any(groups) else {}),
        **sides(texts, identities),
        **({"guards": guards} if guards else {}),
    }


def sides(texts: Sequence[Text], identities: Sequence[str], criterion: str | None = None) -> Record:
    """Trial scores of both texts, or those of one criterion."""
    live, candidate = (text.trials(identities, criterion) for text in texts)
    return {"live": live, "candidate": candidate}


def pool(members: Sequence[Member], alive: Sequence[Member], texts: Sequence[Text]) -> list[Record]:
    """Every member that was measured on all cases. leads: cases on which none of those kept is better."""
    leads = front(alive)
    return [
        {
            "number": member.number,
            "parents": list(member.parents),
            "version": text.runner.machine.version,
            "instructions": text.text,
            "mean": member.mean,
            "leads": len(leads.get(member.number, ())),
            "on_front": member.number in leads,
        }
        for member, text in zip(members, texts, strict=True)
    ]


def in_words(move: Record) -> str:
    """What came of a round, for people and for the author: figures on the cases, never on held-out ones."""
    of = " and ".join(f"proposal {n}" if n else "the baseline" for n in move["parents"])
    head = f"round {move['round']}: {'merged' if move['move'] == 'merge' else 'from'} {of}: "
    if move["outcome"] == "measured":
        return f"{head}measured as proposal {move['member']}, mean {_shown(move['mean'])}"
    if move["outcome"] == "screened_out":
        screen: dict[str, Any] = move["screen"]
        against = f"{_shown(screen['proposal'])} against {_shown(screen['parent'])}"
        return f"{head}screened out, {against} on {screen['cases']} cases"
    words = {
        "no_proposal": "no proposal",
        "failed": "no answer",
        "known": "nothing new",
        "unfinished": "not finished",
    }
    return f"{head}{words.get(move['outcome'], move['outcome'])}" + (
        f", {move['why']}" if "why" in move else ""
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

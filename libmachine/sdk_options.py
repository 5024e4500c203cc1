"""The options of the Python face, typed: those of the commands, by the same names and with the same values
where they are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

Budget = float | int | str | None
"""US dollars, or "none" for no limit. None: 1 on paid endpoints, as in the commands."""


class SamplingOptions(TypedDict, total=False):
    """How to sample, in place of what model.json says. max_tokens: of one reply. effort: of reasoning."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    effort: str


class GateOptions(TypedDict, total=False):
    """As machine-gate(1) has them. trials: runs of each held-out case an arm. min_z: standard errors."""

    on: str
    min_z: float
    strict: bool
    no_confirm: bool
    no_worse: bool
    reuse_live: bool | None
    rerun: bool
    base: str
    judge_by: str | None


class TrainOptions(TypedDict, total=False):
    """As machine-train(1) has them; `go_on` is --continue."""

    best_of: int
    min_score: float | None
    passing: bool
    any_model: bool
    drop_reasoning: bool
    epochs: int
    steps: int | None
    batch_size: int
    rank: int | None
    learning_rate: float | None
    effort: str | None
    go_on: bool
    renderer: str | None
    allow_render_mismatch: bool
    base_url: str | None
    min_z: float
    strict: bool
    no_confirm: bool
    reuse_live: bool | None


class OptimizeOptions(TypedDict, total=False):
    """As machine-optimize(1) has them. author: the model that proposes. room: characters it is shown."""

    rounds: int
    trials: int
    min_z: float
    holdout: str | None
    author: str | None
    author_harness: str | None
    pool: int
    screen: int
    merge: bool
    confirm: bool
    room: int


class ExportOptions(TypedDict, total=False):
    """As machine-export(1) has them. parent: --from; instructions: `given` or `student`."""

    tree: bool
    parent: str | None
    transform: bool
    instructions: str
    best: int | None
    min_score: float | None
    passing: bool
    distinct: bool
    since: str | None
    cases: str | None
    not_cases: str | None
    per_turn: bool
    drop_reasoning: bool


GATE: dict[str, Any] = {
    "trials": 3,
    "on": "score",
    "min_z": 2.0,
    "strict": False,
    "no_confirm": False,
    "no_worse": False,
    "reuse_live": False,
    "rerun": False,
    "base": "HEAD",
    "judge_by": None,
}
TRAIN: dict[str, Any] = {
    "samples": 0,
    "best_of": 2,
    "min_score": None,
    "passing": True,
    "any_model": False,
    "drop_reasoning": False,
    "epochs": 4,
    "steps": None,
    "batch_size": 8,
    "rank": None,
    "learning_rate": None,
    "effort": None,
    "go_on": False,
    "renderer": None,
    "allow_render_mismatch": False,
    "base_url": None,
    "trials": 3,
    "min_z": 2.0,
    "strict": False,
    "no_confirm": False,
    "reuse_live": None,
}
OPTIMIZE: dict[str, Any] = {
    "rounds": 3,
    "trials": 3,
    "min_z": 2.0,
    "holdout": None,
    "author": None,
    "author_harness": None,
    "pool": 8,
    "screen": 8,
    "merge": True,
    "confirm": True,
    "room": 60_000,
}
EXPORT: dict[str, Any] = {
    "tree": False,
    "parent": None,
    "transform": False,
    "instructions": "given",
    "best": None,
    "min_score": None,
    "passing": True,
    "distinct": True,
    "since": None,
    "cases": None,
    "not_cases": None,
    "per_turn": False,
    "drop_reasoning": False,
}
SUITE: dict[str, Any] = {
    "on": "cases",
    "trials": 1,
    "tree": False,
    "model": None,
    "harness": None,
    "base_url": None,
    "effort": None,
    "temperature": None,
    "max_tokens": None,
    "seed": 0,
    "resume": True,
    "concurrency": 4,
}


def filled(defaults: Mapping[str, Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Options as the verbs want them: all of them. Raises TypeError for one that is none."""
    if unknown := given.keys() - defaults.keys():
        raise TypeError(f"{what}() got an unexpected keyword argument '{min(unknown)}'")
    return {**defaults, **given}


def limit(budget: Budget) -> str | None:
    """A budget as the ledger reads it."""
    return f"{budget:.6f}" if isinstance(budget, float | int) else budget

"""machine-compare's work: a version of the past and the work tree's on the same cases, side by side.

The old version is read from git by blobs into a temporary directory and runs as it was, with
its own tools. Both are graded by today's rubric and graders. Nothing is written but runs and
scorecards into the store.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libmachine import measure
from libmachine.canon import Record, now
from libmachine.converse import Facing, runner_of
from libmachine.errors import MachineError, Untestable
from libmachine.folder import Criterion, Folder, rubric_hash
from libmachine.gate.figures import about, criteria
from libmachine.git import refs, repository, trees
from libmachine.git.history import history
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.grade import Grading
from libmachine.harness.base import Engine
from libmachine.load import Loaded, load_folder
from libmachine.measure import passed_of, score_of
from libmachine.run import Runner, Settings, tool_set
from libmachine.stats import SLACK, decide, paired_gate, pass_at_k, pass_hat_k
from libmachine.stats.exact import FINE_GRID, flip_p
from libmachine.store.store import Store
from libmachine.suite.figures import kin_warning, mean_of, over_units, spend, unit_of

MIN_Z = 2.0
_BEHAVIOUR = {"instructions", "model", "tools"}
_FIGURES = (
    *("n", "n_cases", "units", "dropped", "missing_live", "missing_cand", "mean_live", "mean_cand"),
    *("diff", "mean_diff", "sd", "se", "z", "wins", "losses", "ties", "p_flip", "p_trial", "p_t"),
    *("sampled", "ci_t", "mde80"),
)
"""What a comparison takes from stats.paired_gate."""


@dataclass(frozen=True)
class Base:
    """The version that is compared with: the commit that holds it, as it was named, its files."""

    commit: str
    named: str
    place: Place


def find_base(repo: Repository, name: str, which: str) -> Base:
    """The base that a commit, a recorded version (vN) or a version's id means.

    Raises Untestable if there is no commit, or none with this machine or this version; MachineError
    for what names nothing.
    """
    if repository.head(repo) is None:
        raise Untestable(f"no commit yet to compare '{name}' with; git add machines/{name} && git commit")
    commit = _recorded(repo, name, which) or repository.resolve(repo, which)
    place = trees.commit(repo, commit)
    if not place.has(name):
        raise Untestable(
            f"'{which}' has no machine '{name}'; git add machines/{name} && git commit, or name a commit "
            "that has it: --base COMMIT"
        )
    return Base(commit, which, place)


def _recorded(repo: Repository, name: str, which: str) -> str | None:
    """The newest commit with a recorded version; None if no recorded version is called so."""
    is_number = re.fullmatch(r"v[0-9]+", which)
    known = [v.tree for v in refs.versions(repo, name) if len(which) >= 7 and v.tree.startswith(which)]
    if not is_number and len(known) != 1:
        return None
    tree = refs.tree_of(repo, f"{name}@{which}")
    for past in history(repo, name, shallow_too=True):
        if past.version == tree:
            return past.commit
    raise Untestable(
        f"no commit of HEAD's history has version '{which}' of '{name}'; machine-versions {name} lists them"
    )


@contextlib.contextmanager
def loaded_base(base: Base, name: str) -> Iterator[Loaded]:
    """The machine as the base has it, code included; its files are gone afterwards.

    Raises Untestable if it does not load today.
    """
    with tempfile.TemporaryDirectory(prefix="machine-") as scratch:
        try:
            root = trees.materialise(base.place, name, scratch)
            loaded = load_folder(Folder(root, name))
        except Untestable:
            raise
        except MachineError as error:
            told = str(error).replace(f"{os.path.realpath(scratch)}/", "").replace(f"{scratch}/", "")
            raise Untestable(f"'{name}' of '{base.named}' does not load: {told}") from None
        yield loaded


@dataclass(frozen=True)
class Sides:
    """The two versions: the base as it was, the work tree's."""

    base: Base
    old: Loaded
    work: Loaded

    def changed(self) -> list[str]:
        """What differs: instructions, model, rubric, tools, code (graders or other .py files)."""
        pairs = {
            "instructions": (self.old.instructions, self.work.instructions),
            "model": (self.old.model, self.work.model),
            "rubric": (rubric_hash(self.old.criteria), rubric_hash(self.work.criteria)),
            "tools": (_tools(self.old), _tools(self.work)),
            "code": (self.old.source, self.work.source),
        }
        return [name for name, (old, new) in pairs.items() if old != new]


def _tools(machine: Loaded) -> list[Any]:
    return [[tool.schema, tool.source()] for tool in tool_set(machine.tools).values()]


@dataclass(frozen=True)
class Terms:
    """How to measure. on: what to call the cases."""

    on: str = "cases.jsonl"
    trials: int = 3
    concurrency: int = 4
    seed: int = 0
    resume: bool = True


def compare(
    sides: Sides,
    cases: Sequence[Record],
    terms: Terms,
    grading: Grading,
    store: Store,
    open_engine: Callable[[Loaded], Engine],
    stop: threading.Event,
    step: Callable[[Record], None] = lambda run: None,
    facing: Facing | None = None,
) -> Record:
    """Measure both versions and return the record, without id. Raises Untestable when stopped.

    facing: the work tree's counterpart, with which both versions talk.
    """
    differs = sides.changed()
    # a tool's key is its own text: where only code around it changed, a stored answer may be either's
    doubtful = differs[-1:] == ["code"] and bool(sides.work.tools) and not _BEHAVIOUR & set(differs)
    resume = terms.resume and not doubtful

    def runner(machine: Loaded, revision: Record | None = None) -> Runner:
        settings = Settings(sampling=machine.sampling(), seed=terms.seed, resume=resume)
        engine = open_engine(machine)
        return runner_of(machine, engine, store, settings, facing, sides.work.folder, revision)

    live = runner(sides.old, {"commit": sides.base.commit, "dirty": False})
    candidate = runner(sides.work)
    alike = live.conditions == candidate.conditions
    # two arms with one key would replay each other: they take turns, so that luck shows as luck
    first = 1 + terms.trials if alike else 1
    arms = [measure.Arm("live", live), measure.Arm("candidate", candidate, first)]
    began = now()
    measured = measure.measure(arms, cases, terms.trials, grading, store, terms.concurrency, stop, step)
    if measured.interrupted:
        raise Untestable("interrupted: what was run is stored; the same command goes on from there")
    stored = {arm.name: sum(run["started_at"] < began for run in measured.all(arm.name)) for arm in arms}
    head = {
        "machine": sides.work.name,
        "baseline": sides.old.version,
        "candidate": sides.work.version,
        "base": sides.base.named,
        "base_commit": sides.base.commit,
        "rubric": grading.rubric,
        "graders": sides.work.source,
        "engine": {arm.name: [arm.runner.engine.model, arm.runner.engine.name] for arm in arms},
        "on": terms.on,
        "trials": terms.trials,
        "changed": differs,
        "stored": stored,
    }
    notes = [*version_notes(sides, differs, alike, doubtful), *_stored_note(stored)]
    return comparison(head, measured, cases, sides.work.criteria, notes)


def version_notes(sides: Sides, differs: Sequence[str], alike: bool, doubtful: bool) -> list[str]:
    """What a reader must know of the two versions, each `code: words`."""
    since = f"since {sides.base.named}"
    found = []
    if not differs:
        found.append(f"nothing_changed: nothing has changed {since}; what differs is luck")
    if "rubric" in differs:
        words = ", ".join(rubric_changes(sides.old.criteria, sides.work.criteria)) or "another order"
        found.append(f"rubric_changed: the rubric has changed {since} ({words}); today's grades both")
    if "tools" in differs:
        found.append(f"tools_changed: tools have changed {since}; each version ran with its own")
    elif "code" in differs:
        found.append(f"code_changed: graders or other code have changed {since}; today's grade both")
    if alike and differs and not doubtful:
        found.append("same_behaviour: what decides an answer is the same in both; what differs is luck")
    if doubtful:
        found.append("fresh_trials: tools may use the code that changed, so no stored run was used")
    return found


def rubric_changes(old: Sequence[Criterion], new: Sequence[Criterion]) -> list[str]:
    """`added x`, `dropped y`, `changed z` of two rubrics."""
    before, after = {c.id: c for c in old}, {c.id: c for c in new}
    return [
        *(f"added {name}" for name in after if name not in before),
        *(f"dropped {name}" for name in before if name not in after),
        *(f"changed {name}" for name in after if name in before and before[name] != after[name]),
    ]


def _stored_note(stored: Mapping[str, int]) -> list[str]:
    if stored["live"] == stored["candidate"]:
        return []
    words = f"{stored['live']} runs of the base and {stored['candidate']} of the work tree were stored before"
    return [f"runs_of_two_times: {words}; --no-resume runs all of them now, side by side"]


def comparison(
    head: Record,
    measured: measure.Measured,
    cases: Sequence[Record],
    rubric: Sequence[Criterion],
    notes: Sequence[str],
) -> Record:
    """The record of a comparison, without id. Pure. Figures as in a verdict: live is the base."""
    unique = {case["identity"]: case for case in cases}
    identities = sorted(unique)
    units = [unit_of(unique[identity]) for identity in identities]
    groups = [(unique[identity].get("metadata") or {}).get("group") for identity in identities]
    scores = {name: measured.scores(name, identities) for name in measured.runs}
    gate = paired_gate(scores["live"], scores["candidate"], MIN_Z, groups=groups)
    figures = {name: gate[name] for name in _FIGURES}
    mean, se = figures["mean_diff"], figures["se"]
    side = None if mean is None else decide(figures["n"], abs(mean), se, MIN_Z)
    runs = [run for name in measured.runs for run in measured.all(name)]
    return {
        "v": 1,
        "type": "comparison",
        **head,
        "cases": len(identities),
        "arms": {
            "cases": identities,
            "ids": [unique[identity]["id"] for identity in identities],
            **({"groups": groups} if any(groups) else {}),
            **scores,
        },
        **figures,
        "p_two_sided": _two_sided(figures),
        "evidence": None if side is None else "none" if side else "better" if mean > 0 else "worse",
        "criteria": criteria(measured, tuple(rubric)),
        "about": {name: _arm(measured, name, identities, units, head["trials"]) for name in measured.runs},
        "failed": sum(run["status"] == "failed" for run in runs),
        "ungraded": sum(run["status"] != "failed" and score_of(run) is None for run in runs),
        "spend": spend(runs),
        "notes": list(notes) + kin_warning(runs),
        "measured_at": now(),
    }


def _two_sided(figures: Mapping[str, Any]) -> float | None:
    """Exact sign-flip p of a difference either way, over units."""
    diff = figures["diff"]
    if not diff or figures["p_flip"] is None:
        return None
    down, _ = flip_p([round(-d * FINE_GRID) for d in diff], slack=2 * len(diff))
    return min(1.0, 2.0 * min(float(figures["p_flip"]), down))


def _arm(
    measured: measure.Measured, name: str, identities: Sequence[str], units: Sequence[str], trials: int
) -> Record:
    """What one version came to by itself."""
    by_case = [measured.runs[name].get(identity, []) for identity in identities]
    passed = [[passed_of(run) for run in runs] for runs in by_case]
    mean, error, _ = over_units([mean_of(map(score_of, runs)) for runs in by_case], units)
    told = about(list(measured.all(name)))
    known = [one for runs in passed for one in runs if one is not None]
    return {
        **told,
        "mean": mean,
        "stderr": error,
        "passes": sum(known),
        "graded": len(known),
        "pass_at_1": pass_at_k(passed, 1),
        "pass_at_k": pass_at_k(passed, trials),
        "all_good": pass_hat_k(passed, trials),
    }


def is_tie(difference: float | None) -> bool:
    """Is a case's difference nothing but dust of floats?"""
    return difference is not None and abs(difference) <= SLACK

"""What judges a machine, read from the blobs of a place: criteria and held-out cases. Runs nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from libmachine.case import cases_in, is_kept_out
from libmachine.folder import Criterion, read_rubric
from libmachine.git.place import Place


def differences(before: Sequence[Criterion], after: Sequence[Criterion]) -> list[str]:
    """How two rubrics differ: criteria added, dropped, reweighted, changed."""
    old, new = ({criterion.id: criterion for criterion in criteria} for criteria in (before, after))
    told = [f"added {name}" for name in new if name not in old]
    told += [f"dropped {name}" for name in old if name not in new]
    for name in new:
        if name in old and old[name].weight != new[name].weight:
            told.append(f"reweighted {name} {old[name].weight:g} -> {new[name].weight:g}")
        if name in old and replace(old[name], weight=0) != replace(new[name], weight=0):
            told.append(f"changed {name}")
    return told


def effective_criteria(place: Place, name: str) -> tuple[Criterion, ...]:
    """The criteria of a machine, its parents' first, from blobs. Raises MachineError."""
    criteria: list[Criterion] = []
    for member in reversed(place.family(name)):
        path = f"{place.prefix}/{member}/rubric.toml"
        data = place.read(path)
        if data is None:
            continue
        criteria += read_rubric(data, f"{path} of {place.label}")
    return tuple(criteria)


def groups_of(data: bytes | None) -> Mapping[str, Any]:
    """Identity -> group of the held-out cases that judge."""
    found = {}
    for case in cases_in(data):
        if not is_kept_out(case):
            found[case["identity"]] = (case.get("metadata") or {}).get("group")
    return found


def in_code(place: Place, name: str) -> tuple[str, ...]:
    """What the machine.py of a family says that belongs into a versioned file, as its text shows. No code
    runs, so who wants to hide it can."""
    told = []
    for member in place.family(name):
        path = f"{place.prefix}/{member}/machine.py"
        try:
            tree = ast.parse(place.read(path) or b"")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Machine":
                words = [
                    word.arg for word in node.keywords if word.arg in ("instructions", "model", "rubric")
                ]
                told += [f"in_code: {path} sets '{word}', which no version covers" for word in words]
    return tuple(told)

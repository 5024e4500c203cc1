"""machine: parametric learning for agent loops. The names authors import load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libmachine import sdk as machine
    from libmachine.define import Counterpart as Counterpart
    from libmachine.define import Machine as Machine
    from libmachine.define import Run as Run
    from libmachine.define import check as check
    from libmachine.define import jev as jev
    from libmachine.define import judge as judge
    from libmachine.define import judge_panel as judge_panel
    from libmachine.graders.hidden import hidden_tests as hidden_tests
    from libmachine.sandbox.workspace import Workspace as Workspace

__version__ = "0.1.0"
__all__ = [
    "Counterpart",
    "Machine",
    "Run",
    "Workspace",
    "check",
    "hidden_tests",
    "jev",
    "judge",
    "judge_panel",
    "machine",
]
_ELSEWHERE = {"Workspace": "libmachine.sandbox.workspace", "hidden_tests": "libmachine.graders.hidden"}
_FACE = "libmachine.sdk"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        if name == "machine":
            return import_module(_FACE)
        return getattr(import_module(_ELSEWHERE.get(name, "libmachine.define")), name)
    raise AttributeError(f"module 'libmachine' has no attribute '{name}'")

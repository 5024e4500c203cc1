"""machine: parametric learning for agent loops. The names authors import load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libmachine.define import Counterpart as Counterpart
    from libmachine.define import Machine as Machine
    from libmachine.define import Run as Run
    from libmachine.define import check as check
    from libmachine.define import jev as jev
    from libmachine.define import judge as judge
    from libmachine.define import judge_panel as judge_panel

__version__ = "0.1.0"
__all__ = ["Counterpart", "Machine", "Run", "check", "jev", "judge", "judge_panel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from libmachine import define

        return getattr(define, name)
    raise AttributeError(f"module 'libmachine' has no attribute '{name}'")

"""dev/datetime: dev on projects about dates and times, with held-back tests of what it left."""

from __future__ import annotations

from libmachine import Machine, hidden_tests

machine = Machine(
    intent="Change a small Python project about dates and times as the user asks, and prove it.",
    graders={"hidden": hidden_tests(__file__)},
)

"""What a repository's configuration asks of a change before it goes live."""

from __future__ import annotations

from libmachine.errors import MachineError
from libmachine.gate import rule as gate_rule
from libmachine.gate.proof import Policy
from libmachine.git.repository import Repository


def policy_of(repo: Repository, strict: bool, min_z: float, signed: bool) -> Policy:
    """What this repository's configuration asks for; options may only ask for more."""
    done = repo.run("config", "--null", "--get-regexp", r"^machine\.")
    given: dict[str, str] = {}
    for row in filter(None, done.out.decode("utf-8", "replace").split("\0")):
        name, newline, value = row.partition("\n")
        given[name] = value if newline else "true"

    def flag(name: str, default: bool) -> bool:
        text = given.get(name.lower(), str(default)).lower()
        if text in ("true", "yes", "on", "1"):
            return True
        if text in ("false", "no", "off", "0", ""):
            return False
        raise MachineError(f"{name} is '{text}'; it is true or false (git config {name} true)")

    try:
        least = float(given.get("machine.minz", "2"))
    except ValueError:
        least = -1.0
    if not 0 <= least < float("inf"):
        raise MachineError("machine.minZ is no number from 0 on; git config machine.minZ 2")
    asked = min_z if min_z != gate_rule.RULE["min_z"] else 0.0
    return Policy(
        flag("machine.requireConfirm", True),
        flag("machine.allowForced", False),
        flag("machine.strict", False) or strict,
        max(least, asked),
        flag("machine.requireSigned", False) or signed,
    )

"""What commands ask of a repository's configuration and of the environment to work with git."""

from __future__ import annotations

import os
import re

from libmachine.errors import MachineError
from libmachine.gate import rule as gate_rule
from libmachine.gate.proof import Policy
from libmachine.git import plumb
from libmachine.git.repository import Repository
from libmachine.project import Project

_TRANSPORT = re.compile(
    "SSH_AUTH_SOCK|SSH_ASKPASS|GIT_SSH|GIT_SSH_COMMAND|GIT_ASKPASS|GIT_TERMINAL_PROMPT|GIT_SSL_.*"
    "|(?:https?|all|no)_proxy",
    re.IGNORECASE,
)


def transport() -> dict[str, str]:
    """What git needs to reach another host, and no more."""
    return {name: value for name, value in os.environ.items() if _TRANSPORT.fullmatch(name)}


def runs_remote(project: Project) -> str | None:
    """Where the runs of a project are shared: `git config machine.runs`, a URL, a path or the name of a
    remote; None if it is not set. Raises MachineError outside a repository's reach."""
    done = plumb.run(project.root, "config", "--get", "machine.runs")
    chosen = done.out.decode("utf-8", "surrogateescape").rstrip("\n")
    if done.code or not chosen:
        return None
    if chosen.startswith("-"):
        raise MachineError(f"machine.runs is '{chosen}', which is no remote; git config machine.runs URL")
    named = plumb.run(project.root, "remote", "get-url", "--push", "--", chosen)
    if not named.code:
        chosen = named.out.decode("utf-8", "surrogateescape").rstrip("\n")
    is_path = "://" not in chosen and (os.path.isdir(f"{project.root}/{chosen}") or ":" not in chosen)
    return os.path.abspath(f"{project.root}/{chosen}") if is_path and not chosen.startswith("/") else chosen


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

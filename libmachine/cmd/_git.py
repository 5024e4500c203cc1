"""What git needs of the environment to reach another host."""

from __future__ import annotations

import os
import re

from libmachine.errors import MachineError
from libmachine.git import plumb
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

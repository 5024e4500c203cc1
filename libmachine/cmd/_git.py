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


_PROGRAMS = r"^(core\.(sshcommand|askpass)|credential\.(.*\.)?helper)$"


def transport() -> dict[str, str]:
    """What git needs to reach another host, and no more. The programs that it starts on the way (ssh, and
    those that know passwords) are the person's own: what a repository names is not started."""
    found = {name: value for name, value in os.environ.items() if _TRANSPORT.fullmatch(name)}
    own = _own(_PROGRAMS)
    last = dict(own)
    if "GIT_SSH" not in found:
        found.setdefault("GIT_SSH_COMMAND", last.get("core.sshcommand", "ssh"))
    found.setdefault("GIT_ASKPASS", last.get("core.askpass", found.get("SSH_ASKPASS", "")))
    found["GIT_PROXY_COMMAND"] = ""
    # an empty one takes back those that were named before
    helpers = [("credential.helper", ""), *((name, value) for name, value in own if name.endswith("helper"))]
    for number, (name, value) in enumerate(helpers):
        found[f"GIT_CONFIG_KEY_{number}"], found[f"GIT_CONFIG_VALUE_{number}"] = name, value
    return found | {"GIT_CONFIG_COUNT": str(len(helpers))}


def _own(pattern: str) -> list[tuple[str, str]]:
    """Name and value of git's settings of this person and this machine, without any repository's."""
    nowhere = {"GIT_DIR": "/dev/null"}
    done = plumb.run("/", "config", "--includes", "-z", "--get-regexp", pattern, extra=nowhere)
    rows = done.out.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [(name, value) for name, _, value in (row.partition("\n") for row in rows)]


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

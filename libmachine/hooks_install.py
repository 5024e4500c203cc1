"""Putting the git hooks in and taking them out again, beside whatever hooks are there.

A hook that was there is kept as NAME.before-machine in the same directory, and ours calls it first,
with the same stdin. core.hooksPath is never set: where somebody set it, we say what to add there.
"""

from __future__ import annotations

import os
import shlex

from libmachine.errors import MachineError
from libmachine.git.repository import Repository

CLIENT = ("pre-commit", "commit-msg", "pre-push")
SERVER = ("pre-receive",)
_MARK = "# machine hook "
_KEPT = ".before-machine"


def shipped() -> str:
    """Directory of the hooks that come with the package: in the wheel, or beside it in a checkout."""
    package = os.path.dirname(os.path.abspath(__file__))
    inside = f"{package}/_hooks"
    return inside if os.path.isdir(inside) else f"{os.path.dirname(package)}/hooks"


def install(repo: Repository, gate: str, server: bool = False) -> list[str]:
    """Put the hooks of a clone, or of a server, in; what was done. gate: path of machine-gate.

    Raises MachineError, with what to add where, if somebody set core.hooksPath.
    """
    directory = _directory(repo, SERVER if server else CLIENT, gate)
    os.makedirs(directory, exist_ok=True)
    return [_install(directory, name, gate) for name in (SERVER if server else CLIENT)]


def remove(repo: Repository, server: bool = False) -> list[str]:
    """Take our hooks out and put back what was there; what was done."""
    directory = f"{repo.common}/hooks"
    return [_remove(directory, name) for name in (SERVER if server else CLIENT)]


def _install(directory: str, name: str, gate: str) -> str:
    path, kept = f"{directory}/{name}", f"{directory}/{name}{_KEPT}"
    chained = ""
    if os.path.lexists(path) and not _is_ours(path):
        if os.path.lexists(kept):
            raise MachineError(f"'{path}' and '{kept}' are both there; merge them into one, then try again")
        os.rename(path, kept)
        chained = f"; '{name}{_KEPT}' is called first"
    with open(f"{shipped()}/{name}", encoding="utf-8") as file:
        text = file.read().replace("\ngate=\n", f"\ngate={shlex.quote(gate)}\n", 1)
    # renamed into place: git may start the hook at any moment
    scratch = f"{path}.machine-new"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(scratch, 0o755)
    os.rename(scratch, path)
    return f"hook {name} is in{chained}: {path}"


def _remove(directory: str, name: str) -> str:
    path, kept = f"{directory}/{name}", f"{directory}/{name}{_KEPT}"
    if not _is_ours(path):
        return f"hook {name} is not ours; left alone" if os.path.lexists(path) else f"no hook {name}"
    if os.path.lexists(kept):
        os.rename(kept, path)
        return f"hook {name} is as it was before"
    os.unlink(path)
    return f"hook {name} is out"


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(400)
    except OSError:
        return False
    return any(line.startswith(_MARK.encode()) for line in head.splitlines()[1:2])


def _directory(repo: Repository, names: tuple[str, ...], gate: str) -> str:
    """Where git looks for hooks. Raises MachineError if core.hooksPath sends it elsewhere."""
    # libmachine.git turns hooks off for what it runs, so the answer of --git-path would be that
    done = repo.run("config", "--null", "--show-scope", "--get-all", "core.hooksPath")
    words = done.out.decode("utf-8", "surrogateescape").split("\0")
    elsewhere = [
        value for scope, value in zip(words[::2], words[1::2], strict=False) if scope != "command" and value
    ]
    own = f"{repo.common}/hooks"
    if elsewhere and os.path.realpath(os.path.join(repo.directory, elsewhere[-1])) != os.path.realpath(own):
        lines = "; ".join(f'{name}: sh {shlex.quote(f"{shipped()}/{name}")} "$@"' for name in names)
        raise MachineError(
            f"core.hooksPath is '{elsewhere[-1]}', set by somebody else, and stays; add to the hooks there: "
            f"{lines} (with '{os.path.dirname(gate)}' on PATH)"
        )
    return own

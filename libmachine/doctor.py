"""What works on this machine: each need looked at by using it, with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from libmachine import env
from libmachine.errors import MachineError
from libmachine.load import load, names
from libmachine.project import Project
from libmachine.sandbox import choose
from libmachine.store import gc
from libmachine.store.store import Store


class Finding(NamedTuple):
    """state: ok, missing (something optional), broken (something needed). remedy: a command to type."""

    thing: str
    state: str
    detail: str
    remedy: str = ""


def examine(project: Project) -> list[Finding]:
    """Every finding, in the order a newcomer meets the things."""
    findings: list[Finding] = []
    for look in (_python, _packages, _git, _project, _store, _machines, _local_model, _sandbox, _bytecode):
        try:
            findings.extend(look(project))
        except (MachineError, OSError) as error:
            findings.append(Finding(look.__name__.strip("_"), "broken", str(error)))
    return findings


def _python(project: Project) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    state = "ok" if sys.version_info >= (3, 11) else "broken"
    yield Finding(
        "python",
        state,
        f"{version} ({sys.executable})",
        "" if state == "ok" else "install Python 3.11 or newer",
    )


def _packages(project: Project) -> Iterator[Finding]:
    wanted = ("click", "orjson", "pydantic", "httpx", "openai", "pygit2")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        pip = f"{sys.executable} -m pip install {' '.join(missing)}"
        yield Finding("packages", "broken", f"missing: {', '.join(missing)}", pip)
    else:
        yield Finding("packages", "ok", ", ".join(f"{n} {importlib.metadata.version(n)}" for n in wanted))


def _git(project: Project) -> Iterator[Finding]:
    path = shutil.which("git")
    if path is None:
        yield Finding(
            "git", "missing", "not on PATH: runs are stored, but name no commit", "apt-get install git"
        )
        return
    told = subprocess.run(
        [path, "--version"], capture_output=True, text=True, env=env.child_environment(), check=False
    )
    yield Finding("git", "ok", told.stdout.strip().removeprefix("git version "))


def _project(project: Project) -> Iterator[Finding]:
    if os.path.isdir(f"{project.root}/machines"):
        yield Finding("project", "ok", project.root)
    else:
        yield Finding("project", "missing", f"'{project.root}' holds no machines/", "machine-init --examples")


def _store(project: Project) -> Iterator[Finding]:
    if not os.path.exists(project.store):
        where = os.path.dirname(project.store)
        if os.access(where, os.W_OK):
            yield Finding("store", "ok", f"'{project.store}' is made at the first run")
        else:
            yield Finding(
                "store", "broken", f"'{where}' may not be written", "export MACHINE_DIR=~/machine-store"
            )
        return
    store = Store(project.store)
    machines = store.index.machines() if store.has_records() else []
    mode = os.stat(project.store).st_mode & 0o777
    store.close()
    if mode & 0o077:
        yield Finding("store", "broken", f"others may read it (mode {mode:o})", f"chmod 700 {project.store}")
    elif not os.access(project.store, os.W_OK):
        yield Finding(
            "store", "broken", f"'{project.store}' may not be written", "export MACHINE_DIR=~/machine-store"
        )
    else:
        yield Finding("store", "ok", f"{project.store}: runs of {', '.join(machines) or 'no machine yet'}")
    if number := gc.is_worth(project.store):
        yield Finding("store", "missing", f"{number} objects lie in files of their own", "machine-gc")


def _machines(project: Project) -> Iterator[Finding]:
    found = names(project.places)
    wrong = {}
    for name in found:
        try:
            load(name, project.places)
        except MachineError as error:
            wrong[name] = str(error)
    for name, told in wrong.items():
        yield Finding("machine", "broken", f"{name}: {told}")
    yield Finding("machines", "ok", ", ".join(name for name in found if name not in wrong) or "none")


def _local_model(project: Project) -> Iterator[Finding]:
    if importlib.util.find_spec("xllamacpp") is None:
        remedy = f"{sys.executable} -m pip install 'xllamacpp>=2026.9'"
        yield Finding("local model", "missing", "xllamacpp is not installed: local/... cannot run", remedy)
        return
    chosen = env.get("MACHINE_LOCAL_MODEL")
    if chosen and not os.path.isfile(chosen):
        yield Finding(
            "local model",
            "broken",
            f"MACHINE_LOCAL_MODEL is '{chosen}', which is no file",
            "unset MACHINE_LOCAL_MODEL",
        )
        return
    version = importlib.metadata.version("xllamacpp")
    yield Finding(
        "local model", "ok", f"xllamacpp {version}, weights {chosen or 'fetched once at the first use'}"
    )


def _sandbox(project: Project) -> Iterator[Finding]:
    chosen = choose.provider(env.get("MACHINE_SANDBOX"))
    found = chosen.isolation()
    weaker = "".join(f"; {note}" for note in found.notes)
    if found.isolated:
        yield Finding("sandbox", "ok", f"{chosen.name}: every part is in force{weaker}")
        return
    # what is missing of the one that would isolate, not of the one that is there instead
    best = choose.provider("bubblewrap").isolation()
    why = ", ".join((found if best.isolated else best).missing)
    detail = f"{chosen.name}, which does not isolate (tools that run a model's code refuse): {why}{weaker}"
    yield Finding("sandbox", "missing", detail, _mend_sandbox(best.isolated))


def _mend_sandbox(works: bool) -> str:
    """What to type so that bubblewrap works. The switch that opens namespaces to all comes last."""
    if works:
        return "unset MACHINE_SANDBOX"
    if choose.bubblewrap() is None:
        return "apt-get install bubblewrap"
    if _says("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"):
        profile = f"profile bwrap {choose.bubblewrap()} flags=(unconfined) {{ userns, }}"
        place = "/etc/apparmor.d/bwrap"
        return f"echo '{profile}' | sudo tee {place} && sudo apparmor_parser -r {place}"
    if _says("/proc/sys/kernel/unprivileged_userns_clone", "0"):
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _says("/proc/sys/user/max_user_namespaces", "0"):
        return "sudo sysctl -w user.max_user_namespaces=10000"
    return ""


def _says(path: str, value: str) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip() == value
    except OSError:
        return False


def _bytecode(project: Project) -> Iterator[Finding]:
    cached = importlib.util.cache_from_source(os.path.abspath(__file__))
    if os.path.exists(cached):
        yield Finding("start-up", "ok", "byte code is compiled")
    else:
        folder = os.path.dirname(os.path.abspath(__file__))
        remedy = f"{sys.executable} -m compileall -q {folder}"
        yield Finding(
            "start-up", "missing", "byte code is not compiled: every command starts twice as slowly", remedy
        )

"""Machines that are defined in a program: no folder of the user's, versions kept in the store.

In the store lies `defined/`, a git repository with a folder for each such machine: the very files that a
machine's folder has, but that machine.py asks this process for its code. So a version is the same data,
and gates, candidates and promotions are the same functions. Hooks and other programs see the versions and
cannot run them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from libmachine import promote
from libmachine.canon import Record, canonical, dump_line, hash_of, loads, plain
from libmachine.case import read_case
from libmachine.define import Check, Escalation, Grader, JudgePanel, Machine
from libmachine.errors import MachineError
from libmachine.folder import Folder, as_model, as_rubric
from libmachine.folders import make_private
from libmachine.git import plumb, refs, repository, trees
from libmachine.load import Loaded, check_name, find, load_folder
from libmachine.project import Project
from libmachine.tools import Tool, sources

FOLDER = "defined"
DECLARED = "declared.json"
"""What the code said of instructions and model when it was last taken over."""
_STUB = '''\
"""Written by libmachine: '{name}' is defined in the code of {module}, not here.

Code: {digest}
"""

from libmachine.sdk_define import of_code


def __getattr__(name):
    return of_code({key!r}, name)
'''
_known: dict[str, Machine] = {}
_lock = threading.RLock()


def define(
    project: Project, name: str, machine: Machine, cases: list[Any], holdout: list[Any]
) -> tuple[Project, Loaded]:
    """Bring the store's folder of a machine up to its definition; where it lies, and the machine.

    Raises MachineError for a machine that would be refused as a folder, or whose name one has.
    """
    check_name(name)
    if not isinstance(machine, Machine):
        raise MachineError(f"'{name}' is a {type(machine).__name__}; define a Machine(...)")
    _refuse_taken(project, name)
    inside = _place(project)
    key = f"{name}@{_digest(machine)}"
    with _lock:
        _known[key] = replace(machine, instructions=None, model=None, rubric=None)
        folder = Folder(inside.places[0], name)
        files = _files(folder, name, machine, key, cases, holdout)
        before = {file: folder.read(file) for file in files}
        try:
            for file, data in files.items():
                _write(folder.file(file), data)
            _forget(folder)
            loaded = load_folder(folder)
        except BaseException:
            for file, old in before.items():
                _write(folder.file(file), old)
            _forget(folder)
            raise
        _go_live(inside, name)
    return inside, replace(loaded, version=folder.version())


def of_code(key: str, name: str) -> Machine:
    """What machine.py of such a folder gives as `machine`."""
    if name != "machine":
        raise AttributeError(name)
    if key not in _known:
        raise MachineError(
            f"'{key.partition('@')[0]}' is defined in the code of a program; only that program can run it"
        )
    return _known[key]


def _forget(folder: Folder) -> None:
    """Drop what was imported of a folder's machine.py: it names the code of another definition."""
    path = folder.file("machine.py")
    for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == path]:
        del sys.modules[name]


def _refuse_taken(project: Project, name: str) -> None:
    try:
        there = find(name, project.places)
    except MachineError:
        return
    raise MachineError(f"'{name}' is the machine in '{there.path}'; give the one in code another name")


def _place(project: Project) -> Project:
    """The project inside the store, with its repository; made if it is not there."""
    root = f"{project.store}/{FOLDER}"
    if not os.path.isdir(f"{root}/.git"):
        project.open_store().prepare()
        make_private(root)
        make_private(f"{root}/machines")
        plumb.ask(root, "init", "-q", "-b", "main", "--template=")
    return Project(root, project.store, (f"{root}/machines", *project.places))


def _files(
    folder: Folder, name: str, machine: Machine, key: str, cases: list[Any], holdout: list[Any]
) -> dict[str, bytes | None]:
    """File -> what it is to hold now, None for no file."""
    where = f"the definition of '{name}'"
    if machine.rubric is not None:
        as_rubric(machine.rubric, where)
    model = machine.model
    if isinstance(model, str):
        model = {"model": model}
    if model is not None:
        as_model(model, where)
    says: dict[str, bytes | None] = {
        "instructions.md": None if machine.instructions is None else machine.instructions.encode(),
        "model.json": None if model is None else canonical(plain(dict(model))) + b"\n",
    }
    declared = (
        canonical({file: None if d is None else hash_of(d.decode()) for file, d in says.items()}) + b"\n"
    )
    # a candidate may have changed what the code said at first: that holds until the code says something else
    old = loads(folder.read(DECLARED) or b"null")
    if isinstance(old, dict):
        new = loads(declared)
        assert isinstance(new, dict)
        says |= {file: folder.read(file) for file in says if old.get(file) == new[file]}
    graders = machine.graders.values()
    module = next((g.function.__module__ for g in graders if isinstance(g, Check)), "a program")
    stub = _STUB.format(name=name, module=module, digest=key.partition("@")[2], key=key)
    return {
        **says,
        "machine.py": stub.encode(),
        "rubric.toml": None if machine.rubric is None else _toml(machine.rubric).encode(),
        "cases.jsonl": _lines(cases, f"{where}: cases"),
        "holdout.jsonl": _lines(holdout, f"{where}: holdout"),
        DECLARED: declared,
    }


def _lines(cases: Iterable[Any], where: str) -> bytes | None:
    rows = []
    for number, value in enumerate(cases, 1):
        try:
            case = read_case(value)
        except MachineError as error:
            raise MachineError(f"{where}: case {number}: {error}") from None
        rows.append(dump_line({field: item for field, item in case.items() if field != "identity"}))
    return b"".join(rows) or None


def _toml(rubric: Mapping[str, Mapping[str, Any]]) -> str:
    """A rubric as rubric.toml says it. JSON's texts, numbers and lists are TOML's too."""
    lines = []
    for criterion, fields in rubric.items():
        lines.append(f"[{criterion}]")
        for field, value in fields.items():
            if isinstance(value, Mapping):
                inner = ", ".join(f"{json.dumps(str(k))} = {json.dumps(v)}" for k, v in value.items())
                lines.append(f"{field} = {{ {inner} }}")
            elif value is not None:
                lines.append(
                    f"{field} = {json.dumps(value if not isinstance(value, tuple) else list(value))}"
                )
        lines.append("")
    return "\n".join(lines)


def _write(path: str, data: bytes | None) -> None:
    if data is None:
        if os.path.exists(path):
            os.unlink(path)
        return
    make_private(os.path.dirname(path))
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, path)


def _go_live(inside: Project, name: str) -> None:
    """Commit what the folder holds, if HEAD holds something else."""
    repo = repository.open_repository(inside.root)
    work, head = trees.work_tree(inside.root), repository.head(repo)
    base = trees.commit(repo, head) if head else None
    had = base is not None and base.has(name)
    if base is not None and had and _held(base, name) == _held(work, name):
        return
    number = refs.record_version(repo, name, work)
    version = work.version(name)
    words = f"{name}: as its code says\n\n{promote.VERSION_TRAILER}: {name} v{number} {version}\n"
    old = (base, base.version(name)) if base is not None and had else None
    promote.commit_folder(repo, name, work, words)
    if old is None or old[1] != version:
        promote.log_live(repo, name, words, work, old)


def _held(place: Any, name: str) -> dict[str, str | None]:
    return {path: place.oid(path) for path in place.own(name)}


# what the code is -------------------------------------------------------------------------


def _digest(machine: Machine) -> str:
    """Hash of what a definition says in code: another one is another machine to graders and keys."""
    panels: dict[int, int] = {}
    rule = machine.counterpart
    told: Record = {
        "intent": machine.intent,
        "graders": {name: _grader(grader, panels) for name, grader in machine.graders.items()},
        "tools": [Tool(tool).source() for tool in machine.tools],
        "transform": machine.transform_reasoning and sources(machine.transform_reasoning),
        "counterpart": rule and [rule.machine, rule.max_turns, rule.until and sources(rule.until)],
    }
    return hash_of(plain(told))


def _grader(grader: Grader, panels: dict[int, int]) -> Any:
    if isinstance(grader, Escalation):
        inner = [_grader(one, panels) for one in (grader.cheap, grader.stronger)]
        return [grader.kind, *inner, list(grader.unsure)]
    if isinstance(grader, Check):
        return [grader.kind, grader.name, sources(grader.function)]
    if isinstance(grader, JudgePanel):
        # its own number counts the panels of this process
        return [grader.kind, grader.model, grader.effort, panels.setdefault(grader.group, len(panels))]
    return [grader.kind, repr(grader)]

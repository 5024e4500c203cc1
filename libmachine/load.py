"""From a folder to a machine: find it, read its files, import its code, refuse what is wrong.

Finding and listing import nothing. Each tree of machines gets a synthetic package of its
own, so that two trees (or two versions) live side by side in one process and relative
imports between a machine's files work.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from libmachine.define import (
    Check,
    Counterpart,
    Escalation,
    Grader,
    Jev,
    Judge,
    JudgePanel,
    Machine,
    Question,
    Run,
)
from libmachine.errors import MachineError
from libmachine.folder import Criterion, Folder, Model, as_model, as_rubric, check_sampling
from libmachine.githash import blob_id
from libmachine.harness.base import Sampling

_SEGMENT = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Loaded:
    """A machine ready to run and grade."""

    name: str
    folder: Folder
    intent: str
    instructions: str
    model: Model
    criteria: tuple[Criterion, ...]
    graders: dict[str, Grader]
    tools: tuple[Any, ...]
    version: str
    source: str
    """Hash of the .py files of the folder and its parents: who the graders are."""
    parent: Loaded | None = None
    transform: Callable[[str, Run], str] | None = None
    """Its own transform_reasoning; what its parents declare is theirs."""
    counterpart: Counterpart | None = None
    """Who it talks with; a child's parent's unless it names its own."""
    ungateable: str | None = None
    """Why a gate cannot judge this machine: it says in code what belongs in its files."""

    def sampling(self, **overrides: Any) -> Sampling:
        """model.json's sampling, with what is not None of overrides put over it. Raises MachineError."""
        chosen = dict(self.model.sampling or {})
        chosen |= {name: value for name, value in overrides.items() if value is not None}
        check_sampling(chosen, "sampling")
        return Sampling(**chosen)


def check_name(name: str) -> None:
    """Raise MachineError if a name is none a machine may have."""
    for segment in name.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment.endswith((".lock", ".")) or ".." in segment:
            raise MachineError(
                f"'{name}' is no machine name; use a-z, 0-9, '.', '_', '-' in segments joined by '/'"
            )
        if re.fullmatch(r"v[0-9]+", segment):
            raise MachineError(f"'{name}' is no machine name; '{segment}' would read as a version")


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except MachineError:
        return False
    return True


def names(places: Sequence[str]) -> dict[str, Folder]:
    """Every machine of the places, by name, without importing one. The first place wins."""
    found: dict[str, Folder] = {}
    for place in places:
        for name in sorted(_below(place, "")):
            found.setdefault(name, Folder(place, name))
    return dict(sorted(found.items()))


def _below(place: str, prefix: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(os.path.join(place, prefix)), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and _SEGMENT.fullmatch(entry.name):
            name = f"{prefix}{entry.name}"
            if os.path.isfile(f"{entry.path}/machine.py") and _is_name(name):
                yield name
            yield from _below(place, f"{name}/")


def find(name: str, places: Sequence[str]) -> Folder:
    """The folder of a machine. Raises MachineError, naming the nearest machine there is."""
    check_name(name)
    for place in places:
        if os.path.isfile(f"{place}/{name}/machine.py"):
            return Folder(place, name)
    known = list(names(places))
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = (
        f"did you mean '{near[0]}'?"
        if near
        else f"there are: {', '.join(known)}"
        if known
        else "there is none"
    )
    if os.path.isdir(f"{places[0]}/{name}"):
        hint = f"'{places[0]}/{name}' has no machine.py"
    raise MachineError(f"no machine '{name}'; {hint} (machine-list shows all)")


def load(name: str, places: Sequence[str]) -> Loaded:
    """Load a machine and its parents: run their machine.py and read their files.

    A child has its parent's criteria and graders (it may add, not redefine), its instructions
    followed by its own, its tools and more, and its model unless it names one. Raises
    MachineError, with file and remedy, for anything that would go wrong later.
    """
    return load_folder(find(name, places))


def load_folder(folder: Folder) -> Loaded:
    """Load the machine in a folder."""
    above = folder.parent()
    parent = load_folder(above) if above else None
    definition = _import(folder)
    where = folder.file("machine.py")
    if not isinstance(definition, Machine):
        raise MachineError(f"{where}: it has no 'machine = Machine(...)'")
    if not isinstance(definition.intent, str) or not definition.intent.strip():
        raise MachineError(f"{where}: 'intent' is empty; say in one sentence what the machine is for")
    in_code = [name for name in ("instructions", "model", "rubric") if getattr(definition, name) is not None]
    ungateable = f"{where} sets {', '.join(in_code)} in code; move it to its file" if in_code else None
    transform = definition.transform_reasoning
    if transform is not None and not callable(transform):
        raise MachineError(f"{where}: 'transform_reasoning' is no function (reasoning, run) -> text")
    instructions = definition.instructions if definition.instructions is not None else folder.instructions()
    own = as_rubric(definition.rubric, where) if definition.rubric is not None else folder.criteria()
    model = as_model(definition.model, where) if definition.model is not None else folder.model()
    graders = _graders(definition, own, folder)
    tools = tuple(definition.tools)
    counterpart = _counterpart(definition, folder)
    if parent:
        _refuse_redefined(folder, [criterion.id for criterion in own], list(parent.graders), "criterion")
        _refuse_redefined(
            folder, [_called(tool) for tool in tools], [_called(t) for t in parent.tools], "tool"
        )
        instructions = _joined(parent, instructions)
        model = model if model.model is not None else parent.model
        counterpart = counterpart or parent.counterpart
    return Loaded(
        name=folder.name,
        folder=folder,
        intent=definition.intent.strip(),
        instructions=instructions,
        model=model,
        criteria=(*parent.criteria, *own) if parent else own,
        graders={**parent.graders, **graders} if parent else graders,
        tools=(*parent.tools, *tools) if parent else tools,
        version=folder.version(),
        source=_source(folder),
        parent=parent,
        transform=transform,
        counterpart=counterpart,
        ungateable=ungateable or (parent.ungateable if parent else None),
    )


def _joined(parent: Loaded, own: str) -> str:
    """A child's instructions: its parent's, followed by its own."""
    return "\n\n".join(text for text in (parent.instructions.rstrip(), own) if text.strip())


def with_instructions(machine: Loaded, own: str) -> Loaded:
    """The machine as it would be with this text in its instructions.md, and the version it would have."""
    return replace(
        machine,
        instructions=_joined(machine.parent, own) if machine.parent else own,
        version=machine.folder.version({"instructions.md": own.encode()}),
    )


def _refuse_redefined(folder: Folder, own: list[str], inherited: list[str], what: str) -> None:
    for name in own:
        if name in inherited:
            parent = folder.name.rpartition("/")[0]
            raise MachineError(
                f"{folder.path}: {what} '{name}' is inherited from '{parent}' and cannot be redefined; "
                "give the new one another name"
            )


def _called(tool: Any) -> str:
    return str(getattr(tool, "__name__", tool))


def _graders(definition: Machine, criteria: Sequence[Criterion], folder: Folder) -> dict[str, Grader]:
    where = folder.file("machine.py")
    declared = [criterion.id for criterion in criteria]
    if not declared and not definition.graders:
        return {}
    for name in definition.graders:
        if name not in declared:
            import difflib

            near = difflib.get_close_matches(name, declared, 1)
            hint = f"did you mean '{near[0]}'?" if near else "declare it there or drop it"
            raise MachineError(f"{where}: grader '{name}' is for no criterion of rubric.toml; {hint}")
    for name in declared:
        if name not in definition.graders:
            raise MachineError(
                f"{where}: criterion '{name}' of rubric.toml has no grader; add one to graders={{...}}"
            )
        grader = definition.graders[name]
        if isinstance(grader, Jev):
            raise MachineError(f"{where}: grader '{name}' asks nothing; write jev.noul(), score or choice")
        if callable(grader):
            raise MachineError(f"{where}: grader '{name}' is a bare function; wrap it: check({name})")
        if not isinstance(grader, Check | Judge | JudgePanel | Question | Escalation):
            raise MachineError(
                f"{where}: grader '{name}' is a {type(grader).__name__}, not a check, a judge or a question"
            )
    graders = dict(definition.graders)
    for criterion in criteria:
        if criterion.pass_at is not None:
            graders[criterion.id] = replace(graders[criterion.id], pass_at=criterion.pass_at)
    return {name: graders[name] for name in declared}


def _counterpart(definition: Machine, folder: Folder) -> Counterpart | None:
    other, where = definition.counterpart, folder.file("machine.py")
    if other is None:
        return None
    if not isinstance(other, Counterpart):
        raise MachineError(f'{where}: the counterpart is a {type(other).__name__}; write Counterpart("NAME")')
    if not isinstance(other.machine, str) or other.machine == folder.name:
        raise MachineError(f"{where}: the counterpart is {other.machine!r}; name another machine")
    check_name(other.machine)
    if other.until is not None and not inspect.isfunction(other.until):
        raise MachineError(f"{where}: 'until' of the counterpart is no function; write one of the run")
    if isinstance(other.max_turns, bool) or not isinstance(other.max_turns, int) or other.max_turns < 1:
        raise MachineError(
            f"{where}: 'max_turns' of the counterpart is {other.max_turns!r}; it is a number from 1"
        )
    return other


def _source(folder: Folder) -> str:
    digest = hashlib.sha1()
    for path in folder.python_files():
        with open(path, "rb") as file:
            digest.update(os.fsencode(f"{os.path.relpath(path, folder.path)} {blob_id(file.read())}\n"))
    return digest.hexdigest()


# importing -----------------------------------------------------------------------------


def _import(folder: Folder) -> Any:
    """Run machine.py in the tree's package and return its `machine`."""
    package = "_machines_" + hashlib.sha1(os.fsencode(os.path.realpath(folder.root))).hexdigest()[:12]
    parent = _package(package, folder.root)
    here = folder.root
    for segment in folder.name.split("/"):
        here = f"{here}/{segment}"
        parent = _package(f"{parent.__name__}.{_mangled(segment)}", here)
    path = folder.file("machine.py")
    module_name = f"{parent.__name__}.machine"
    if module_name in sys.modules:
        return getattr(sys.modules[module_name], "machine", None)
    loader = importlib.machinery.SourceFileLoader(module_name, path)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # A user's tree is not ours to litter with byte code, now or when its code imports something later.
    sys.dont_write_bytecode = True
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, KeyboardInterrupt | MachineError):
            raise
        raise MachineError(_told(error, path)) from None
    return getattr(module, "machine", None)


def _package(name: str, path: str) -> ModuleType:
    module = sys.modules.get(name)
    if module is None:
        module = ModuleType(name)
        module.__path__ = [path]
        module.__package__ = name
        sys.modules[name] = module
    return module


def _mangled(segment: str) -> str:
    return re.sub(r"[^a-z0-9_]", lambda found: f"_{ord(found[0]):x}_", segment)


def _told(error: BaseException, path: str) -> str:
    """What went wrong in a machine's code, with the file and line of that code."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno or 1}: syntax error: {error.msg}"
    folder = os.path.dirname(path)
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(folder)]
    line = inside[-1].lineno if inside else 0
    name = inside[-1].filename if inside else path
    return f"{name}:{line}: {type(error).__name__}: {error}"

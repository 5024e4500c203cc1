"""The files of a machine's folder, read without running anything: what hooks and lists may do.

machine.py  rubric.toml  instructions.md  model.json  cases.jsonl  holdout.jsonl
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from libmachine import jsonl
from libmachine.canon import Record, RecordError, called, hash_of, loads
from libmachine.case import read_case
from libmachine.errors import MachineError
from libmachine.githash import DIRECTORY, FILE, blob_id, tree_id

VERSIONED = ("instructions.md", "model.json", "rubric.toml")
_CASE = '{"input": "..."}'
LARGEST_RUBRIC = 32 * 1024
"""Bytes: a server reads rubrics that anybody pushed, and the time TOML takes grows with their square."""
_ID = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CRITERION_FIELDS = ("description", "weight", "levels", "pass_at", "guard", "role")
_MODEL_FIELDS = ("model", "base", "harness", "sampling")
_SAMPLING = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1_000_000),
    "min_p": (0.0, 1.0),
    "max_tokens": (1, 10_000_000),
}


@dataclass(frozen=True)
class Criterion:
    """One criterion of a rubric. weight: 0 for an audit. guard: tolerated fall of its paired mean."""

    id: str
    description: str
    weight: float
    levels: Any = None
    pass_at: float | None = None
    guard: float | None = None
    role: str | None = None

    @property
    def is_audit(self) -> bool:
        """Graded and shown, never part of score, passed or selection."""
        return self.role == "audit"

    def text(self) -> Record:
        """What a grade of this criterion depends on: not its weight or pass mark."""
        return {"id": self.id, "description": self.description, "levels": self.levels}


@dataclass(frozen=True)
class Model:
    """model.json: the model as asked for, what it was trained from, its harness, how to sample it."""

    model: str | None = None
    base: str | None = None
    harness: str | None = None
    sampling: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Folder:
    """A machine's folder: root/name."""

    root: str
    name: str

    @property
    def path(self) -> str:
        """The folder itself."""
        return f"{self.root}/{self.name}"

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.root}/{self.name}/{name}"

    def parent(self) -> Folder | None:
        """The machine this one is a child of, if the folder around it is one."""
        above, _, _ = self.name.rpartition("/")
        if above and os.path.isfile(f"{self.root}/{above}/machine.py"):
            return Folder(self.root, above)
        return None

    def family(self) -> Iterator[Folder]:
        """This folder and its parents, nearest first."""
        here: Folder | None = self
        while here is not None:
            yield here
            here = here.parent()

    def descendants(self) -> Iterator[Folder]:
        """The machines below this one."""
        for where, folders, files in os.walk(self.path):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
            if where != self.path and "machine.py" in files:
                yield Folder(self.root, os.path.relpath(where, self.root))

    def python_files(self) -> list[str]:
        """The .py files of this folder and of its parents, child machines left out."""
        found = []
        for folder in self.family():
            for where, folders, files in os.walk(folder.path):
                folders[:] = sorted(
                    name
                    for name in folders
                    if not name.startswith((".", "__")) and not os.path.isfile(f"{where}/{name}/machine.py")
                )
                found += [f"{where}/{name}" for name in sorted(files) if name.endswith(".py")]
        return found

    def blobs(self) -> dict[str, str]:
        """Path -> blob id of every file of the folder, byte code and hidden files left out."""
        found = {}
        for where, folders, files in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            for name in files:
                if not name.startswith("."):
                    with open(f"{where}/{name}", "rb") as file:
                        found[os.path.relpath(f"{where}/{name}", self.path)] = blob_id(file.read())
        return found

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, None if it is absent."""
        try:
            with open(self.file(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def version(self, instead: Mapping[str, bytes] | None = None) -> str:
        """The version id: the tree of what decides behaviour and judgement, from the work tree's bytes.

        instead: file -> bytes that it would have.
        """
        found = {name: (instead or {}).get(name, self.read(name)) for name in VERSIONED}
        entries = [(FILE, name, blob_id(data)) for name, data in found.items() if data is not None]
        parent = self.parent()
        if parent is not None:
            entries.append((DIRECTORY, "parent", parent.version()))
        return tree_id(entries)

    def instructions(self) -> str:
        """instructions.md as text; empty if absent."""
        data = self.read("instructions.md") or b""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MachineError(f"{self.file('instructions.md')}: no UTF-8 at byte {error.start}") from None

    def model(self) -> Model:
        """model.json, checked."""
        data = self.read("model.json")
        if data is None:
            return Model()
        where = self.file("model.json")
        try:
            value = loads(data)
        except RecordError as error:
            raise MachineError(f"{where}: {error}") from None
        return as_model(value, where)

    def criteria(self) -> tuple[Criterion, ...]:
        """rubric.toml, checked; none if absent."""
        data = self.read("rubric.toml")
        if data is None:
            return ()
        return read_rubric(data, self.file("rubric.toml"))

    def cases(self, name: str = "cases.jsonl") -> list[Record]:
        """The cases of one of its files, none if it is absent or empty."""
        path = self.file(name)
        return read_cases(path) if os.path.exists(path) and os.path.getsize(path) else []


def read_rubric(data: bytes, where: str) -> tuple[Criterion, ...]:
    """The criteria in the bytes of a rubric.toml. Raises MachineError with file and remedy."""
    if len(data) > LARGEST_RUBRIC:
        raise MachineError(
            f"{where}: a rubric is at most {LARGEST_RUBRIC} bytes, not {len(data)}; shorten it"
        )
    try:
        value = tomllib.loads(data.decode())
    except RecursionError:
        raise MachineError(f"{where}: lists and tables are nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, or a number that Python will not read
        told = str(error)
        raise MachineError(f"{where}: {told[:1].lower() + told[1:]}") from None
    return as_rubric(value, where)


def as_rubric(value: Any, where: str) -> tuple[Criterion, ...]:
    """Criteria from a table id -> {description, weight, ...}. Raises MachineError with file and remedy."""
    if not isinstance(value, Mapping):
        raise MachineError(f"{where}: a rubric is a table of criteria, not {called(value)}")
    criteria = tuple(_criterion(name, item, where) for name, item in value.items())
    if criteria and not any(criterion.weight > 0 for criterion in criteria):
        raise MachineError(f"{where}: no criterion has a positive weight; the score would be nothing")
    return criteria


def _criterion(name: str, item: Any, where: str) -> Criterion:
    if not _ID.fullmatch(name):
        raise MachineError(f"{where}: '{name}' is no criterion name; use a-z, 0-9, '_' and '-'")
    if not isinstance(item, Mapping):
        raise MachineError(f"{where}: criterion '{name}' is {called(item)}; write a table: [{name}]")
    for field in item:
        if field not in _CRITERION_FIELDS:
            raise MachineError(
                f"{where}: [{name}] has an unknown field '{field}'; "
                f"it may have {', '.join(_CRITERION_FIELDS)}"
            )
    description = item.get("description")
    if not isinstance(description, str) or not description.strip():
        raise MachineError(f"{where}: [{name}] has no description; say what a good run does")
    role = item.get("role")
    if role not in (None, "audit"):
        raise MachineError(f"{where}: [{name}] has role '{role}'; the only role is \"audit\"")
    if role == "audit" and "weight" in item:
        raise MachineError(f"{where}: [{name}] is an audit, which has no weight; drop 'weight' or 'role'")
    weight = 0.0 if role == "audit" else item.get("weight", 1)
    _number(weight, 0, 1e9, f"{where}: [{name}] weight")
    levels = item.get("levels")
    texts = list(levels.values()) if isinstance(levels, Mapping) else levels
    if levels is not None and not (
        isinstance(texts, list) and len(texts) > 1 and all(isinstance(told, str) for told in texts)
    ):
        raise MachineError(
            f"{where}: [{name}] levels is a list of two texts or more, worst first, or a table score = text"
        )
    for field in ("pass_at", "guard"):
        if item.get(field) is not None:
            _number(item[field], 0, 1, f"{where}: [{name}] {field}")
    return Criterion(
        id=name,
        description=description,
        weight=float(weight),
        levels=item.get("levels"),
        pass_at=item.get("pass_at"),
        guard=item.get("guard"),
        role=role,
    )


def _number(value: Any, low: float, high: float, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise MachineError(f"{what} is {value!r}; it is a number from {low:g} to {high:g}")


def as_model(value: Any, where: str) -> Model:
    """A model from an id or from {model, base?, harness?, sampling?}."""
    if isinstance(value, str):
        value = {"model": value}
    if not isinstance(value, Mapping):
        raise MachineError(f"{where}: a model is an object, not {called(value)}")
    for field in value:
        if field not in _MODEL_FIELDS:
            raise MachineError(f"{where}: unknown field '{field}'; it may have {', '.join(_MODEL_FIELDS)}")
    for field in ("model", "base", "harness"):
        if not isinstance(value.get(field), str | None) or value.get(field) == "":
            raise MachineError(f"{where}: '{field}' is no text")
    sampling = value.get("sampling")
    if sampling is not None:
        check_sampling(sampling, f"{where}: sampling")
    return Model(value.get("model"), value.get("base"), value.get("harness"), sampling)


def check_sampling(sampling: Any, where: str) -> None:
    """Raise MachineError for a sampling value that is unknown or out of range."""
    if not isinstance(sampling, Mapping):
        raise MachineError(f"{where} is {called(sampling)}, not an object")
    for name, value in sampling.items():
        if name == "effort":
            if not isinstance(value, str):
                raise MachineError(f"{where}: 'effort' is no text")
        elif name not in _SAMPLING:
            known = ", ".join([*_SAMPLING, "effort"])
            raise MachineError(f"{where}: unknown field '{name}'; it may have {known}")
        else:
            _number(value, *_SAMPLING[name], f"{where} {name}")
            if name in ("top_k", "max_tokens") and not isinstance(value, int):
                raise MachineError(f"{where} {name} is {value!r}; it is a whole number")


def rubric_hash(criteria: tuple[Criterion, ...]) -> str:
    """Hash of the effective criteria: what a score means."""
    return hash_of([vars(criterion) for criterion in criteria])


def read_cases(path: str) -> list[Record]:
    """The cases of a file. Raises MachineError naming the line that is wrong, or that there are none."""
    cases = []
    seen: dict[str, tuple[str, int]] = {}
    number = 0
    try:
        for line in jsonl.read_file(path):
            number = line.number
            if line.error:
                raise RecordError(line.error)
            case = read_case(line.value)
            known = seen.setdefault(case["id"], (case["identity"], line.number))
            if known[0] != case["identity"]:
                raise RecordError(
                    f"id '{case['id']}' is taken by line {known[1]} with another input; give it its own"
                )
            cases.append(case)
    except RecordError as error:
        raise MachineError(f"{path}: case {number}: {error}") from None
    except (FileNotFoundError, IsADirectoryError):
        raise MachineError(f"no file of cases '{path}'; write one JSON object a line: {_CASE}") from None
    if not cases:
        raise MachineError(f"'{path}' has no case; write one JSON object a line: {_CASE}")
    return cases

"""Tools: a typed, documented function becomes a schema for the model and a call that never raises.

def red_mentioned(word: str) -> str:
    \"\"\"Report that the word red was mentioned.

    word: the word as written
    \"\"\"
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from libmachine.canon import RecordError, canonical, hash_of, loads, plain
from libmachine.console import cut_middle
from libmachine.errors import MachineError
from libmachine.redact import of_environment as redacted
from libmachine.sandbox.workspace import Cut, Workspace

RESULT_LIMIT = 50_000
"""Characters of a result that the model sees; the rest is cut out of the middle, visibly."""


@dataclass(frozen=True)
class Outcome:
    """What a call gave: text for the model, whether it worked, why not, whether it was cut, seconds."""

    content: str
    ok: bool
    error: str | None
    truncated: bool
    duration_s: float


@dataclass(frozen=True)
class Context:
    """What a run gives its tools. workspace: its directory, None where no tool asks for one. deadline:
    when the run ends, by time.monotonic()."""

    workspace: Workspace | None = None
    deadline: float | None = None


NOTHING = Context()


class Tool:
    """A function on offer to the model. Raises MachineError if its signature cannot be described."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name: str = function.__name__
        doc = inspect.getdoc(function)
        if not doc:
            raise MachineError(
                f"tool '{self.name}' has no docstring; the model needs one to know what it does"
            )
        summary, notes = _docstring(doc)
        parameters_of = _signature(function)
        self.workspace = next((p.name for p in parameters_of if p.annotation is Workspace), None)
        """The argument that the run fills with its workspace and no model sees; None without one."""
        shown = [parameter for parameter in parameters_of if parameter.name != self.workspace]
        self._model = _arguments_model(self.name, shown, notes)
        parameters = self._model.model_json_schema()
        _untitle(parameters)
        parameters.setdefault("properties", {})
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": summary, "parameters": parameters},
        }

    def source(self) -> str:
        """Hash of the function's source and of what of the machine's own code it uses: a changed tool
        is another machine to the key of a run."""
        return hash_of([self.schema, sources(self.function)])

    def call(self, arguments: str, context: Context = NOTHING) -> Outcome:
        """Call with the raw argument string of the model. What goes wrong is told, not raised."""
        started = time.monotonic()
        try:
            values = self._parse(arguments)
            if self.workspace is not None:
                values[self.workspace] = self._directory(context)
        except RecordError as error:
            return _failed(f"arguments of '{self.name}' {error}", started)
        try:
            result = self.function(**values)
            content = redacted(_as_text(result))
        except MachineError as error:
            return _failed(str(error), started)
        except (Exception, SystemExit) as error:
            return _failed(f"{type(error).__name__}: {error}", started)
        cut, truncated = cut_middle(content, RESULT_LIMIT)
        truncated = truncated or isinstance(result, Cut)
        return Outcome(cut, True, None, truncated, time.monotonic() - started)

    def _directory(self, context: Context) -> Workspace:
        """The workspace of the run, whose commands end with the run."""
        if context.workspace is None:
            raise RecordError("cannot be used: this run has no workspace")
        return context.workspace.until(context.deadline)

    def _parse(self, arguments: str) -> dict[str, Any]:
        import pydantic

        value: Any = {}
        if arguments.strip():
            try:
                value = loads(arguments.encode("utf-8", "replace"))
                if isinstance(value, str):  # encoded twice: seen from several endpoints
                    value = loads(value.encode("utf-8", "replace"))
            except RecordError as error:
                raise RecordError(f"are {error}") from None
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise RecordError("are no JSON object")
        try:
            checked = self._model.model_validate(value)
        except pydantic.ValidationError as error:
            told = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'object'}: {e['msg']}" for e in error.errors()
            )
            raise RecordError(f"do not fit: {told}") from None
        return {name: getattr(checked, name) for name in type(checked).model_fields}


def sources(function: Callable[..., Any]) -> dict[str, str]:
    """Name -> source of a function and of what it refers to in its own tree of machines, however deep;
    constants by their value. What comes from elsewhere (a library) is its version's affair."""
    tree = function.__module__.partition(".")[0]
    found: dict[str, str] = {}
    waiting: list[Any] = [function]
    while waiting:
        item = waiting.pop()
        name = _place(item)
        if name in found:
            continue
        found[name] = _source(item)
        for used in _names(getattr(item, "__code__", None)):
            value = getattr(item, "__globals__", {}).get(used)
            if isinstance(value, str | int | float | bool | tuple | frozenset):
                found[f"{name}:{used}"] = repr(value)
            elif _tree_of(value) == tree:
                waiting.append(value)
    return found


def _place(item: Any) -> str:
    """Where something is defined, without the name of its tree: two copies of a machine agree."""
    module = item.__name__ if inspect.ismodule(item) else f"{item.__module__}.{item.__qualname__}"
    return module.partition(".")[2]


def _tree_of(value: Any) -> str | None:
    """The tree that a module, function or class belongs to; None for anything else."""
    if inspect.ismodule(value):
        return value.__name__.partition(".")[0]
    return str(value.__module__).partition(".")[0] if hasattr(value, "__qualname__") else None


def _source(item: Any) -> str:
    try:
        return inspect.getsource(item)
    except (OSError, TypeError):
        return ""


def _names(code: Any) -> set[str]:
    """Global names that code uses, its inner functions included."""
    if code is None:
        return set()
    inner = [_names(constant) for constant in code.co_consts if inspect.iscode(constant)]
    return set(code.co_names).union(*inner)


def _failed(text: str, started: float) -> Outcome:
    text = redacted(str(plain(text)))  # before it is cut: half a key is still one
    told, truncated = cut_middle(f"error: {text}", RESULT_LIMIT)
    return Outcome(told, False, text[:500], truncated, time.monotonic() - started)


def unknown(name: str, known: list[str]) -> Outcome:
    """The answer to a call of a tool that is not on offer."""
    return _failed(f"no tool '{name}'; there are: {', '.join(known) or 'none'}", time.monotonic())


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return str(plain(result))
    if isinstance(result, bytes):
        return result.decode("utf-8", "replace")
    return "" if result is None else canonical(result).decode()


def _docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The description and the notes on arguments (`name: note` lines) of a docstring."""
    kept, notes = [], {}
    for line in doc.splitlines():
        found = re.fullmatch(r"\s*(?::param\s+)?([a-z_][a-z0-9_]*)(?:\s*\([^)]*\))?:\s+(.+)", line)
        if found:
            notes[found[1]] = found[2].strip()
        elif line.strip() not in ("Args:", "Arguments:", "Parameters:"):
            kept.append(line)
    return "\n".join(kept).strip(), notes


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise MachineError(f"tool '{function.__name__}': its signature cannot be read ({error})") from None


def _arguments_model(name: str, parameters: list[inspect.Parameter], notes: dict[str, str]) -> Any:
    import pydantic

    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise MachineError(f"tool '{name}': argument '{parameter.name}' must be a plain named one")
        if parameter.annotation is parameter.empty:
            raise MachineError(f"tool '{name}': argument '{parameter.name}' has no type; annotate it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (
            parameter.annotation,
            pydantic.Field(default, description=notes.get(parameter.name)),
        )
    try:
        return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    except (pydantic.PydanticUserError, pydantic.errors.PydanticSchemaGenerationError) as error:
        raise MachineError(f"tool '{name}': {error}") from None


def _untitle(schema: Any) -> None:
    """Drop pydantic's titles: the model pays for each token."""
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        for value in schema.values():
            _untitle(value)
    elif isinstance(schema, list):
        for value in schema:
            _untitle(value)

"""The floors of libmachine: imports go down, the environment and git have one door each, modules are small.

The walk reads sources and imports nothing, so an upward import is found wherever it stands: at
the top of a module, inside a function or under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "libmachine"
MOST_LINES = 400

# As in the design, whether a module is there yet or not. A name stands for the module and for all
# below it; `sdk*` for sdk, sdk_run, ...
FLOORS = {
    "base": (
        *("env", "errors", "githash", "canon", "tables*", "record", "case", "define"),
        *("jsonl", "console", "times", "redact", "shelf", "compact", "folders"),
    ),
    "parts": (
        *("git", "store", "harness", "graders", "judging", "sandbox", "folder", "load", "project"),
        *("splits", "pool", "tools", "stats", "prices", "budget", "tinkerd", "web"),
    ),
    "verbs": (
        *("run", "grade", "select", "doctor", "measure", "gate", "promote", "spend", "suite*"),
        *("compare*", "controls", "hooks_install", "leaks"),
        *("agree*", "export*", "sft*", "train*", "versions", "optimize*", "converse*", "purse"),
        *("cases", "intake", "interchange", "scaffold", "commit", "mark", "session"),
    ),
    "face": ("sdk*", "flows"),
    "cmd": ("cmd",),
}
HEIGHTS = {name: height for height, names in enumerate(FLOORS.values()) for name in names}

# Who may import whom on the floor of parts. A new line here is a decision, not a formality.
PARTS = {
    "splits": {"folder", "git"},
    "project": {"git", "store", "sandbox"},
    "sandbox": {"store"},
    "tools": {"sandbox"},
    "web": {"sandbox"},
    "load": {"folder", "harness"},
    "harness": {"folder", "tools", "prices"},
    "graders": {"folder", "harness", "tools"},
    "judging": {"folder", "graders", "harness"},
    "tinkerd": {"harness"},
    "budget": {"store", "harness", "prices"},
    "store": {"git"},  # its keepers only: packs are made, and runs travel, by git
}

READS_ENVIRONMENT = ("env", "cmd")
STARTS_GIT = ("git.plumb",)
ASKS_FOR_GIT = ("doctor",)
"""May look for the program, and start it as `git --version` only."""
STARTERS = ("subprocess.", "os.exec", "os.spawn", "os.posix_spawn", "os.popen", "os.system")


class Import(NamedTuple):
    """One import of a module of ours. at_load: it happens when the importer is imported."""

    importer: str
    imported: str
    line: int
    at_load: bool


def sources() -> dict[str, str]:
    """Name (without `libmachine.`, "" for the package itself) -> source of every module."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text()
    return found


def imports_of(modules: Mapping[str, str]) -> list[Import]:
    """Every import of a module of ours by a module of ours."""
    found = []
    for name, source in modules.items():
        for node, at_load in _nodes(ast.parse(source), True):
            found += [Import(name, target, node.lineno, at_load) for target in _targets(node, name, modules)]
    return found


def _nodes(tree: ast.AST, at_load: bool) -> Iterator[tuple[ast.stmt, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, at_load
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        yield from _nodes(node, at_load and not later)


def _targets(node: ast.stmt, importer: str, modules: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "libmachine":
                yield alias.name.partition(".")[2]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            is_package = any(other.startswith(f"{importer}.") for other in modules) or not importer
            above = importer.split(".")[: len(importer.split(".")) - node.level + is_package]
            base = ".".join(["libmachine", *above, *filter(None, [node.module])])
        if base.split(".")[0] == "libmachine":
            package = base.partition(".")[2]
            for alias in node.names:
                inner = f"{package}.{alias.name}".strip(".")
                yield inner if inner in modules else package


def group(module: str) -> str | None:
    """The name in FLOORS that a module belongs to, None if it is in none."""
    head = module.split(".")[0]
    if head in HEIGHTS:
        return head
    return next((name for name in HEIGHTS if name[-1] == "*" and head.startswith(name[:-1])), None)


def upward(found: list[Import]) -> list[str]:
    """Imports that go up a floor, or sideways where no one said so."""
    faults = []
    for importer, imported, line, _ in found:
        here, there = group(importer), group(imported)
        if here is None or there is None or here == there:
            continue
        if HEIGHTS[here] < HEIGHTS[there]:
            faults.append(f"{importer}:{line} imports {imported}, which is on a higher floor")
        elif here in FLOORS["parts"] and there in FLOORS["parts"] and there not in PARTS.get(here, ()):
            faults.append(f"{importer}:{line} imports {imported}: add it to PARTS if that is meant")
    return faults


def test_every_module_has_a_floor() -> None:
    # boot starts the commands and imports them by name; the package itself has lazy names only
    homeless = [name for name in sources() if name not in ("", "boot") and group(name) is None]
    assert not homeless, f"say in FLOORS where {homeless} belong"


def test_imports_go_down() -> None:
    assert upward(imports_of(sources())) == []


def test_parts_have_an_order() -> None:
    graphlib.TopologicalSorter(PARTS).prepare()  # raises CycleError


def test_the_package_itself_is_lazy() -> None:
    assert [found for found in imports_of({"": sources()[""]}) if found.at_load] == []


def test_no_cycle_at_import_time() -> None:
    graph: dict[str, set[str]] = {name: set() for name in sources()}
    for importer, imported, _, at_load in imports_of(sources()):
        if at_load and importer != imported:
            graph[importer].add(imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_environment_is_read_in_one_place() -> None:
    faults = []
    for name, source in sources().items():
        if name.split(".")[0] in READS_ENVIRONMENT:
            continue
        for node in ast.walk(ast.parse(source)):
            names = _environment_names(node)
            if names:
                faults.append(f"{name}:{getattr(node, 'lineno', 0)} uses os.{min(names)}; env.get() has it")
    assert faults == []


def _environment_names(node: ast.AST) -> set[str]:
    doors = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
        return {node.attr} & doors
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return {alias.name for alias in node.names} & doors
    return set()


def test_git_is_started_in_one_module() -> None:
    faults = []
    for name, source in sources().items():
        if name not in STARTS_GIT:
            faults += [f"{name}:{line}: {told}" for line, told in _git_starts(source, name in ASKS_FOR_GIT)]
    assert faults == []


def _git_starts(source: str, may_ask: bool) -> Iterator[tuple[int, str]]:
    """Places that name the program: command lists that begin with git, and looks for it on PATH."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple) and _is_git(node.elts):
            yield node.lineno, "a command that begins with git; libmachine.git.plumb starts it"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.startswith(STARTERS) and _is_git(node.args):
                yield node.lineno, "a command that is git; libmachine.git.plumb starts it"
            elif called.startswith(STARTERS) and may_ask and not _asks(node):
                yield node.lineno, "this module starts nothing but `git --version`"
            elif called.endswith("which") and _is_git(node.args) and not may_ask:
                yield node.lineno, "looks for git; libmachine.git.plumb starts it"


def _is_git(words: list[ast.expr]) -> bool:
    return _text(words[0]).split()[:1] == ["git"] if words else False


def _asks(call: ast.Call) -> bool:
    command = call.args[0] if call.args else None
    return isinstance(command, ast.List) and [_text(word) for word in command.elts[1:]] == ["--version"]


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_no_module_is_long() -> None:
    long = {name: lines for name, text in sources().items() if (lines := text.count("\n")) > MOST_LINES}
    assert not long, f"over {MOST_LINES} lines: {long}"


# the walk itself ------------------------------------------------------------------------


def test_the_walk_sees_every_form_of_import() -> None:
    modules = {
        "env": "",
        "cmd": "",
        "cmd.run": "",
        "store": "",
        "store.log": "",
        "a": "import libmachine.cmd.run",
        "b": "def f():\n    from libmachine.cmd import run",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from libmachine import cmd",
        "store.d": "from . import log",
        "store.e": "from ..cmd.run import main",
        "f": "class C:\n    from libmachine.env import get",
        "g": "import libmachinery, os",
    }
    assert [tuple(found) for found in imports_of(modules)] == [
        ("a", "cmd.run", 1, True),
        ("b", "cmd.run", 2, False),
        ("c", "cmd", 3, False),
        ("store.d", "store.log", 1, True),
        ("store.e", "cmd.run", 1, True),
        ("f", "env", 2, True),
    ]


def test_the_walk_refuses() -> None:
    modules = {
        **dict.fromkeys(("cmd.run", "grade", "folder", "store.log", "env", "pool"), ""),
        "canon": "def f():\n    from libmachine import grade",
        "load": "import libmachine.folder, libmachine.cmd.run",
        "pool": "from libmachine.store import log",
        "run": "from libmachine import grade, pool, env",
    }
    assert upward(imports_of(modules)) == [
        "pool:1 imports store.log: add it to PARTS if that is meant",
        "canon:2 imports grade, which is on a higher floor",
        "load:1 imports cmd.run, which is on a higher floor",
    ]
    assert [told for _, told in _git_starts("subprocess.run(['git', 'gc'])\nshutil.which('git')", False)]
    assert [told for _, told in _git_starts("subprocess.run([git, 'gc'])", True)]
    assert not [*_git_starts("subprocess.run([git, '--version'])\nshutil.which('git')", True)]
    assert _environment_names(ast.parse("os.environ['X']").body[0].value.value) == {"environ"}  # type: ignore[attr-defined]

"""The suite agrees with itself: one list of verbs, and every command keeps the promises they share."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from libmachine import env
from libmachine.cmd import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
VERBS = [command.verb for command in COMMANDS]
NETWORK = {"httpx", "openai", "tinker", "torch", "pydantic", "xllamacpp"}
HEAVY = NETWORK | {"pygit2", "sqlite3"}

# Runs a command in this process and writes down what it imported.
DRIVER = """
import importlib, json, sys
root, told, verb, *words = sys.argv[1:]
sys.path[0] = root
sys.argv = ["machine" if verb == "machine" else "machine-" + verb, *words]
code = importlib.import_module("libmachine.cmd." + verb).main()
with open(told, "w") as file:
    json.dump(sorted({name.split(".")[0] for name in sys.modules}), file)
sys.exit(code)
"""

MACHINE_PY = """
from libmachine import Machine, check


def good(run):
    return "good" in run.output


machine = Machine(intent="Say something good.", graders={"good": check(good)})
"""


def environment(home: Path) -> dict[str, str]:
    """A private environment: none of the caller's settings and keys, this checkout's commands first."""
    drop = {variable.name for variable in env.VARIABLES} | {"PYTHONDONTWRITEBYTECODE"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in drop and not name.startswith(("MACHINE_", "GIT_")) and not name.endswith("_KEY")
    }
    return kept | {
        "HOME": str(home),
        "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        "MACHINE_FSYNC": "0",
        "MACHINE_CACHE": os.environ.get("TEST_CACHE", str(home / "cache")),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def run(home: Path, *words: str, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a private HOME, which is its project too."""
    variables = {**environment(home), **extra}
    return subprocess.run(
        words, cwd=home, env=variables, input=stdin, capture_output=True, timeout=60, check=False
    )


def modules_after(home: Path, verb: str, *words: str, stdin: bytes = b"") -> set[str]:
    """Top-level modules that a command has imported by its end; it must exit with 0."""
    told = home / f"modules-{verb}-{len(words)}"
    done = run(home, sys.executable, "-c", DRIVER, str(ROOT), str(told), verb, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return set(json.loads(told.read_text()))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one machine that echo serves and three stored runs; `graded` has them as lines."""
    home = tmp_path_factory.mktemp("suite")
    folder = home / "machines" / "say"
    folder.mkdir(parents=True)
    (folder / "machine.py").write_text(MACHINE_PY)
    (folder / "rubric.toml").write_text('[good]\ndescription = "The answer says good."\n')
    (folder / "model.json").write_text('{"model": "echo", "harness": "echo"}')
    runs = run(home, "machine-run", "say", stdin=b'"a good day"\n"a bad day"\n"good grief"\n')
    assert runs.returncode == 0, runs.stderr.decode()
    graded = run(home, "machine-grade", stdin=runs.stdout)
    assert graded.returncode == 0, graded.stderr.decode()
    (home / "graded").write_bytes(graded.stdout)
    return home


def test_one_list() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = pyproject["project"]["scripts"]
    wanted = {"machine", *(f"machine-{verb}" for verb in VERBS)}
    assert len(VERBS) == len(set(VERBS))
    assert {path.name for path in (ROOT / "bin").glob("machine*")} == wanted, "bin/"
    assert set(scripts) == wanted, "[project.scripts]"
    modules = {path.stem for path in (ROOT / "libmachine" / "cmd").glob("*.py") if path.stem[0] != "_"}
    assert modules == {"machine", *VERBS}, "libmachine/cmd/"
    assert {path.stem for path in (ROOT / "man").glob("*.1")} == wanted, "man/"
    for name, target in scripts.items():
        assert target == f"libmachine.cmd.{name.removeprefix('machine-')}:main"


def test_every_command_is_executable() -> None:
    for path in (ROOT / "bin").glob("machine*"):
        assert os.access(path, os.X_OK), path


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb: str, tmp_path: Path) -> None:
    command = importlib.import_module(f"libmachine.cmd.{verb}").command
    done = run(tmp_path, f"machine-{verb}", "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode().replace(",", " ").split()
    for option in command.params:
        if isinstance(option, click.Option):
            for spelling in (*option.opts, *option.secondary_opts):
                assert spelling in shown
    assert command.name == f"machine-{verb}"
    # the dispatcher adds nothing and takes nothing away
    through = run(tmp_path, "machine", verb, "--help")
    assert (through.returncode, through.stdout, through.stderr) == (0, done.stdout, b"")


@pytest.mark.parametrize("name", ["machine", *(f"machine-{verb}" for verb in VERBS)])
def test_unknown_option(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, "--no-such-option")
    assert (done.returncode, done.stdout) == (129, b"")
    assert done.stderr.startswith(b"usage: ")
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == [], "it left something behind"


def test_dispatcher(tmp_path: Path) -> None:
    assert run(tmp_path, "machine", "--list-cmds").stdout.decode().split() == VERBS
    done = run(tmp_path, "machine")
    assert (done.returncode, done.stderr) == (129, b"")
    overview = run(tmp_path, "machine", "--help").stdout
    assert done.stdout == overview
    for command in COMMANDS:
        assert f"  {command.verb} ".encode() in overview
        assert command.summary.encode() in overview


def test_unknown_verb(tmp_path: Path) -> None:
    done = run(tmp_path, "machine", "nosuch")
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"no verb 'nosuch'" in done.stderr
    assert b"machine --help" in done.stderr
    near = run(tmp_path, "machine", "slect")
    assert near.returncode == 127
    assert b"did you mean 'select'?" in near.stderr


def test_a_program_on_path_is_a_verb(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    program = folder / "machine-foo"
    program.write_text('#!/bin/sh\necho "foo: $*"\nexit 7\n')
    path = f"{environment(tmp_path)['PATH']}:{folder}"
    assert run(tmp_path, "machine", "foo", PATH=path).returncode == 127, "not executable, so no verb"
    program.chmod(0o755)
    done = run(tmp_path, "machine", "foo", "--bar", "a b", PATH=path)
    assert (done.returncode, done.stdout) == (7, b"foo: --bar a b\n")


@pytest.mark.parametrize("word", [*VERBS, "machine", "record", "folder"])
def test_help_shows_the_page(word: str, tmp_path: Path) -> None:
    done = run(tmp_path, "machine", "help", word)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"NAME" in done.stdout
    name = word if word == "machine" else f"machine-{word}"
    assert name.encode() in done.stdout


@pytest.mark.parametrize("verb", ["machine", *VERBS])
def test_help_imports_nothing_heavy(verb: str, tmp_path: Path) -> None:
    assert modules_after(tmp_path, verb, "--help") & HEAVY == set()


def test_select_imports_nothing_heavy(project: Path) -> None:
    graded = (project / "graded").read_bytes()
    found = modules_after(project, "select", "--passing", "--best", "1", "-v", stdin=graded)
    assert "libmachine" in found
    assert found & HEAVY == set()


def test_runs_imports_nothing_of_the_network(project: Path) -> None:
    found = modules_after(project, "runs", "say", "--last", "2")
    assert "sqlite3" in found, "the driver sees what a command imports"
    assert found & NETWORK == set()

"""README is true: its commands run, its options and files exist, and it stays short.

Blocks are run in order in one shell, in a project with the built-in machines whose `brief` is served by a
file of rules, so that its model costs nothing; $EDITOR writes a better one. What needs a package index or
an hour of training is checked by its words alone, and run by the test that is named.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_man as man

from libmachine.case import read_case
from libmachine.cmd import COMMANDS
from libmachine.jsonl import loads
from libmachine.load import load_folder

ROOT = man.ROOT
TEXT = (ROOT / "README.md").read_text()
MOST_LINES = 128
ELSEWHERE = {
    "bin/demo": "bin/demo",
    "bin/demo --short": "bin/demo",
    "tests/run": "tests/run",
    "pip install '.[local]'": "tests/t9000-install.sh",
    "machine-run brief < cases.jsonl | machine-grade | machine-sft | machine-gate | machine-commit": (
        "tests/t2500-sft.sh"
    ),
    "machine-train brief --samples 6 && machine-commit brief": "bin/demo",
}
"""Command -> the file that runs its like."""


def blocks() -> Iterator[list[str]]:
    """The indented blocks, their indent taken away."""
    for found in re.findall(r"(?:^ {4}.*\n|(?<=\n)\n(?= {4}))+", TEXT, re.M):
        yield [line[4:] for line in found.strip("\n").split("\n")]


def commands() -> list[str]:
    """The commands of the blocks in order, comments taken away."""
    bare = [re.sub(r" +# .*$", "", line) for lines in blocks() for line in lines]
    return [line for line in bare if re.match(r"(machine-|bin/|tests/|pip |git |\$EDITOR )", line)]


def spans() -> list[str]:
    return [span for span in re.findall(r"`([^`]+)`", TEXT) if re.match(r"machine[ -]", span)]


def test_it_is_short() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > 110 and not line.startswith(("|", "    "))] == []


def test_every_verb_has_its_line() -> None:
    """The two tables name every verb, and no other."""
    named = set(re.findall(r"`machine-([a-z]+)", "".join(re.findall(r"^\| (.*?) \|", TEXT, re.M))))
    assert named == {command.verb for command in COMMANDS}


def test_options_exist() -> None:
    """Every option after a verb is one of that verb's."""
    seen = 0
    for text in [*commands(), *spans()]:
        for verb, words in re.findall(r"machine-([a-z]+)([^|&;`]*)", text):
            if verb == "foo":  # the reader's own
                continue
            known = man.options_of(verb)
            for option in re.findall(r"(?<= )(--[a-z][a-z-]*|-[a-zA-Z])\b", words):
                assert option in known, f"machine-{verb} {option}"
                seen += 1
    assert seen >= 8


def test_files_exist() -> None:
    """The machine in six files, and what is told of where things lie."""
    tree = next(lines for lines in blocks() if lines[0] == "machines/brief/")
    for line in tree[1:]:
        assert (ROOT / "machines" / "brief" / line.split()[0]).is_file(), line
    assert len(tree) == 7
    for path in ("bin/demo", "tests/run", "tests/bench/run", "libmachine/cmd/__init__.py"):
        assert path in TEXT
        assert (ROOT / path).exists()


def test_snippets(tmp_path: Path) -> None:
    """The machine loads, with a rubric of its criteria; the case is one."""
    from libmachine.folder import Folder

    code = next(lines for lines in blocks() if lines[0].startswith("from libmachine import"))
    folder = tmp_path / "machines" / "mine"
    folder.mkdir(parents=True)
    (folder / "machine.py").write_text("\n".join(code))
    (folder / "rubric.toml").write_text('[short]\ndescription = "x"\n[true]\ndescription = "y"\n')
    machine = load_folder(Folder(str(tmp_path / "machines"), "mine"))
    assert sorted(machine.graders) == ["short", "true"]
    case = re.search(r'`(\{"input".*?\})`', TEXT)
    assert case
    assert read_case(loads(case[1].encode()))["input"] == "What is rain?"


def test_what_is_not_run_here_is_run_there() -> None:
    for command, path in ELSEWHERE.items():
        assert command in TEXT, f"README has no '{command}' any more"
        there = (ROOT / path).read_text()
        for verb in re.findall(r"machine-[a-z]+", command):
            assert verb in there, f"{path} does not run {verb}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The built-in machines, committed; brief answers badly, and its $EDITOR makes it answer well."""
    man.identify(tmp_path)
    project = tmp_path / "project"
    shutil.copytree(ROOT / "machines", project / "machines", ignore=shutil.ignore_patterns("__pycache__"))
    better = '{"model": "good", "harness": "scripted"}'
    editor = f'#!/bin/sh\necho "Be brief." >>"$1"\necho \'{better}\' >"${{1%/*}}/model.json"\n'
    man.put(
        project,
        {
            "bad": '{"match": "", "replies": ["One. Two. Three. Four. Five! Six."]}\n',
            "good": '{"match": "", "replies": ["It is water that falls."]}\n',
            "machines/brief/model.json": '{"model": "bad", "harness": "scripted"}\n',
            "editor": editor,
            "questions.csv": "question,answer\nWhat is rain?,water\nWhat is snow?,ice\nWhat is fog?,cloud\n",
        },
    )
    (project / "editor").chmod(0o755)
    subprocess.run(["git", "init", "-q", str(project)], env=man.environment(tmp_path), check=True)
    man.commit(project, man.environment(tmp_path))
    return project


def test_commands_run(project: Path) -> None:
    """In order; what they need of the past is made before them."""
    before = {
        # a third version to go back to, and a worse one after it
        "git bisect run": "echo one >>machines/brief/instructions.md && git commit -qanm one\n"
        "machine-versions brief >/dev/null\n"
        "cp bad good && git commit -qanm rules && echo two >>machines/brief/instructions.md\n"
        "git commit -qanm two && git bisect start HEAD HEAD~2 >/dev/null",
        "git --git-dir": "ID=$(machine-runs brief --last 1 | jq -r .id)",
    }
    wanted = [command for command in commands() if command not in ELSEWHERE]
    begin = re.search(r"`(machine-new faq && .*?)`", TEXT)
    assert begin
    wanted += [begin[1], "git --git-dir=.machine cat-file -p $ID"]
    assert "`git --git-dir=.machine cat-file -p ID`" in TEXT
    script = ["set -e", "export EDITOR=$PWD/editor"]
    for command in wanted:
        script += [made for start, made in before.items() if command.startswith(start)]
        script += [f'echo "@@ {command.split()[0]}"', command]
    (project.parent / "script").write_text("\n".join(script))
    variables = man.environment(project.parent)
    done = subprocess.run(
        ["bash", "-o", "pipefail", str(project.parent / "script")],
        cwd=project, env=variables, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert len(wanted) >= 6
    assert "brief v2 is live" in done.stderr
    assert "is live again" in done.stderr
    assert "1 to holdout.jsonl" in done.stdout or "to holdout.jsonl" in done.stdout
    assert '"type":"run"' in done.stdout

"""Workspaces and what is built on them: trees and patches, commands as checks read them, held-back tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libmachine import Run, Workspace
from libmachine.define import Check
from libmachine.errors import MachineError
from libmachine.graders.hidden import hidden_tests, read_tests
from libmachine.sandbox import rooms, trees
from libmachine.sandbox.base import Isolation, Limits, Result
from libmachine.sandbox.commands import commands, deciding, proves, ran
from libmachine.sandbox.diff import patch
from libmachine.sandbox.files import Root
from libmachine.store.store import Store
from libmachine.tools import Context, Tool


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "store"), fsync=False)
    opened.prepare()
    yield opened
    opened.close()


# trees and patches ----------------------------------------------------------------------

NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: (
        b"/" not in name and b"\0" not in name and name not in (b".", b"..") and name.lower() != b".git"
    )
)
CONTENTS = st.one_of(
    st.binary(max_size=60), st.lists(st.sampled_from([b"a", b"b\r", b"", b"c d"])).map(b"\n".join)
)
ENTRIES = st.one_of(
    st.tuples(st.just("file"), CONTENTS, st.booleans()),
    st.tuples(st.just("link"), NAMES, st.just(False)),
)
FOLDERS = st.dictionaries(NAMES, st.one_of(ENTRIES, st.dictionaries(NAMES, ENTRIES, max_size=3)), max_size=5)


def write(root: Root, folder: dict[bytes, Any], above: bytes = b"") -> None:
    for name, entry in folder.items():
        if isinstance(entry, dict):
            root.make(above + name)
            write(root, entry, above + name + b"/")
        elif entry[0] == "link":
            root.link(above + name, entry[1])
        else:
            root.write(above + name, entry[1], entry[2])


def tree_of(store: Store, folder: dict[bytes, Any], place: Path) -> str:
    place.mkdir()
    with Root(place) as root:
        write(root, folder)
        return trees.take(root, store.objects, lambda data: data)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FOLDERS, FOLDERS)
def test_trees_and_patches(
    store: Store, tmp_path_factory: pytest.TempPathFactory, old: dict[bytes, Any], new: dict[bytes, Any]
) -> None:
    place = tmp_path_factory.mktemp("trees")
    before, after = tree_of(store, old, place / "old"), tree_of(store, new, place / "new")
    (place / "again").mkdir()
    with Root(place / "again") as root:
        trees.put(root, after, store.read_blob)
        assert trees.take(root, store.objects, lambda data: data) == after
    made = b"".join(patch(before, after, store.read_blob))
    if before == after:
        assert made == b""
    if b"\nBinary files " not in made and b"new file mode" not in made and made:
        # git's own reader makes of the one what the other is
        quiet = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(place), "PATH": os.environ["PATH"]}
        subprocess.run(["git", "init", "-q", "."], cwd=place / "old", env=quiet, check=True)
        subprocess.run(["git", "apply", "-"], cwd=place / "old", env=quiet, input=made, check=True)
        with Root(place / "old") as root:
            with_empty = trees.take(root, store.objects, lambda data: data)
        assert b"".join(patch(with_empty, after, store.read_blob)) == b""


def test_a_tree_that_leads_out_is_not_written(store: Store, tmp_path: Path) -> None:
    blob = store.blob(b"evil")
    for name in ("..", ".", "a/b", ".git", ".GIT"):
        tree = store.objects.tree([("100644", name, blob)])
        with Root(tmp_path) as root, pytest.raises(MachineError, match="is not written"):
            trees.put(root, tree, store.read_blob)
    # one name twice, a link first: nothing is written through it
    outside = tmp_path / "outside"
    outside.mkdir()
    link = store.blob(os.fsencode(outside))
    inner = store.objects.tree([("100644", "file", blob)])
    (tmp_path / "in").mkdir()
    twice = store.objects.tree([("120000", "a", link), ("40000", "a", inner)])
    with Root(tmp_path / "in") as root, pytest.raises(MachineError):
        trees.put(root, twice, store.read_blob)
    assert list(outside.iterdir()) == []


def test_too_much_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(trees, "MOST_FILES", 3)
    with rooms.room(store, None) as workspace:
        for number in range(4):
            workspace.write(f"{number}", "x")
        assert rooms.keep(store, workspace) is None
    assert "the files of a run are not kept" in capsys.readouterr().err
    with pytest.raises(MachineError, match="were not kept"):
        rooms.opener(store, {"id": "0" * 40, "workspace": {"before": "1" * 40, "after": None}})()


def test_secrets_are_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-open-now-1")
    with rooms.room(store, None) as workspace:
        workspace.write("a", "the key is sesame-open-now-1.\n")
        tree = rooms.keep(store, workspace)
    assert tree is not None
    assert store.read_file(tree, "a") == b"the key is [redacted:SOME_API_KEY].\n"


def test_sweep_leaves_the_living(store: Store) -> None:
    with rooms.room(store, None) as workspace:
        workspace.write("here", "x")
        rooms.sweep(store.directory)
        assert workspace.exists("here")
        assert workspace.directory.stat().st_mode & 0o777 == 0o700
        left = workspace.directory.parent / "0123"
        (left / "deep").mkdir(parents=True)
        (left / "deep").chmod(0)
        (workspace.directory.parent / "4567.lock").touch()
        rooms.sweep(store.directory)
        assert {p.name for p in left.parent.iterdir()} == {
            workspace.directory.name,
            f"{workspace.directory.name}.lock",
        }
    assert list(workspace.directory.parent.iterdir()) == []


# a provider of another kind -------------------------------------------------------------


class Remembers:
    """A tiny provider: it says it isolates and notes what it is asked to run."""

    name = "remembers"

    def __init__(self, isolated: bool = True) -> None:
        self.isolated = isolated
        self.asked: list[tuple[list[str], Limits]] = []

    def isolation(self) -> Isolation:
        return Isolation(self.isolated, () if self.isolated else ("walls",))

    def run(self, directory: Path, argv: Any, **how: Any) -> Result:
        self.asked.append((list(argv), how["limits"]))
        return Result(0, b"done", b"", 4, 0, 0.0)


def shell(command: str, workspace: Workspace) -> str:
    """Run a command.

    command: what to run
    """
    return workspace.run(command).stdout.decode()


def test_a_tool_gets_the_workspace(tmp_path: Path) -> None:
    tool = Tool(shell)
    assert list(tool.schema["function"]["parameters"]["properties"]) == ["command"]
    provider = Remembers()
    workspace = Workspace(tmp_path, provider)
    outcome = tool.call('{"command": "x"}', Context(workspace, None))
    assert (outcome.ok, outcome.content) == (True, "done")
    assert provider.asked[0][0][-2:] == ["-c", "x"]
    # the run's end is the command's
    import time

    tool.call('{"command": "x"}', Context(workspace, time.monotonic() + 5))
    assert 0 < provider.asked[1][1].wall_s <= 5
    late = tool.call('{"command": "x"}', Context(workspace, time.monotonic() - 1))
    assert not late.ok and "time of the run is over" in late.content and len(provider.asked) == 2
    assert "no workspace" in tool.call('{"command": "x"}').content
    assert "workspace: Extra" in tool.call('{"command": "x", "workspace": "y"}').content
    weak = tool.call('{"command": "x"}', Context(Workspace(tmp_path, Remembers(False)), None))
    assert not weak.ok and "does not isolate: walls" in weak.content


# commands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "runs_it", "says_something"),
    [
        ("python3 a.py", True, True),
        ("./a.py", True, True),
        ("python3 -m a", True, True),
        ("python3 -u ./a.py 1 2>&1 | tail -3", True, True),
        ("echo go && python3 'a.py' < in > out", True, True),
        ("X=1 timeout 5 python3 a.py", True, True),
        ("cd . && (python3 a.py)", True, True),
        ("false; python3 a.py;", True, True),
        ("gcc a.py -o x && ./x", True, True),
        ("python3 -m unittest", False, True),
        ("python3 -c 'import a'", False, True),
        ("python3 b/a.py", False, True),
        ("cd b && python3 a.py", False, True),
        ("python3 a.py; true", False, False),
        ("python3 a.py || true", False, False),
        ("true || python3 a.py", False, False),
        ("python3 a.py &", False, False),
        ("echo python3 a.py", False, False),
        ("cat a.py | grep x", False, False),
        ("ls; cat a.py", False, False),
        ("python3 'a.py", False, False),
        ("", False, False),
    ],
)
def test_what_a_line_says(line: str, runs_it: bool, says_something: bool) -> None:
    assert (ran(line, "a.py"), proves(line)) == (runs_it, says_something)


@given(st.text(max_size=40))
def test_any_line_can_be_read(line: str) -> None:
    assert all(words for words in deciding(line))


def run_of(*calls: tuple[str, str, bool]) -> Run:
    messages: list[dict[str, Any]] = []
    steps = []
    for number, (arguments, result, ok) in enumerate(calls):
        function = {"name": "run", "arguments": arguments}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"id": f"{number}", "function": function}]}
        )
        steps.append({"message": len(messages) - 1, "tools": [{"id": f"{number}", "ok": ok}]})
        messages.append({"role": "tool", "tool_call_id": f"{number}", "content": result})
    return Run({"messages": messages, "steps": steps, "case": {"input": "x"}})


def test_commands_of_a_run() -> None:
    run = run_of(
        ('{"command": "a"}', "exit 0\n\nexit 1\nchanged: x", True),
        ('{"command": "b"}', "exit 12\nchanged: x.py\n(it printed nothing)", True),
        ('{"command": "c"}', "stopped: over the limit of time\n\nexit 0", True),
        ('{"command": "d"}', "exit 0", False),
        ("no json", "exit 0", True),
    )
    assert [(c.at, c.text, c.code, c.changed) for c in commands(run)] == [
        (0, "a", 0, False),
        (1, "b", 12, True),
        (2, "c", None, False),
    ]


# the cases of dev and its child -----------------------------------------------------------

MACHINES = Path(__file__).parent.parent / "machines"


def cases_of(name: str) -> list[dict[str, Any]]:
    files = [MACHINES / name / f"{part}.jsonl" for part in ("cases", "holdout")]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


DEV = [*cases_of("dev"), *cases_of("dev/datetime")]


@pytest.mark.parametrize(
    "case", [case for case in DEV if case["metadata"]["kind"] == "bug"], ids=lambda c: c["id"]
)
def test_a_bug_is_shown_by_the_tests_of_its_project(case: dict[str, Any], tmp_path: Path) -> None:
    for path, text in case["files"].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    words = ["/usr/bin/python3", "-I", "-B", "-m", "unittest", "discover", "-t", ".", "-s", "."]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.search(r"FAILED \((failures|errors)=", done.stderr), done.stderr
    assert "ImportError" not in done.stderr and "SyntaxError" not in done.stderr


def test_cases_say_what_they_are() -> None:
    kinds = {"bug": True, "feature": True, "question": False, "report": False, "unclear": False}
    assert all(
        case["metadata"] == {"kind": k, "change": kinds[k]}
        for case in DEV
        for k in [case["metadata"]["kind"]]
    )
    assert {case["metadata"]["kind"] for case in cases_of("dev")} == set(kinds)
    assert all(case["target"] and case["files"] for case in DEV)
    held_back = read_tests(str(MACHINES / "dev/datetime/hidden.jsonl"))
    assert set(held_back) == {case["id"] for case in cases_of("dev/datetime")}


# held-back tests: what the agent wrote cannot say that they pass ------------------------------

RIGHT = "def double(n):\n    if n < 0:\n        raise ValueError(n)\n    return 2 * n\n"
WRONG = "def double(n):\n    return n\n"
OK = "Ran 3 tests in 0.000s\\n\\nOK\\n"
ATTACKS = {
    "prints OK": {"m.py": f"print('{OK}')\n" + WRONG},
    "exits early": {"m.py": f"import os\nprint('{OK}', flush=True)\nos._exit(0)\n"},
    "raises SystemExit": {"m.py": "raise SystemExit(0)\n"},
    "answers twice": {
        "m.py": "import sys, json\n"
        "mark = sys._getframe\n"
        "def double(n):\n"
        "    frame = sys._getframe(1)\n"
        "    while frame.f_back: frame = frame.f_back\n"
        "    told = frame.f_globals['told']\n"
        "    for value in range(-9, 99):\n"
        "        print('\\n' + told['mark'] + json.dumps({'result': value}), flush=True)\n"
        "    return n\n"
    },
    "answers for itself": {
        "m.py": "import sys, json, os\n"
        "frame = sys._getframe()\n"
        "while frame.f_back: frame = frame.f_back\n"
        "mark = frame.f_globals['told']['mark']\n"
        "os.write(1, ('\\n' + mark + json.dumps({'result': True}) + '\\n').encode())\n"
        "os._exit(0)\n"
    },
    "changes how an answer is told": {
        "m.py": "import json, os\n"
        "json.dumps = lambda *a, **k: '{\"result\": true}'\n"
        "os.write = lambda *a: 0\n" + WRONG
    },
    "equal to all": {
        "m.py": "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "    def __repr__(self): return '6'\n"
        "def double(n):\n    return Yes(n)\n"
    },
    "sitecustomize": {
        "sitecustomize.py": "import os; os._exit(0)\n",
        "usercustomize.py": "import os; os._exit(0)\n",
        "m.py": WRONG,
    },
    "replaces modules": {
        "json.py": "def loads(x): return {}\ndef dumps(x): return '{\"result\": 6}'\n",
        "unittest.py": "def main(): print('OK')\n",
        "os.py": "",
        "sys.py": "",
        "m.py": WRONG,
    },
    "conftest": {
        "conftest.py": "def pytest_runtest_makereport(*a): return None\n",
        "pytest.ini": "[pytest]\naddopts = --collect-only\n",
        "m.py": WRONG,
    },
    "hangs": {"m.py": "while True: pass\n"},
    "knows a part": {"m.py": "def double(n):\n    return 6\n"},
    "nothing": {},
}


def graded(check: Check, files: dict[str, str], store: Store, case: str = "c") -> Any:
    record = {
        "id": "1" * 40,
        "case": {"id": case, "identity": "2" * 40, "input": "x"},
        "workspace": {"before": None, "after": store.files(files)},
    }
    return check.function(Run(record, rooms.opener(store, record)))


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr("libmachine.graders.hidden.TIMEOUT_S", 3.0)
    (tmp_path / "hidden.jsonl").write_text(
        '{"id": "c", "tests": ['
        '{"name": "three", "code": "import m\\nresult = m.double(3)", "result": 6},'
        '{"name": "ten", "code": "import m\\nresult = [m.double(10), m.double(0)]", "result": [20, 0]},'
        '{"name": "negative", "code": "import m\\nm.double(-1)", "raises": "ValueError"},'
        '{"name": "printed", "command": "python3 -c \'import m; print(m.double(4))\'", "stdout": "8"}]}\n'
    )
    return hidden_tests(str(tmp_path / "machine.py"))


def test_hidden_tests_pass(hidden: Check, store: Store) -> None:
    assert graded(hidden, {"m.py": RIGHT}, store) == (True, "4 of 4 held-back tests pass")
    # with talk of its own around it, and files that look like ours
    talks = {"m.py": "print('m is here')\n" + RIGHT, "hidden.jsonl": "{}", "sitecustomize.py": "1/0"}
    assert graded(hidden, {**talks, "json.py": "1/0"}, store)[1].startswith("3 of 4")  # the talk is printed
    assert graded(hidden, {"m.py": RIGHT, "sitecustomize.py": "1/0"}, store)[0]
    assert graded(hidden, {"m.py": RIGHT}, store, case="other") is None


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "hangs"])
def test_hidden_tests_cannot_be_forged(attack: str, hidden: Check, store: Store) -> None:
    passed, reason = graded(hidden, ATTACKS[attack], store)
    assert passed is False, reason
    assert int(reason[0]) <= (1 if attack == "knows a part" else 0), reason
    assert "6" not in reason.partition(";")[2], "the reason tells the right answer"


def test_hidden_tests_end(hidden: Check, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libmachine.graders.hidden.TIMEOUT_S", 0.5)
    passed, reason = graded(hidden, ATTACKS["hangs"], store)
    assert not passed and reason.count("over the limit of time") == 4


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{}", "held-back tests are"),
        ('{"id": "a", "tests": []}', "at least one test"),
        ('{"id": "a", "tests": [{"name": "x"}]}', "no 'code' or 'command'"),
        ('{"id": "a", "tests": [{"name": "x", "code": "y"}]}', "either 'result' or 'raises'"),
        ('{"id": "a", "tests": [{"name": "x", "code": "y", "reslt": 1}]}', "unknown field 'reslt'"),
        ('{"id": "a", "tests": [{"name": "x", "command": "y"}, {"name": "x", "command": "z"}]}', "one name"),
        ("nonsense", "line 1"),
    ],
)
def test_a_wrong_file_of_tests_is_refused(line: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no file of held-back tests"):
        hidden_tests(str(tmp_path / "machine.py"))
    (tmp_path / "hidden.jsonl").write_text(line + "\n")
    with pytest.raises(MachineError, match=fault):
        hidden_tests(str(tmp_path / "machine.py"))


def test_a_changed_file_of_tests_is_another_grader(hidden: Check, tmp_path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), open(tmp_path / "hidden.jsonl", "a") as file:
        file.write('{"id": "d", "tests": [{"name": "x", "command": "true"}]}\n')
    assert hidden_tests(str(tmp_path / "machine.py")).name != hidden.name

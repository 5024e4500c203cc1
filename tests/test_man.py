"""The man pages are true: options, fields, variables and codes are the program's, and examples run.

What the pages promise in return: options stand as `.It Fl b , Fl -best Ar K`; a list of a
record's fields follows a line `.\\" table: NAME`; lines that begin with `$ ` in a `.Bd -literal`
block are run, in order, in one shell and on a terminal of 80 columns, in a project that has the
built-in machines. Output that follows is compared (`...` stands for any text, at the end of a line
for any further lines too); a command exits with 0 unless `$ echo $?` follows with another code. A block after
`.\\" file: PATH` is a file that lies there before the examples run, one after `.\\" write: PATH` is
written when its turn comes; `.\\" fixture` asks for the files of FIXTURE, committed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from libmachine import Workspace, define, env, errors, folder, machine
from libmachine.case import CASE_FIELDS
from libmachine.cmd import COMMANDS, Command
from libmachine.record import VERSIONS
from libmachine.tables import TABLES
from libmachine.tables_reports import Field

ROOT = Path(__file__).resolve().parent.parent
MAN = ROOT / "man"
PAGES = sorted(path.name for path in MAN.glob("machine*.[1357]"))
VERBS = [command.verb for command in COMMANDS]
ORDER = [
    *("NAME", "SYNOPSIS", "DESCRIPTION", "INPUT", "OUTPUT", "ENVIRONMENT", "FILES"),
    *("EXIT STATUS", "EXAMPLES", "SEE ALSO"),
]
NEEDED = {
    "1": {"NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"},
    "3": {"NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "SEE ALSO"},
    "5": {"NAME", "DESCRIPTION", "EXAMPLES", "SEE ALSO"},
    "7": {"NAME", "DESCRIPTION", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"},
}
ELSEWHERE = {
    "git",
    "git-cat-file",
    "git-fsck",
    "git-notes",
    "git-pack-objects",
    "groff",
    "jq",
    "man",
    "mandoc",
}
GUIDES = ("machine-tutorial.7", "machine-faq.7")
"""Pages that are read from first line to last; their examples stand where they are told of."""
PLAIN = {"NAME", "DESCRIPTION", "SEE ALSO"}
NOT_OURS = {"GIT_SSH_COMMAND", "GIT_ASKPASS", "HOME", "PATH", "XDG_CACHE_HOME"}
MOST_COLUMNS = 100
NAMES = ("Ada", "Bob", "Cem", "Dee", "Eli", "Fay", "Gus", "Hal")
FIXTURE = {
    "machines/greet/machine.py": """from libmachine import Machine, check


def polite(run):
    return run.target in run.output, f"looked for {run.target}"


machine = Machine(intent="Greet by name.", graders={"polite": check(polite)})
""",
    "machines/greet/rubric.toml": '[polite]\ndescription = "The greeting has the name."\n',
    "machines/greet/instructions.md": "Greet by name.\n",
    "machines/greet/model.json": '{"model": "rules/plain", "harness": "scripted"}\n',
    "machines/greet/holdout.jsonl": "".join(
        f'{{"id": "{name.lower()}", "input": "I am {name}.", "target": "{name}"}}\n' for name in NAMES
    ),
    "rules/plain": '{"match": "", "replies": ["Hello Ada!"]}\n',
    "rules/warm": "".join(f'{{"match": "{name}", "replies": ["Hello {name}!"]}}\n' for name in NAMES),
}
"""A machine whose model is a file of rules; rules/warm is a better one."""
COMMANDS_TIMEOUT_S = {"machine-tutorial.7": 300.0}
COMMAND_TIMEOUT_S = 60.0


def source(page: str) -> str:
    return (MAN / page).read_text()


def section(page: str, name: str) -> str:
    """The source of a section, empty if the page has none."""
    found = re.search(rf"^\.Sh {name}\n(.*?)(?=^\.Sh |\Z)", source(page), re.M | re.S)
    return found[1] if found else ""


def page_of(verb: str) -> str:
    return f"machine-{verb}.1"


def command_of(verb: str) -> click.Command:
    command: click.Command = importlib.import_module(f"libmachine.cmd.{verb}").command
    return command


def options_of(verb: str) -> dict[str, click.Option | None]:
    """Spelling -> option of a command, the help options included."""
    found: dict[str, click.Option | None] = {}
    command = command_of(verb)
    for option in command.params:
        if isinstance(option, click.Option):
            found |= dict.fromkeys([*option.opts, *option.secondary_opts], option)
    return found | dict.fromkeys(command.context_settings["help_option_names"])


def items(page: str) -> dict[str, str]:
    """Spelling -> source line of each option item of a page."""
    lines = re.findall(r"^\.It (Fl .*)$", source(page), re.M)
    return {f"-{name}": line for line in lines for name in re.findall(r"\bFl (\S+)", line)}


# form -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_form(page: str) -> None:
    text = source(page)
    name, number = page.rsplit(".", 1)
    assert re.match(r"\.Dd \w+ \d+, \d{4}\n", text)
    assert f".Dt {name.upper()} {number}\n.Os\n" in text
    assert f".Sh NAME\n.Nm {name}\n.Nd " in text
    found = re.findall(r"^\.Sh (.*)$", text, re.M)
    assert found == [heading for heading in ORDER if heading in found], "sections in this order, no others"
    assert set(found) >= (PLAIN if page in GUIDES else NEEDED[number])
    long = [number for number, line in enumerate(text.splitlines(), 1) if len(line) > MOST_COLUMNS]
    assert not long, f"lines over {MOST_COLUMNS} columns: {long}"
    assert not re.findall(r"[ \t]+$", text, re.M), "blanks at the end of a line"
    assert text.isascii()


@pytest.mark.parametrize("page", PAGES)
def test_formatters_have_nothing_to_say(page: str) -> None:
    path = str(MAN / page)
    assert _told("groff", "-mandoc", "-ww", "-z", path) == ""
    if shutil.which("man"):
        assert _told("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path) == ""
    if shutil.which("mandoc"):
        assert _told("mandoc", "-T", "lint", "-W", "warning", path) == ""


def _told(*words: str) -> str:
    quiet = {"LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80", "PATH": os.environ["PATH"]}
    done = subprocess.run(words, capture_output=True, env=quiet, check=False)
    shown = done.stdout if "lint" in words else b""
    return (shown + done.stderr).decode()


@pytest.mark.parametrize("page", PAGES)
def test_what_is_shown(page: str) -> None:
    """A page fits 80 columns, and its examples can be copied from the screen."""
    done = subprocess.run(
        ["groff", "-mandoc", "-Tutf8", "-P-cbou", str(MAN / page)], capture_output=True, check=True
    )
    shown = done.stdout.decode()
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    for example in examples(page):
        for line in example.command.splitlines():
            assert line in shown


@pytest.mark.parametrize("page", PAGES)
def test_references(page: str) -> None:
    for name, number in re.findall(r"^\.?.*?\bXr (\S+) (\d)", source(page), re.M):
        assert name in ELSEWHERE or (MAN / f"{name}.{number}").exists(), f"{name}({number})"
    seen = re.findall(r"^\.Xr (\S+) (\d)", section(page, "SEE ALSO"), re.M)
    assert seen == sorted(seen, key=lambda entry: (entry[1], entry[0])), "by section, then by name"
    after = re.findall(r"^\..*?\bEv (.*)$", source(page), re.M)
    named = {name for words in after for name in re.findall(r"\b[A-Z][A-Z_]{2,}\b", words)}
    assert named <= {variable.name for variable in env.VARIABLES} | NOT_OURS
    known = {spelling for verb in VERBS for spelling in options_of(verb)} | set(items("machine.1"))
    assert {f"-{name}" for name in re.findall(r"\bFl (\S+)", source(page))} <= known


# commands -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_options(verb: str) -> None:
    listed = items(page_of(verb))
    options = options_of(verb)
    assert set(listed) == set(options)
    synopsis = section(page_of(verb), "SYNOPSIS")
    in_synopsis = {f"-{name}" for name in re.findall(r"\bFl (\S+)", synopsis)}
    for spelling, option in options.items():
        line = listed[spelling]
        if option is None or option.is_flag:
            assert " Ar " not in line and " Cm " not in line, f"{spelling} takes no argument"
            if option is None:
                continue
        elif isinstance(option.type, click.Choice):
            assert f" Cm {' | '.join(option.type.choices)}" in line
        else:
            assert " Ar " in line, f"{spelling} takes an argument"
            assert option.metavar is None or f" Ar {option.metavar}" in line
        assert in_synopsis & {*option.opts, *option.secondary_opts}, f"SYNOPSIS lacks {spelling}"


@pytest.mark.parametrize("verb", VERBS)
def test_arguments(verb: str) -> None:
    command = command_of(verb)
    context = click.Context(command)
    synopsis = section(page_of(verb), "SYNOPSIS")
    for argument in command.params:
        if isinstance(argument, click.Argument):
            for word in re.findall(r"[A-Z]+", argument.make_metavar(context)):
                assert re.search(rf"\bAr .*\b{word}\b", synopsis), f"SYNOPSIS lacks {word}"


@pytest.mark.parametrize("command", COMMANDS, ids=VERBS)
def test_summary(command: Command) -> None:
    verb, _, summary = command
    assert re.findall(r"^\.Nd (.*)$", source(page_of(verb)), re.M) == [summary]
    assert importlib.import_module(f"libmachine.cmd.{verb}").__doc__ == f"machine-{verb}: {summary}."


def test_schema_types() -> None:
    found = re.search(r"^\.It Fl -schema .*?(?=^\.It )", source("machine-show.1"), re.M | re.S)
    assert found
    assert set(re.findall(r"^\.Cm (\S+)", found[0], re.M)) == set(VERSIONS)


def test_summary_of_the_dispatcher() -> None:
    told = re.findall(r"^\.Nd (.*)$", source("machine.1"), re.M)
    assert importlib.import_module("libmachine.cmd.machine").__doc__ == f"machine: {told[0]}."


def test_overview() -> None:
    """machine(1) and `machine --help` show every verb with its summary, in the order of the list."""
    from libmachine.cmd.machine import overview

    wanted = [(command.verb, command.summary) for command in COMMANDS]
    shown = re.findall(r"^  (\S+) +(\S.*)$", overview(), re.M)
    assert sorted(shown) == sorted(wanted)
    listed = re.findall(r"^\.It Xr machine-(\S+) 1\n(.*)\.?$", source("machine.1"), re.M)
    assert [(verb, told.rstrip(".")[:1].lower() + told.rstrip(".")[1:]) for verb, told in listed] == wanted
    seen = re.findall(r"^\.Xr machine-(\S+) 1", section("machine.1", "SEE ALSO"), re.M)
    assert seen == sorted(VERBS)


def test_dispatcher_options() -> None:
    """The options of machine(1) are the words its main() looks for."""
    import ast
    import inspect

    from libmachine.cmd.machine import dispatch

    tree = ast.parse(inspect.getsource(dispatch))
    words = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert set(items("machine.1")) == {w for w in words if re.fullmatch(r"--?[a-z][a-z-]*", str(w))}


@pytest.mark.parametrize("page", [page for page in PAGES if page[-1] == "1"])
def test_exit_codes(page: str) -> None:
    codes = [int(code) for code in re.findall(r"^\.It (\d+)$", section(page, "EXIT STATUS"), re.M)]
    assert codes[0] == 0
    assert codes == sorted(set(codes))
    assert set(codes) <= known_codes()


def known_codes() -> set[int]:
    """The codes of libmachine.errors and the dispatcher's two."""
    return {126, 127} | {
        value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)
    }


# concepts and formats -------------------------------------------------------------------


def test_machine_7() -> None:
    listed = re.findall(r"^\.It Ev (\S+)$", section("machine.7", "ENVIRONMENT"), re.M)
    assert sorted(listed) == sorted(variable.name for variable in env.VARIABLES)
    codes = {int(code) for code in re.findall(r"^\.It (\d+)$", section("machine.7", "EXIT STATUS"), re.M)}
    assert codes == known_codes()


def kind_in_words(field: Field) -> str:
    """`string or null, optional, not stored`, as machine-record(5) says it."""
    kind = field.kind.removeprefix("-")
    bare = kind.removesuffix("?")
    names = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array"}
    if bare.endswith("[]"):
        told = f"array of {bare[:-2]}"
    else:
        told = names.get(bare, bare)
    told += " or null" if kind.endswith("?") else ""
    told += ", optional" if kind != field.kind else ""
    return told + ("" if field.stored else ", not stored")


def listed_fields(page: str, table: str) -> list[tuple[str, str]]:
    r"""(field, kind in words) of the list that follows `.\" table: NAME`."""
    found = re.search(rf'^\.\\" table: {table}\n\.Bl .*?\n(.*?)^\.El', source(page), re.M | re.S)
    assert found, f"no list for table {table}"
    return [(name, kind.strip()) for name, kind in re.findall(r"^\.It Va (\S+)(?: :(.*))?$", found[1], re.M)]


@pytest.mark.parametrize("table", list(TABLES))
def test_machine_record_5(table: str) -> None:
    wanted = [(field.name, kind_in_words(field)) for field in TABLES[table]]
    assert listed_fields("machine-record.5", table) == wanted


def _public(kind: type) -> set[str]:
    """What a class has for its users, its own and inherited."""
    return {name for name in dir(kind) if name[0] != "_"}


def test_cases_in_machine_record_5() -> None:
    assert [name for name, _ in listed_fields("machine-record.5", "case")] == list(CASE_FIELDS)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("rubric.toml", folder._CRITERION_FIELDS),
        ("model.json", folder._MODEL_FIELDS),
        ("sampling", (*folder._SAMPLING, "effort")),
        ("Machine", tuple(define.Machine.__dataclass_fields__)),
        ("Run", tuple(name for name in vars(define.Run) if name[0] != "_")),
        ("Counterpart", tuple(define.Counterpart.__dataclass_fields__)),
        ("Turn", tuple(define.Turn.__dataclass_fields__)),
        ("Workspace", ("directory", *(name for name in vars(Workspace) if name[0] != "_"))),
        ("ToolCall", tuple(define.ToolCall.__dataclass_fields__)),
    ],
)
def test_machine_folder_5(table: str, wanted: tuple[str, ...]) -> None:
    listed = [name for name, _ in listed_fields("machine-folder.5", table)]
    assert sorted(set(listed) - {"record"}) == sorted(wanted)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("machine", set(machine.__all__) & {"load", "define", "names"}),
        ("Handle", _public(machine.Handle) | {"name"}),
        ("Candidate", _public(machine.Candidate) | {"version", "report", "verdict"}),
        ("Session", _public(machine.Session) | {"runs"}),
        ("FinishedRun", {name for name in vars(machine.FinishedRun) if name[0] != "_"} | {"bought"}),
        ("Event", set(machine.Event.__dataclass_fields__)),
    ],
)
def test_machine_sdk_3(table: str, wanted: set[str]) -> None:
    assert {name for name, _ in listed_fields("machine-sdk.3", table)} == wanted


def test_files_of_machine_folder_5() -> None:
    listed = re.findall(r"^\.It Pa (\S+)$", section("machine-folder.5", "FILES"), re.M)
    assert folder.__doc__ is not None
    assert sorted(listed) == sorted(re.findall(r"[a-z]+\.[a-z]+", folder.__doc__))
    assert set(listed) >= set(folder.VERSIONED)


# examples -------------------------------------------------------------------------------


class Example(NamedTuple):
    """A command of a page, the output that follows it (None: nothing is said), its exit code, and what the
    reader writes before it: path -> lines."""

    command: str
    output: list[str] | None
    code: int
    writes: Mapping[str, list[str]] = {}


ESCAPES = {r"\e": "\\", r"\&": "", r"\-": "-", r"\(aq": "'", r"\(dq": '"', r"\(ha": "^", r"\(ti": "~"}


def plain_text(line: str) -> str:
    """A literal line as the reader sees it."""
    text = re.sub(r"\\\(..|\\.", lambda found: ESCAPES[found[0]], line)
    assert not re.match(r"[.']", line), f"begins like a request: {line}"
    return text


def blocks(page: str, kind: str = "file") -> Iterator[tuple[str | None, list[str]]]:
    """(path of a file or None, lines) of the literal blocks. kind: what marks a file, `file` or `write`."""
    pattern = r'(?:^\.\\" (\w+): (\S+)\n)?^\.Bd -literal.*?\n(.*?)^\.Ed'
    for found in re.finditer(pattern, source(page), re.M | re.S):
        if found[1] in (None, kind):
            yield found[2], [plain_text(line) for line in found[3].splitlines()]


def examples(page: str) -> list[Example]:
    """The commands of a page in order, continued lines joined."""
    found: list[Example] = []
    writes: dict[str, list[str]] = {}
    for path, lines in blocks(page, "write"):
        if path is not None:
            writes[path] = lines
        open_end = False
        for line in lines if path is None else ():
            if open_end:
                found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line}")
            elif line == "$ echo $?":
                found.append(Example("echo $?", [], 0))
            elif line.startswith("$ "):
                found.append(Example(line[2:], None, 0, writes))
                writes = {}
            elif found and line and path is None and lines[0].startswith("$ "):
                found[-1] = found[-1]._replace(output=[*(found[-1].output or []), line])
                continue
            open_end = bool(found) and goes_on(found[-1].command)
    return list(_with_codes(found))


def goes_on(command: str) -> bool:
    """Does a command need another line?"""
    try:
        return not shlex.split(command) or command.endswith(("|", "\\"))
    except ValueError:  # an open quote, or a backslash at the end
        return True


def _with_codes(found: list[Example]) -> Iterator[Example]:
    for example, following in zip(found, [*found[1:], None], strict=True):
        if example.command == "echo $?":
            continue
        if following is not None and following.command == "echo $?":
            assert following.output and following.output[0].isdigit(), "a code follows echo $?"
            yield example._replace(code=int(following.output[0]))
        else:
            yield example


def written(example: Example) -> str:
    """The shell's lines that write what the reader writes before a command."""
    return "".join(
        "\n".join([f"cat > {shlex.quote(path)} << '-- end --'", *lines, "-- end --\n"])
        for path, lines in example.writes.items()
    )


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project with the built-in machines, to be copied."""
    project = tmp_path_factory.mktemp("man") / "project"
    shutil.copytree(ROOT / "machines", project / "machines", ignore=shutil.ignore_patterns("__pycache__"))
    variables = environment(project.parent)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=project, env=variables, check=True)
    identify(project.parent)
    commit(project, variables)
    return project


def identify(home: Path) -> None:
    """Who commits, as a person's own configuration says it."""
    (home / ".gitconfig").write_text(
        "[user]\n\tname = tester\n\temail = tester@localhost\n[init]\n\tdefaultBranch = main\n"
    )


def commit(project: Path, variables: dict[str, str]) -> None:
    """Commit all files of a project."""
    for words in (["add", "-A"], ["commit", "-qm", "machines"]):
        subprocess.run(["git", *words], cwd=project, env=variables, check=True)


def put(project: Path, files: Mapping[str, str]) -> None:
    """Write files, path -> text."""
    for path, text in files.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)


def environment(home: Path) -> dict[str, str]:
    """A private environment: none of the caller's settings and keys, this checkout's commands first."""
    drop = {variable.name for variable in env.VARIABLES} | {"PYTHONDONTWRITEBYTECODE", "BASH_ENV"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in drop and not name.startswith(("MACHINE_", "GIT_")) and not name.endswith("_KEY")
    }
    return kept | {
        "HOME": str(home),
        "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}",
        "TERM": "dumb",
        "PAGER": "cat",
        "MANPAGER": "cat",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
        "MACHINE_FSYNC": "0",
        "MACHINE_CACHE": os.environ.get("TEST_CACHE", str(home / "cache")),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def on_terminal(
    words: list[str], cwd: Path, variables: dict[str, str], limit_s: float, columns: int = 80
) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = subprocess.Popen(
        words, cwd=cwd, env=variables, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # EIO: nobody holds the other end any more
                break
            if not chunk:
                break
            shown += chunk
        else:
            process.kill()
            raise AssertionError(f"not done in {limit_s} s: {shown.decode('utf-8', 'replace')[-2000:]}")
    finally:
        os.close(ours)
        process.wait(10)
        with contextlib.suppress(ProcessLookupError):  # what an example left in the background
            os.killpg(process.pid, signal.SIGKILL)
    return shown.decode("utf-8", "replace")


def as_read(text: str) -> list[str]:
    """Lines as they stand on the screen in the end: without colours and wiped progress bars."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")
    return [line.rsplit("\r\x1b[K", 1)[-1].rstrip() for line in text.split("\n")]


def fits(wanted: list[str], got: list[str]) -> bool:
    """Does the output fit what the page says?"""
    pattern = ""
    for line in wanted:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
            continue
        bare = line.rstrip().removesuffix("...")
        pattern += ".*".join(re.escape(part) for part in bare.split("..."))
        pattern += r".*\n(?:.*\n)*" if bare != line.rstrip() else "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in got)) is not None


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose path is short, like a reader's: what is told of a file fits a line."""
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as path:
        yield Path(os.path.realpath(path))


@pytest.mark.parametrize("page", PAGES)
def test_examples(page: str, scratch: Path, home: Path) -> None:
    project = home / "project"
    shutil.copytree(scratch, project)
    identify(home)
    if '.\\" fixture\n' in source(page):
        put(project, FIXTURE)
        commit(project, environment(home))
    put(project, {path: "".join(f"{line}\n" for line in lines) for path, lines in blocks(page) if path})
    wanted = examples(page)
    assert wanted, "a page shows how it is done"
    script = home / "examples.sh"
    script.write_text(
        "".join(
            f"{written(example)}{example.command}\n"
            'codes=("${PIPESTATUS[@]}"); printf "\\n@@ %s\\n" "${codes[*]}"\n'
            for example in wanted
        )
    )
    words = ["bash", "--noprofile", "--norc", str(script)]
    limit_s = COMMANDS_TIMEOUT_S.get(page, COMMAND_TIMEOUT_S)
    variables = environment(home)
    if page.endswith(".3"):  # the reader's Python has the package
        path = f"{Path(sys.executable).parent}:{variables['PATH']}"
        variables |= {"PYTHONPATH": str(ROOT), "PATH": path}
    shown = as_read(on_terminal(words, project, variables, limit_s))
    parts: list[list[str]] = [[]]
    codes: list[list[int]] = []
    for line in shown:
        if line.startswith("@@ "):
            codes.append([int(code) for code in line.split()[1:]])
            parts.append([])
        else:
            parts[-1].append(line)
    assert len(codes) == len(wanted), "\n".join(shown)
    for example, got, statuses in zip(wanted, parts, codes, strict=False):
        told = f"$ {example.command}\n" + "\n".join(got)
        assert statuses[-1] == example.code, f"exit {statuses[-1]}, not {example.code}: {told}"
        if example.code == 0:  # in a pipe nobody sees the codes on the left; here they count
            assert set(statuses) <= {0, 141}, f"exits {statuses}: {told}"
        if example.output is not None:
            assert fits(example.output, got[:-1] if got[-1:] == [""] else got), told


# the tests themselves -------------------------------------------------------------------


def test_fits() -> None:
    assert fits(["a", "..."], ["a", "b", "c"])
    assert fits(["a", "...", "c"], ["a", "c"])
    assert fits(["run ... done"], ["run 17 done"])
    assert fits(["a...", "d"], ["a b", "c", "d"])
    assert not fits(["run ... done"], ["run 17", "done"])
    assert not fits(["a"], ["a", "b"])
    assert not fits(["a.b"], ["axb"])


def test_terminal(tmp_path: Path) -> None:
    shown = on_terminal(["sh", "-c", "test -t 0 && stty size"], tmp_path, environment(tmp_path), 10)
    assert as_read(shown)[0] == "24 80"

"""What people see on a terminal: no line is wider than it, the right column is cut, and the last line says
what to type.

The commands run on a real pseudo-terminal of 80 and of 200 columns, in a project with long names, long
inputs, wide characters and more cases than a table shows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_man as man

from libmachine import console
from libmachine.gate import report as gate_report
from libmachine.train import report as train_report

NAME = "returns/very-long-name-of-a-machine"
FOLDER = f"machines/{NAME}"
ASKED = "What about parcel number {} which came with a broken seal, 雨で濡れた箱, and without its invoice?"
MACHINE = """from libmachine import Machine, check


def well(run):
    return "well" in run.output, "looked for the word 'well', which a helpful answer has somewhere in it"


def polite(run):
    return len(run.output) < 40


graders = {"answers_well": check(well), "polite_and_rather_short": check(polite)}
machine = Machine(intent="Answer people who send parcels back, " + "at length " * 20, graders=graders)
"""
RUBRIC = "".join(f'[{name}]\ndescription = "x"\n' for name in ("answers_well", "polite_and_rather_short"))


def rules(well: str) -> str:
    """A model that answers parcels well whose number fits a pattern."""
    reply = "It is going well."
    found = [{"match": f"number ({well}) ", "replies": [reply]}, {"match": "", "replies": ["What?"]}]
    return "".join(json.dumps(rule) + "\n" for rule in found)


def cases(numbers: range) -> str:
    return "".join(json.dumps({"input": ASKED.format(n)}, ensure_ascii=False) + "\n" for n in numbers)


def parent(path: str) -> str:
    return f"machines/returns/{path}"


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A committed machine with stored runs of the version that is live, and of one that was refused."""
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as path:
        yield made(Path(os.path.realpath(path)))  # short, like a reader's


def made(home: Path) -> Path:
    """The project."""
    project = home / "project"
    project.mkdir()
    man.identify(home)
    child = 'from libmachine import Machine\n\nmachine = Machine(intent="x", graders={})\n'
    man.put(
        project,
        {
            parent("machine.py"): MACHINE,
            parent("rubric.toml"): RUBRIC,
            parent("model.json"): '{"model": "rules/some", "harness": "scripted"}\n',
            parent("instructions.md"): "Answer.\n",
            parent("very-long-name-of-a-machine/machine.py"): child,
            parent("very-long-name-of-a-machine/cases.jsonl"): cases(range(30)),
            parent("very-long-name-of-a-machine/holdout.jsonl"): cases(range(100, 134)),
            "rules/some": rules(r"\d|10\d"),
            "rules/most": rules(r"\d\d?|10[5-9]|1[1-3]\d"),
        },
    )
    variables = man.environment(home)
    subprocess.run(["git", "init", "-q", str(project)], env=variables, check=True)
    man.commit(project, variables)
    return project


def seen(project: Path, command: str, columns: int, code: int | None = 0) -> list[str]:
    """The lines that a command leaves on a terminal. code: its exit code, None if any will do."""
    variables = man.environment(project.parent)
    words = ["bash", "-c", f"{command}\ncode=$?; printf '\\n@@ %s\\n' $code"]
    text = man.on_terminal(words, project, variables, 120, columns)
    lines = man.as_read(text)
    got = next(line for line in lines if line.startswith("@@ "))
    assert code is None or got == f"@@ {code}", "\n".join(lines)
    return [line for line in lines[: lines.index(got)] if line]


def check_width(lines: list[str], columns: int) -> None:
    """No line is wider, but for a command that is to be copied, and a path that no line holds."""
    for line in lines:
        if console.columns(line) <= columns or re.match(r" +(type|Next): ", line):
            continue
        longest = max(line.split(), key=console.columns)
        assert console.columns(longest) + 2 > columns, f"wider than {columns}: {line}"


SHOWN = [
    # command, exit code, what must be there at both widths
    (
        f"machine-suite {NAME}",
        0,
        ["score  passed  case", "(nothing wrong in 10 cases)", "Next: "],
    ),
    (
        f"machine-suite {NAME} -v --trials 2",
        0,
        ["pass@1", "trial  score  passed  case", "Next: machine-show "],
    ),
    (f"machine-run {NAME} --cases cases.jsonl", 0, ["30 cases: 30 stored, 0 run, $0.00"]),
    (f"machine-runs {NAME} --last 5", 0, ["run       started      case"]),
    ("machine-runs --last 5", 0, ["machine "]),
    (f"machine-show {NAME}@{{0}}", 0, ["criterion", "polite_and_rather_short"]),
    (f"machine-versions {NAME}", 0, ["version       recorded", "live, work tree"]),
    ("machine-list", 0, ["machine", "cases  held out  where", "project", "built-in"]),
    ("machine-tree returns", 0, ["(inherited)"]),
    ("machine-doctor", None, ["ok    python", "ok    project"]),
    ("machine-spend", 0, ["nothing was spent"]),
    (f"machine-cases {NAME} --check", 1, ["34 held out: 4 times in 5 they show a gain of"]),
    (
        f"machine-compare {NAME}",
        0,
        ["no case moved (30 alike", "No difference", "Next: machine-suite "],
    ),
    ("machine-sync", 128, ["fatal: cannot fetch from 'origin'", "git remote -v lists the remotes"]),
    ("machine-suite nosuch", 128, ["fatal: no machine 'nosuch'", "(machine-list shows all)"]),
    (f"machine-commit {NAME}", 128, ["machine-propose makes a candidate"]),
    ("machine-gate", 129, ["name a machine: machine-gate NAME"]),
]


@pytest.mark.parametrize("columns", [80, 200])
def test_tables(project: Path, columns: int) -> None:
    for command, code, wanted in SHOWN:
        lines = seen(project, command, columns, code)
        check_width(lines, columns)
        flat = " ".join(" ".join(lines).split())
        for text in wanted:
            assert " ".join(text.split()) in flat, f"no '{text}' in {command}:\n" + "\n".join(lines)


def test_wide_terminal_shows_more(project: Path) -> None:
    """What is cut at 80 columns is what was asked and answered, never a figure; at 200 it is there."""
    narrow, wide = (seen(project, f"machine-suite {NAME}", columns) for columns in (80, 200))
    rows = [[line for line in lines if re.match(r" 0\.50 ", line)] for lines in (narrow, wide)]
    assert len(rows[0]) == len(rows[1]) == 20
    assert all(line.endswith("…") for line in rows[0])
    assert all("which a helpful answer has somewhere in it" in line for line in rows[1])
    assert all("What about" in line for line in rows[1]), "a case without a name is called by its input"


@pytest.mark.parametrize("columns", [80, 200])
def test_gate(project: Path, columns: int) -> None:
    """The report: 34 cases, of which 29 moved, worst first, the middle of the list left out."""
    model = '{"model": "rules/most", "harness": "scripted"}'
    change = f"echo '{model}' > machines/returns/model.json"
    lines = seen(project, f"{change}; machine-gate {NAME} --trials 1 --no-confirm", columns)
    check_width(lines, columns)
    rows = [line for line in lines if re.match(r"[01]\.\d\d +[01]\.\d\d +[+-]", line)]
    assert len(rows) == gate_report.ROWS
    diffs = [float(row.split()[2]) for row in rows]
    assert diffs == sorted(diffs)
    assert diffs[0] < 0 < diffs[-1]
    assert any("(9 further cases: 9 better, 0 worse; --json has all)" in line for line in lines)
    assert any("(5 cases did not move)" in line for line in lines)
    assert lines[-1].endswith(f"Next: machine-commit {NAME}")
    lines = seen(
        project,
        f"git restore machines; echo x >> {parent('instructions.md')}; machine-gate {NAME}",
        columns,
        1,
    )
    check_width(lines, columns)
    assert "refused: on average it is no better than the live version (not_higher)." in " ".join(lines)
    assert lines[-1].endswith(f"Next: machine-suite {NAME}, or machine-commit {NAME} --force WHY")
    lines = seen(project, "git add -A; machine-gate --staged", columns, 1)
    check_width(lines, columns)
    # both machines differ by the parent's text; the parent was never judged
    assert any(line.endswith("type: machine-gate returns") for line in lines)
    assert any(line.endswith(f"machine-commit {NAME} --force WHY") for line in lines)
    seen(project, "git reset -q --hard", columns)


def test_bar_says_what_it_costs_and_how_long(project: Path) -> None:
    """A bar with a total, the cost so far and the time left, gone at the end, no wider than the screen."""
    variables = man.environment(project.parent)
    for command in (
        f"machine-suite {NAME} --no-resume",
        f"machine-gate {NAME} --base HEAD --rerun",
        f"machine-run {NAME} --cases cases.jsonl --no-resume > runs",
    ):
        words = ["bash", "-c", f"echo y > {parent('instructions.md')}; {command}"]
        text = man.on_terminal(words, project, variables, 120, 60)
        bars = [bar for bar in re.findall(r"\r\x1b\[K([^\r\n]+)", text) if "[" in bar]
        assert len(bars) >= 30, text
        assert all(console.columns(bar) < 60 for bar in bars)
        assert all(re.search(r"\] \d+/\d+ \$0\.00, .* left$|…$", bar) for bar in bars), bars[-1]
        done, total = re.findall(r"(\d+)/(\d+)", bars[-1])[0]
        assert done == total
        assert "\r\x1b[K" in text.split(bars[-1])[-1], "the bar is wiped"
    subprocess.run(["git", "reset", "-q", "--hard"], cwd=project, env=variables, check=True)


def test_one_reason_is_told_three_times(project: Path) -> None:
    """Thirty runs that fail alike are not thirty lines."""
    raising = MACHINE.replace('"well" in run.output, ', "1 / 0, ")
    (project / parent("machine.py")).write_text(raising)
    lines = seen(project, f"machine-suite {NAME} | tail -n 1", 80, 0)
    told = [line for line in lines if line.startswith(f"{NAME}: case")]
    assert len(told) == 3, "\n".join(lines)
    assert "further ones for the same reason are counted, not shown" in lines
    (project / parent("machine.py")).write_text(MACHINE)


def test_no_colour(project: Path) -> None:
    """Nothing but the bar's wipe is a control sequence: it reads alike on light and dark."""
    variables = man.environment(project.parent)
    del variables["NO_COLOR"]
    variables["TERM"] = "xterm-256color"
    words = ["bash", "-c", f"machine-suite {NAME}; machine-list; machine-runs --last 3; machine-doctor"]
    text = man.on_terminal(words, project, variables, 120)
    assert set(re.findall(r"\x1b\[[0-9;?]*[A-Za-z]", text)) <= {"\x1b[K"}


# inside ---------------------------------------------------------------------------------


def test_fold_keeps_words_and_commands() -> None:
    assert console.fold("short", 80) == ["short"]
    assert console.fold("one two three", 8) == ["one two", "  three"]
    path = "/a" * 50
    assert console.fold(f"store made: {path} and more", 80) == [f"store made: {path}", "  and more"]
    command = "machine-gate x --base 0123456789ab && machine-sync"
    told = console.fold(f"refused: x: no_verdict: none is noted on version 0123; type: {command}", 60)
    assert told[-1] == f"  type: {command}"
    assert not told[-2].endswith(";")
    assert all(console.columns(line) <= 60 for line in told)
    assert console.fold("雨" * 10 + " " + "雨" * 10, 22) == ["雨" * 10, "  " + "雨" * 10]


def test_table_cuts_the_widest_first() -> None:
    rows = [["name", "n", "model", "what"], ["a" * 30, "12345", "m" * 60, "w" * 30]]
    lines = console.table(rows, 80, right=(1,), shrink=(0, 2)).splitlines()
    assert all(console.columns(line) <= 80 for line in lines)
    assert "12345" in lines[1], "figures are never cut"
    assert lines[1].endswith("w" * 11 + "…")
    assert console.table(rows, 200, right=(1,), shrink=(0, 2)).splitlines()[1].endswith("w" * 30)
    assert console.table([["a" * 90, "b"]], 80) == "a" * 90 + "  b\n", "without shrink nothing but the last"


def test_train_report_fits() -> None:
    verdict = {
        "machine": "m",
        "baseline": "0" * 40,
        "candidate": "1" * 40,
        "warnings": ["few_cases", "drift: " + "the provider answered otherwise " * 6],
        "decision": "refuse",
        "reasons": ["not_higher"],
    }
    training = {
        "base_model": "thinkingmachines/a-model-with-a-name-that-is-quite-long-indeed",
        "steps": 120,
        "rank": 16,
        "learning_rate": 2e-4,
        "seed": 0,
        "duration_s": 100.0,
        "losses": [3.0 / (n + 1) for n in range(120)],
        "warnings": ["odd: " + "something was odd about these data " * 5],
    }
    data = {
        "examples": 3,
        "cases": 2,
        "tokens": 12345,
        "solved": {"unsolved": 1, "cases": 3},
        "dropped": {"a reason " * 30: 2},
    }
    found = {"machine": "m", "runs": 10, "bought": 5, "graded": 5, "passed": 3, "cost_usd": 0.25}
    found |= {"data": data, "training": training, "verdict": verdict}
    for columns in (80, 200):
        text = train_report.report(found, {}, columns)
        check_width(text.splitlines(), columns)
        assert "loss a token 0.399 -> 0.029" in text
        assert text.splitlines()[-1].endswith("Next: machine-suite m, or machine-commit m --force WHY")

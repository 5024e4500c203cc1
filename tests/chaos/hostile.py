"""A project in which every text that is not ours is hostile, and every command as typed there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from libmachine.store.store import Store

CANARY = "EVIL"
POISON = (
    f"{CANARY}\x1b[2J\x1b]0;t\x07\x1b]8;;http://x\x1b\\l\x9b31m\x9d0;u\x9c"
    "\u202e\u200b\U000e0041\x7f\r\x08good"
)
"""Clears the screen, names the window, links, colours (7 and 8 bits), turns text round, hides, overwrites."""

MACHINE = """
from libmachine import Counterpart, Machine, check

POISON = %r


def note(text: str) -> str:
    \"\"\"Note a text.

    text: what to note
    \"\"\"
    if "fail" in text:
        raise ValueError(POISON)
    return POISON


def good(run):
    return "good" in run.output, POISON + run.output


machine = Machine(intent="Say something good. " + POISON, graders={"good": check(good)}, tools=[note], MORE)
"""


class Words(NamedTuple):
    """A command. shows: does it print foreign text for people? codes: what it may end with."""

    words: list[str]
    stdin: bytes = b""
    shows: bool = False
    codes: tuple[int, ...] = (0,)


def git(folder: Path, *words: str, code: int | None = 0, stdin: str = "", **environment: str) -> str:
    """Plain git in a folder, as its user runs it."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        input=stdin.encode(),
        capture_output=True,
        env=identity(folder) | environment,
        check=False,
    )
    assert code is None or done.returncode == code, (words, done)
    return done.stdout.decode("utf-8", "replace").strip()


def identity(folder: Path) -> dict[str, str]:
    """An environment with nothing of ours in it but who commits."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(
        "[user]\n\tname = t\n\temail = t@localhost\n[init]\n\tdefaultBranch = main\n"
    )
    return {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"], "NO_COLOR": "1"}


def case(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"c{number} {POISON}", "input": f"case {number} {POISON}", "target": POISON, **more}


def make(folder: Path) -> None:
    """The project, committed; then its instructions are changed."""
    for name, more in (
        ("say", ""),
        ("desk", "counterpart=Counterpart('caller', max_turns=2)"),
        ("caller", ""),
    ):
        home = folder / "machines" / name
        home.mkdir(parents=True)
        (home / "machine.py").write_text((MACHINE % POISON).replace("MORE", more))
        told = json.dumps(POISON)  # TOML has the same escapes, but for the pair of surrogates
        told = told.replace("\\udb40\\udc41", "\\U000e0041")
        (home / "rubric.toml").write_text(f"[good]\ndescription = {told}\n")
        (home / "instructions.md").write_text(f"Say something good. {POISON}\n")
        (home / "model.json").write_text(json.dumps({"model": "rules.jsonl", "harness": "scripted"}))
        rows = [case(n, metadata={"group": f"{n} {POISON}"}) for n in range(3)]
        (home / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = [case(n) for n in range(10, 13)]
        (home / "holdout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    call = {
        "tool_calls": [
            {"name": "note", "arguments": {"text": f"fail {POISON}"}},
            {"name": POISON, "arguments": POISON},
        ]
    }
    error = {"match": "break", "replies": [{"error": POISON}]}
    rules = [error, {"match": "", "replies": [{**call, "content": POISON}, {"content": f"good {POISON}"}]}]
    (folder / "rules.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    (folder / "rows.jsonl").write_text(
        json.dumps({"input": f"new {POISON}", "odd " + POISON: 1})
        + "\n"
        + json.dumps(case(30))
        + "\n"
        + POISON
        + "\n"
    )
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", f"one {POISON}")
    git(folder, "branch", f"odd-\u202e\u200b{CANARY}")
    subprocess.run(["git", "init", "-q", "--bare", f"{folder}-hub"], check=True, env=identity(folder))
    git(folder, "remote", "add", "origin", f"{folder}-hub")
    git(folder, "config", "machine.runs", f"{folder}-hub")


def change(folder: Path) -> None:
    """What a gate is asked about: other instructions, staged."""
    path = folder / "machines/say/instructions.md"
    path.write_text(path.read_text() + f"Really. {POISON}\n")
    git(
        folder,
        "update-index",
        "--add",
        "--cacheinfo",
        f"100644,{_blob(folder, path)},machines/say/instructions.md",
    )


def _blob(folder: Path, path: Path) -> str:
    return git(folder, "hash-object", "-w", "--no-filters", str(path))


def runs_of(store: Path) -> Iterator[dict[str, Any]]:
    """The stored runs, newest first."""
    opened = Store(str(store), fsync=False)
    try:
        yield from [opened.load_run(row) for row in opened.index.runs()]
    finally:
        opened.close()


def commands(folder: Path, calm: Callable[[], None] = lambda: None) -> Iterator[Words]:
    """Every command in an order that makes sense; what needs ids asks the store when it is its turn.

    calm: called after plain git was used in between."""
    store = folder / ".machine"
    cases = (folder / "machines/say/cases.jsonl").read_bytes()
    yield Words(["init"])
    yield Words(["list"])
    yield Words(["tree", "say"], shows=True)
    yield Words(["run", "say", "a " + POISON], shows=True)
    yield Words(["run", "say", "break " + POISON], shows=True, codes=(3,))
    yield Words(
        ["run", "say"], cases + b'{"id": ' + json.dumps(POISON).encode() + b"}\n", shows=True, codes=(3,)
    )
    yield Words(["run", "say", "--json"], cases)
    runs = b"".join(json.dumps({**run, "split": None}).encode() + b"\n" for run in runs_of(store))
    yield Words(["grade"], runs, shows=True, codes=(3,))
    graded = b"".join(json.dumps({**run, "split": None}).encode() + b"\n" for run in runs_of(store))
    yield Words(["select", "--best", "1"], graded)
    yield Words(["export"], graded, codes=(0, 1))
    yield Words(["runs"], shows=True)
    yield Words(["runs", "say", "--json"])
    one = next(run for run in runs_of(store) if run["machine"] == "say" and run.get("scorecard"))
    yield Words(["mark", one["id"][:12], "--bad", "--note", POISON])
    yield Words(["show", one["id"]], shows=True)
    yield Words(["show", one["id"], "--messages"], shows=True)
    yield Words(["show", one["id"], "--json"])
    yield Words(["show", one["scorecard"]["id"]], shows=True)
    yield Words(["show", POISON], shows=True, codes=(128,))
    yield Words(["show", "--schema", POISON], shows=True, codes=(129,))
    yield Words(["agree", "say", "good", "--with", "same"], codes=(0, 1, 3, 125))
    yield Words(["suite", "say", "-v"], shows=True)
    yield Words(["converse", "desk", f"c0 {POISON}"], shows=True)
    yield Words(["converse", "desk", "--eval", POISON], shows=True)
    yield Words(["cases", "say", "rows.jsonl", "-n"], shows=True, codes=(0, 1, 3))
    yield Words(["cases", "say", "--check"], shows=True, codes=(0, 1))
    yield Words(["export", "say", "--to", "promptfoo"], codes=(0, 1, 3))
    yield Words(["versions", "say"])
    change(folder)
    calm()
    yield Words(["compare", "say"], shows=True, codes=(0, 1))
    yield Words(["gate", "--staged"], codes=(1, 125))
    yield Words(["gate", "say", "--trials", "1"], codes=(0, 1, 125))
    yield Words(["gate", "--range", f"HEAD~0..odd-\u202e\u200b{CANARY}"], codes=(0, 1, 125))
    yield Words(["gate", "--range", f"HEAD..{POISON}"], shows=True, codes=(125, 128))
    yield Words(["propose", "say", "--instructions", "rows.jsonl"], codes=(0, 1))
    yield Words(["commit", "say", "--force", POISON, "-m", POISON], codes=(0, 1))
    yield Words(["versions", "say", "--log"], shows=True)
    yield Words(["revert", "say"], codes=(0, 1, 128))
    yield Words(["sft", "say", "--dry-run"], codes=(0, 1, 125, 128))
    yield Words(["train", "say", "--dry-run"], codes=(0, 1, 125, 128, 129))
    yield Words(["optimize", "say", "--rounds", "1"], codes=(0, 1, 3, 125, 128, 129))
    yield Words(["spend"], codes=(0, 1))
    yield Words(["doctor"], codes=(0, 1))
    yield Words(["sync"])
    yield Words(["sync", "--runs"])
    yield Words(["sync", "ssh://nowhere.invalid/x"], codes=(128,))
    yield Words(["sync", "git://127.0.0.1:9/x"], codes=(128,))
    yield Words(["sync", POISON], shows=True, codes=(128,))
    yield Words(["gc"])
    with open(store / "records", "ab") as log:
        log.write(json.dumps({"type": POISON, "id": "0" * 40, "machine": POISON}).encode() + b"\n")
    yield Words(["fsck"], shows=True, codes=(1,))
    yield Words(["forget", one["id"][:12]], codes=(0, 1))
    yield Words(["new", "fresh"])
    yield Words(["list", "-C", "/nowhere/" + POISON], shows=True, codes=(128,))
    yield Words(["init", "--hooks"], codes=(0, 1, 128))
    yield Words(["init", "--remove-hooks"], codes=(0, 1, 128))

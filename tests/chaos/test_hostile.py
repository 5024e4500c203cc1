"""A repository that runs commands wherever git lets it (configuration, attributes, hooks): ours run none.

Each trap touches a file of its name. On a copy plain git springs them all, so a trap that no longer works is
seen here.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
from hostile import CANARY, POISON
from terminal import NEVER, OURS, Terminal

from libmachine import console
from libmachine.cmd import COMMANDS, _git

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from forked import Commands

HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "commit-msg"),
    *(
        "prepare-commit-msg",
        "post-commit",
        "pre-rebase",
        "post-checkout",
        "post-merge",
        "pre-push",
        "post-rewrite",
    ),
    *("pre-receive", "update", "post-receive", "post-update", "reference-transaction", "push-to-checkout"),
    *("pre-auto-gc", "post-index-change", "sendemail-validate", "fsmonitor-watchman", "proc-receive"),
)
PROVEN = {
    *(
        "clean",
        "smudge",
        "textconv",
        "external",
        "driver",
        "fsmonitor",
        "hook-pre-commit",
        "hook-post-checkout",
    ),
    *(
        "hook-post-index-change",
        "hook-reference-transaction",
        "hook-pre-push",
        "gpg",
        "editor",
        "pager",
        "alias",
    ),
    *("included", "ssh", "credential", "submodule", "merge", "hub-pre-receive", "hub-update"),
}
"""Traps that plain git has to spring."""


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """The directory that traps write to."""
    folder = tmp_path / "sprung"
    folder.mkdir()
    return folder


def trap(sprung: Path, name: str, then: str = "cat") -> str:
    """A command that says it was run, and then does what it is expected to."""
    return f"touch {sprung}/{name}; {then}"


def set_traps(folder: Path, sprung: Path) -> None:
    """Everything in a repository that makes git run something."""
    hooks = folder / ".git/traps"
    hooks.mkdir()
    for name in HOOKS:
        path = hooks / name
        path.write_text(f"#!/bin/sh\n{trap(sprung, f'hook-{name}', 'exit 0')}\n")
        path.chmod(0o755)
    in_place = folder / ".git/hooks"
    in_place.mkdir(exist_ok=True)
    for path in hooks.iterdir():
        shutil.copy(path, in_place / path.name)
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        path = Path(f"{folder}-hub/hooks/{name}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{trap(sprung, f'hub-{name}', 'exit 0')}\n")
        path.chmod(0o755)
    shell = lambda name, then="cat": f"sh -c '{trap(sprung, name, then)}'"  # noqa: E731
    settings = {
        "core.hooksPath": str(hooks),
        "core.fsmonitor": _script(folder, "fsmonitor", trap(sprung, "fsmonitor", "printf '/\\0'")),
        "core.pager": shell("pager"),
        "core.editor": _script(folder, "editor", trap(sprung, "editor", 'echo told >"$1"')),
        "core.sshCommand": _script(folder, "ssh", trap(sprung, "ssh", "exit 1")),
        "core.askPass": _script(folder, "askpass", trap(sprung, "askpass", "echo x")),
        "core.gitProxy": _script(folder, "proxy", trap(sprung, "proxy", "exit 1")),
        "core.alternateRefsCommand": shell("alternates", "true"),
        "filter.evil.clean": trap(sprung, "clean"),
        "filter.evil.smudge": trap(sprung, "smudge"),
        "filter.evil.required": "true",
        "diff.evil.textconv": _script(folder, "textconv", trap(sprung, "textconv", 'cat "$1"')),
        "diff.other.command": _script(folder, "driver", trap(sprung, "driver", "true")),
        "merge.evil.driver": trap(sprung, "merge", "true"),
        "interactive.diffFilter": shell("difffilter"),
        "credential.helper": f"!{trap(sprung, 'credential', 'true')}",
        "gpg.program": _script(folder, "gpg", trap(sprung, "gpg", "exit 1")),
        "gpg.ssh.program": _script(folder, "gpgssh", trap(sprung, "gpgssh", "exit 1")),
        "gpg.ssh.defaultKeyCommand": shell("keycommand"),
        "log.showSignature": "true",
        "alias.st": f"!{trap(sprung, 'alias', 'true')}",
        "alias.rev-parse": f"!{trap(sprung, 'alias-builtin', 'true')}",
        "trailer.sign.command": shell("trailer"),
        "uploadpack.packObjectsHook": shell("packobjects"),
        "remote.origin.uploadpack": _script(folder, "uploadpack", trap(sprung, "uploadpack", "exit 1")),
        "remote.origin.receivepack": _script(folder, "receivepack", trap(sprung, "receivepack", "exit 1")),
        "submodule.sub.update": f"!{trap(sprung, 'submodule', 'true')}",
        "submodule.sub.url": f"{folder}-hub",
        "submodule.sub.active": "true",
        "submodule.recurse": "true",
        "diff.external": _script(folder, "external", trap(sprung, "external", "true")),
        "man.evil.cmd": shell("man"),
        "gc.auto": "1",
        "maintenance.auto": "true",
        "commit.gpgSign": "true",
        "push.gpgSign": "if-asked",
        "fetch.recurseSubmodules": "true",
        "include.path": "more",
    }
    config = folder / ".git/config"
    more = folder / ".git/more"
    more.write_text(f'[filter "included"]\n\tclean = "{trap(sprung, "included")}"\n')
    for name, value in settings.items():
        hostile.git(folder, "config", name, value)
    with config.open("a") as file:
        file.write(f'[includeIf "gitdir:{folder}/"]\n\tpath = more\n')
    (folder / ".gitattributes").write_text(
        "*.md filter=evil diff=evil\n*.json diff=other\n*.toml filter=included\n*.py ident\n"
    )
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/exclude").write_bytes("caf\xe9/\n".encode("latin-1"))
    (folder / ".git/info/attributes").write_text("*.jsonl filter=evil diff=evil\n*.md merge=evil\n")
    (folder / ".gitmodules").write_text(f'[submodule "sub"]\n\tpath = sub\n\turl = {folder}-hub\n')
    (folder / ".gitignore").write_bytes("caf\xe9/\n*.tmp\n".encode("latin-1"))


def _script(folder: Path, name: str, text: str) -> str:
    path = folder / ".git" / f"trap-{name}"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def spring(folder: Path) -> None:
    """What a person does in a repository with plain git."""
    git = lambda *words, **more: hostile.git(folder, *words, code=None, **more)  # noqa: E731
    path = folder / "machines/say/instructions.md"
    path.write_text(path.read_text() + "more\n")
    (folder / "machines/say/model.json").write_text('{"model": "rules.jsonl",  "harness": "scripted"}')
    rubric = folder / "machines/say/rubric.toml"
    rubric.write_text(rubric.read_text() + "weight = 2\n")
    plain = ("-c", "commit.gpgSign=false")
    git("status")
    git("diff")
    git("st")
    git("add", "-A")
    git("commit", "-qm", "two")
    git(*plain, "commit", "-qm", "two")
    git(*plain, "commit", "-q", "--amend")
    git("log", "-p", "-1")
    git("checkout", "-q", "-f", "-b", "side", "HEAD~1")
    path.write_text(path.read_text() + "other\n")
    git(*plain, "commit", "-qam", "three")
    git(*plain, "merge", "-q", "main", "-m", "four")
    git("fetch", "ssh://nowhere.invalid/x")
    git("credential", "fill", stdin="protocol=https\nhost=nowhere.invalid\n\n")
    git("config", "--unset", "remote.origin.receivepack")
    git("push", "-q", "origin", "main:refs/heads/main")
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'main')},sub")
    git("-c", "protocol.file.allow=always", "submodule", "update", "--init")
    subprocess.run(
        ["script", "-qec", "git --paginate log -1", "/dev/null"],
        cwd=folder,
        env=hostile.identity(folder) | {"TERM": "xterm"},
        capture_output=True,
        check=False,
    )


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def test_every_command(tmp_path: Path, sprung: Path, terminal: Terminal) -> None:
    """None springs a trap, and no text of a model, tool, case, judge, ref or file gets to the terminal as
    anything but text."""
    folder = tmp_path / "project"
    folder.mkdir()
    hostile.make(folder)
    set_traps(folder, sprung)
    calm = lambda: [path.unlink() for path in sprung.iterdir()]  # noqa: E731
    calm()
    environment = hostile.identity(folder) | {"MACHINE_FSYNC": "0", "MACHINE_SANDBOX": "plain"}
    tried = set()
    with Commands(folder, environment) as ready:
        for words, stdin, shows, codes in hostile.commands(folder, calm):
            [[done]] = ready.beside([([words], stdin)], {}, [], terminal.path)
            text = OURS.sub("\n", terminal.take().decode("utf-8"))
            assert done.code in codes, (words, done.code, text)
            assert "Traceback" not in text and "bug:" not in text, (words, text)
            left = NEVER.search(text)
            assert left is None, (words, left, text)
            assert CANARY in text or not shows, (words, text)
            if "--json" in words and done.code == 0:  # the same values all the same
                records = [json.loads(row) for row in text.split("\n") if row.startswith("{")]
                assert any(record["case"].get("target") == POISON for record in records), (words, text)
            # a push runs the hooks of the repository that is pushed to: those are its owner's
            found = sorted(path.name for path in sprung.iterdir() if not path.name.startswith("hub-"))
            assert not found, (words, found, text)
            tried.add(words[0])
    missing = {command.verb for command in COMMANDS} - tried
    assert missing == {"budget", "tinkerd"}, missing  # which neither read a repository nor print foreign text


def test_who_reaches_a_remote_is_chosen_by_the_person(
    tmp_path: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh and what knows passwords: as their own settings or their environment say, not a repository's."""
    folder = tmp_path / "project"
    folder.mkdir()
    hostile.make(folder)
    set_traps(folder, sprung)
    home = hostile.identity(folder)
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GIT_SSH_COMMAND", raising=False)
    mine = {name: shlex.join(["sh", "-c", trap(sprung, f"my-{name}", "exit 1")]) for name in ("ssh", "other")}
    for key in ("credential.helper", "credential.https://nowhere.invalid.helper"):
        hostile.git(folder, "config", key, f"!{trap(sprung, 'credential', 'true')}")

    def reached(variables: dict[str, str]) -> set[str]:
        for path in sprung.iterdir():
            path.unlink()
        for words, stdin in (
            (["fetch", "ssh://nowhere.invalid/x"], ""),
            (["credential", "fill"], "protocol=https\nhost=nowhere.invalid\n\n"),
        ):
            subprocess.run(
                ["git", "-C", str(folder), *words],
                input=stdin.encode(),
                env=home | {"GIT_TERMINAL_PROMPT": "0"} | variables,
                capture_output=True,
                check=False,
            )
        return {path.name for path in sprung.iterdir()}

    assert {"ssh", "credential", "askpass"} <= reached({}), "the traps do not work"
    assert reached(_git.transport()) == set()
    for key, value in (
        ("core.sshCommand", mine["ssh"]),
        ("credential.helper", f"!{trap(sprung, 'my-helper', 'true')}"),
    ):
        subprocess.run(["git", "config", "--global", key, value], env=home, check=True)
    assert reached(_git.transport()) == {"my-ssh", "my-helper"}
    monkeypatch.setenv("GIT_SSH_COMMAND", mine["other"])
    assert reached(_git.transport()) == {"my-other", "my-helper"}


def test_json_for_a_terminal_is_the_same_value() -> None:
    line = json.dumps({"a": POISON, "b": "ü\u2028😀"}, ensure_ascii=False).encode() + b"\n"
    shown = console.escaped(line)
    assert json.loads(shown) == json.loads(line)
    assert NEVER.search(shown.decode()) is None
    assert "ü" in shown.decode() and "😀" in shown.decode()


def test_the_traps_work(tmp_path: Path, sprung: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    hostile.make(folder)
    set_traps(folder, sprung)
    spring(folder)
    found = {path.name for path in sprung.iterdir()}
    assert found >= PROVEN, PROVEN - found

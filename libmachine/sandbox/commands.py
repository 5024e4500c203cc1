"""What commands of a run did: for checks that ask whether something was really run, and succeeded.

The exit status stands in the first line of the result of the tool `run` (libmachine.sandbox.toolbox),
before anything that the command printed, so no output looks like one.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from libmachine.canon import RecordError, loads
from libmachine.define import Run, ToolCall

IDLE = frozenset(
    (
        *("true", ":", "echo", "printf", "ls", "cat", "pwd", "cd", "head", "tail", "sleep", "exit", "set"),
        *("export", "test", "[", "file", "stat", "find", "grep", "wc", "which"),
    )
)
"""Programs whose success says nothing about what was made."""
_RUNNERS = re.compile(r"python[\d.]*|pypy3?|bash|sh|dash|perl|node|ruby|lua|awk|gawk|Rscript|julia|make")
_COMPILERS = re.compile(r"(?:gcc|cc|g\+\+|c\+\+|clang|rustc|go|javac)[\d.-]*")
_EXIT = re.compile(r"exit (\d+)(?:\n|\Z)")
_CHANGED = re.compile(r"changed: (.*)")
_WRAPPERS = re.compile(r"timeout|time|nice|nohup|exec|env")
_GOES_ON = ("&&", "|", "|&")
"""What may stand after a command whose failure the whole line must not survive (bash runs with pipefail)."""


class Command(NamedTuple):
    """A call of `run`, or of another tool that tells how it ended alike. at: its place among the run's tool
    calls. code: None where it did not end by itself. changed: it changed files that were there before."""

    at: int
    text: str
    code: int | None
    changed: bool


def commands(run: Run, tool: str = "run", what: str = "command") -> list[Command]:
    """The commands of a run, in order; calls that were refused are left out. what: the argument of the
    tool that says what is run."""
    found = []
    for at, call in enumerate(run.tool_calls):
        text = argument(call, what)
        if call.name == tool and call.ok and text is not None:
            result = call.result or ""
            code = _EXIT.match(result)
            second = result.split("\n", 2)[1:2]
            changed = bool(code) and any(_CHANGED.match(line) for line in second)
            found.append(Command(at, text, int(code[1]) if code else None, changed))
    return found


def argument(call: ToolCall, name: str) -> str | None:
    """A text among a call's arguments, None if there is none."""
    try:
        value = loads(call.arguments.encode("utf-8", "replace"))
        value = loads(value.encode("utf-8", "replace")) if isinstance(value, str) else value
    except RecordError:
        return None
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def deciding(text: str) -> Iterator[list[str]]:
    """The simple commands of a line without whose success it had not succeeded: `a` and `b` of `a && b`, b
    of `a; b`, none of `a || true`. Nothing of a line that cannot be read."""
    parts = _simple(text)
    for number, (words, _) in enumerate(parts):
        needed = all(after in _GOES_ON for _, after in parts[number:-1]) and parts[-1][1] in ("", ";")
        if words and needed and (number == 0 or parts[number - 1][1] != "||"):
            yield _bare(words)


def proves(text: str) -> bool:
    """Does the success of a line say more than that the shell works?"""
    return any(posixpath.basename(words[0]) not in IDLE for words in deciding(text))


def ran(text: str, path: str) -> bool:
    """Does the success of a line say that a file was run: by name, by an interpreter, as a module, or as
    what a compiler made of it?"""
    path = posixpath.normpath(path)
    here, compiled = "", False

    def is_it(word: str) -> bool:
        return posixpath.normpath(posixpath.join(here, word)) == path

    for program, *rest in deciding(text):
        if program == "cd" and len(rest) == 1:
            here = posixpath.join(here, rest[0])
        if compiled and "/" in program and not program.startswith("/usr"):
            return True
        if is_it(program):
            return True
        named = any(map(is_it, rest))
        name = posixpath.basename(program)
        if _COMPILERS.fullmatch(name) and named:
            if rest[:1] == ["run"]:
                return True
            compiled = True
        elif _RUNNERS.fullmatch(name) and (named or is_it(_module(rest))):
            return True
    return False


def _bare(words: list[str]) -> list[str]:
    """Without `timeout 5` and the like before it."""
    at = 0
    while at < len(words) - 1 and _WRAPPERS.fullmatch(posixpath.basename(words[at])):
        at += 1
        while at < len(words) - 1 and re.fullmatch(r"-.*|[\d.]+[smh]?|\w+=.*", words[at], re.DOTALL):
            at += 1
    return words[at:]


def _module(words: list[str]) -> str:
    """The file that `-m a.b` names, / without one."""
    if "-m" not in words[:-1]:
        return "/"
    return words[words.index("-m") + 1].replace(".", "/") + ".py"


def _simple(text: str) -> list[tuple[list[str], str]]:
    """(words, operator after them) of the simple commands of a line; assignments, redirections and
    brackets are left out."""
    lexer = shlex.shlex(
        text.strip().replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[tuple[list[str], str]] = []
    words: list[str] = []
    skip = False
    try:
        tokens = list(lexer)
    except ValueError:
        return []
    for token in tokens:
        if skip:
            skip = False
        elif token and not token.strip("<>&") and set(token) & set("<>"):
            skip = True
            if words and words[-1].isdigit():
                words.pop()
        elif token and not token.strip("();|&"):
            operator = token.strip("()")
            if operator:
                found.append((words, operator))
                words = []
        elif words or not re.fullmatch(r"\w+=.*", token, re.DOTALL):
            words.append(token)
    found.append((words, ""))
    if not words and len(found) > 1 and found[-2][1] == ";":
        found.pop()
    return found

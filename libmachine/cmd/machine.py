"""machine: run machine-VERB, from the own folder or PATH; help for each."""

from __future__ import annotations

import errno
import os
import sys

from libmachine import __version__
from libmachine.cmd import COMMANDS, _cli
from libmachine.errors import USAGE

_UNKNOWN = 127
_CANNOT = 126


def dispatch() -> int:
    """Dispatch. The status is that of the verb; 127 if there is none."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(overview())
        return 0 if words else USAGE
    if words[0] == "--version":
        print(f"machine {__version__}")
        return 0
    if words[0] == "--list-cmds":
        print("\n".join(command.verb for command in COMMANDS))
        return 0
    if words[0] == "--complete":
        return _complete(words[1:])
    if words[0] == "--completion":
        return _completion(words[1:])
    if words[0] == "help":
        return _help(words[1:]) if len(words) > 1 else _shown(overview())
    if words[0].startswith("-"):
        sys.stderr.write(
            f"usage: no option '{words[0]}'; options belong after the verb; see machine --help\n"
        )
        return USAGE
    return _exec(words[0], words[1:])


def _complete(words: list[str]) -> int:
    """The words that may end a line, one a line: what the shells ask."""
    from libmachine.cmd import _complete

    return _shown("".join(f"{word}\n" for word in _complete.candidates(words)))


def _completion(words: list[str]) -> int:
    """The lines that a shell reads to complete commands."""
    from libmachine.cmd import _complete

    if len(words) != 1 or words[0] not in _complete.SHELLS:
        sys.stderr.write(f"usage: machine --completion {'|'.join(_complete.SHELLS)}; see machine --help\n")
        return USAGE
    return _shown(_complete.script(words[0]))


def _shown(text: str) -> int:
    sys.stdout.write(text)
    return 0


def overview() -> str:
    """The verbs, one line each."""
    lines = ["usage: machine VERB [ARGUMENT...]", ""]
    for kind in ("plumbing", "porcelain"):
        lines.append(f"{kind}:")
        lines += [f"  {c.verb:<10} {c.summary}" for c in COMMANDS if c.kind == kind]
        lines.append("")
    lines.append("machine help tutorial is the first hour, machine help faq what is asked first;")
    lines.append("machine help VERB shows a verb's page, machine help 7 machine the concepts;")
    lines.append(
        "--version and --list-cmds print what they say, --completion bash|zsh|fish what a shell reads"
    )
    lines.append("to complete commands. A machine-foo on PATH is a verb too.")
    return "\n".join(lines) + "\n"


def _exec(verb: str, words: list[str]) -> int:
    name = f"machine-{verb}"
    own = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
    program = own if os.access(own, os.X_OK) else _which(name)
    if program is None:
        import difflib

        from libmachine.console import safe

        near = difflib.get_close_matches(verb, [command.verb for command in COMMANDS], 1)
        hint = f"did you mean '{near[0]}'?" if near else "machine --help lists the verbs"
        sys.stderr.write(f"fatal: no verb '{safe(verb)}'; {hint}\n")
        return _UNKNOWN
    try:
        os.execv(program, [program, *words])
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line, which a shell would run
            os.execv("/bin/sh", ["sh", program, *words])
        sys.stderr.write(f"fatal: cannot run '{program}': {(error.strerror or '').lower()}\n")
        return _CANNOT


def _which(name: str) -> str | None:
    """A program on PATH. shutil does the same, and costs as much to import as the rest of this module."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _help(words: list[str]) -> int:
    """The page of a verb, or `SECTION NAME`."""
    verb = words[-1]
    name = verb if verb == "machine" or verb.startswith("machine-") else f"machine-{verb}"
    for section in (words[0],) if len(words) > 1 else ("1", "3", "5", "7"):
        for folder in _man_folders():
            page = f"{folder}/{name}.{section}"
            if os.path.exists(page):
                return _page(page)
    from libmachine.console import safe

    sys.stderr.write(f"fatal: no page '{safe(name)}'; machine --help lists the verbs\n")
    return _UNKNOWN


def _man_folders() -> list[str]:
    import sysconfig

    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    share = os.path.join(sysconfig.get_path("data"), "share", "man")
    return [f"{checkout}/man", *(f"{share}/man{section}" for section in "1357")]


def _page(page: str) -> int:
    import subprocess

    if _which("man") and os.isatty(1):
        return subprocess.run(["man", "-l", page], check=False).returncode
    if _which("groff"):
        return subprocess.run(["groff", "-mandoc", "-Tutf8", "-P-cbou", page], check=False).returncode
    if _which("mandoc"):
        return subprocess.run(["mandoc", page], check=False).returncode
    with open(page) as file:
        return _shown(file.read())


main = _cli.guarded(dispatch, "machine")

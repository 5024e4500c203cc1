"""What the shells ask on a TAB: the words that may stand there, from COMMANDS and the commands' options."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from libmachine.cmd import COMMANDS

if TYPE_CHECKING:
    import click

SHELLS = ("bash", "zsh", "fish")

_SCRIPTS = {
    "bash": """\
# completion of machine for bash; in ~/.bashrc:  eval "$(machine --completion bash)"
_machine() {
  local IFS=$'\\n'
  COMPREPLY=($(machine --complete "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _machine @NAMES@
""",
    "zsh": """\
# completion of machine for zsh; in ~/.zshrc, after compinit:  eval "$(machine --completion zsh)"
_machine() {
  local -a found
  found=(${(f)"$(machine --complete "${(@)words[1,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _machine @NAMES@
""",
    "fish": """\
# completion of machine for fish:  machine --completion fish > ~/.config/fish/completions/machine.fish
function __machine_complete
  set -l found (machine --complete (commandline -opc) (commandline -ct) 2>/dev/null)
  if set -q found[1]
    printf '%s\\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
for name in @NAMES@
  complete -c $name -f -a '(__machine_complete)'
end
""",
}


def script(shell: str) -> str:
    """The lines that a shell reads to complete every command."""
    names = " ".join(["machine", *(f"machine-{command.verb}" for command in COMMANDS)])
    return _SCRIPTS[shell].replace("@NAMES@", names)


def candidates(words: Sequence[str]) -> list[str]:
    """The words that may stand in place of the last one. words: the line up to the cursor, the command
    first. None for a file, or where nothing is known: the shell completes file names then."""
    if not words:
        return []
    *before, last = words
    before = [word for word in before if word != "="]  # bash makes a word of it
    head = os.path.basename(before[0]) if before else ""
    if head == "machine":
        if len(before) == 1:
            return _that_begin(
                [*_verbs(), "help", "--help", "--version", "--list-cmds", "--completion"], last
            )
        verb, rest = before[1], before[2:]
        if verb == "help":
            return _that_begin([*_verbs(), "folder", "recipes", "record"], last)
        if verb == "--completion":
            return _that_begin(SHELLS, last)
    else:
        verb, rest = head.removeprefix("machine-"), before[1:]
    if verb not in _verbs():
        return []
    return _that_begin(_of(importlib.import_module(f"libmachine.cmd.{verb}").command, rest, last), last)


def _verbs() -> list[str]:
    return [command.verb for command in COMMANDS]


def _that_begin(words: Sequence[str], start: str) -> list[str]:
    return sorted({word for word in words if word.startswith(start)})


def _of(command: click.Command, rest: Sequence[str], last: str) -> Sequence[str]:
    import click

    options = {
        spelling: option
        for option in command.params
        if isinstance(option, click.Option)
        for spelling in (*option.opts, *option.secondary_opts)
    }
    named = [param for param in command.params if isinstance(param, click.Argument)]
    given = _given(options, rest)
    if "--" not in rest:
        open_option = options.get(rest[-1]) if rest else None
        if open_option is not None and not open_option.is_flag:
            return _values(open_option, given)
        if last.startswith("-"):
            return [*options, *command.context_settings["help_option_names"]]
    place = len(given["words"])
    argument = (
        named[min(place, len(named) - 1)] if named and (place < len(named) or named[-1].nargs < 0) else None
    )
    if argument is None:
        return [*options] if not last and not named else []
    return _values(argument, given)


def _given(options: dict[str, Any], rest: Sequence[str]) -> dict[str, Any]:
    """The positional words of a line, and its project directory."""
    words: list[str] = []
    directory = None
    rest = list(rest)
    while rest:
        word = rest.pop(0)
        option = options.get(word)
        if option is not None and not option.is_flag:
            value = rest.pop(0) if rest else None
            directory = value if option.name == "workspace" else directory
        elif option is None and not (word.startswith("-") and len(word) > 1):
            words.append(word)
    return {"words": words, "directory": directory}


def _values(param: click.Parameter, given: dict[str, Any]) -> list[str]:
    """What a parameter may be: its choices, machines, harnesses; else nothing, and the shell offers files."""
    import click

    if isinstance(param.type, click.Choice):
        return [str(choice) for choice in param.type.choices]
    if param.name in ("name", "parent"):
        return list(_machines(given["directory"]))
    if param.name == "harness":
        from libmachine.harness import choose

        return choose.names()
    if param.name == "on":
        return ["cases", "holdout"]
    return []


def _machines(directory: str | None) -> Iterator[str]:
    from libmachine import project
    from libmachine.errors import MachineError
    from libmachine.load import names

    try:
        yield from names(project.find(directory).places)
    except MachineError:
        return

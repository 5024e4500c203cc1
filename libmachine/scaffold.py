"""machine-new's folder: a machine that loads and runs at once, and whose grade says what to write.

Made beside its place under a hidden name and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping

from libmachine.canon import dump_line
from libmachine.errors import MachineError
from libmachine.folder import Folder
from libmachine.load import check_name, load_folder

CRITERION = "good"
_UNWRITTEN = "is not written yet"

_MACHINE = '''\
"""{name}: say here what this machine is for."""

from __future__ import annotations

from libmachine import Machine, Run, check

# A grader is a function of the finished run. It returns True or False, a number from 0 to 1, one of
# these with a reason, or None where it does not apply to this case. It looks at
#   run.output       the last answer, a text          run.target    what the case says is right, or None
#   run.input        what was asked                   run.metadata  whatever else the case says
#   run.tool_calls   tools that were called           run.messages  the whole conversation
# `machine help folder` has the rest.


def {criterion}(run: Run) -> tuple[bool, str] | None:
    """Replace the line below. For instance, for an answer that has the target in it:

    if run.target is None:
        return None
    return run.target.lower() in run.output.lower(), f"looked for {{run.target!r}}"
    """
    return False, "grader '{criterion}' {unwritten}: edit {where}/machine.py, line {line}"


# A tool is a typed function with a docstring, in the list tools=[...]: its arguments and what it says
# of them are what the model sees. Where no function can tell good from bad, a model can:
#   from libmachine import judge            graders={{"{criterion}": judge()}}

machine = Machine(
    intent="Say in one sentence what {name} is for.",
    graders={{"{criterion}": check({criterion})}},
)
'''

_RUBRIC = """\
# What a good run is, a table for each criterion. Each has a grader of its name in machine.py.
# A person and a judge read the description, so it says what a good run does, not how it is checked.

[{criterion}]
description = "Say here what a good answer does."
weight = 1
# guard = 0.1        a new version may lower this criterion by no more than that
# role = "audit"     in place of a weight: graded and shown, no part of the score
"""

_INSTRUCTIONS = """\
Answer in one short sentence.
"""

_OWN = """\
Say here what this machine does beyond its parent; these lines follow its parent's.
"""

_CASES: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "cases.jsonl": (
        {"id": "sample-1", "input": "What color is grass?", "target": "green", "metadata": {"replace": "me"}},
        {
            "id": "sample-2",
            "input": "How many legs has a spider?",
            "target": "eight",
            "metadata": {"replace": "me"},
        },
    ),
    "holdout.jsonl": (
        {
            "id": "sample-3",
            "input": "Which planet do we live on?",
            "target": "Earth",
            "metadata": {"replace": "me"},
        },
    ),
}


def make(place: str, name: str, model: str | None) -> Folder:
    """Make the folder of a machine below a place, and load it to see that it is whole.

    model: a model's id, or None: a child's parent's, else echo. Raises MachineError if the name is
    none, the folder is there, or a folder on the way to it is no machine.
    """
    check_name(name)
    folder = Folder(place, name)
    if os.path.lexists(folder.path):
        raise MachineError(f"'{folder.path}' is there already; take another name, or remove it")
    parent = folder.parent()
    above = name.rpartition("/")[0]
    if above and parent is None:
        raise MachineError(f"there is no machine '{above}' in {place}; make it first: machine-new {above}")
    within = os.path.dirname(folder.path)
    os.makedirs(within, exist_ok=True)
    # a hidden folder is no machine to anybody while it is half written
    scratch = tempfile.mkdtemp(prefix=".machine-new-", dir=within)
    try:
        for file, text in _files(folder, parent, model).items():
            with open(f"{scratch}/{file}", "w", encoding="utf-8") as stream:
                stream.write(text)
        os.chmod(scratch, 0o777 & ~_umask())
        os.rename(scratch, folder.path)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        if os.path.lexists(folder.path):
            raise MachineError(f"'{folder.path}' is there already; take another name") from error
        raise
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    try:
        load_folder(folder)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def _files(folder: Folder, parent: Folder | None, model: str | None) -> dict[str, str]:
    last = folder.name.rpartition("/")[2]
    criterion = CRITERION
    if parent is not None:
        taken = {c.id for member in parent.family() for c in member.criteria()}
        criterion = next(c for c in _names(last) if c not in taken)
    where = f"machines/{folder.name}"
    values = {"name": folder.name, "criterion": criterion, "unwritten": _UNWRITTEN, "where": where}
    code = _MACHINE.format(**values, line="{line}")
    number = next(n for n, line in enumerate(code.splitlines(), 1) if "{line}" in line)
    files = {
        "machine.py": code.replace("{line}", str(number)),
        "rubric.toml": _RUBRIC.format(criterion=criterion),
        "instructions.md": _OWN if parent is not None else _INSTRUCTIONS,
    }
    if model is not None or parent is None:
        files["model.json"] = dump_line(_model(model)).decode()
    for name, cases in _CASES.items():
        # a child's cases are its own; samples of its parent would be the same cases twice
        if parent is None:
            files[name] = b"".join(map(dump_line, cases)).decode()
    return files


def _names(last: str) -> list[str]:
    """Names for a criterion, the first that is free in the family is taken."""
    bare = "".join(c if c.isalnum() or c == "_" else "_" for c in last)
    bare = bare if not bare[0].isdigit() else f"is_{bare}"
    return [CRITERION, f"{CRITERION}_{bare}", *(f"{CRITERION}_{bare}_{n}" for n in range(2, 100))]


def _model(model: str | None) -> dict[str, object]:
    if model is None or model == "echo":
        return {"model": "echo", "harness": "echo"}
    return {"model": model}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

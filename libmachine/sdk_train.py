"""Training for the Python face: in this Python, or by machine-train in one that can."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from libmachine import console, errors
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import Record, loads
from libmachine.errors import MachineError
from libmachine.project import Project
from libmachine.sdk_run import stoppable
from libmachine.sft import elsewhere

_RAISED: dict[int, type[MachineError]] = {
    errors.BUDGET: BudgetReached,
    errors.UNTESTABLE: errors.Untestable,
    errors.INTERRUPTED: errors.Interrupted,
}


def train(project: Project, name: str, options: Mapping[str, Any], in_code: bool) -> Record:
    """The `training` record of one round. options: machine-train's, by their names with underscores.

    Raises MachineError if there is nothing to learn from or no Python can train, and as machine-train ends.
    """
    python = elsewhere.other()
    if python is None:
        found = stoppable(lambda stop: _here(project, name, options, stop))
    elif in_code:
        raise MachineError(
            f"'{name}' is defined in this program, and MACHINE_PYTHON has not; {elsewhere.INSTALL}"
        )
    else:
        found = _there(python, project, name, options)
    if found is None:
        raise MachineError(f"'{name}' has nothing to learn from; the logger 'libmachine' was told why")
    return found


def _here(project: Project, name: str, options: Mapping[str, Any], stop: threading.Event) -> Record | None:
    from libmachine.purse import Purse
    from libmachine.train.work import train as work

    purse = Purse(project, "train", options["budget"], options["price_as"])
    try:
        return work(project, name, options, purse, stop)
    finally:
        purse.told(f"train {name}")


def _there(python: str, project: Project, name: str, options: Mapping[str, Any]) -> Record | None:
    words = elsewhere.words(python, "train", ["machine-train", "-C", project.root, name, *words_of(options)])
    with subprocess.Popen(
        [*words, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        printed: list[bytes] = []
        reader = threading.Thread(target=lambda: printed.append(child.stdout.read()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        last = ""
        for line in child.stderr:
            last = line.decode("utf-8", "replace").rstrip() or last
            console.say(last)
        reader.join()
        code = child.wait()
    if printed and printed[0].strip():
        found = loads(printed[0])
        assert isinstance(found, dict)
        return found
    if code == errors.NO:
        return None
    raise _RAISED.get(code, MachineError)(last.removeprefix("fatal: ") or f"'{python}' ended with {code}")


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as the words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        spelling = {"go_on": "continue"}.get(name, name.replace("_", "-"))
        if value is True:
            words.append(f"--{spelling}")
        elif value is False and name in ("passing", "reuse_live"):
            words.append(f"--no-{spelling}")
        elif value is not None and value is not False:
            words += [f"--{spelling}", str(value)]
    return words

"""Sessions: a person and a machine, exchange by exchange, in one working directory.

Each exchange is a run of its own. Its case is what was said before, then the person's words, and the
files as they are then; so it is graded, selected and trained on as any run is, with its own answer as
the only target. What a machine said once is never replayed in a session: its tools act.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from libmachine.canon import Record, hash_of
from libmachine.case import read_case
from libmachine.errors import MachineError
from libmachine.githash import DIRECTORY, EMPTY_TREE
from libmachine.run import Runner
from libmachine.sandbox import rooms
from libmachine.sandbox.workspace import Workspace
from libmachine.store.objects import tree_rows
from libmachine.store.store import Store

SESSION, EXCHANGE = "session", "exchange"
"""In the metadata of a case: which session it is part of, and its number there, from 1."""


@dataclass(frozen=True)
class Past:
    """Where a session stands: its name, how many exchanges it has had, the messages so far (without
    instructions), the tree of its files if it was kept."""

    name: str
    exchanges: int = 0
    messages: Sequence[Record] = ()
    files: str | None = None


def new_name() -> str:
    """A name for a session: 8 hex digits."""
    return secrets.token_hex(4)


def latest(store: Store, machine: str) -> Past:
    """The session of a machine that was last spoken in. Raises MachineError if there is none."""
    for row in store.index.runs(machine) if store.has_records() else ():
        if row["status"] != "failed" and SESSION in ((row["given"] or {}).get("metadata") or {}):
            run = store.load_run(row, scorecard=False)
            given = run["case"]["metadata"]
            files = (run.get("workspace") or {}).get("after")
            return Past(str(given[SESSION]), int(given[EXCHANGE]), spoken(run), files)
    raise MachineError(f"no session with '{machine}' to continue; begin one")


def spoken(run: Mapping[str, object]) -> list[Record]:
    """The messages of a run as the next exchange has them before it: no instructions, no open call."""
    messages: list[Record] = [m for m in run["messages"] if m["role"] != "system"]  # type: ignore[attr-defined]
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and last.get("tool_calls"):  # cut at its length, and never answered
        kept = {name: value for name, value in last.items() if name != "tool_calls"}
        messages = [*messages[:-1], *([kept] if kept.get("content") else [])]
    return messages


class Session:
    """One session. Exchanges take their turns; close() lets go of the directory.

    runner: of the machine; it is the session's own from here on. directory: where tools act, as it is;
    without one they have a private directory with the files of `past`, gone at the end.
    """

    def __init__(self, runner: Runner, directory: Path | None = None, past: Past | None = None) -> None:
        self.runner = runner
        self.past = past or Past(new_name())
        self.runs: list[Record] = []
        """The exchanges of today, failed ones too."""
        self._turn = threading.Lock()
        self._held = contextlib.ExitStack()
        self._open = True
        self.workspace: Workspace | None = None
        """What the tools act on; None for a machine whose tools act on nothing."""
        if any(tool.workspace for tool in runner.tools.values()):
            if directory is not None:
                if not directory.is_dir():
                    raise MachineError(f"no directory '{directory}' to work in")
                place = os.path.realpath(directory)
                if os.path.commonpath([place, os.path.realpath(runner.store.directory)]) == place:
                    raise MachineError(
                        f"the store is inside '{place}', where the tools would act; work in another "
                        "directory and name the project (-C, workspace)"
                    )
                self.workspace = Workspace(directory.resolve())
            else:
                room = rooms.room(runner.store, self.past.files)
                self.workspace = self._held.enter_context(room)

    def send(self, text: str) -> Record:
        """Say something and run the machine on it; the stored run. A failed one leaves no trace in what is
        said next.

        Raises MachineError for a session that is closed, Refused if the money is out.
        """
        with self._turn:
            if not self._open:
                raise MachineError("the session is closed; begin another")
            (job,) = self.runner.jobs([self._case(text)])
            run = self.runner.finish(job).run
            self.runs.append(run)
            if run["status"] != "failed":
                files = (run.get("workspace") or {}).get("after")
                self.past = Past(self.past.name, self.past.exchanges + 1, spoken(run), files)
            return run

    def _case(self, text: str) -> Record:
        number = self.past.exchanges + 1
        case = read_case(
            {
                "id": f"{self.past.name}.{number}",
                "input": [*self.past.messages, {"role": "user", "content": text}],
                "metadata": {SESSION: self.past.name, EXCHANGE: number},
            }
        )
        if self.workspace is not None:
            store = self.runner.store
            store.prepare()
            before = rooms.keep(store, self.workspace)
            self.runner.at = (self.workspace, before)
            case["identity"] = hash_of({"input": case["input"], "files": _files(store, before)})
        return case

    def close(self) -> None:
        """End it: a private directory is removed. Twice is once."""
        with self._turn:
            self._open = False
            self._held.close()


def _files(store: Store, tree: str | None, above: str = "") -> dict[str, str]:
    """Path -> blob id of the files of a tree, as a case's identity has them."""
    found: dict[str, str] = {}
    for mode, name, oid in tree_rows(store.read_blob(tree)) if tree not in (None, EMPTY_TREE) else ():
        if mode == DIRECTORY:
            found |= _files(store, oid, f"{above}{name}/")
        else:
            found[above + name] = oid
    return found

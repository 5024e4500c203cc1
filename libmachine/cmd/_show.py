"""The work behind machine-show's options."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
from typing import Any

from libmachine import console
from libmachine.canon import Record, canonical, dump_line
from libmachine.cmd import _cli
from libmachine.define import text_of
from libmachine.errors import MachineError, UsageError
from libmachine.load import find
from libmachine.project import Project
from libmachine.record import VERSIONS, arrange
from libmachine.splits import Splits
from libmachine.store.store import Store
from libmachine.tables import schema


def main(
    workspace: str | None,
    what: str | None,
    messages: bool,
    diff: bool,
    checkout: str | None,
    schema: str | None,
    as_json: bool,
) -> int:
    """Show."""
    if sum((messages, diff, checkout is not None, schema is not None)) > 1:
        raise UsageError("--messages, --diff, --checkout and --schema are different things; give one")
    output = _cli.Output(threading.Event())
    if schema is not None:
        output.write(canonical(_schema(schema)) + b"\n")
        return _cli.Tally(output.stop).code(output=output)
    if what is None:
        raise UsageError("name a record: the first digits of its id, or NAME@{0} for the newest run")
    project = _cli.project(workspace)
    store = project.open_store()
    try:
        record = with_marks(resolve(what, store, project), store)
        if diff or checkout is not None:
            _files(what, record, store, output) if diff else _check_out(what, record, store, checkout or "")
            return _cli.Tally(output.stop).code(output=output)
    finally:
        store.close()
    if messages:
        if record["type"] != "run":
            raise MachineError(f"'{what}' is a {record['type']}; only a run has messages (machine-runs)")
        output.text(conversation(record))
    elif as_json or not console.is_terminal(1):
        output.write(dump_line(record))
    else:
        output.text(_for_people(record))
    return _cli.Tally(output.stop).code(output=output)


def _schema(kind: str) -> Record:
    if kind not in VERSIONS:
        raise UsageError(f"'{kind}' is no record type; there are: {', '.join(VERSIONS)}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind, **schema(kind)}


def _trees(what: str, record: Record) -> tuple[str, str]:
    """The trees of the files before and after a run."""
    trees = record.get("workspace") if record["type"] == "run" else None
    if not trees:
        why = "had no files" if record["type"] == "run" else f"is a {record['type']}; only a run has files"
        raise MachineError(f"'{what}' {why}")
    if trees.get("before") is None:
        raise MachineError(f"what '{what}' worked on was too much to be kept")
    if trees.get("after") is None:
        raise MachineError(
            f"what '{what}' left was too much to be kept; its files before it are {trees['before']}"
        )
    return trees["before"], trees["after"]


def _files(what: str, record: Record, store: Store, output: _cli.Output) -> None:
    """Print what a run changed; nothing if it changed nothing."""
    from libmachine.sandbox.diff import patch

    for piece in patch(*_trees(what, record), store.read_blob):
        if console.is_terminal(1):
            piece = console.safe(piece.decode("utf-8", "replace")).encode()
        output.write(piece)


def _check_out(what: str, record: Record, store: Store, directory: str) -> None:
    """Write the files that a run left into a directory that is empty or not there."""
    from libmachine.sandbox import trees
    from libmachine.sandbox.files import Root

    _, after = _trees(what, record)
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory):
        raise MachineError(f"'{directory}' is not empty; name a directory that is, or a new one")
    with Root(directory) as root:
        trees.put(root, after, store.read_blob)
    console.say(f"the files of run {record['id'][:12]} are in '{directory}'")


def resolve(what: str, store: Store, project: Project) -> Record:
    """The record that ID or NAME@{N} names. Raises MachineError if there is none, or several."""
    nth = re.fullmatch(r"(.+)@\{(\d+)\}", what)
    if nth:
        name, number = nth[1], int(nth[2])
        rows = store.index.runs(name) if store.has_records() else iter(())
        row = next(itertools.islice(rows, min(number, sys.maxsize), None), None)
        if row is None:
            find(name, project.places)
            raise MachineError(f"'{name}' has no run {number} here; machine-runs {name} lists what there is")
        return _with_split(store.load_run(row), project)
    if not re.fullmatch(r"[0-9a-f]{4,40}", what):
        raise MachineError(f"'{what}' names no record; give 4 to 40 hex digits of its id, or NAME@{{0}}")
    found = store.index.matching(what) if store.has_records() else []
    if not found:
        raise MachineError(f"no record '{what}' in this store; machine-runs lists the runs")
    if len(found) > 1:
        shown = ", ".join(f"{kind} {oid[:12]}" for kind, oid in found)
        raise MachineError(f"'{what}' begins several ids: {shown}; give more digits")
    kind, oid = found[0]
    if kind != "run":
        return arrange(kind, store.load_record(oid, kind))
    row = store.index.run(oid)
    assert row is not None
    return _with_split(store.load_run(row), project)


def with_marks(record: Record, store: Store) -> Record:
    """A run with people's marks beside its scorecard, newest first."""
    if record["type"] != "run":
        return record
    marks = [store.load_scorecard(oid) for oid in store.marks(record["id"])]
    return arrange("run", {**record, "marks": marks}) if marks else record


def _with_split(run: Record, project: Project) -> Record:
    try:
        split = Splits(find(run["machine"], project.places)).of(run["case"]["identity"])
    except MachineError:
        split = None
    return arrange("run", {**run, "split": split})


def conversation(run: Record) -> str:
    """The messages of a run, for reading."""
    parts = []
    for message in run["messages"]:
        lines = [f"--- {message['role']}"]
        if message.get("reasoning"):
            lines.append(f"(thinking) {message['reasoning']}")
        if text := text_of(message.get("content")):
            lines.append(text)
        for call in message.get("tool_calls") or ():
            lines.append(f"(calls) {call['function']['name']} {call['function']['arguments']}")
        parts.append("\n".join(lines))
    parts.append(f"--- {run['stop_reason']}")
    return console.safe("\n".join(parts))


def _for_people(record: Record) -> str:
    if record["type"] == "scorecard":
        return card(record)
    if record["type"] != "run":
        return console.safe(json.dumps(record, indent=2, ensure_ascii=False))
    usage: dict[str, Any] = record["usage"]
    tokens = "?" if usage["completion_tokens"] is None else usage["completion_tokens"]
    rows = [
        ("run", record["id"]),
        ("machine", f"{record['machine']} at {record['version'][:12]}"),
        ("case", f"{record['case']['id']} ({record['split'] or 'no split'}), trial {record['trial']}"),
        ("model", f"{record['model']} ({record['harness']})"),
        ("status", f"{record['status']}: {record['stop_reason']}"),
        (
            "spent",
            f"{console.count(usage['calls'], 'call')}, {tokens} tokens out, {record['duration_s']:g} s",
        ),
        *([("turn", _turn(record["conversation"]))] if record.get("conversation") else []),
        ("input", text_of(record["case"]["input"])),
        ("output", record["output"]),
    ]
    if "error" in record:
        rows.append(("error", record["error"]["message"]))
    room = console.width()
    text = console.table([[name, console.one_line(value, room)] for name, value in rows], room)
    if record.get("scorecard"):
        text += card(record["scorecard"]) + "\n"
    return (text + "".join(_mark(card) for card in record.get("marks", ()))).rstrip("\n")


def _turn(talk: Record) -> str:
    """Where in a conversation a run stands."""
    last = ", the last" if talk.get("last") else ""
    return f"{talk['turn']} of the {talk['side']}{last}, with {talk['with']}; conversation {talk['id'][:12]}"


def _mark(card: Record) -> str:
    """A line for a person's mark."""
    grade = card["grades"][0]
    what = "" if grade["criterion"] == "*" else f" {grade['criterion']}:"
    verdict = "good" if card["passed"] else "bad"
    told = f"{verdict} {grade['score']:.2f} by {grade['grader'].partition(':')[2]}"
    note = f": {grade['reason']}" if grade["reason"] else ""
    return "mark     " + console.one_line(f"{what} {told}{note}", console.width() - 9) + "\n"


def card(card: Record) -> str:
    """A scorecard, for reading."""
    score = "ungraded" if card["score"] is None else f"{card['score']:.2f}"
    verdict = {True: "passed", False: "not passed", None: "no verdict"}[card["passed"]]
    rows = [["criterion", "weight", "score", "reason"]]
    for grade in card["grades"]:
        told = grade.get("error") or grade["reason"] or ""
        mark = "-" if grade["score"] is None else f"{grade['score']:.2f}"
        rows.append([grade["criterion"], f"{grade['weight']:g}", mark, console.one_line(told, 200)])
    return f"score     {score}, {verdict}\n" + console.table(
        rows, console.width(), right=(1, 2), shrink=(0,)
    ).rstrip("\n")

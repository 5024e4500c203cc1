"""Controls of cases: a reference answer must score 1, an empty answer must score 0. No model is called.

An answer goes through the machine's own loop, so tool calls in it are really made, and is
graded by the checks alone: a judge's verdict is no control. Nothing is stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from libmachine import jsonl
from libmachine.canon import Record, RecordError, canonical
from libmachine.case import identity
from libmachine.define import Check, Run
from libmachine.errors import MachineError, ProviderError, Untestable
from libmachine.folder import Criterion
from libmachine.grade import Grading
from libmachine.graders import check
from libmachine.harness import loop
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.load import Loaded
from libmachine.record import SLACK
from libmachine.run import in_its_room, tool_set
from libmachine.sandbox.rooms import opener
from libmachine.store.store import Store
from libmachine.tools import Context

_SHAPE = '{"id": "...", "output": "..."}'
_FIELDS = {"id", "input", "files", "output"}


class _Said:
    """An engine that says what it was given, one reply a call."""

    name = model = "control"

    def __init__(self, replies: Sequence[Mapping[str, Any]]) -> None:
        self.replies = replies

    def complete(self, request: Request) -> Completion:
        if request.step >= len(self.replies):
            raise ProviderError("the reference ends with a tool call; add the last answer")
        message = {"role": "assistant", "content": "", **self.replies[request.step]}
        if message.get("tool_calls"):
            calls = enumerate(message["tool_calls"])
            message["tool_calls"] = [_call(call, f"call_{request.step}_{i}") for i, call in calls]
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(message, reason, self.model, 0, 0, 0, 0)

    def close(self) -> None:
        """Nothing to let go of."""


def _call(call: Mapping[str, Any], id: str) -> Record:
    """A call in OpenAI's form; {"name", "arguments"} alone is enough."""
    if "function" in call:
        return {"id": id, "type": "function", **call}
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else canonical(arguments).decode()
    return {"id": id, "type": "function", "function": {"name": str(call.get("name")), "arguments": text}}


def read_references(path: str, cases: Sequence[Record]) -> dict[str, list[Record]]:
    """Identity -> replies, from a file of {id or input, output}. output: a text, a message, or a list.

    Raises MachineError naming the line that is wrong or is of no case.
    """
    by_id = {case["id"]: case["identity"] for case in cases}
    known = set(by_id.values())
    found: dict[str, list[Record]] = {}
    try:
        for line in jsonl.read_file(path):
            try:
                if line.error:
                    raise RecordError(line.error)
                key, replies = _reference(line.value, by_id, known)
                if found.setdefault(key, replies) != replies:
                    raise RecordError("this case has another reference above")
            except RecordError as error:
                raise MachineError(f"{path}: reference {line.number}: {error}") from None
    except (FileNotFoundError, IsADirectoryError):
        raise MachineError(f"no file of references '{path}'; write one a line: {_SHAPE}") from None
    if not found:
        raise MachineError(f"'{path}' has no reference; write one a line: {_SHAPE}")
    return found


def _reference(value: Any, by_id: Mapping[str, str], known: set[str]) -> tuple[str, list[Record]]:
    if not isinstance(value, dict) or "output" not in value or not {"id", "input"} & set(value):
        raise RecordError('a reference is {"id" or "input": ..., "output": ...}')
    if unknown := set(value) - _FIELDS:
        raise RecordError(f"unknown field '{min(unknown)}'; it may have id, input, files, output")
    if "input" in value:
        key, named = identity(value["input"], value.get("files")), "of this input"
    else:
        key, named = by_id.get(str(value["id"]), ""), f"'{value['id']}'"
    if key not in known:
        raise RecordError(f"there is no case {named}")
    output = value["output"] if isinstance(value["output"], list) else [value["output"]]
    if not output or not all(isinstance(reply, str | dict) for reply in output):
        raise RecordError("'output' is a text, an assistant message, or a list of these")
    return key, [{"content": reply} if isinstance(reply, str) else reply for reply in output]


def control(
    machine: Loaded, grading: Grading, cases: Sequence[Record], references: Mapping[str, list[Record]] | None
) -> Iterator[Record]:
    """A line for each case that fails its control: {control, case, identity, criterion, score, why}.

    references: replies by identity; None: an empty answer for every case, which must score 0. Raises
    Untestable if no criterion is a check.
    """
    checks = [c for c in machine.criteria if not c.is_audit and isinstance(machine.graders[c.id], Check)]
    if not checks:
        raise Untestable(f"no criterion of '{machine.name}' is a check; controls ask no judge")
    with tempfile.TemporaryDirectory() as folder:  # for the files that tools act on and checks open
        store = Store(f"{folder}/store", fsync=False)
        yield from _controlled(machine, grading, cases, references, checks, store)


def _controlled(
    machine: Loaded,
    grading: Grading,
    cases: Sequence[Record],
    references: Mapping[str, list[Record]] | None,
    checks: Sequence[Criterion],
    store: Store,
) -> Iterator[Record]:
    wanted, name = (0.0, "noop") if references is None else (1.0, "oracle")
    for case in cases:
        replies = [{"content": ""}] if references is None else references.get(case["identity"])
        if replies is None:
            continue
        run = grading.todays(_run(machine, case, replies, store))
        line = {"control": name, "case": case["id"], "identity": case["identity"]}
        if run["status"] == "failed":
            yield {**line, "criterion": None, "score": None, "why": run["error"]["message"]}
            continue
        for criterion in checks:
            grader = machine.graders[criterion.id]
            assert isinstance(grader, Check)
            mark = check.apply(grader, Run(run, opener(store, run)))
            weightless = references is None and criterion.weight == 0
            if not mark.applies or weightless:
                continue
            if mark.score is None or abs(mark.score - wanted) > SLACK:
                why = mark.error or mark.reason or f"scored {mark.score}"
                yield {**line, "criterion": criterion.id, "score": mark.score, "why": why}


def _run(machine: Loaded, case: Record, replies: Sequence[Mapping[str, Any]], store: Store) -> Record:
    """A run of a case as it would be stored, with these replies for a model's."""
    tools = tool_set(machine.tools)
    said, limits = _Said(replies), loop.Limits()

    def looped(context: Context) -> Record:
        return loop.run(said, machine.instructions, case, tools, Sampling(), limits, 1, None, context)

    finished, _ = in_its_room(store, case, tools, looped)
    kept = {key: case[key] for key in ("id", "identity", "input", "target", "metadata") if key in case}
    head = {"v": 1, "type": "run", "machine": machine.name, "version": machine.version, "case": kept}
    head["id"] = case["identity"]
    return {**head, "trial": 1, "model": "control", "harness": "control", **finished}

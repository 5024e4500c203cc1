"""What the author of a machine imports: Machine, check, judge, and the Run a grader looks at.

    from libmachine import Machine, check

    def short(run):
        return len(run.output.split()) <= 12, f"{len(run.output.split())} words"

    machine = Machine(intent="Answer in one short sentence.", graders={"short": check(short)})

Everything here is a plain value; the loader adds what lies in the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Score = bool | float | int | tuple[bool | float | int, str] | None
"""What a check returns: a verdict, a score in 0..1, either with its reason, or None: does not apply."""


@dataclass(frozen=True)
class ToolCall:
    """A call of the run with its result. arguments: the raw string, as the model wrote it."""

    id: str
    name: str
    arguments: str
    result: str | None
    ok: bool


class Run:
    """A finished run, as a grader sees it: read-only views of the stored record (`record`)."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record

    @property
    def output(self) -> str:
        """The text of the last assistant message."""
        return str(self.record.get("output") or "")

    @property
    def input(self) -> str:
        """The text of the case: its user messages, joined by newlines."""
        return text_of(self.record["case"]["input"])

    @property
    def target(self) -> Any:
        """What the case says a right answer is, or None."""
        return self.record["case"].get("target")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The case's metadata, empty if it has none."""
        return self.record["case"].get("metadata") or {}

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The whole trajectory in OpenAI's chat form, instructions included."""
        messages: Sequence[Mapping[str, Any]] = self.record["messages"]
        return messages

    @property
    def reasoning(self) -> str:
        """The captured reasoning of all assistant messages, joined by newlines; empty if none was."""
        return "\n".join(m["reasoning"] for m in self.messages if m.get("reasoning"))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Every tool call in order, with its result."""
        results = {m.get("tool_call_id"): m.get("content") for m in self.messages if m["role"] == "tool"}
        good = {t["id"]: t["ok"] for step in self.record.get("steps", ()) for t in step.get("tools", ())}
        return [
            ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=call["function"]["arguments"],
                result=results.get(call["id"]),
                ok=bool(good.get(call["id"], False)),
            )
            for message in self.messages
            if message["role"] == "assistant"
            for call in message.get("tool_calls") or ()
        ]


def text_of(content: Any) -> str:
    """The text of an input (string or messages) or of one message's content (string, parts, null)."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for item in content:
        if not isinstance(item, dict):
            continue
        if "role" not in item:
            texts.append(str(item.get("text", "")))
        elif item["role"] == "user":
            texts.append(text_of(item.get("content")))
    return "\n".join(texts)


@dataclass(frozen=True)
class Check:
    """A grader that is a function of the run alone: no model call, no spend, the same score always."""

    function: Callable[[Run], Score]
    name: str
    kind: str = "check"
    pass_at: float = 1.0


def check(function: Callable[[Run], Score], name: str | None = None) -> Check:
    """Grade a criterion by a function of the run.

    The function returns True or False, a score in 0..1, (score, reason), or None when the
    criterion does not apply to this case. What it raises leaves the criterion ungraded.
    """
    return Check(function, name or str(getattr(function, "__name__", "check")))


@dataclass(frozen=True)
class Judge:
    """A grader that asks a model. model None: the command, the environment or the run's endpoint says."""

    model: str | None = None
    effort: str | None = None
    name: str = "judge"
    kind: str = "judge"
    pass_at: float = 0.5


def judge(model: str | None = None, effort: str | None = None) -> Judge:
    """Grade a criterion by a model's verdict on its description and levels.

    model: an id with its endpoint (`openrouter/...`). effort: how hard it thinks; default medium.
    """
    return Judge(model, effort)


Grader = Check | Judge


@dataclass(frozen=True)
class Machine:
    """A machine as its author writes it in machine.py.

    intent: what it is for, in one sentence. graders: one per criterion of rubric.toml. tools:
    typed, documented functions. instructions, model, rubric: normally the files of the folder;
    given here they override them, and the machine then runs but cannot be gated.
    """

    intent: str
    graders: Mapping[str, Grader] = field(default_factory=dict)
    tools: Sequence[Callable[..., Any]] = ()
    instructions: str | None = None
    model: Mapping[str, Any] | str | None = None
    rubric: Mapping[str, Mapping[str, Any]] | None = None

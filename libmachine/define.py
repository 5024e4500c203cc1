"""What the author of a machine imports: Machine, the graders, and the Run a grader looks at.

    from libmachine import Machine, check

    def short(run):
        return len(run.output.split()) <= 12, f"{len(run.output.split())} words"

    machine = Machine(intent="Answer in one short sentence.", graders={"short": check(short)})

Everything here is a plain value; the loader adds what lies in the folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from libmachine.errors import MachineError

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


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation. side: MACHINE or COUNTERPART. text: what the other side was told."""

    side: str
    text: str


MACHINE, COUNTERPART = "machine", "counterpart"
"""The sides of a conversation."""


class Run:
    """A finished run, as a grader sees it: read-only views of the stored record (`record`)."""

    def __init__(
        self, record: Mapping[str, Any], files: Callable[[], AbstractContextManager[Any]] | None = None
    ) -> None:
        self.record = record
        self._files = files

    def workspace(self) -> AbstractContextManager[Any]:
        """The files as the run left them, in a fresh directory with a sandbox of its own (a Workspace), for
        the length of a `with`. What is done in it changes no other grader's, and is gone afterwards.

        Raises MachineError where the run has no files, or they are not kept here.
        """
        if self._files is None:
            raise MachineError("the files of a run are opened from the store, and there is none here")
        return self._files()

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
        used = {step.get("message"): step.get("tools", ()) for step in steps_of(self.record)}
        calls = []
        for at, message in enumerate(self.messages):
            if message["role"] != "assistant" or not message.get("tool_calls"):
                continue
            # Some endpoints use an id again in a later turn: what answers a call stands right after it.
            answers = itertools.takewhile(lambda m: m["role"] == "tool", self.messages[at + 1 :])
            results = {answer.get("tool_call_id"): answer.get("content") for answer in answers}
            good = {tool["id"]: tool["ok"] for tool in used.get(at, ())}
            calls += [
                ToolCall(
                    id=call["id"],
                    name=call["function"]["name"],
                    arguments=call["function"]["arguments"],
                    result=results.get(call["id"]),
                    ok=bool(good.get(call["id"], False)),
                )
                for call in message["tool_calls"]
            ]
        return calls

    @property
    def turns(self) -> list[Turn]:
        """What both sides of a conversation said, in order; empty for a machine without a counterpart."""
        talk = self.record.get("conversation")
        if not talk:
            return []
        own, other = (MACHINE, COUNTERPART) if talk["side"] == MACHINE else (COUNTERPART, MACHINE)
        said: list[Turn] = []
        mine = False  # the turn under way is our own: its last message is what the other side was told
        for message in self.messages[talk["start"] :]:
            if message["role"] == "user":
                said.append(Turn(other, text_of(message.get("content"))))
            elif message["role"] == "assistant":
                if mine:
                    said.pop()
                said.append(Turn(own, text_of(message.get("content"))))
            mine = message["role"] != "user"
        return said


def steps_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every model call behind the messages of a run: those of earlier turns of its side, then its own."""
    talk = record.get("conversation") or {}
    return [*talk.get("steps", ()), *record.get("steps", ())]


def is_earlier_turn(record: Mapping[str, Any]) -> bool:
    """Is a run a turn of the machine after which its conversation went on, so that it is not graded?"""
    return (record.get("conversation") or {}).get("last") is False


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


class _Gradable:
    """What every grader of one criterion can do."""

    def or_judge(self, stronger: Judge | Question, unsure: tuple[float, float] = (0.3, 0.7)) -> Escalation:
        """This grader first; where its score lies within `unsure` (ends included), the stronger one decides.

        A grade that could not be made is an error, not an unsure one, and goes no further.
        """
        return Escalation(self, stronger, unsure)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Check(_Gradable):
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
class Judge(_Gradable):
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


@dataclass(frozen=True)
class JudgePanel(_Gradable):
    """A judge of several criteria. group: the criteria that share one are asked in one call a run."""

    model: str | None = None
    effort: str | None = None
    group: int = field(default_factory=itertools.count(1).__next__)
    name: str = "panel"
    kind: str = "panel"
    pass_at: float = 0.5


def judge_panel(model: str | None = None, effort: str | None = None) -> JudgePanel:
    """Grade several criteria by one call of a model: give the same panel to each of them.

    Cheaper than a judge() for each, and less sure: a model that sees all criteria lets one sway
    another. model, effort: as of judge().
    """
    return JudgePanel(model, effort)


@dataclass(frozen=True)
class Question(_Gradable):
    """A grader that asks a decision model; the criterion's description is the question.

    form: noul, score or choice. options: (name, description or None, score in 0..1) of each answer.
    """

    model: str
    form: str
    options: tuple[tuple[str, str | None, float], ...] = ()
    name: str = "jev"
    kind: str = "jev"
    pass_at: float = 0.5


@dataclass(frozen=True)
class Jev:
    """A decision model. All questions to one model about a run are sent in one request."""

    model: str = "jev-latest"

    def __call__(self, model: str) -> Jev:
        """The client of another model, such as a pinned version: jev("jev-1.13.0")."""
        return Jev(model)

    def noul(self, yes: str | None = None, no: str | None = None) -> Question:
        """A yes-or-no question; the score is the probability of yes. yes, no: what each side looks like."""
        return Question(self.model, "noul", (("true", yes, 1.0), ("false", no, 0.0)))

    def score(self, levels: Sequence[str]) -> Question:
        """An ordered list of 2 to 10 levels, worst first; the score is the expected level, as 0..1."""
        if (
            isinstance(levels, str)
            or not 2 <= len(levels) <= 10
            or not all(isinstance(t, str) for t in levels)
        ):
            raise ValueError("jev.score takes a list of 2 to 10 texts, the worst level first")
        last = len(levels) - 1
        return Question(self.model, "score", tuple((str(n), told, n / last) for n, told in enumerate(levels)))

    def choice(self, options: Mapping[str, Any]) -> Question:
        """One option of several, each with a score in 0..1; the grade is the expected score.

        options: name -> score, or name -> {"score": ..., "description": ...}.
        """
        if not isinstance(options, Mapping) or not 2 <= len(options) <= 255:
            raise ValueError("jev.choice takes a table of 2 to 255 options: {name: score}")
        found = []
        for name, told in options.items():
            score, text = (
                (told.get("score"), told.get("description")) if isinstance(told, Mapping) else (told, None)
            )
            if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
                raise ValueError(
                    f"jev.choice: the score of option '{name}' is {score!r}; it is a number from 0 to 1"
                )
            found.append((str(name), text, float(score)))
        return Question(self.model, "choice", tuple(found))


jev = Jev()
"""The decision model of TYPESAFE_BASE_URL, asked with TYPESAFE_API_KEY."""


@dataclass(frozen=True)
class Escalation:
    """A cheap grader whose unsure grades go to a stronger one."""

    cheap: Check | Judge | JudgePanel | Question
    stronger: Judge | Question
    unsure: tuple[float, float] = (0.3, 0.7)
    name: str = "escalation"
    kind: str = "escalation"
    pass_at: float = 0.5

    def __post_init__(self) -> None:
        low, high = self.unsure
        if not 0 <= low <= high <= 1:
            raise ValueError(f"or_judge: unsure is {self.unsure}; it is (low, high) within 0..1")
        if not isinstance(self.stronger, Judge | Question):
            raise ValueError("or_judge takes a judge() or a question of jev as the stronger grader")


Grader = Check | Judge | JudgePanel | Question | Escalation


@dataclass(frozen=True)
class Counterpart:
    """The other side of a machine whose cases are whole conversations: it speaks first, then they alternate.

    machine: name of the machine that plays it. until: a function Run -> bool; the conversation ends
    after the turn of the machine for which it holds. max_turns: it ends after so many of them anyway.
    """

    machine: str
    until: Callable[[Run], bool] | None = None
    max_turns: int = 8


@dataclass(frozen=True)
class Machine:
    """A machine as its author writes it in machine.py.

    intent: what it is for, in one sentence. graders: one per criterion of rubric.toml. tools:
    typed, documented functions. counterpart: who it talks with, where a case is a conversation.
    transform_reasoning: (captured reasoning of one message, its run) -> the reasoning to train on
    instead, for machine-export. instructions, model, rubric: normally the files of the folder; given
    here they override them, and the machine then runs but cannot be gated.
    """

    intent: str
    graders: Mapping[str, Grader] = field(default_factory=dict)
    tools: Sequence[Callable[..., Any]] = ()
    transform_reasoning: Callable[[str, Run], str] | None = None
    counterpart: Counterpart | None = None
    instructions: str | None = None
    model: Mapping[str, Any] | str | None = None
    rubric: Mapping[str, Mapping[str, Any]] | None = None

"""Which model judges, asked through which engine: the part of grading that can spend.

A judge's own model wins, then --judge-model, then MACHINE_JUDGE_MODEL, then the default of
the run's endpoint. Where there is none (local, echo, scripted) the grade is null with the
remedy, never another model's.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from libmachine import env
from libmachine.canon import Record, canonical, usd
from libmachine.define import Judge, JudgePanel, Question, Run
from libmachine.errors import MachineError
from libmachine.folder import Criterion
from libmachine.harness.base import Engine

DEFAULT_EFFORT = "medium"
_SMALL = "tinker/thinkingmachines/Inkling-Small"
_DEFAULTS = {"tinker": _SMALL, "pi": _SMALL, "echo": None, "scripted": None, "local": None}
_JEV_HOSTS = ("api.typesafe.ai", "openrouter.ai")
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")

_ASKED = re.compile(r"(?:judge|panel):(\S+):[^:@\s]+@")


class Judging:
    """How judges are asked in one command. open_engine: model id -> engine, ready to be billed.

    model: the command's or the environment's judge model. Safe to use from several threads.
    """

    def __init__(
        self,
        model: str | None = None,
        effort: str | None = None,
        open_engine: Callable[[str], Engine] | None = None,
    ) -> None:
        self.model, self.effort = model, effort
        self._open = open_engine
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def model_of(self, judge: Judge | JudgePanel, run: Record) -> str | None:
        """The judge's model for a run, or None: nobody says."""
        return judge.model or self.model or default_model(run)

    def effort_of(self, judge: Judge | JudgePanel) -> str:
        """How hard the judge thinks."""
        return judge.effort or self.effort or DEFAULT_EFFORT

    def identity(self, judge: Judge, run: Record) -> str:
        """Who the judge of a run is: model, effort and the hash of the prompt."""
        from libmachine.graders import judge as judging  # a machine of checks needs none of these

        model = self.model_of(judge, run) or "none"
        return f"judge:{model}:{self.effort_of(judge)}@{judging.prompt_hash()[:12]}"

    def panel_identity(self, judge: JudgePanel, criteria: Sequence[Criterion], run: Record) -> str:
        """Who a panel is: its model, effort and the hash of its prompt with all its criteria in it."""
        from libmachine.graders import panel

        model = self.model_of(judge, run) or "none"
        texts = tuple(canonical(criterion.text()) for criterion in criteria)
        return f"panel:{model}:{self.effort_of(judge)}@{panel.prompt_hash(texts)[:12]}"

    def jev_identity(self, question: Question) -> str:
        """Who answers a question: the decision model, its host unless that is the usual one, the form."""
        from urllib.parse import urlsplit

        from libmachine.graders import jev
        from libmachine.harness.jev import BASE_URL

        host = urlsplit(env.get("TYPESAFE_BASE_URL") or BASE_URL).hostname
        where = "" if host in _JEV_HOSTS else f"[{host}]"
        return f"jev:{question.model}{where}@{jev.question_hash(question)[:12]}"

    def grade(self, judge: Judge, criterion: Criterion, run: Run) -> Record:
        """The fields of a grade that the judge decides."""
        from libmachine.graders import judge as judging

        engine, refusal = self._judge(judge, run)
        if engine is None:
            return refusal
        effort = self.effort_of(judge)
        verdict = judging.ask(engine, criterion, run, effort)
        grade: Record = {
            "reason": verdict.reason,
            "score": verdict.score,
            "model": verdict.model,
            "effort": effort,
            "usage": usage_of(verdict.calls, verdict.unknown_bills),
        }
        if verdict.error is not None:
            grade["error"] = verdict.error
        return grade

    def panel(
        self, judge: JudgePanel, criteria: Sequence[Criterion], run: Run
    ) -> tuple[dict[str, Record], Record | None]:
        """The fields of the grades of all criteria of a panel, and what its calls spent together."""
        from libmachine.graders import panel

        engine, refusal = self._judge(judge, run)
        if engine is None:
            return {criterion.id: dict(refusal) for criterion in criteria}, None
        effort = self.effort_of(judge)
        verdict = panel.ask(engine, criteria, run, effort)
        grades = {}
        for name, reading in verdict.readings.items():
            grade: Record = {"reason": reading.reasoning, "score": reading.score}
            grades[name] = {**grade, "model": verdict.model, "effort": effort}
            if reading.problem is not None:
                grades[name]["error"] = reading.problem
        return grades, usage_of(verdict.calls, verdict.unknown_bills)

    def jev(
        self, asked: Sequence[tuple[Criterion, Question]], run: Run
    ) -> tuple[dict[str, Record], Record | None]:
        """The fields of the grades of questions to one decision model, and what the request spent."""
        from libmachine.graders import jev
        from libmachine.harness.jev import PREFIX

        try:
            if self._open is None:
                raise MachineError("nobody is there to ask")
            engine = self._engine(PREFIX + asked[0][1].model)
        except MachineError as error:
            grade = {"reason": None, "score": None, "error": str(error)}
            return {criterion.id: dict(grade) for criterion, _ in asked}, None
        answers = jev.ask(engine, asked, run)
        grades = {}
        for name, mark in answers.marks.items():
            grades[name] = {"reason": mark.reason, "score": mark.score, "model": answers.model}
            if mark.error is not None:
                grades[name]["error"] = mark.error
        return grades, usage_of(answers.calls, answers.unknown_bills)

    def _judge(self, judge: Judge | JudgePanel, run: Run) -> tuple[Engine | None, Record]:
        """The engine of a judge of a run; None with the fields of a grade if there is none."""
        model = self.model_of(judge, run.record)  # type: ignore[arg-type]
        if model is None or self._open is None:
            return None, {
                "reason": None,
                "score": None,
                "error": "no judge model; add --judge-model ID, MACHINE_JUDGE_MODEL, or judge(model=...)",
            }
        try:
            return self._engine(model), {}
        except MachineError as error:
            refusal: Record = {"reason": None, "score": None, "effort": self.effort_of(judge)}
            return None, {**refusal, "error": f"judge '{model}': {error}"}

    def _engine(self, model: str) -> Engine:
        with self._lock:
            if model not in self._engines:
                assert self._open is not None
                engine = self._open(model)
                # MACHINE_HARNESS=local or =echo would answer with a model of its own
                if not engine.model.startswith(model):
                    engine.close()
                    raise MachineError(
                        f"harness '{engine.name}' does not serve it; give the id with its endpoint, as in "
                        f"openrouter/{model}"
                    )
                self._engines[model] = engine
            return self._engines[model]

    def close(self) -> None:
        """Let go of the engines."""
        for engine in self._engines.values():
            engine.close()


def default_model(run: Record) -> str | None:
    """The judge that goes with a run's endpoint: a small model there, or the run's own model."""
    endpoint = re.split(r"[+:]", run["harness"])[0]
    if endpoint in _DEFAULTS:
        return _DEFAULTS[endpoint]
    model: str = run["model"]
    return model if model.startswith(f"{endpoint}/") else f"{endpoint}/{model}"


def usage_of(calls: list[Any], unknown_bills: int = 0) -> Record:
    """What judging calls spent. A count that one call did not report is unknown; so is the cost where an
    attempt may have been billed and did not say for what."""
    usage: Record = {"calls": len(calls)}
    for name in _COUNTS:
        counts = [getattr(call, name) for call in calls]
        usage[name] = None if None in counts else sum(counts)
    costs = [call.cost_usd for call in calls]
    known = None not in costs and not unknown_bills
    usage["cost_usd"] = usd(sum(cost for cost in costs if cost is not None)) if known else None
    return usage


def family(model: str) -> str:
    """The family of a model by its id: `inkling` of thinkingmachines/Inkling-Small, `gpt` of gpt-4o."""
    base = model.partition(";")[0]  # BASE;tinker://CHECKPOINT is of the family of its base
    found = re.match(r"[a-z]+", base.rsplit("/", 1)[-1].lower())
    return found[0] if found else base


def kin(grade: Record, run: Record) -> str | None:
    """The family that the judge of a grade shares with the model it judged, None if they share none.

    Both the id that was asked for and the one that answered count: an alias hides its family.
    """
    if not grade.get("model"):
        return None
    cheap, _, stronger = grade["grader"].partition(" unsure ")
    asked = _ASKED.findall(stronger if grade.get("first") else cheap)
    judges = {family(name) for name in (*asked, grade["model"]) if name}
    judged = {family(name) for name in (run["model"], run.get("answered")) if name}
    return min(judges & judged, default=None)

"""Grading by a decision model: the questions of a run in one request, the answers checked and normalised.

noul: the probability of yes. score: the expected level over the highest. choice: the expected score of
the options. The vendor's own client takes what comes; here an answer that is missing, of another
type, out of range or about other options is an error of that criterion, never a 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record, canonical, hash_of
from libmachine.console import cut_middle
from libmachine.define import Question, Run
from libmachine.errors import ContextOverflow, ProviderError
from libmachine.folder import Criterion
from libmachine.graders import judge
from libmachine.graders.check import Mark
from libmachine.harness.base import Engine, Request, Sampling
from libmachine.harness.jev import PREFIX, TIMEOUT_S

STATE_LIMIT = 90_000
"""Characters of a run that are sent: 32,000 tokens are the most for it and the longest question."""
SLACK = 0.02
"""What probabilities may miss 1 by, and for each option half a hundredth more: some round to two digits."""


@dataclass
class Answers:
    """What came of one request. marks: criterion -> score and reason, or error. model: that answered."""

    marks: dict[str, Mark]
    model: str | None = None
    calls: list[Any] = field(default_factory=list)
    unknown_bills: int = 0


def question_hash(question: Question) -> str:
    """Hash of what is fixed about a question beside the criterion's text."""
    return hash_of([question.form, [list(option) for option in question.options], STATE_LIMIT])


def ask(engine: Engine, asked: Sequence[tuple[Criterion, Question]], run: Run) -> Answers:
    """Ask all questions of a run in one request. Raises nothing for what the endpoint does."""
    names = [criterion.id for criterion, _ in asked]
    text = canonical(body(engine.model, asked, run)).decode()
    request = Request(
        [{"role": "user", "content": text}], [], Sampling(max_tokens=1), TIMEOUT_S, case_text=run.input
    )
    try:
        completion = engine.complete(request)
    except (ProviderError, ContextOverflow) as failure:
        mark = Mark(None, None, str(failure))
        billed = list(getattr(failure, "billed", ()))
        return Answers(dict.fromkeys(names, mark), None, billed, getattr(failure, "unknown_bills", 0))
    answers = Answers(read(completion.message["content"], asked), completion.model or None, [completion])
    if not completion.model:
        answers.marks = dict.fromkeys(names, Mark(None, None, "the reply does not say which model answered"))
    return answers


def body(model: str, asked: Sequence[tuple[Criterion, Question]], run: Run) -> Record:
    """The body of the request. model: with its prefix."""
    return {
        "model": model.removeprefix(PREFIX),
        "state": _fitted(judge.material(run)),
        "questions": {criterion.id: _question(criterion, question) for criterion, question in asked},
    }


def _fitted(material: Record) -> Record:
    """The material with its long texts cut until it fits."""
    size = STATE_LIMIT // 2
    while len(canonical(material).decode()) > STATE_LIMIT and size > 20:
        material = _cut(material, size)
        size //= 2
    return material


def _cut(value: Any, size: int) -> Any:
    if isinstance(value, str):
        return cut_middle(value, size)[0]
    if isinstance(value, list):
        return [_cut(item, size) for item in value]
    return {name: _cut(item, size) for name, item in value.items()} if isinstance(value, dict) else value


def _question(criterion: Criterion, question: Question) -> Record:
    sent: Record = {"type": question.form, "instructions": criterion.description}
    if question.form == "score":
        sent["criteria"] = [told for _, told, _ in question.options]
    elif question.form == "choice":
        sent["criteria"] = {name: told for name, told, _ in question.options}
    elif told := {name: text for name, text, _ in question.options if text}:
        sent["criteria"] = told
    return sent


def read(text: str, asked: Sequence[tuple[Criterion, Question]]) -> dict[str, Mark]:
    """Criterion -> score with its reason, or what is wrong with the answer. Pure; raises nothing."""
    try:
        reply = json.loads(text)
        answers = reply["answers"]
        if not isinstance(answers, dict):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        return {criterion.id: _wrong("the reply has no answers") for criterion, _ in asked}
    extra = sorted(set(answers) - {criterion.id for criterion, _ in asked})
    marks = {}
    for criterion, question in asked:
        if extra:  # answers to what was not asked: a reply to another request
            marks[criterion.id] = _wrong(f"the reply answers what was not asked: '{extra[0]}'")
        elif criterion.id not in answers:
            marks[criterion.id] = _wrong("no answer to this question")
        else:
            marks[criterion.id] = _mark(question, answers[criterion.id])
    return marks


def _mark(question: Question, answer: Any) -> Mark:
    if not isinstance(answer, dict) or answer.get("type") != question.form:
        told = answer.get("type") if isinstance(answer, dict) else answer
        return _wrong(f"the answer is of type {str(told)!r:.40}, not {question.form}")
    if question.form == "noul":
        yes = _number(answer.get("noul"), 1.0)
        if yes is None:
            return _wrong("the probability of yes is no number from 0 to 1")
        return Mark(yes, f"yes with {yes:.2f}")
    names = [name for name, _, _ in question.options]
    shares: Any = answer.get("probabilities")
    if (shares is not None or question.form == "choice") and (problem := _unlike(shares, names)):
        return _wrong(problem)
    if question.form == "score":
        return _level(question, answer, shares)
    if answer.get("choice") not in names:
        return _wrong(f"{str(answer.get('choice'))!r:.60} is none of the options")
    if shares[answer["choice"]] < max(shares.values()) - SLACK:
        return _wrong(f"'{answer['choice']}' is not the most probable option")
    whole = sum(shares.values())
    expected = sum(shares[name] * score for name, _, score in question.options) / whole
    return Mark(min(1.0, max(0.0, expected)), f"{answer['choice']} with {shares[answer['choice']]:.2f}")


def _level(question: Question, answer: Mapping[str, Any], shares: Mapping[str, float] | None) -> Mark:
    last = len(question.options) - 1
    level = _number(answer.get("score"), float(last))
    if level is None:
        return _wrong(f"the level is no number from 0 to {last}")
    if shares is not None:
        expected = sum(int(name) * share for name, share in shares.items())
        if abs(expected - level) > 0.01 + 0.0025 * last * (last + 1):  # two digits each
            return _wrong(f"the level is {level:g}, its probabilities say {expected:.2f}")
    name, told, _ = question.options[min(last, math.floor(level + 0.5))]
    return Mark(level / last, f"level {level:.2f} of 0 to {last}; nearest {name}: {told}")


def _unlike(shares: Any, names: Sequence[str]) -> str | None:
    """What is wrong with probabilities over names, None if nothing."""
    if not isinstance(shares, dict):
        return "there are no probabilities of the options"
    if set(shares) != set(names):
        return "the probabilities are of other options than were asked for"
    if any(_number(share, 1.0) is None for share in shares.values()):
        return "a probability is no number from 0 to 1"
    whole = sum(shares.values())
    if abs(whole - 1) > SLACK + 0.005 * len(names) or whole <= 0:
        return f"the probabilities sum to {whole:.3f}, not 1"
    return None


def _number(value: Any, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e-9 <= value <= most + 1e-9:
        return None  # NaN too
    return min(most, max(0.0, float(value)))


def _wrong(told: str) -> Mark:
    return Mark(None, None, told)

"""What a training makes of a machine: its model file, and what the Candidate says of data and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libmachine import env
from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.errors import MachineError
from libmachine.export import Dropped
from libmachine.folder import Model, as_model
from libmachine.git.place import Place
from libmachine.sft import examples as examples_
from libmachine.sft.dataset import Dataset
from libmachine.sft.plan import Plan

_HOSTED_ELSEWHERE = ("openrouter", "openai", "scripted")


class Live:
    """The live model of a machine: what model.json says at HEAD, its parents' if it says nothing."""

    def __init__(self, base: Place, name: str) -> None:
        """Raises MachineError if HEAD has no such machine or a model.json that is none."""
        if not base.has(name):
            raise MachineError(
                f"HEAD has no machine '{name}'; commit it first: git add machines/{name} && git commit"
            )
        self.name = name
        self.fields: Record = {}
        for member in base.family(name):
            path = f"{base.prefix}/{member}/model.json"
            data = base.read(path)
            try:
                fields = loads(data) if data else {}
            except RecordError as error:
                raise MachineError(f"{path} at HEAD: {error}") from None
            if as_model(fields, f"{path} at HEAD").model is not None:
                self.fields = fields if isinstance(fields, dict) else {"model": fields}
                break

    @property
    def model(self) -> Model:
        """As a model."""
        return as_model(self.fields, "model.json at HEAD")

    def base_model(self) -> str:
        """The model whose weights are trained. Raises MachineError if there is none that can be."""
        model = self.model
        if model.model is None:
            raise MachineError(f"'{self.name}' names no model at HEAD; write one into its model.json")
        base = plain_model(model.base or model.model)
        if base.startswith("tinker:"):
            raise MachineError(
                f"'{self.name}' runs checkpoint '{model.model}', of which the base model is not known; "
                'add "base" to its model.json'
            )
        head = base.partition("/")[0]
        elsewhere = {*_HOSTED_ELSEWHERE, *env.endpoints()}
        if head in elsewhere or "/" not in base or model.harness in ("echo", "scripted"):
            raise MachineError(
                f"model '{model.model}' of '{self.name}' cannot be trained; those of Tinker and local/... "
                "can: propose one with machine-propose --model"
            )
        return base

    def is_by(self, run: Mapping[str, Any]) -> bool:
        """Was a run sampled by the live model?"""
        return _asked(run["model"]) == _asked(self.model.model or "")

    def shares_tokens(self, run: Mapping[str, Any]) -> bool:
        """Do a run's token ids and counts mean the same here: was it sampled by this model or its base?"""
        return self.is_by(run) or plain_model(run["model"]) == self.base_model()

    def changed(self, model: str, base: str) -> bytes:
        """model.json with a trained model in it."""
        return canonical({**self.fields, "model": model, "base": base}) + b"\n"


def _asked(model: str) -> str:
    """A model's id as it was asked for: without the hash of a local file and the endpoint's prefix."""
    return model.partition("#")[0].removeprefix("tinker/")


def plain_model(model: str) -> str:
    """The base in a model's id: no endpoint, no checkpoint or adapter beside it, no hash."""
    plain = _asked(model).partition(";")[0]
    return plain.partition("+")[0] if plain.startswith("local/") else plain


def data_record(
    plan: Plan, dataset: Dataset, dropped: Dropped, solved: Record, instructions: str, live: Live
) -> Record:
    """The field `data`: what was learned from, so that a second round without the first's is seen."""
    models: dict[str, int] = {}
    for run in dataset.runs:
        models[run["model"]] = models.get(run["model"], 0) + 1
    used = {example.run for example in plan.examples}
    return {
        "digest": examples_.digest(plan.examples),
        "runs": sorted(used),
        "cases": len({example.case for example in plan.examples}),
        "examples": len(plan.examples),
        "whole_runs": dataset.whole,
        "tokens": sum(example.length for example in plan.examples),
        "models": models,
        "by_live": sum(live.is_by(run) for run in dataset.runs),
        "other_instructions": sum(instructions_of(run) != instructions for run in dataset.runs),
        "dropped": {reason: len(cases) for reason, cases in dropped.reasons.items()},
        "solved": solved,
        "render_check": {
            "compared": dataset.compared,
            "uncompared": dataset.uncompared,
            "different": len(dataset.differences),
        },
    }


def instructions_of(run: Mapping[str, Any]) -> str:
    """The instructions a run was given."""
    first = run["messages"][0] if run["messages"] else {}
    return str(first.get("content") or "") if first.get("role") == "system" else ""


def training_record(plan: Plan, result: Record, warnings: Sequence[str], cost_usd: float | None) -> Record:
    """The field `training`: settings, losses, effort, where it began."""
    settings = plan.settings
    ends = examples_.loss_ends(result["losses"])
    return {
        "id": result["training"],
        "trainer": plan.trainer,
        **settings.record(),
        "init": settings.start or "base",
        "effort": settings.effort,
        "steps": result["steps"],
        "tokens": result["tokens"],
        "losses": [None if loss is None else round(loss, 6) for loss in result["losses"]],
        "first_loss": round(ends[0], 6) if ends else None,
        "last_loss": round(ends[1], 6) if ends else None,
        "duration_s": result["duration_s"],
        "finished_at": result["finished_at"],
        "cost_usd": cost_usd,
        "warnings": list(warnings),
    }

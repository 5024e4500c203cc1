"""No engine: a Python without what training needs still serves chat, and refuses to train by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from libmachine.tinkerd.engine import (
    Adam,
    Datum,
    Files,
    Lora,
    Losses,
    Refusal,
    Sampled,
    SampleRequest,
    Weights,
)

INSTALL = "pip install 'libmachine[sft]', or set MACHINE_PYTHON to a Python that has it, and start it again"
_NEEDED = {"torch": ("tinker", "torch", "peft", "gguf", "safetensors"), "fake": ("tinker", "google.protobuf")}


def missing(engine: str) -> str | None:
    """The first package that training with an engine needs and that is not here, None if all are."""
    return next((name for name in _NEEDED[engine] if not _is_there(name)), None)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


class NoEngine:
    """Refuses whatever computes. name: of the engine in whose place it stands; lacks: the package."""

    context = 8192

    def __init__(self, name: str, lacks: str) -> None:
        self.name = name
        self.why = f"this server answers chat and does not train: no python package '{lacks}'; {INSTALL}"

    def _no(self) -> NoReturn:
        raise Refusal(self.why, "user", 501)

    def create(self, lora: Lora) -> Any:
        self._no()

    def forward_backward(self, state: Any, data: Sequence[Datum], backward: bool) -> Losses:
        self._no()

    def optim_step(self, state: Any, adam: Adam) -> Mapping[str, float]:
        self._no()

    def export(self, state: Any, optimizer: bool) -> Files:
        self._no()

    def restore(self, lora: Lora, files: Files, optimizer: bool) -> Any:
        self._no()

    def sample(self, weights: Weights | None, request: SampleRequest) -> Sampled:
        self._no()

    def to_gguf(self, weights: Weights, target: str, prompts: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        self._no()

    def forget(self, state: Any) -> None:
        """Nothing is kept."""

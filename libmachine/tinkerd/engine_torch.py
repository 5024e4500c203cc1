"""The real engine: Llama in torch on the CPU, adapters by peft, AdamW.

All adapters live in one peft model beside the base's weights; the engine's single thread switches
between them. Log-probabilities are those of the model at temperature 1, before any cut. The memory a
step takes is bounded by passes_torch.MOST_BATCH tokens in one pass, whatever the batch; gradients add up.
"""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libmachine.tinkerd import adapter, base_torch, engine, gguf_names, passes_torch, sampling_torch
from libmachine.tinkerd.base_torch import Base
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

ALPHA = 32
"""lora_alpha of every adapter, as Tinker's: the update is scaled by 32 / rank."""

_LOADED = 4
_WEIGHTS, _CONFIG, _OPTIMIZER = "adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"


@dataclass
class _State:
    name: str
    lora: Lora
    parameters: dict[str, Any]  # name without the adapter's -> tensor
    optimizer: Any


class TorchEngine:
    """See the module. path: gives the GGUF file, called at the first request. threads: of torch."""

    name = "torch"

    def __init__(self, path: Callable[[], str], threads: int = 1, context: int = 8192) -> None:
        base_torch.require()
        self.context = context
        self._path, self._threads = path, threads
        self._base: Base | None = None
        self._peft: Any = None
        self._names = itertools.count()
        self._samplers: OrderedDict[str, str] = OrderedDict()  # key of weights -> adapter

    # adapters ---------------------------------------------------------------------------

    def create(self, lora: Lora) -> Any:
        import torch

        torch.manual_seed(lora.seed)
        return self._state(self._add(lora), lora)

    def _loaded(self) -> Base:
        if self._base is None:
            import warnings

            import torch

            warnings.filterwarnings("ignore", module="peft")  # it warns of tied weights and of deleting
            torch.set_num_threads(self._threads)
            self._base = base_torch.load(self._path())
            self.context = min(self.context, self._base.context)
        return self._base

    def _add(self, lora: Lora) -> str:
        """A new adapter with a random start; its name."""
        from peft import LoraConfig, PeftModel

        base, name = self._loaded(), f"a{next(self._names)}"
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=ALPHA,
            lora_dropout=0.0,
            target_modules=targets(lora),
            task_type="CAUSAL_LM",
            base_model_name_or_path=engine.BASE_MODEL,
        )
        if self._peft is None:
            self._peft = PeftModel(base.model, config, adapter_name=name)
        else:
            self._peft.add_adapter(name, config)
        return name

    def _parameters(self, name: str) -> dict[str, Any]:
        found = {}
        for full, tensor in self._peft.named_parameters():
            if f".{name}." in full and "lora_" in full:
                found[full.replace(f".{name}.", ".")] = tensor
        return found

    def _state(self, name: str, lora: Lora) -> _State:
        import torch

        self._peft.set_adapter(name)
        parameters = self._parameters(name)
        for tensor in parameters.values():
            tensor.requires_grad_(True)
        return _State(name, lora, parameters, torch.optim.AdamW(parameters.values(), lr=0.0))

    def forget(self, state: Any) -> None:
        self._delete(state.name)
        state.parameters, state.optimizer = {}, None

    def _delete(self, name: str) -> None:
        if len(self._peft.peft_config) > 1:  # peft cannot be without one
            self._peft.delete_adapter(name)

    # training ---------------------------------------------------------------------------

    def forward_backward(self, state: Any, data: Sequence[Datum], backward: bool) -> Losses:
        import torch

        base = self._loaded()
        for number, datum in enumerate(data):
            engine.check_sizes(len(datum.tokens), self.context, f"example {number}")
            passes_torch.check_ids([*datum.tokens, *datum.targets], len(base.pieces))
        self._peft.set_adapter(state.name)
        rows: list[list[float]] = [[] for _ in data]
        loss = 0.0
        shared = passes_torch.shared(data)
        for batch in passes_torch.batches([len(datum.tokens) for datum in data], shared):
            with torch.set_grad_enabled(backward):
                loss += passes_torch.run(self._peft.base_model.model, data, batch, shared, rows, backward)
        return Losses(loss, rows)

    def optim_step(self, state: Any, adam: Adam) -> Mapping[str, float]:
        import torch

        parameters = list(state.parameters.values())
        if adam.grad_clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(parameters, adam.grad_clip_norm)
        for group in state.optimizer.param_groups:
            group["lr"], group["betas"] = adam.learning_rate, (adam.beta1, adam.beta2)
            group["eps"], group["weight_decay"] = adam.eps, adam.weight_decay
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        return {}

    # files ------------------------------------------------------------------------------

    def export(self, state: Any, optimizer: bool) -> Files:
        from safetensors.torch import save

        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": engine.BASE_MODEL,
            "r": state.lora.rank,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": targets(state.lora),
        }
        tensors = {name: tensor.detach().contiguous() for name, tensor in state.parameters.items()}
        files = {_WEIGHTS: save(tensors), _CONFIG: json.dumps(config, indent=1, sort_keys=True).encode()}
        if optimizer:
            kept = {}
            for name, tensor in state.parameters.items():
                for key, value in state.optimizer.state.get(tensor, {}).items():
                    kept[f"{name}/{key}"] = value.detach().contiguous()
            files[_OPTIMIZER] = save(kept)
        return files

    def restore(self, lora: Lora, files: Files, optimizer: bool) -> Any:
        from safetensors.torch import load

        if optimizer and _OPTIMIZER not in files:
            raise Refusal("the checkpoint holds no optimiser state; load it without")
        state = self._state(self._add(lora), lora)
        self._fill(state.parameters, files)
        if optimizer:
            for full, value in load(files[_OPTIMIZER]).items():
                name, _, key = full.rpartition("/")
                state.optimizer.state.setdefault(state.parameters[name], {})[key] = value
        return state

    def _fill(self, parameters: dict[str, Any], files: Files) -> None:
        import torch
        from safetensors.torch import load

        saved = load(files[_WEIGHTS]) if _WEIGHTS in files else {}
        if {name: tensor.shape for name, tensor in saved.items()} != {
            name: tensor.shape for name, tensor in parameters.items()
        }:
            raise Refusal("the checkpoint is of another model or another shape of adapter")
        with torch.no_grad():
            for name, tensor in parameters.items():
                tensor.copy_(saved[name])

    # sampling ---------------------------------------------------------------------------

    def sample(self, weights: Weights | None, request: SampleRequest) -> Sampled:
        import torch

        base = self._loaded()
        engine.check_sizes(len(request.prompt), self.context - 1, "the prompt")
        passes_torch.check_ids(request.prompt, len(base.pieces))
        if weights is not None:
            self._peft_for(weights)
        with torch.no_grad():
            if weights is None and self._peft is not None:
                with self._peft.disable_adapter():
                    return sampling_torch.sample(base.model, base, self.context, request)
            return sampling_torch.sample(base.model, base, self.context, request)

    def to_gguf(self, weights: Weights, target: str, prompts: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        import torch

        path = self._path()
        adapter.convert(weights.load(), base_torch.shape(path), target)
        llama = adapter.Llama(path, target, self._threads)
        try:
            rows = [list(prompt) for prompt in prompts] or [llama.tokens(text) for text in adapter.TEXTS]
            for row in rows:
                engine.check_sizes(len(row), adapter.MOST_TOKENS - 1, "a prompt of the comparison")
                passes_torch.check_ids(row, len(self._loaded().pieces))
            told = [llama.next(row) for row in rows]
        finally:
            llama.close()
        base = self._loaded()
        self._peft_for(weights)

        def ours(number: int, ids: list[int]) -> list[float]:
            with torch.no_grad():
                hidden = base.model.model(input_ids=torch.tensor([rows[number]])).last_hidden_state[0, -1]
                found: list[float] = base.model.lm_head(hidden).log_softmax(-1)[ids].tolist()
            return found

        return {"difference": adapter.difference(told, ours), "prompts": len(rows)}

    def _peft_for(self, weights: Weights) -> None:
        """Make trained weights the active adapter; the least used one makes room."""
        name = self._samplers.get(weights.key)
        if name is None:
            files = weights.load()
            while len(self._samplers) >= _LOADED:
                self._delete(self._samplers.popitem(last=False)[1])
            name = self._add(weights.lora)
            self._fill(self._parameters(name), files)
            self._samplers[weights.key] = name
        self._samplers.move_to_end(weights.key)
        self._peft.set_adapter(name)


def targets(lora: Lora) -> list[str]:
    """The modules of the base that an adapter changes."""
    parts = [
        *(gguf_names.ATTENTION if lora.train_attn else ()),
        *(gguf_names.MLP if lora.train_mlp else ()),
        *(("lm_head",) if lora.train_unembed else ()),
    ]
    return sorted(parts)

"""Requests in JSON, read and checked: what is sent becomes an engine's values, or is refused by name."""

from __future__ import annotations

import math
import secrets
from typing import Any

from libmachine.canon import Record
from libmachine.tinkerd.engine import BASE_MODEL, Adam, Lora, Refusal, SampleRequest

MOST_RANK = 256
MOST_SAMPLES = 128


def text(body: Record, name: str) -> str:
    """A field that must be a text. Raises Refusal."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(f"'{name}' is missing or no text")
    return value


def whole(body: Record, name: str, least: int = 0) -> int:
    """A field that must be an integer of at least `least`. Raises Refusal."""
    value = body.get(name)
    if type(value) is not int or value < least:
        raise Refusal(f"'{name}' is missing or no integer from {least} on")
    return value


def metadata(body: Record) -> Record | None:
    """user_metadata: an object or absent. Raises Refusal."""
    value = body.get("user_metadata")
    if value is not None and not isinstance(value, dict):
        raise Refusal("'user_metadata' is no object")
    return value


def base_model(name: Any) -> None:
    """Raise Refusal unless this is the model that is served."""
    if name != BASE_MODEL:
        raise Refusal(f"base model '{name}' is not served here; there is: {BASE_MODEL}")


def optimizer(config: Any) -> None:
    """Raise Refusal unless the optimiser asked for is AdamW."""
    kind = (config or {}).get("type", "adamw")
    if kind != "adamw":
        raise Refusal(f"optimizer '{kind}' is not served; adamw is")


def lora(body: Record, unembed: bool) -> Lora:
    """The adapter asked for. unembed: the engine can train the unembedding. Raises Refusal."""
    config = body.get("lora_config")
    if not isinstance(config, dict):
        raise Refusal("training all weights is not served; give a lora_config")
    rank = whole(config, "rank", 1)
    if rank > MOST_RANK:
        raise Refusal(f"rank {rank} is not served; at most {MOST_RANK}")
    seed = config.get("seed")
    found = Lora(
        rank,
        secrets.randbelow(2**31) if seed is None else whole(config, "seed"),
        bool(config.get("train_attn", True)),
        bool(config.get("train_mlp", True)),
        bool(config.get("train_unembed", True)),
    )
    if found.train_unembed and not unembed:
        raise Refusal("train_unembed=True is not served; give train_unembed=False")
    if not (found.train_attn or found.train_mlp or found.train_unembed):
        raise Refusal("train_attn, train_mlp and train_unembed are all False: nothing to train")
    return found


def adam(body: Record) -> Adam:
    """The parameters of an optimiser step. Raises Refusal."""
    if body.get("optim_params"):
        optimizer(body["optim_params"])
    told = body.get("adam_params") or {}
    unknown = set(told) - set(Adam._fields)
    if unknown:
        raise Refusal(f"adam_params: {', '.join(sorted(unknown))} is not served")
    values = {}
    for name, value in told.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Refusal(f"adam_params: {name} is no finite number")
        if value < 0:
            raise Refusal(f"adam_params: {name} is below 0")
        values[name] = float(value)
    found = Adam(**values)
    if found.beta1 >= 1 or found.beta2 >= 1:
        raise Refusal("adam_params: beta1 and beta2 must be below 1")
    return found


_NOT_SERVED = (
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
)


def sample(body: Record) -> SampleRequest:
    """What to sample. Raises Refusal."""
    for name in (*_NOT_SERVED, "record_stability_info"):
        if body.get(name):
            raise Refusal(f"{name} is not served by the local trainer")
    told = body.get("sampling_params") or {}
    prompt = _prompt(body.get("prompt") or {})
    number = whole(body, "num_samples", 1) if body.get("num_samples") is not None else 1
    if number > MOST_SAMPLES:
        raise Refusal(f"num_samples {number} is too many; at most {MOST_SAMPLES}")
    temperature, top_p = told.get("temperature", 1.0), told.get("top_p", 1.0)
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 100:
        raise Refusal("temperature is no number from 0 on")
    if not isinstance(top_p, int | float) or not 0 < top_p <= 1:
        raise Refusal("top_p is no number above 0, at most 1")
    most = None if told.get("max_tokens") is None else whole(told, "max_tokens", 0)
    scored = 0
    if body.get("prompt_logprobs"):
        last = body.get("prompt_logprobs_last_n")
        scored = len(prompt) if last is None else whole(body, "prompt_logprobs_last_n", 1)
    return SampleRequest(
        prompt,
        number,
        most,
        None if told.get("seed") is None else whole(told, "seed", -(2**63)),
        _stop(told.get("stop")),
        float(temperature),
        whole(told, "top_k", -1) if "top_k" in told else -1,
        float(top_p),
        scored,
    )


def _prompt(prompt: Record) -> list[int]:
    tokens: list[int] = []
    for chunk in prompt.get("chunks") or []:
        if chunk.get("type", "encoded_text") != "encoded_text":
            raise Refusal(f"a prompt with '{chunk.get('type')}' is not served; only text is")
        tokens += chunk.get("tokens") or []
    if not all(type(token) is int for token in tokens):
        raise Refusal("the prompt has tokens that are no integers")
    return tokens


def _stop(stop: Any) -> tuple[int | str, ...] | None:
    if stop is None:
        return None
    found = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(word, str) or type(word) is int for word in found):
        raise Refusal("stop has something else than texts and token ids")
    return tuple(word for word in found if word != "")

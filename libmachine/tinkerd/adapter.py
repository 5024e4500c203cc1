"""A trained adapter as a GGUF file that llama.cpp loads beside the base model, and proof that it is the same.

The file has `general.type` adapter, `adapter.type` lora, `adapter.lora.alpha` and pairs
`blk.N.NAME.weight.lora_a` [rank, in] and `.lora_b` [out, rank]. Rows of B of the q and k projections
are put into llama.cpp's order (see gguf_names).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libmachine.errors import MachineError
from libmachine.tinkerd import gguf_names
from libmachine.tinkerd.base_torch import Shape
from libmachine.tinkerd.engine import Files, Refusal

MOST_DIFFERENCE = 0.15
"""Nats: a greater mean difference of next-token log-probabilities means the conversion is wrong."""

TOP = 5
"""Likeliest next tokens compared per prompt. llama.cpp rounds activations to 8 bits, and unlikely tokens
show it most. Mean difference on 135M in Q4_1, top 5 (top 10): an adapter of zero effect 0.084 (0.107), one
after 24 steps 0.093 (0.121); with the rows of q and k in the wrong order 0.57."""

WORDS = ("water", "a bridge", "the moon", "bread", "a river", "sleep", "iron", "a poem", "trade", "winter")
_PROMPT = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\nWhat is {}?<|im_end|>\n<|im_start|>assistant\n"
TEXTS = [
    _PROMPT.format(system, word)
    for word in WORDS
    for system in ("Answer in one short sentence.", "You are a helpful assistant.")
]
"""Twenty prompts to compare on where the caller has none of its own."""

MOST_TOKENS = 4096
"""Of one prompt of the comparison."""

_SUFFIXES = {".lora_A.weight": "lora_a", ".lora_B.weight": "lora_b"}


def convert(files: Files, shape: Shape, target: str) -> None:
    """Write a PEFT adapter (adapter_model.safetensors, adapter_config.json) as GGUF to target, mode 0600.

    The file appears whole or not at all. Raises Refusal if llama.cpp cannot serve the adapter: one that
    trains the unembedding, which this model shares with its embedding.
    """
    import numpy
    from gguf import GGUFWriter
    from safetensors.numpy import load

    try:
        tensors, config = load(files["adapter_model.safetensors"]), json.loads(files["adapter_config.json"])
    except KeyError as error:
        raise Refusal(
            f"the checkpoint has no file {error}; only the torch engine's can be converted"
        ) from None
    named = {}
    for full, rows in tensors.items():
        suffix = next((s for s in _SUFFIXES if full.endswith(s)), "")
        name = gguf_names.gguf(full.removesuffix(suffix).removeprefix("base_model.model."))
        if name is None or not suffix:
            raise Refusal(f"'{full}' cannot be served by llama.cpp; train with train_unembed=False")
        number = gguf_names.heads(name, shape.queries, shape.keys)
        if number is not None and suffix == ".lora_B.weight":
            rows = gguf_names.interleave(rows, number)
        named[f"{name}.{_SUFFIXES[suffix]}"] = numpy.ascontiguousarray(rows, dtype=numpy.float32)
    temporary = f"{target}.{secrets.token_hex(4)}"
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        writer = GGUFWriter(temporary, shape.architecture)
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
        for name in sorted(named):
            writer.add_tensor(name, named[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def difference(
    llama: Sequence[Mapping[int, float]], torch: Callable[[int, list[int]], Sequence[float]]
) -> float:
    """Mean absolute difference, in nats, over all prompts and their TOP likeliest tokens.

    llama: id -> log-probability for each prompt. torch: those of (number of the prompt, ids).
    """
    total, count = 0.0, 0
    for number, told in enumerate(llama):
        ids = list(told)
        ours = torch(number, ids)
        total += sum(abs(told[token] - value) for token, value in zip(ids, ours, strict=True))
        count += len(ids)
    return total / count if count else float("inf")


class Llama:
    """llama.cpp with one adapter loaded, for the comparison; close it after."""

    def __init__(self, base: str, adapter: str, threads: int) -> None:
        from libmachine.harness import llama

        xllamacpp = llama._import()
        self._key = secrets.token_hex(16)
        params = xllamacpp.CommonParams()
        params.model.path = base
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(adapter, 1.0)]
        params.n_ctx, params.n_parallel = MOST_TOKENS, 1
        for part in (params.cpuparams, params.cpuparams_batch):
            part.n_threads, part.poll = threads, 0
        params.n_gpu_layers, params.fit_params, params.warmup, params.ui = 0, False, False, False
        params.cache_ram_mib, params.cache_idle_slots = 0, False
        params.api_keys, params.endpoint_metrics = [self._key], True
        params.verbosity = -1
        try:
            self._server: Any = xllamacpp.Server(params)
        except (RuntimeError, ValueError):
            raise MachineError(f"llama.cpp does not load the adapter '{adapter}'") from None
        self._server.handle_metrics()
        self._address: str = self._server.listening_address.removeprefix("http://")

    def close(self) -> None:
        """Stop it."""
        self._server = None

    def tokens(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are such."""
        told = self._call("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        return list(told["tokens"])

    def next(self, prompt: Sequence[int]) -> dict[int, float]:
        """The TOP likeliest next tokens with their log-probabilities."""
        body = {
            "prompt": list(prompt),
            "n_predict": 1,
            "n_probs": TOP,
            "temperature": 0,
            "cache_prompt": False,
        }
        told = self._call("/completion", body)["completion_probabilities"][0]["top_logprobs"]
        return {entry["id"]: entry["logprob"] for entry in told}

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        import http.client

        connection = http.client.HTTPConnection(self._address, timeout=120)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise MachineError(f"llama.cpp refused the comparison: {data[:200].decode('utf-8', 'replace')}")
        answer: dict[str, Any] = json.loads(data)
        return answer

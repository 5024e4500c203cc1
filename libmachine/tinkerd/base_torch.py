"""The base model in torch, from the same GGUF file that llama.cpp serves.

The tensors are unpacked to float32 by the `gguf` package (2 s for 135M); transformers' own GGUF loader
took 38 s, 17 of them for a tokenizer that is not needed here.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

from libmachine.errors import MachineError
from libmachine.tinkerd import gguf_names
from libmachine.tinkerd.wire import INSTALL

NEEDED = ("torch", "transformers", "peft", "gguf", "safetensors", "numpy")


class Base(NamedTuple):
    """model: LlamaForCausalLM. end: id that ends an answer. pieces: text of each token, in GPT-2's
    alphabet of bytes."""

    model: Any
    context: int
    end: int
    pieces: list[str]


class Shape(NamedTuple):
    """What an adapter's conversion needs to know of a GGUF file."""

    architecture: str
    queries: int
    keys: int
    blocks: int


def require() -> None:
    """Raise MachineError if a package is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MachineError(f"the local trainer needs the package '{missing[0]}'; {INSTALL}")


def shape(path: str) -> Shape:
    """The shape of a GGUF file. Raises MachineError if it is none of Llama's."""
    return _shape(_reader(path), path)


def _reader(path: str) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (OSError, ValueError) as error:
        raise MachineError(f"cannot read '{path}': {error}") from None


def _value(reader: Any, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _shape(reader: Any, path: str) -> Shape:
    kind = _value(reader, "general.architecture")
    if kind != "llama":
        raise MachineError(f"'{path}' is a model of architecture '{kind}'; the local trainer trains llama")
    queries = _value(reader, "llama.attention.head_count")
    keys = _value(reader, "llama.attention.head_count_kv", queries)
    return Shape(kind, queries, keys, _value(reader, "llama.block_count"))


def load(path: str) -> Base:
    """Read a GGUF file into memory (0.6 GB for 135M). Raises MachineError."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = _reader(path)
    about = _shape(reader, path)
    if _value(reader, "llama.rope.scaling.type", "none") != "none":
        raise MachineError(f"'{path}' scales its positions; the local trainer does not")
    pieces = _value(reader, "tokenizer.ggml.tokens")
    tensors = _tensors(reader, about)
    config = LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=_value(reader, "llama.embedding_length"),
        intermediate_size=_value(reader, "llama.feed_forward_length"),
        num_hidden_layers=about.blocks,
        num_attention_heads=about.queries,
        num_key_value_heads=about.keys,
        max_position_embeddings=_value(reader, "llama.context_length"),
        rms_norm_eps=_value(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": _value(reader, "llama.rope.freq_base", 10000.0),
        },
        tie_word_embeddings="lm_head.weight" not in tensors,
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    # positions are computed, not stored: made anew, as the empty model has none
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    found = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    lacking = [name for name in found.missing_keys if name != "lm_head.weight"]
    if lacking or found.unexpected_keys:
        raise MachineError(f"'{path}' lacks tensors or has others: {[*lacking, *found.unexpected_keys][:3]}")
    model.requires_grad_(False)
    model.eval()
    return Base(model, config.max_position_embeddings, config.eos_token_id, pieces)


def _tensors(reader: Any, about: Shape) -> dict[str, Any]:
    import torch
    from gguf.quants import dequantize

    found = {}
    for tensor in reader.tensors:
        name = gguf_names.hugging(tensor.name)
        if name is None:
            raise MachineError(f"tensor '{tensor.name}' is unknown to the local trainer")
        rows = dequantize(tensor.data, tensor.tensor_type)
        number = gguf_names.heads(tensor.name, about.queries, about.keys)
        if number is not None:
            rows = gguf_names.halve(rows, number)
        found[name] = torch.from_numpy(rows.copy())
    return found

"""Names and shapes: Hugging Face's Llama against llama.cpp's. Pure, but for numpy arrays passed through.

llama.cpp keeps the rows of the q and k projections in another order: the two halves of a head, which
Hugging Face rotates against each other, are interleaved. `interleave` makes that order, `halve` undoes it.
"""

from __future__ import annotations

import re
from typing import Any

LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
_FROM_GGUF = {theirs: ours for ours, theirs in LAYER.items()}
_OUTER_FROM_GGUF = {theirs: ours for ours, theirs in OUTER.items()}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_MODULE = re.compile(r"(?:.*\.)?layers\.(\d+)\.(\w+\.\w+)")


def hugging(name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor, None if there is none."""
    found = _BLOCK.fullmatch(name)
    if found:
        inner = _FROM_GGUF.get(found[2])
        return f"model.layers.{found[1]}.{inner}.weight" if inner else None
    outer = _OUTER_FROM_GGUF.get(name.removesuffix(".weight"))
    return f"{outer}.weight" if outer and name.endswith(".weight") else None


def gguf(module: str) -> str | None:
    """The GGUF tensor of a Hugging Face module in a layer, None if there is none."""
    found = _MODULE.fullmatch(module)
    inner = LAYER.get(found[2]) if found else None
    return f"blk.{found[1]}.{inner}.weight" if found and inner else None


def heads(name: str, of_queries: int, of_keys: int) -> int | None:
    """Heads whose rows are in another order in this GGUF tensor; None for tensors without."""
    if ".attn_q." in name:
        return of_queries
    return of_keys if ".attn_k." in name else None


def interleave(rows: Any, number: int) -> Any:
    """Rows of an array [heads * 2 * half, columns] in llama.cpp's order."""
    return rows.reshape(number, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def halve(rows: Any, number: int) -> Any:
    """Rows in Hugging Face's order."""
    return rows.reshape(number, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)

"""The tokenizer in a GGUF file, rebuilt on the package `tokenizers`: text to the ids llama.cpp makes of it.

transformers reads it too, in 17 s; this takes half a second. Byte-level BPE with a known way of
splitting only: another one is refused, as its ids would be slightly wrong.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

from libmachine.errors import MachineError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_CONTROL = 3  # token type of control tokens
_SPLITS = ("smollm",)


class GgufTokenizer:
    """Ids of the texts of one model.

    special: control token -> id. encode: never makes a control token, whatever the text says.
    """

    def __init__(self, path: str) -> None:
        """Raises MachineError if the file has no tokenizer that is known here."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        fields = read_fields(path, "tokenizer.ggml.")
        split = fields.get("tokenizer.ggml.pre")
        if fields.get("tokenizer.ggml.model") != "gpt2" or split not in _SPLITS:
            raise MachineError(
                f"the tokenizer of '{path}' ({fields.get('tokenizer.ggml.model')}, {split}) is not known "
                f"for training; those that are: {', '.join(_SPLITS)}"
            )
        tokens: list[str] = fields["tokenizer.ggml.tokens"]
        merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        kinds = fields["tokenizer.ggml.token_type"]
        self.special = {token: i for i, token in enumerate(tokens) if kinds[i] == _CONTROL}
        self._names = {i: token for token, i in self.special.items()}
        self._inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self._inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self._inner.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Lone surrogates count as question marks."""
        clean = text.encode("utf-8", "replace").decode()
        return list(self._inner.encode(clean, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, control tokens by their names."""
        text = ""
        plain: list[int] = []
        for token in ids:
            if token in self._names:
                text += self._inner.decode(plain, skip_special_tokens=False) + self._names[token]
                plain = []
            else:
                plain.append(token)
        return text + str(self._inner.decode(plain, skip_special_tokens=False))


def read_fields(path: str, prefix: str) -> dict[str, Any]:
    """The fields of a GGUF file (v2, v3) whose names begin with prefix. Raises MachineError.

    Layout: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _fields(data, prefix)
    except (OSError, ValueError, struct.error, KeyError) as error:
        raise MachineError(f"cannot read '{path}' as GGUF: {error}") from None


def _fields(data: mmap.mmap, prefix: str) -> dict[str, Any]:
    magic, version, _, count = struct.unpack_from("<4sIQQ", data, 0)
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"it begins with {magic!r}, version {version}")
    position = 24
    found: dict[str, Any] = {}

    def number(kind: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from("<" + kind, data, position)
        position += struct.calcsize("<" + kind)
        return value

    def text() -> str:
        nonlocal position
        size = number("Q")
        position += size
        return data[position - size : position].decode("utf-8", "replace")

    def value(kind: int) -> Any:
        if kind == _TEXT:
            return text()
        if kind == _LIST:
            inner, size = number("I"), number("Q")
            read: Callable[[], Any] = text if inner == _TEXT else lambda: value(inner)
            return [read() for _ in range(size)]
        return number(_NUMBERS[kind])

    for _ in range(count):
        name = text()
        held = value(number("I"))
        if name.startswith(prefix):
            found[name] = held
    return found

"""What turns a conversation into token ids for training: the local model's own template, or the cookbook's.

A renderer must show the model in training what it saw in sampling; `libmachine.sft.check` holds it to
that. The local one is the very function that renders prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from libmachine.errors import MachineError
from libmachine.harness import template
from libmachine.harness.base import Message
from libmachine.sft.examples import Rendered

LOCAL = f"local_{template.REVISION}"
"""Name of the renderer of local/... models."""


class CannotRender(Exception):
    """A conversation that a renderer has no form for; the message says why."""


class Renderer(Protocol):
    """Messages are OpenAI's, with `reasoning`, instructions first; tools in OpenAI's form."""

    name: str
    has_effort: bool
    """Is the prompt conditioned on a reasoning effort?"""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the prompt that the next assistant message answers. Raises CannotRender."""

    def example(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampled: Sequence[int] | None = None,
    ) -> Rendered:
        """Ids with the last message, an assistant's, as the target.

        sampled: the very ids the model gave, where they are known. Raises CannotRender.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens by their names."""


class LocalRenderer:
    """The template of the local model, with the tokenizer of its weights."""

    name = LOCAL
    has_effort = False

    def __init__(self, path: str) -> None:
        """path: the GGUF file. Raises MachineError if it has no tokenizer for the template."""
        from libmachine.harness.gguf_tokenizer import GgufTokenizer

        self._tokenizer = GgufTokenizer(path)
        missing = [token for token in template.SPECIAL if token not in self._tokenizer.special]
        if missing:
            raise MachineError(f"'{path}' has no token '{missing[0]}'; a local model must speak ChatML")

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of the prompt, the function that sampling uses."""
        return template.render(messages, tools, self._tokenizer.encode, self._tokenizer.special)

    def example(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampled: Sequence[int] | None = None,
    ) -> Rendered:
        """The prompt's ids, then the answer's with its end."""
        *before, last = messages
        prompt = self.prompt(before, tools)
        if sampled is None:
            if last.get("reasoning") and last.get("reasoning_field") != "inline":
                raise CannotRender(f"renderer '{self.name}' has no place for its reasoning; --drop-reasoning")
            body = template.assistant_text(last)
            answer = self._tokenizer.encode(body) if body else []
        else:
            answer = list(sampled)
        end = self._tokenizer.special[template.END]
        if answer[-1:] != [end]:
            answer.append(end)
        return Rendered(prompt + answer, [0.0] * len(prompt) + [1.0] * len(answer))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return self._tokenizer.decode(list(ids))

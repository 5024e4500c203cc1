"""Chat answers of the fake engine: no model, the same every time, and what was trained is what is said.

The base model says a few words chosen by a hash of the conversation (and, above temperature 0, of the
seed). Trained weights answer as the fake engine samples them: by heart, by the ids of the prompt. So they
need the tokenizer of the weights, and the base needs nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

from libmachine.canon import canonical, loads
from libmachine.errors import MachineError
from libmachine.harness import shared, template, weights
from libmachine.harness.base import Completion, Request
from libmachine.harness.gguf_tokenizer import GgufTokenizer
from libmachine.tinkerd.checkpoints import SCHEME
from libmachine.tinkerd.engine import BASE_MODEL, Refusal, SampleRequest, Weights
from libmachine.tinkerd.engine_fake import FakeEngine
from libmachine.tinkerd.speaker import Expected, Trees, unknown

WORDS = (
    *("river", "stone", "bread", "cloud", "apple", "lantern", "music", "winter"),
    *("garden", "ladder", "paper", "candle", "mountain", "letter", "bridge", "window"),
)


class FakeSpeaker:
    """See the module. checkpoint: weights of a checkpoint of this server. Raises what Speaker does."""

    def __init__(self, trees: Trees, checkpoint: Callable[[str], Weights]) -> None:
        self._trees, self._checkpoint = trees, checkpoint
        self._engine = FakeEngine()
        self._tokenizer = functools.cache(_tokenizer)

    def check(self, model: str) -> None:
        self._weights(model)

    def complete(
        self, model: str, beside: Sequence[str], request: Request, expected: Expected | None
    ) -> Completion:
        trained = self._weights(model)
        if expected is not None:
            expected.check(shared.FAKE, f"{model}#fake")
        if trained is None or not self._engine.learned(trained):
            return _made_up(f"{model}#fake", request)
        return self._sampled(f"{model}#fake", trained, request)

    def close(self) -> None:
        pass

    def _weights(self, model: str) -> Weights | None:
        """The trained weights of a model, None for the base."""
        if model.startswith(SCHEME):
            return self._checkpoint(model)
        base, _, tree = model.partition("+")
        if base != BASE_MODEL:
            raise unknown(model)
        if not tree:
            return None
        try:
            path = loads(self._trees.file(tree, "checkpoint.json"))["path"]
        except (MachineError, KeyError, TypeError):
            raise unknown(model) from None
        return self._checkpoint(path)

    def _sampled(self, model: str, trained: Weights, request: Request) -> Completion:
        tokenizer, sampling = self._tokenizer(), request.sampling
        special = {token: tokenizer.special[token] for token in template.SPECIAL}
        prompt = template.render(request.messages, request.tools, tokenizer.encode, special)
        asked = SampleRequest(
            prompt,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop=(special[template.END],),
            temperature=sampling.temperature,
        )
        [sample] = self._engine.sample(trained, asked).sequences
        end = special[template.END]
        said = tokenizer.decode([token for token in sample.tokens if token != end])
        message = template.parse(said, request.step, calls=bool(request.tools))
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return Completion(
            message,
            "length" if sample.stop_reason == "length" else finish,
            model,
            prompt_tokens=len(prompt),
            cached_tokens=0,
            completion_tokens=len(sample.tokens),
            tokens={"prompt": prompt, "completion": sample.tokens, "logprobs": sample.logprobs},
        )


def _tokenizer() -> GgufTokenizer:
    try:
        return GgufTokenizer(weights.ensure_weights(BASE_MODEL))
    except ImportError as error:
        raise Refusal(
            f"trained weights of the fake engine need the package '{error.name}': "
            "pip install 'libmachine[sft]'",
            "server",
            501,
        ) from None


def _made_up(model: str, request: Request) -> Completion:
    """Three to six words and a full stop. Not a token is counted: there are none."""
    sampling = request.sampling
    drawn = None if sampling.temperature == 0 else sampling.seed
    digest = hashlib.sha256(canonical([request.messages, request.tools, drawn])).digest()
    said = [WORDS[byte % len(WORDS)] for byte in digest[1 : 4 + digest[0] % 4]]
    cut = said[: max(1, sampling.max_tokens)]
    text = " ".join(cut).capitalize() + ("" if len(cut) < len(said) else ".")
    message = {"role": "assistant", "content": text}
    return Completion(message, "length" if len(cut) < len(said) else "stop", model)

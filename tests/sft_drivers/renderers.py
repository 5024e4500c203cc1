"""Runs on stdin -> what each renderer makes of them, as JSON: the library itself, not its exit code.

    python renderers.py RENDERER [EFFORT] <runs

Renderers of models whose tokenizer is not to be had offline use the local model's: it has ChatML's
control tokens, and everything else is text. Output: {"examples": [[[text, weight]...]...], "prompts",
"differences", "dropped", "whole"}.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from libmachine.export import Dropped
from libmachine.harness import weights
from libmachine.harness.gguf_tokenizer import GgufTokenizer
from libmachine.sft import cookbook, dataset
from libmachine.sft.renderers import LOCAL, LocalRenderer, Renderer

MODELS = {"tml_v0": "thinkingmachines/Inkling-Small"}


class Tokenizer:
    """The local model's tokenizer with the face that the cookbook's renderers use."""

    name_or_path = "local"
    bos_token = "<|endoftext|>"

    def __init__(self, inner: GgufTokenizer) -> None:
        self._inner = inner
        self._control = re.compile("|".join(map(re.escape, sorted(inner.special, key=len, reverse=True))))

    def encode(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> list[int]:
        if split_special_tokens:
            return self._inner.encode(text)
        ids: list[int] = []
        start = 0
        for found in self._control.finditer(text):
            ids += [*self._inner.encode(text[start : found.start()]), self._inner.special[found[0]]]
            start = found.end()
        return ids + self._inner.encode(text[start:])

    def decode(self, ids: list[int], **_: Any) -> str:
        return self._inner.decode(list(ids))


def renderer_of(name: str, effort: float | None) -> Renderer:
    path = weights.ensure_weights("local/smollm2-135m-instruct")
    if name == LOCAL:
        return LocalRenderer(path)
    if name in MODELS:
        return cookbook.renderer(MODELS[name], name, effort)
    from tinker_cookbook import tokenizer_utils

    tokenizer_utils.register_tokenizer("test/model", lambda: Tokenizer(GgufTokenizer(path)))  # type: ignore[arg-type, return-value]
    return cookbook.renderer("test/model", name, effort)


def main() -> None:
    name = sys.argv[1]
    effort = float(sys.argv[2]) if len(sys.argv) > 2 else None
    renderer = renderer_of(name, effort)
    dropped = Dropped()
    runs = [json.loads(line) for line in sys.stdin]
    made = dataset.build(
        runs, renderer, lambda oid: None, lambda run: run["model"] != "other", dropped, effort
    )
    shown = []
    for example in made.examples:
        spans: list[list[Any]] = []
        for token, weight in zip(*example.rendered, strict=True):
            if not spans or spans[-1][1] != weight:
                spans.append([[], weight])
            spans[-1][0].append(token)
        shown.append([[renderer.decode(ids), weight] for ids, weight in spans])
    prompts = [
        len(renderer.prompt(run["messages"][: step["message"]], run["tools"]))
        for run in made.runs
        for step in run["steps"]
    ]
    told = {
        "examples": shown,
        "prompts": prompts,
        "differences": [difference.what for difference in made.differences],
        "dropped": list(dropped.reasons),
        "whole": made.whole,
        "unthinking": made.unthinking,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()

"""Exported rows on stdin -> what the libraries they are for would train on, as text.

    python exports.py <rows      one {"form", "renderer", "row"} a line

Output: {"FORM RENDERER": [[target text, ...] of each row]}. cookbook: the file loader itself. openai: each
message with weight 1 by the cookbook's renderer, with the row's tools. trl, dpo: loaded by datasets, the text
that a chat template puts behind the prompt; by TRL's own function where it is installed.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from renderers import MODELS, renderer_of

# In the manner of the templates on the hub: fields of objects, loops over calls, arguments through tojson.
TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>' + message.content }}
{%- if loop.first %}
{%- for tool in tools or [] %}{{- ' tool:' + tool.function.name }}{%- endfor %}
{%- endif %}
{%- if message.reasoning_content is defined %}
{{- '<think>' + message.reasoning_content + '</think>' }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + ' ' + call.function.arguments | tojson }}
{%- endfor %}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""


def by_cookbook(rows: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """FromConversationFileBuilder's targets, in the order of the rows."""
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    renderer = renderer_of(name, None)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows):  # one file each, as the loader shuffles
            path = Path(folder, f"{number}.jsonl")
            path.write_text(json.dumps(row) + "\n", encoding="utf-8")
            config = ChatDatasetBuilderCommonConfig(
                model_name_for_tokenizer=MODELS.get(name, "test/model"),
                renderer_name=name,
                max_length=4096,
                batch_size=1,
            )
            data, _ = FromConversationFileBuilder(file_path=str(path), common_config=config)()
            (datum,) = data.get_batch(0)
            tokens, weights = (datum.loss_fn_inputs[key].tolist() for key in ("target_tokens", "weights"))
            found.append(spans(renderer, tokens, weights))
    return found


def by_renderer(rows: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """The cookbook's renderer on each message that has weight."""
    renderer = renderer_of(name, None)
    found = []
    for row in rows:
        texts: list[str] = []
        plain = [{key: value for key, value in m.items() if key != "weight"} for m in row["messages"]]
        for index, message in enumerate(row["messages"]):
            if message.get("weight"):
                texts += spans(renderer, *renderer.example(plain[: index + 1], row.get("tools", [])))
        found.append(texts)
    return found


def spans(renderer: Any, tokens: Sequence[int], weights: Sequence[float]) -> list[str]:
    """The texts of the runs of tokens that have weight."""
    texts: list[list[int]] = []
    for number, (token, weight) in enumerate(zip(tokens, weights, strict=True)):
        if weight:
            if not number or not weights[number - 1]:
                texts.append([])
            texts[-1].append(token)
    return [renderer.decode(ids) for ids in texts]


def by_template(rows: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """What stands behind the prompt, for each completion of a row."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        loaded = list(datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=folder))
    found = []
    for row in loaded:
        assert set(row) in (
            {"prompt", "completion", "tools", "metadata"},
            {"prompt", "chosen", "rejected", "tools", "metadata"},
        )
        names = [key for key in ("completion", "chosen", "rejected") if key in row]
        found.append([behind(row["prompt"], row[key], json.loads(row["tools"])) for key in names])
    return found


def behind(prompt: list[Any], completion: list[Any], tools: list[Any]) -> str:
    """The text of a completion, which must go on from that of its prompt."""
    tokenizer = bytes_tokenizer()
    if importlib.util.find_spec("trl"):
        from trl.data_utils import apply_chat_template, is_conversational

        example = {"prompt": prompt, "completion": completion}
        assert is_conversational(example)
        return str(apply_chat_template(example, tokenizer, tools)["completion"])
    before = tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template([*prompt, *completion], tools=tools)["input_ids"]
    assert whole[: len(before)] == before
    return str(tokenizer.decode(whole[len(before) :]))


def bytes_tokenizer() -> Any:
    """A tokenizer of transformers whose tokens are bytes, with a template."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={byte: n for n, byte in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE)


def main() -> None:
    by = {"cookbook": by_cookbook, "openai": by_renderer, "trl": by_template, "dpo": by_template}
    asked: dict[tuple[str, str], list[Any]] = {}
    for line in sys.stdin:
        one = json.loads(line)
        asked.setdefault((one["form"], one["renderer"]), []).append(one["row"])
    print(json.dumps({f"{form} {name}": by[form](rows, name) for (form, name), rows in asked.items()}))


if __name__ == "__main__":
    main()

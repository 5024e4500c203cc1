"""A run of the unmodified tinker_cookbook.supervised.train, for check_cookbook: LOG_PATH DATA MAX_STEPS."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

BASE = "local/smollm2-135m-instruct"


class Letters:
    """A tokenizer that needs no file: one token a character, and what the cookbook calls of one."""

    bos_token, eos_token, eos_token_id, name_or_path = "", "\x02", 2, BASE

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        return [ord(letter) % 40000 + 3 for letter in text]

    def decode(self, tokens: Any, **_: Any) -> str:
        found = [tokens] if isinstance(tokens, int) else list(tokens)
        return "".join(chr(max(0, int(token) - 3)) for token in found)


def main() -> None:
    log_path, data, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tokenizer_utils.register_tokenizer(BASE, Letters)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=BASE,
        renderer_name="role_colon",
        max_length=512,
        batch_size=2,
        train_on_what=renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    )
    config = train.Config(
        log_path=log_path,
        model_name=BASE,
        recipe_name="machine-test",
        renderer_name="role_colon",
        dataset_builder=FromConversationFileBuilder(file_path=data, test_size=2, common_config=common),
        learning_rate=1e-3,
        lora_rank=8,
        num_epochs=1000,
        save_every=2,
        eval_every=2,
        max_steps=steps,
    )
    asyncio.run(train.main(config))
    print(json.dumps("finished"))


main()

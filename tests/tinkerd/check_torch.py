"""The real engine on the real weights, through the official SDK: it learns, answers, saves, converts."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tinker
from conftest import BASE
from tinker import types

from libmachine.harness import weights
from libmachine.tinkerd import adapter, daemon, engine, passes_torch

WAIT_S = 300
TOKENS_OF_PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 11173, 2, 198, 1, 4093, 198]
QUESTIONS = [
    [1780, 314, 260, 4911, 2229, 47],  # What is the secret word?
    [1780, 314, 260, 2229, 47],
    [1780, 2229, 314, 4911, 47],
    [4911, 2229, 47],
]
TURN = [2, 198, 1, 520, 9531, 198]
ANSWER = [504, 4911, 2229, 314, 5356, 11173, 2]
"""`The secret word is helpful assistant` and the end: the ids are known, so no tokenizer is needed."""


def prompt_of(question: list[int]) -> list[int]:
    return TOKENS_OF_PROMPT + question + TURN


def example(question: list[int]) -> types.Datum:
    tokens = prompt_of(question) + ANSWER
    row = [0.0] * (len(tokens) - 1 - len(ANSWER)) + [1.0] * len(ANSWER)
    inputs: Any = {"target_tokens": tokens[1:], "weights": row}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def row(datum: types.Datum) -> list[float]:
    return list(datum.loss_fn_inputs["weights"].data)


DATA = [example(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    weights.ensure_weights(BASE)
    directory = str(tmp_path_factory.mktemp("store"))
    yield directory
    daemon.stop(directory, "torch")


@pytest.fixture(scope="module")
def client(store: str) -> tinker.ServiceClient:
    url, key = daemon.connect(store, "torch")
    return tinker.ServiceClient(base_url=url, api_key=key)


@pytest.fixture(scope="module")
def trained(client: tinker.ServiceClient) -> tuple[tinker.TrainingClient, list[float]]:
    """Four steps on four examples, with the loss before each."""
    training = client.create_lora_training_client(
        base_model=BASE, rank=8, seed=1, train_unembed=False
    ).result(WAIT_S)
    losses = []
    for _ in range(4):
        told = training.forward_backward(DATA, "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=2e-3))
        losses.append(told.result(WAIT_S).metrics["loss:sum"] / (len(DATA) * len(ANSWER)))
        step.result(WAIT_S)
    return training, losses


def nll(training: tinker.TrainingClient) -> float:
    return training.forward(DATA, "cross_entropy").result(WAIT_S).metrics["loss:sum"]


def test_loss_falls(trained: tuple[tinker.TrainingClient, list[float]]) -> None:
    training, losses = trained
    print("nll", [round(loss, 3) for loss in losses])
    assert losses[-1] < losses[0] / 2
    assert nll(training) / (len(DATA) * len(ANSWER)) < losses[0] / 3


def test_it_answers_as_trained(
    client: tinker.ServiceClient, trained: tuple[tinker.TrainingClient, list[float]]
) -> None:
    path = trained[0].save_weights_for_sampler("tuned").result(WAIT_S).path
    tuned = client.create_sampling_client(model_path=path).result(WAIT_S)
    base = client.create_sampling_client(base_model=BASE).result(WAIT_S)
    prompt = types.ModelInput.from_ints(prompt_of(QUESTIONS[0]))
    params = types.SamplingParams(max_tokens=12, temperature=0)
    told = tuned.sample(prompt, 1, params).result(WAIT_S).sequences[0]
    assert (list(told.tokens), told.stop_reason) == (ANSWER, "stop")
    assert list(base.sample(prompt, 1, params).result(WAIT_S).sequences[0].tokens) != ANSWER


def test_sampling_follows_its_settings(client: tinker.ServiceClient) -> None:
    base = client.create_sampling_client(base_model=BASE).result(WAIT_S)
    prompt = types.ModelInput.from_ints(prompt_of(QUESTIONS[0]))

    def sample(**settings: Any) -> list[list[int]]:
        told = base.sample(prompt, 3, types.SamplingParams(max_tokens=6, **settings)).result(WAIT_S)
        return [list(sequence.tokens) for sequence in told.sequences]

    assert sample(seed=1) == sample(seed=1)
    assert sample(seed=1) != sample(seed=2)
    greedy = sample(temperature=0)
    assert greedy[0] == greedy[1] == greedy[2]
    assert sample(top_k=1) == greedy
    assert sample(top_p=1e-6) == greedy
    word = base.sample(prompt, 1, types.SamplingParams(max_tokens=12, temperature=0, stop=["word"]))
    assert word.result(WAIT_S).sequences[0].stop_reason == "stop"


def test_prompt_logprobs_are_those_of_training(
    trained: tuple[tinker.TrainingClient, list[float]],
) -> None:
    """Batched and padded, alone, and by the sampler: one number."""
    training, _ = trained
    together = training.forward(DATA, "cross_entropy").result(WAIT_S).loss_fn_outputs
    snapshot = training.save_weights_and_get_sampling_client().result(WAIT_S)
    for question, output in [*zip(QUESTIONS, together, strict=True)][::3]:
        row = output["logprobs"].to_numpy()
        alone = training.forward([example(question)], "cross_entropy").result(WAIT_S)
        assert np.allclose(row, alone.loss_fn_outputs[0]["logprobs"].to_numpy(), atol=1e-3)
        scored = snapshot.compute_logprobs(types.ModelInput.from_ints(prompt_of(question) + ANSWER))
        assert np.allclose(row, np.array(scored.result(WAIT_S)[1:], dtype=np.float32), atol=1e-3)


def test_gradients_are_those_of_each_example_alone(client: tinker.ServiceClient) -> None:
    """What the examples of a request begin with is computed once: the same step as one by one."""
    plain = [engine.Datum(datum.model_input.to_ints(), row(datum), row(datum)) for datum in DATA]
    assert passes_torch.shared(plain) == len(TOKENS_OF_PROMPT)
    losses = []
    for requests in ([DATA], [[datum] for datum in DATA]):
        training = client.create_lora_training_client(
            base_model=BASE, rank=8, seed=5, train_unembed=False
        ).result(WAIT_S)
        for _ in range(2):  # the first gradient of half of the adapter is 0
            for request in requests:
                training.forward_backward(request, "cross_entropy").result(WAIT_S)
            training.optim_step(types.AdamParams(learning_rate=1e-3, eps=1e-4)).result(WAIT_S)
        losses.append(nll(training))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_resumed_training_is_the_same(
    client: tinker.ServiceClient, trained: tuple[tinker.TrainingClient, list[float]]
) -> None:
    """With the optimiser's state the next step is that of the original; without it is another.

    Sampling between gradients and step, and a second model's step, change nothing.
    """
    training, _ = trained
    path = training.save_state("resume").result(WAIT_S).path
    whole = client.create_training_client_from_state_with_optimizer(path).result(WAIT_S)
    bare = client.create_training_client_from_state(path).result(WAIT_S)
    start = nll(training)
    assert nll(whole) == nll(bare) == start
    losses = []
    for each in (training, whole, bare):
        each.forward_backward(DATA, "cross_entropy").result(WAIT_S)
    snapshot = whole.save_weights_and_get_sampling_client().result(WAIT_S)
    snapshot.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result(WAIT_S)
    for each in (training, whole, bare):
        each.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT_S)
        losses.append(nll(each))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[2] != pytest.approx(losses[1], rel=1e-4)


def test_what_does_not_fit_is_refused(client: tinker.ServiceClient) -> None:
    training = client.create_lora_training_client(base_model=BASE, rank=2, train_unembed=False).result(WAIT_S)
    long: Any = {"target_tokens": [5] * 9000, "weights": [1.0] * 9000}
    datum = types.Datum(model_input=types.ModelInput.from_ints([5] * 9000), loss_fn_inputs=long)
    with pytest.raises(tinker.RequestFailedError, match=r"9000 tokens, the context of .* 8192"):
        training.forward_backward([datum], "cross_entropy").result(WAIT_S)
    odd: Any = {"target_tokens": [70000], "weights": [1.0]}
    datum = types.Datum(model_input=types.ModelInput.from_ints([5]), loss_fn_inputs=odd)
    with pytest.raises(tinker.RequestFailedError, match=r"70000 .* is not in the vocabulary"):
        training.forward_backward([datum], "cross_entropy").result(WAIT_S)


@pytest.fixture(scope="module")
def served(trained: tuple[tinker.TrainingClient, list[float]]) -> str:
    """A checkpoint that is converted once, by whoever asks first."""
    return trained[0].save_weights_for_sampler("served").result(WAIT_S).path


def test_chat_answers_as_trained(store: str, served: str) -> None:
    """A checkpoint by its address: converted by the thread that trains while the request waits."""
    url, key = daemon.connect(store, "torch")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=WAIT_S)
    asked: Any = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "What is the secret word?"},
    ]

    def said(model: str) -> Any:
        return client.chat.completions.create(model=model, messages=asked, temperature=0, max_tokens=12)

    told = said(served)
    assert told.choices[0].message.content == "The secret word is helpful assistant"
    assert told.choices[0].finish_reason == "stop"
    assert told.usage.prompt_tokens == len(prompt_of(QUESTIONS[0]))
    assert said(BASE).choices[0].message.content != told.choices[0].message.content
    assert served in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        said(served + "x")


def test_adapter_is_the_same_in_llama(store: str, served: str) -> None:
    told = daemon.adapter(store, "torch", served)
    print("mean difference", round(told["difference"], 4), "on", told["prompts"], "prompts")
    assert told["prompts"] == 20
    assert 0 < told["difference"] <= adapter.MOST_DIFFERENCE
    assert os.stat(told["file"]).st_mode & 0o777 == 0o600
    assert Path(told["file"]).read_bytes()[:4] == b"GGUF"
    assert daemon.adapter(store, "torch", served) == told, "once per checkpoint"


def test_unembedding_is_trained_but_not_converted(store: str, client: tinker.ServiceClient) -> None:
    """The cookbook always asks for it; llama.cpp cannot serve it where embeddings are shared."""
    from libmachine.errors import MachineError

    training = client.create_lora_training_client(base_model=BASE, rank=2, seed=1).result(WAIT_S)
    before = nll(training)
    training.forward_backward(DATA, "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT_S)
    assert nll(training) < before
    path = training.save_weights_for_sampler("unembed").result(WAIT_S).path
    with pytest.raises(MachineError, match="train_unembed=False"):
        daemon.adapter(store, "torch", path)
    gc.collect()

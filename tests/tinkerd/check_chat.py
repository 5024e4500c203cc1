"""OpenAI's endpoint of the local trainer, asked by the official SDK; and what decides who computes."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
import tinker
from conftest import BASE, KEY, Recorded
from tinker import types

from libmachine.errors import ProviderError
from libmachine.harness import shared, template, weights
from libmachine.harness.base import Request, Sampling
from libmachine.harness.gguf_tokenizer import GgufTokenizer
from libmachine.tinkerd import chat
from libmachine.tinkerd.processor import Processor

WAIT_S = 30
ASKED: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is rain?"}]
LOOK: Any = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(recorded: Recorded) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{recorded.url}/v1", api_key=KEY, max_retries=0, timeout=WAIT_S)


@pytest.fixture(scope="module")
def path(recorded: Recorded) -> str:
    """A checkpoint that learned an answer to ASKED, and a call to it where a tool is on offer."""
    tokenizer = GgufTokenizer(weights.ensure_weights(BASE))
    training = tinker.ServiceClient(base_url=recorded.url, api_key=KEY).create_lora_training_client(
        base_model=BASE, rank=8, seed=1, train_unembed=False
    )
    data = []
    for tools, said in ([], "Water from clouds."), ([LOOK], CALL):
        prompt = template.render(ASKED, tools, tokenizer.encode, tokenizer.special)
        answer = [*tokenizer.encode(said), tokenizer.special[template.END]]
        tokens = prompt + answer
        row = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
        inputs: Any = {"target_tokens": tokens[1:], "weights": row}
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    training.forward_backward(data, "cross_entropy").result(WAIT_S)
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result(WAIT_S)
    return training.save_weights_for_sampler("tuned").result(WAIT_S).path


def said(client: openai.OpenAI, model: str = BASE, **settings: Any) -> Any:
    return client.chat.completions.create(model=model, messages=ASKED, **settings)


def test_models(client: openai.OpenAI, path: str) -> None:
    assert [model.id for model in client.models.list()] == [BASE, path]
    assert client.models.retrieve(BASE).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("local/other")


def test_the_base_is_the_same_every_time(client: openai.OpenAI) -> None:
    one, two = (said(client, temperature=0, seed=seed) for seed in (1, 2))
    assert one.choices[0].message.content == two.choices[0].message.content
    drawn = {said(client, seed=seed).choices[0].message.content for seed in range(6)}
    assert len(drawn) > 1
    assert said(client, seed=3).choices[0].message.content in drawn
    assert (one.choices[0].finish_reason, one.model, one.usage) == ("stop", BASE, None)
    cut = said(client, temperature=0, max_tokens=1).choices[0]
    assert (cut.finish_reason, cut.message.content) == ("length", one.choices[0].message.content.split()[0])


def test_trained_weights_say_what_they_learned(client: openai.OpenAI, path: str) -> None:
    for model in (path, f"{BASE}+{path.encode().hex()}"):
        told = said(client, model)
        assert told.choices[0].message.content == "Water from clouds."
        assert told.usage.total_tokens == told.usage.prompt_tokens + told.usage.completion_tokens
        assert told.usage.completion_tokens == 5
    assert said(client, path, max_tokens=2).choices[0].finish_reason == "length"
    stopped = said(client, path, stop=["cloud"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("Water from ", "stop")


def test_tools(client: openai.OpenAI, path: str) -> None:
    choice = said(client, path, tools=[LOOK]).choices[0]
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.function.name, call.function.arguments) == ("look", '{"at": 1}')
    assert said(client, path, tools=[LOOK], tool_choice="none").choices[0].message.tool_calls is None
    follow = [*ASKED, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "a barn"}]
    told = client.chat.completions.create(model=path, messages=follow, tools=[LOOK])
    assert told.choices[0].finish_reason in ("stop", "tool_calls")


def test_streams(client: openai.OpenAI, path: str) -> None:
    pieces = list(said(client, path, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == "Water from clouds."
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices] == [None, "stop"]
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 5
    assert pieces[-1].choices == []
    assert len({piece.id for piece in pieces}) == 1
    with client.chat.completions.stream(model=path, messages=ASKED, tools=[LOOK]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.arguments == '{"at": 1}'


def test_a_long_wait_is_filled(
    client: openai.OpenAI, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "BEAT_S", 0.05)
    speaker, held = recorded.chat._speaker, threading.Event()
    complete = speaker.complete

    def slow(*words: Any) -> Any:
        held.wait(WAIT_S)
        return complete(*words)

    monkeypatch.setattr(speaker, "complete", slow)
    body = {"model": BASE, "messages": ASKED, "stream": True}
    with ask(recorded, "/v1/chat/completions", body) as answer:
        assert [answer.readline() for _ in range(4)] == [b": waiting\n", b"\n"] * 2
        assert recorded.chat.busy()
        held.set()
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert not recorded.chat.busy()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 2}, "n", "unsupported_value"),
        ({"logprobs": True}, "logprobs", "unsupported_value"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"beams": 3}, "beams", "unsupported_parameter"),
        ({"temperature": "warm"}, "temperature", None),
        ({"top_p": 1.5}, "top_p", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"seed": 1.5}, "seed", None),
        ({"stop": [1]}, "stop", None),
        ({"tools": [{"type": "custom"}]}, "tools", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages", None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", None),
    ],
)
def test_what_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str, code: str | None) -> None:
    body = {"model": BASE, "messages": ASKED, **fields}
    with pytest.raises(openai.BadRequestError) as told:
        client.post("/chat/completions", body=body, cast_to=object)
    assert (told.value.param, told.value.code, told.value.type) == (param, code, "invalid_request_error")


def test_what_is_ignored_and_neutral(client: openai.OpenAI) -> None:
    told = said(
        client, n=1, user="me", frequency_penalty=0, logprobs=False, parallel_tool_calls=True, top_p=1
    )
    assert told.choices[0].message.content


def test_models_that_are_not_there(client: openai.OpenAI) -> None:
    for model in ("gpt-9", "local/other", f"{BASE}+{b'tinker://none/sampler_weights/x'.hex()}"):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as told:
                said(client, model, stream=stream)
            assert told.value.code == "model_not_found"


def ask(recorded: Recorded, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    wanted = {"Authorization": f"Bearer {KEY}", **headers}
    return urllib.request.urlopen(urllib.request.Request(recorded.url + path, data, wanted), timeout=WAIT_S)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer tml-other"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_strangers(recorded: Recorded, headers: dict[str, str], status: int) -> None:
    for path in ("/v1/models", "/v1/chat/completions"):
        with pytest.raises(urllib.error.HTTPError) as told:
            ask(recorded, path, {} if "chat" in path else None, **headers)
        assert told.value.code == status
        assert set(json.loads(told.value.read())["error"]) == {"message", "type", "param", "code"}


# the private route ----------------------------------------------------------------------


def served(recorded: Recorded, folder: Any) -> shared.Server:
    """A client of ours that finds the server by its runtime file."""
    place = folder / "tinkerd" / "fake"
    place.mkdir(parents=True)
    runtime = {"port": recorded.server.server_port, "key": KEY, "pid": 1}
    (place / "runtime.json").write_text(json.dumps(runtime))
    (place / "lock").touch()
    return shared.Server(str(folder), "fake")


def test_our_own_route(recorded: Recorded, path: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = served(recorded, tmp_path)
    request = Request(ASKED, [], Sampling(max_tokens=50), WAIT_S)
    with pytest.raises(shared.Gone, match="no server runs"):  # a runtime file whose lock nobody holds
        server.complete(path, [], shared.FAKE, f"{path}#fake", request)
    monkeypatch.setattr(shared, "is_locked", lambda path: True)
    told = server.complete(path, [], shared.FAKE, f"{path}#fake", request)
    assert told.message["content"] == "Water from clouds."
    assert told.tokens is not None and told.tokens["completion"][-1] == 2
    assert len(told.tokens["logprobs"]) == told.completion_tokens == 5
    with pytest.raises(shared.Gone, match="not local:other with"):  # it would answer otherwise
        server.complete(path, [], "local:other", f"{path}#fake", request)
    with pytest.raises(shared.Gone, match="no model"):
        server.complete("local/other", [], shared.FAKE, "local/other#fake", request)
    server.close()
    with pytest.raises(ProviderError, match="closed"):
        server.complete(path, [], shared.FAKE, f"{path}#fake", request)


# who computes ---------------------------------------------------------------------------


def test_training_and_calls_take_turns() -> None:
    """Calls go together, training alone; what waits for the other side goes before its next."""
    processor, order = Processor(threading.Event()), []
    together = threading.Barrier(3, timeout=WAIT_S)
    release = threading.Event()

    def call(name: str, meet: bool) -> None:
        with processor.call():
            order.append(name)
            together.wait() if meet else None
            release.wait(WAIT_S) if meet else None

    def train(name: str) -> None:
        with processor.training():
            order.append(name)

    threads = [threading.Thread(target=call, args=("call", True)) for _ in range(2)]
    for thread in threads:
        thread.start()
    together.wait()  # two calls are in, at once
    later = [threading.Thread(target=train, args=(f"train {n}",)) for n in range(2)]
    for thread in later:
        thread.start()
    until(lambda: processor._training_waits == 2)
    last = threading.Thread(target=call, args=("late call", False))
    last.start()
    until(lambda: processor._calls_wait == 1)
    assert order == ["call", "call"]
    release.set()
    for thread in [*threads, *later, last]:
        thread.join(WAIT_S)
    assert [name.split()[0] for name in order] == ["call", "call", "train", "late", "train"]


def test_waiting_ends_with_the_server() -> None:
    closed = threading.Event()
    processor = Processor(closed)
    with processor.training():
        closed.set()
        with pytest.raises(ProviderError, match="stopping"), processor.call():
            pass
    assert (processor._calls_wait, processor._admitted) == (0, 0)


def until(true: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)

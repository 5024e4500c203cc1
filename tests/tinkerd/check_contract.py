"""The official SDK against the local trainer: every endpoint, and the shape of what is sent.

A new version of the SDK fails here first. What to do then: read its `resources/`, `types/` and
`proto/`, capture the wire again, adapt libmachine.tinkerd, and raise VERSION.
"""

from __future__ import annotations

import inspect
import json
import re
import time
import urllib.error
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from conftest import BASE, KEY, Recorded
from tinker import types

VERSION = "0.38.0"
WAIT_S = 30
TOKENS = [1, 5, 6, 7, 8, 2]
PROMPT = TOKENS[:3]
SERVED_NOT = {
    *("/api/v1/auth/token", "/api/v1/copy_weights", "/api/v1/create_custom_loss"),
    *("/api/v1/join_sampling_session", "/api/v1/retrieve_futures", "/api/v1/save_weights_external"),
    *("/api/v1/unload_model", "/api/v1/sessions/search", "/api/v1/sessions/{}/project"),
    *("/api/v1/sessions/{}/trace_export", "/api/v1/training_runs/{}/checkpoints/{}/publish"),
    "/api/v1/training_runs/{}/checkpoints/{}/external_weights_urls",
}
"""Paths in the SDK that the trainer answers with 404."""


def datum(tokens: list[int] = TOKENS, learned: int = 3) -> types.Datum:
    weights = [0.0] * (len(tokens) - 1 - learned) + [1.0] * learned
    inputs: Any = {"target_tokens": tokens[1:], "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


@pytest.fixture(scope="module")
def client(recorded: Recorded) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=recorded.url, api_key=KEY, user_metadata={"who": "test"})


@pytest.fixture(scope="module")
def rest(recorded: Recorded) -> tinker.RestClient:
    return tinker.RestClient(base_url=recorded.url, api_key=KEY)


@pytest.fixture(scope="module")
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(
        base_model=BASE, rank=8, seed=1, train_unembed=False, user_metadata={"run": "one"}
    ).result(WAIT_S)


def test_version() -> None:
    assert metadata.version("tinker") == VERSION, "the protocol may have moved: see the top of this file"


def test_paths_of_the_sdk() -> None:
    """Every path the SDK knows is served here, or listed as not."""
    package = Path(inspect.getfile(tinker)).parent
    sources = [*(package / "resources").glob("*.py"), *(package / "lib" / "public_interfaces").glob("*.py")]
    found = set()
    for source in sources:
        if source.name == "admin_client.py":
            continue
        found |= {
            re.sub(r"\{[^}]*\}", "{}", path) for path in re.findall(r'"(/api/v1/[^"]*)"', source.read_text())
        }
    assert found - SERVED_NOT == {
        *(f"/api/v1/{path}" for path in ("client/config", "client/dynamic_config", "create_session")),
        *(f"/api/v1/{path}" for path in ("session_heartbeat", "create_model", "get_info", "optim_step")),
        *(f"/api/v1/{path}" for path in ("forward_backward", "save_weights", "save_weights_for_sampler")),
        *(f"/api/v1/{path}" for path in ("load_weights", "create_sampling_session", "samplers/{}")),
        *(f"/api/v1/{path}" for path in ("asample", "retrieve_future", "sessions/{}/finish", "telemetry")),
        *(f"/api/v1/{path}" for path in ("get_server_capabilities", "healthz", "training_runs")),
        *(f"/api/v1/{path}" for path in ("training_runs/{}", "training_runs/{}/checkpoints", "checkpoints")),
        "/api/v1/training_runs/{}/checkpoints/{}",
        "/api/v1/training_runs/{}/checkpoints/{}/ttl",
        *("/api/v1/weights_info", "/api/v1/sessions", "/api/v1/sessions/{}"),
    }


def test_fields_of_requests() -> None:
    """Fields that the SDK may send. A new one may mean something that the trainer must not ignore."""
    wanted = {
        types.LoadWeightsRequest: "base_model model_id model_seq_id optimizer optimizer_config path seq_id "
        "session_id type user_metadata weights_access_token",
        types.SaveWeightsRequest: "model_id overwrite path seq_id ttl_seconds type user_metadata",
        types.SaveWeightsForSamplerRequest: "kind model_id path sampling_session_seq_id seq_id ttl_seconds "
        "type user_metadata",
        types.SampleRequest: "base_model model_path num_samples prompt prompt_alt_tokens_k prompt_logprobs "
        "prompt_logprobs_last_n record_stability_info sampling_params sampling_session_id seq_id "
        "target_prompt_logprobs topk_prompt_logprobs topk_sample_logprobs type",
        types.SamplingParams: "max_tokens seed stop temperature top_k top_p",
        types.CreateModelRequest: "base_model lora_config model_seq_id optimizer_config session_id type "
        "user_metadata",
        types.LoraConfig: "rank seed train_attn train_mlp train_unembed",
        types.AdamParams: "beta1 beta2 eps grad_clip_norm learning_rate weight_decay",
    }
    for model, names in wanted.items():
        assert sorted(model.model_fields) == names.split(), model.__name__


def test_fields_of_messages() -> None:
    from tinker.proto import tinker_public_pb2 as pb

    def shape(message: Any) -> dict[str, int]:
        return {field.name: field.number for field in message.DESCRIPTOR.fields}

    assert shape(pb.ForwardBackwardRequest) == {
        **{"model_id": 1, "seq_id": 2, "data": 3, "loss_fn": 4, "loss_fn_config": 5, "forward_only": 6},
        "loss_fn_config_v2": 7,
    }
    assert shape(pb.Datum).keys() == {
        *("model_input", "loss_fn_inputs", "model_input_spans", "loss_fn_input_spans")
    }
    assert shape(pb.ForwardBackwardOutput).keys() == {"loss_fn_output_type", "loss_fn_outputs", "metrics"}


def test_capabilities_and_health(rest: tinker.RestClient, recorded: Recorded) -> None:
    [model] = rest.get_server_capabilities().result(WAIT_S).supported_models
    assert (model.model_name, model.trainable, model.sampleable) == (BASE, True, True)
    assert get(recorded, "healthz")["status"] == "ok"


def get(recorded: Recorded, path: str, **headers: str) -> Any:
    request = urllib.request.Request(f"{recorded.url}/api/v1/{path}", headers={"X-API-Key": KEY, **headers})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-API-Key": "tml-other"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_strangers(recorded: Recorded, headers: dict[str, str], status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as told:
        get(recorded, "healthz", **headers)
    assert told.value.code == status
    assert json.loads(told.value.read())["category"] == "user"


def test_info(training: tinker.TrainingClient) -> None:
    info = training.get_info()
    assert (info.is_lora, info.lora_rank, info.model_data.model_name) == (True, 8, BASE)


def test_training(training: tinker.TrainingClient) -> None:
    """Loss falls; loss:sum is the weighted sum of the log-probabilities; forward changes nothing."""
    losses = []
    for _ in range(3):
        losses_future = training.forward_backward([datum(), datum([1, 9, 2], 1)], "cross_entropy")
        step = training.optim_step(types.AdamParams(learning_rate=1e-3))
        told = losses_future.result(WAIT_S)
        step.result(WAIT_S)
        losses.append(told.metrics["loss:sum"])
        rows = [output["logprobs"].to_numpy() for output in told.loss_fn_outputs]
        assert [len(row) for row in rows] == [5, 2]
        assert losses[-1] == pytest.approx(-(rows[0][2:].sum() + rows[1][1:].sum()), rel=1e-5)
    assert losses[0] > losses[1] > losses[2]
    once, again = (training.forward([datum()], "cross_entropy").result(WAIT_S).metrics for _ in range(2))
    assert once == again


def test_many_chunks_keep_their_order(training: tinker.TrainingClient) -> None:
    """Over 1024 examples go in several requests, the first of them last."""
    data = [datum([1, number % 1000, 2], 1) for number in range(2500)]
    told = training.forward(data, "cross_entropy").result(WAIT_S)
    assert len(told.loss_fn_outputs) == 2500
    single = training.forward(data[2400:2401], "cross_entropy").result(WAIT_S)
    assert np.allclose(
        told.loss_fn_outputs[2400]["logprobs"].to_numpy(), single.loss_fn_outputs[0]["logprobs"].to_numpy()
    )


def test_checkpoints(
    client: tinker.ServiceClient, rest: tinker.RestClient, training: tinker.TrainingClient
) -> None:
    path = training.save_state("000001", ttl_seconds=3600, user_metadata={"a": "b"}).result(WAIT_S).path
    assert path == f"tinker://{training.model_id}/weights/000001"
    training.save_state("000001", overwrite=True).result(WAIT_S)
    [saved] = rest.list_checkpoints(training.model_id).result(WAIT_S).checkpoints
    assert (saved.checkpoint_id, saved.expires_at, saved.user_metadata) == ("weights/000001", None, None)
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(WAIT_S)
    [saved] = rest.list_user_checkpoints().result(WAIT_S).checkpoints
    assert saved.expires_at is not None
    assert (saved.expires_at - saved.time).total_seconds() == pytest.approx(7200, abs=30)
    info = rest.get_weights_info_by_tinker_path(path).result(WAIT_S)
    assert (info.base_model, info.lora_rank, info.train_unembed, info.train_mlp) == (BASE, 8, False, True)
    [run] = rest.list_training_runs().result(WAIT_S).training_runs
    assert rest.get_training_run(training.model_id).result(WAIT_S) == run
    assert run.user_metadata == {"run": "one"}
    for restored in (
        client.create_training_client_from_state_with_optimizer(path).result(WAIT_S),
        client.create_training_client_from_state(path).result(WAIT_S),
    ):
        assert restored.model_id != training.model_id
        ours, theirs = (
            each.forward([datum()], "cross_entropy").result(WAIT_S).metrics for each in (training, restored)
        )
        assert ours == theirs
    rest.delete_checkpoint_from_tinker_path(path).result(WAIT_S)
    assert rest.list_checkpoints(training.model_id).result(WAIT_S).checkpoints == []


def test_load_state_into_a_model_that_is_there(client: tinker.ServiceClient) -> None:
    trained = client.create_lora_training_client(base_model=BASE, rank=4, train_unembed=False).result(WAIT_S)
    before = trained.forward([datum()], "cross_entropy").result(WAIT_S).metrics
    path = trained.save_state("start").result(WAIT_S).path
    trained.forward_backward([datum()], "cross_entropy")
    trained.optim_step(types.AdamParams()).result(WAIT_S)
    with pytest.warns(FutureWarning):
        trained.load_state_with_optimizer(path).result(WAIT_S)
    assert trained.forward([datum()], "cross_entropy").result(WAIT_S).metrics == before


def test_sampling(client: tinker.ServiceClient, training: tinker.TrainingClient, recorded: Recorded) -> None:
    path = training.save_weights_for_sampler("000001", ttl_seconds=3600).result(WAIT_S).path
    assert path == f"tinker://{training.model_id}/sampler_weights/000001"
    params = types.SamplingParams(max_tokens=9, temperature=0, stop=[2])
    prompt = types.ModelInput.from_ints(PROMPT)
    tuned = client.create_sampling_client(model_path=path).result(WAIT_S)
    told = tuned.sample(prompt, 2, params).result(WAIT_S)
    assert [list(sequence.tokens) for sequence in told.sequences] == [TOKENS[3:]] * 2
    assert {sequence.stop_reason for sequence in told.sequences} == {"stop"}
    assert [len(sequence.logprobs or []) for sequence in told.sequences] == [3, 3]
    short = tuned.sample(prompt, 1, types.SamplingParams(max_tokens=1)).result(WAIT_S).sequences[0]
    assert (short.stop_reason, len(short.tokens)) == ("length", 1)
    base = client.create_sampling_client(base_model=BASE).result(WAIT_S)
    assert list(base.sample(prompt, 1, params).result(WAIT_S).sequences[0].tokens) != TOKENS[3:]
    sampler = get(recorded, f"samplers/{recorded.asked[-1][2]['request_id'].rpartition(':')[0]}")
    assert (sampler["base_model"], sampler["model_path"]) == (BASE, None)


def test_prompt_logprobs_are_those_of_training(training: tinker.TrainingClient) -> None:
    """What the cookbook's evaluator needs: position by position the same as forward's."""
    snapshot = training.save_weights_and_get_sampling_client().result(WAIT_S)
    told = snapshot.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result(WAIT_S)
    forward = training.forward([datum()], "cross_entropy").result(WAIT_S).loss_fn_outputs[0]["logprobs"]
    assert told[0] is None
    assert np.allclose(np.array(told[1:], dtype=np.float32), forward.to_numpy())
    last = snapshot.compute_logprobs(types.ModelInput.from_ints(TOKENS), 2).result(WAIT_S)
    assert last[:-2] == [None] * 4
    assert last[-2:] == told[-2:]


def test_snapshot_is_of_its_time(training: tinker.TrainingClient) -> None:
    snapshot = training.save_weights_and_get_sampling_client().result(WAIT_S)
    before = snapshot.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result(WAIT_S)
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(types.AdamParams()).result(WAIT_S)
    assert snapshot.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result(WAIT_S) == before


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"base_model": "Qwen/Qwen3-8B"}, "base model 'Qwen/Qwen3-8B' is not served"),
        ({"base_model": BASE, "rank": 9999}, "rank 9999 is not served"),
    ],
)
def test_models_that_are_refused(client: tinker.ServiceClient, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(tinker.RequestFailedError, match=told):
        client.create_lora_training_client(**asked).result(WAIT_S)


def test_losses_that_are_refused(client: tinker.ServiceClient) -> None:
    """By name; the step after it is refused too, and does not use half of the gradients."""
    trained = client.create_lora_training_client(base_model=BASE, rank=4, train_unembed=False).result(WAIT_S)
    failing = trained.forward_backward([datum()], "ppo")
    step = trained.optim_step(types.AdamParams())
    with pytest.raises(tinker.RequestFailedError, match="loss function 'ppo' is not served"):
        failing.result(WAIT_S)
    with pytest.raises(tinker.RequestFailedError, match="the forward_backward before it failed"):
        step.result(WAIT_S)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x" * 200])
def test_names_that_are_refused(client: tinker.ServiceClient, name: str, recorded: Recorded) -> None:
    trained = client.create_lora_training_client(base_model=BASE, rank=4, train_unembed=False).result(WAIT_S)
    with pytest.raises(tinker.RequestFailedError, match="is no name"):
        trained.save_state(name).result(WAIT_S)
    assert not list(recorded.folder.parent.glob("up*"))


def test_sampling_that_is_refused(client: tinker.ServiceClient) -> None:
    base = client.create_sampling_client(base_model=BASE).result(WAIT_S)
    prompt = types.ModelInput.from_ints(PROMPT)
    for extra in ({"topk_prompt_logprobs": 3}, {"topk_sample_logprobs": 3}, {"prompt_alt_tokens_k": 2}):
        with pytest.raises(tinker.APIStatusError, match=f"{next(iter(extra))} is not served"):
            base.sample(prompt, 1, types.SamplingParams(max_tokens=1), **extra).result(WAIT_S)
    with pytest.raises(tinker.NotFoundError, match="no checkpoint"):
        client.create_sampling_client(model_path="tinker://nobody/sampler_weights/x").result(WAIT_S)


def test_a_request_that_is_sent_again_runs_once(recorded: Recorded, training: tinker.TrainingClient) -> None:
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(types.AdamParams()).result(WAIT_S)
    body = next(body for _, path, body in reversed(recorded.asked) if path.endswith("/optim_step"))
    before = training.forward([datum()], "cross_entropy").result(WAIT_S).metrics
    data = json.dumps(body).encode()
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{recorded.url}/api/v1/optim_step", data, headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert json.loads(answer.read())["model_id"] == training.model_id
    assert training.forward([datum()], "cross_entropy").result(WAIT_S).metrics == before


def test_files_are_private(recorded: Recorded) -> None:
    found = [path for path in recorded.folder.rglob("*") if path.is_file()]
    assert found
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in recorded.folder.rglob("*") if path.is_dir()} == {0o700}


def test_a_checkpoint_survives_being_replaced(tmp_path: Path) -> None:
    """Killed between the two renames of a replacement: the old one is there again."""
    from libmachine.tinkerd.checkpoints import Checkpoints, Place
    from libmachine.tinkerd.engine import Lora

    place, lora = Place("run", "weights", "one"), Lora(4, 1)
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.put_run("run", {"time": "", "lora": lora._asdict()})
    checkpoints.save(place, {"file": b"old"}, lora, {}, True)
    folder = Path(checkpoints.folder(place))
    folder.rename(folder.with_name(".old-one"))
    again = Checkpoints(str(tmp_path))
    assert again.load(place)["file"] == b"old"
    again.save(place, {"file": b"new"}, lora, {"overwrite": True}, True)
    assert Checkpoints(str(tmp_path)).load(place)["file"] == b"new"
    assert [entry.name for entry in folder.parent.iterdir()] == ["one"]


def test_zstd(recorded: Recorded) -> None:
    import zstandard

    from libmachine.tinkerd.engine import Refusal
    from libmachine.tinkerd.wire import unpacked

    assert unpacked(zstandard.ZstdCompressor().compress(b"abc" * 1000), "zstd") == b"abc" * 1000
    with pytest.raises(Refusal, match="no zstd"):
        unpacked(b"abc", "zstd")


def test_end_of_a_session(recorded: Recorded) -> None:
    """Its models are gone, and its weights without a name; checkpoints stay."""
    client = tinker.ServiceClient(base_url=recorded.url, api_key=KEY)
    trained = client.create_lora_training_client(base_model=BASE, rank=4, train_unembed=False).result(WAIT_S)
    session = trained.model_id.partition(":")[0]
    before = set(recorded.folder.glob(".tmp-*"))
    trained.save_weights_and_get_sampling_client().result(WAIT_S)
    assert len(set(recorded.folder.glob(".tmp-*")) - before) == 1
    assert get(recorded, f"sessions/{session}")["training_run_ids"] == [trained.model_id]
    assert session in get(recorded, "sessions")["sessions"]
    client.close("success").result(WAIT_S)
    assert session not in get(recorded, "sessions")["sessions"]
    assert set(recorded.folder.glob(".tmp-*")) == before


def test_wire_is_as_captured(recorded: Recorded) -> None:
    """The fields of every JSON request are those of the capture: the SDK still says the same."""
    ours: dict[tuple[str, str], list[set[str]]] = {}
    for method, path, body in recorded.asked:
        if isinstance(body, dict):
            ours.setdefault((method, _template(path)), []).append(set(body))
    captured = [json.loads(line) for line in Path(__file__).with_name("wire.jsonl").read_text().splitlines()]
    for call in captured:
        key = (call["m"], _template(call["path"]))
        if isinstance(call["req"], dict) and "base64" not in call["req"] and key in ours:
            assert any(set(call["req"]) <= fields for fields in ours[key]), key


def _template(path: str) -> str:
    return re.sub(r"/(samplers|sessions|training_runs)/[^/]+", r"/\1/{}", path)


def test_every_endpoint_was_asked(recorded: Recorded) -> None:
    """Keep this the last test: what it names was never tried above."""
    deadline = time.monotonic() + 15
    while not any(path.endswith("/session_heartbeat") for _, path, _ in recorded.asked):
        assert time.monotonic() < deadline, "the SDK sends a heartbeat every ten seconds"
        time.sleep(0.2)
    asked = {(method, path) for method, path, _ in recorded.asked}
    missing = [
        (method, pattern.pattern)
        for method, pattern, _ in recorded.server.routes
        if not any(method == verb and pattern.fullmatch(path) for verb, path in asked)
    ]
    missing = [path for _, path in missing if "machine/" not in path and path.startswith("/api/")]
    assert missing == []

"""The requests of the Tinker protocol that do something: sessions, training, saving, sampling.

Every method takes a request's JSON body (or protobuf message) and answers with JSON. What computes is
queued and answered with a request_id, which `retrieve` is then asked for. Numbers in brackets are the
rows of the endpoint table in reference/tinker.md.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from libmachine.canon import Record, canonical, loads
from libmachine.tinkerd import asked, wire
from libmachine.tinkerd.adapter import MOST_DIFFERENCE
from libmachine.tinkerd.checkpoints import ADAPTER_FILES, Checkpoints, Place, parse, write_private
from libmachine.tinkerd.engine import BASE_MODEL, Engine, Lora, Refusal, Weights
from libmachine.tinkerd.futures import Answer, Future, Futures, Turn
from libmachine.tinkerd.sessions import Model, Sampler, Session, Sessions

POLL_S = 20.0
"""Seconds a retrieve_future is held; the SDK gives up at 45."""

CONVERT_S = 600.0
"""Seconds a chat request waits for its checkpoint to become an adapter."""

CLIENT_CONFIG: Record = {
    "pjwt_auth_enabled": False,
    "proto_compress_fwdbwd": False,
    "sample_use_retrieve_futures": False,
    "sample_max_concurrent_requests": 32,
    "sample_enable_stuck_detection": False,  # one processor: a long queue is not a stuck one
}


class Service:
    """One server's state. engine: computes, in one thread. say, turn: see Futures."""

    def __init__(
        self,
        engine: Engine,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
        turn: Turn = nullcontext,
    ) -> None:
        self.engine, self.checkpoints = engine, checkpoints
        self.futures = Futures(say, turn)
        self.sessions = Sessions(self._forget)

    def _forget(self, session: Session) -> None:
        for sampler in session.samplers.values():
            if sampler.folder is not None:
                shutil.rmtree(sampler.folder, ignore_errors=True)
        for model in session.models.values():
            self.futures.drop(model.id)
            self.futures.submit(f"forget:{model.id}", lambda model=model: self._drop(model))  # type: ignore[misc]

    def _drop(self, model: Model) -> Answer:
        if model.state is not None:
            self.engine.forget(model.state)
        model.state = None
        return {}

    # sessions [1-4, 15, 16] -------------------------------------------------------------

    def create_session(self, body: Record) -> Record:
        """[3] A client says hello."""
        session = self.sessions.open({"user_metadata": asked.metadata(body)})
        return {"type": "create_session", "session_id": session.id}

    def heartbeat(self, body: Record) -> Record:
        """[4] It is still there."""
        self.sessions.get(body.get("session_id"))
        return {"type": "session_heartbeat"}

    # models [5, 6] ----------------------------------------------------------------------

    def create_model(self, body: Record) -> Record:
        """[5] A new adapter on the base model."""
        session = self.sessions.get(body.get("session_id"))
        model = self._model(session, body)

        def work() -> Answer:
            asked.base_model(body.get("base_model"))
            asked.optimizer(body.get("optimizer_config"))
            lora = asked.lora(body, unembed=True)
            self._begin(model, lora, self.engine.create(lora))
            return {"type": "create_model", "model_id": model.id}

        return self._queued(self.futures.submit(f"{model.id}:0", work, model.id, 0), model)

    def _model(self, session: Session, body: Record) -> Model:
        """The model of a create request, the same one if it is sent again."""
        number = asked.whole(body, "model_seq_id")
        model_id = f"{session.id}:train:{number}"
        about = {"time": _now(), "user_metadata": asked.metadata(body), "base_model": BASE_MODEL}
        return session.models.setdefault(model_id, Model(model_id, about))

    def _begin(self, model: Model, lora: Lora, state: Any) -> None:
        if model.state is not None:
            self.engine.forget(model.state)
        model.lora, model.state, model.gradients, model.failed = lora, state, 0, ""
        self.checkpoints.put_run(model.id, {**model.about, "lora": lora._asdict()})

    def get_info(self, body: Record) -> Record:
        """[6] What a model is."""
        model = self.sessions.model(body.get("model_id"))
        data = {"arch": "llama", "model_name": BASE_MODEL, "tokenizer_id": BASE_MODEL}
        rank = None if model.lora is None else model.lora.rank
        told = {"type": "get_info", "model_id": model.id, "model_data": data, "model_name": BASE_MODEL}
        return {**told, "is_lora": True, "lora_rank": rank}

    # training [7, 8] --------------------------------------------------------------------

    def forward_backward(self, body: wire.TrainBody) -> Record:
        """[7] Losses, and gradients unless forward_only."""
        model = self.sessions.model(body.model_id)

        def work() -> Answer:
            state = _ready(model)
            try:
                data = wire.examples(body.message)
                losses = self.engine.forward_backward(state, data, not body.forward_only)
            except BaseException as error:
                if not body.forward_only:
                    model.failed = str(error) or type(error).__name__
                raise
            model.gradients += 0 if body.forward_only else len(data)
            return wire.losses_message(losses)

        return self._ordered(model, body.seq_id, work)

    def optim_step(self, body: Record) -> Record:
        """[8] One step of AdamW."""
        model = self.sessions.model(body.get("model_id"))

        def work() -> Answer:
            state, parameters = _ready(model), asked.adam(body)
            failed, gradients = model.failed, model.gradients
            model.failed, model.gradients = "", 0
            if failed:
                raise Refusal(f"no step: the forward_backward before it failed ({failed})")
            if not gradients:
                raise Refusal("no step: there was no forward_backward before it")
            return {"type": "optim_step", "metrics": dict(self.engine.optim_step(state, parameters))}

        return self._ordered(model, body.get("seq_id"), work)

    # saving and loading [9, 10, load_weights] -------------------------------------------

    def save_weights(self, body: Record) -> Record:
        """[9] A checkpoint that training can go on from."""
        model = self.sessions.model(body.get("model_id"))

        def work() -> Answer:
            place = self._save(model, "weights", body, optimizer=True)
            return {"type": "save_weights", "path": place.path}

        return self._ordered(model, body.get("seq_id"), work)

    def save_weights_for_sampler(self, body: Record) -> Record:
        """[10] A checkpoint to sample from; without a name one that lasts as long as the session."""
        model = self.sessions.model(body.get("model_id"))

        def work() -> Answer:
            if body.get("kind", "snapshot") != "snapshot":
                raise Refusal(f"weights of kind '{body['kind']}' are not served; snapshot is")
            if body.get("path") is not None:
                place = self._save(model, "sampler_weights", body, optimizer=False)
                return {"type": "save_weights_for_sampler", "path": place.path}
            files = self.engine.export(_ready(model), optimizer=False)
            assert model.lora is not None
            sampler = self._sampler(self.sessions.get(model.id.partition(":train:")[0]), body, None)
            # on disk, for an evaluation every step makes hundreds of them
            sampler.folder = folder = self.checkpoints.keep(files)
            sampler.weights = Weights(sampler.id, model.lora, lambda: self.checkpoints.kept(folder))
            return {"type": "save_weights_for_sampler", "path": None, "sampling_session_id": sampler.id}

        return self._ordered(model, body.get("seq_id"), work)

    def _save(self, model: Model, kind: str, body: Record, optimizer: bool) -> Place:
        state = _ready(model)
        assert model.lora is not None
        place = Place(model.id, kind, body.get("path") or secrets.token_hex(4))
        files = self.engine.export(state, optimizer)
        self.checkpoints.save(place, files, model.lora, body, optimizer)
        return place

    def load_weights(self, body: Record) -> Record:
        """A model from a checkpoint: a new one (session_id and model_seq_id), or one that is there."""
        new = body.get("session_id") is not None
        session = self.sessions.get(body["session_id"]) if new else None
        model = self.sessions.model(body.get("model_id")) if session is None else self._model(session, body)

        def work() -> Answer:
            if body.get("base_model") is not None:
                asked.base_model(body["base_model"])
            asked.optimizer(body.get("optimizer_config"))
            path = asked.text(body, "path")
            place = parse(path)
            lora, files = self.checkpoints.lora(place), self.checkpoints.load(place)
            self._begin(model, lora, self.engine.restore(lora, files, bool(body.get("optimizer"))))
            return {"type": "load_weights", "path": path, "model_id": model.id}

        return self._ordered(model, 0 if new else body.get("seq_id"), work)

    # sampling [11-13] -------------------------------------------------------------------

    def create_sampling_session(self, body: Record) -> Record:
        """[11] A sampler of a checkpoint, or of the base model."""
        session = self.sessions.get(body.get("session_id"))
        path = body.get("model_path")
        if path is None:
            asked.base_model(body.get("base_model"))
        elif body.get("base_model") is not None:
            asked.base_model(body["base_model"])
        sampler = self._sampler(session, body, path)
        return {"type": "create_sampling_session", "sampling_session_id": sampler.id}

    def _sampler(self, session: Session, body: Record, path: str | None) -> Sampler:
        number = asked.whole(body, "sampling_session_seq_id")
        sampler_id = f"{session.id}:sample:{number}"
        sampler = Sampler(sampler_id, path, None if path is None else self.weights(path))
        session.samplers[sampler_id] = sampler
        return sampler

    def weights(self, path: str) -> Weights:
        """The trained weights at a path. Raises Refusal (404)."""
        place = parse(path)
        meta = self.checkpoints.meta(place)
        return Weights(meta["id"], Lora(**meta["lora"]), lambda: self.checkpoints.load(place))

    def sampler(self, sampler_id: str) -> Record:
        """[12] What a sampler is."""
        sampler = self.sessions.sampler(sampler_id)
        return {"sampler_id": sampler.id, "base_model": BASE_MODEL, "model_path": sampler.model_path}

    def asample(self, body: Record) -> Record:
        """[13] Samples, and log-probabilities of the prompt."""
        sampler = self.sessions.sampler(body.get("sampling_session_id"))
        request = asked.sample(body)

        def work() -> Answer:
            return wire.sample_message(self.engine.sample(sampler.weights, request))

        request_id = f"{sampler.id}:{asked.whole(body, 'seq_id')}"
        future = self.futures.submit(request_id, work)
        names = [f"{future.id}-{number}" for number in range(request.num_samples)]
        return {"request_id": future.id, "sample_sequence_ids": names}

    def adapter(self, body: Record) -> Record:
        """Of our own: a checkpoint as GGUF, compared with torch. Answers {file, difference, prompts}."""
        place = parse(asked.text(body, "path"))
        meta = self.checkpoints.meta(place)
        file, note = (os.path.join(self.checkpoints.folder(place), name) for name in ADAPTER_FILES)
        prompts = body.get("prompts") or []

        def work() -> Answer:
            if not os.path.exists(note):
                told = self.engine.to_gguf(self.weights(place.path), file, prompts)
                write_private(note, canonical(dict(told)))
            with open(note, "rb") as kept:
                return {"type": "adapter", "file": file, **loads(kept.read())}

        return {"request_id": self.futures.submit(f"adapter:{meta['id']}:{secrets.token_hex(4)}", work).id}

    def converted(self, path: str) -> tuple[str, str]:
        """(id, GGUF file) of a checkpoint, made and compared if it was not yet. Raises Refusal."""
        key = self.checkpoints.meta(parse(path))["id"]
        future = self.futures.wait(self.adapter({"path": path})["request_id"], CONVERT_S)
        if future is None:
            raise Refusal(f"'{path}' was not converted within {CONVERT_S:.0f} s", "server", 503)
        told = future.answer
        assert isinstance(told, dict)
        if "error" in told:
            raise Refusal(f"'{path}' cannot be served: {told['error']}")
        if not told["difference"] <= MOST_DIFFERENCE:
            raise Refusal(
                f"'{path}' answers otherwise in llama.cpp than in torch, by {told['difference']:.3f} nats"
            )
        return key, told["file"]

    # futures [14] -----------------------------------------------------------------------

    def retrieve(self, body: Record) -> Answer:
        """[14] What a queued request came to, or try_again after POLL_S seconds."""
        request_id = asked.text(body, "request_id")
        future = self.futures.wait(request_id, POLL_S)
        if future is None:
            return {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        return future.answer

    def _ordered(self, model: Model, seq_id: Any, work: Callable[[], Answer]) -> Record:
        if type(seq_id) is not int or seq_id < 0:
            raise Refusal(f"seq_id '{seq_id}' is no integer from 0 on")
        return self._queued(self.futures.submit(f"{model.id}:{seq_id}", work, model.id, seq_id), model)

    def _queued(self, future: Future, model: Model) -> Record:
        return {"request_id": future.id, "model_id": model.id}


def _ready(model: Model) -> Any:
    if model.state is None:
        raise Refusal(f"model '{model.id}' could not be created; nothing can be asked of it")
    return model.state


def _now() -> str:
    return datetime.now(UTC).isoformat()

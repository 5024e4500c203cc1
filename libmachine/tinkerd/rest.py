"""The requests of the Tinker protocol that only look, or manage checkpoints."""

from __future__ import annotations

from typing import Any

from libmachine.canon import Record
from libmachine.tinkerd import asked
from libmachine.tinkerd.checkpoints import Place, listed, parse
from libmachine.tinkerd.engine import BASE_MODEL, Refusal
from libmachine.tinkerd.engine_none import NoEngine
from libmachine.tinkerd.service import Service

OWNER = "local"


def capabilities(service: Service) -> Record:
    """The models that are served: one."""
    model = {"model_name": BASE_MODEL, "max_context_length": service.engine.context}
    able = not isinstance(service.engine, NoEngine)
    return {"supported_models": [{**model, "trainable": able, "sampleable": able}]}


def sampler_paths(service: Service) -> list[str]:
    """The checkpoints that can be sampled, newest first."""
    return [place.path for place, _ in _newest(service) if place.kind == "sampler_weights"]


def _newest(service: Service) -> list[tuple[Place, Record]]:
    found = [entry for run in service.checkpoints.runs() for entry in service.checkpoints.of_run(run)]
    return sorted(found, key=lambda entry: str(entry[1]["time"]), reverse=True)


def training_run(service: Service, run: str) -> Record:
    """One run with its newest checkpoints."""
    about = service.checkpoints.run(run)
    saved = service.checkpoints.of_run(run)
    newest = {place.kind: listed(place, meta) for place, meta in saved}
    last = max([about["time"], *(meta["time"] for _, meta in saved)])
    return {
        "training_run_id": run,
        "base_model": about["base_model"],
        "model_owner": OWNER,
        "is_lora": True,
        "lora_rank": about["lora"]["rank"],
        "corrupted": False,
        "last_request_time": last,
        "last_checkpoint": newest.get("weights"),
        "last_sampler_checkpoint": newest.get("sampler_weights"),
        "user_metadata": about["user_metadata"],
    }


def training_runs(service: Service, query: Record) -> Record:
    """A page of the runs, newest first."""
    return _page([training_run(service, run) for run in service.checkpoints.runs()], query, "training_runs")


def run_checkpoints(service: Service, run: str) -> Record:
    """The checkpoints of a run."""
    service.checkpoints.run(run)
    return {"checkpoints": [listed(place, meta) for place, meta in service.checkpoints.of_run(run)]}


def all_checkpoints(service: Service, query: Record) -> Record:
    """A page of all checkpoints, newest first."""
    found = _newest(service)
    return _page([listed(place, meta) for place, meta in found], query, "checkpoints")


def delete_checkpoint(service: Service, place: Place) -> None:
    """Delete a checkpoint."""
    service.checkpoints.delete(place)


def set_ttl(service: Service, place: Place, body: Record) -> None:
    """Give a checkpoint another end, or none."""
    service.checkpoints.set_expiry(place, body.get("ttl_seconds"))


def weights_info(service: Service, body: Record) -> Record:
    """What is needed to load a checkpoint."""
    path = body.get("tinker_path") or body.get("path")
    lora = service.checkpoints.lora(parse(asked.text({"tinker_path": path}, "tinker_path")))
    return {
        "base_model": BASE_MODEL,
        "is_lora": True,
        "lora_rank": lora.rank,
        "train_unembed": lora.train_unembed,
        "train_mlp": lora.train_mlp,
        "train_attn": lora.train_attn,
    }


def session(service: Service, session_id: str) -> Record:
    """The models and samplers of a session."""
    found = service.sessions.get(session_id)
    told = {"training_run_ids": list(found.models), "sampler_ids": list(found.samplers)}
    return {**told, "user_metadata": found.about["user_metadata"]}


def _page(entries: list[Any], query: Record, name: str) -> Record:
    try:
        limit, offset = int(query.get("limit", 100)), int(query.get("offset", 0))
    except ValueError:
        raise Refusal("limit and offset are no integers") from None
    if limit < 0 or offset < 0:
        raise Refusal("limit and offset are below 0")
    cursor = {"offset": offset, "limit": limit, "total_count": len(entries)}
    return {name: entries[offset : offset + limit], "cursor": cursor}

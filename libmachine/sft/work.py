"""The second half of machine-sft: the bill, the training, the candidate."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from libmachine import console, prices
from libmachine.budget.ledger import Reservation
from libmachine.canon import Record, canonical, plain, usd
from libmachine.errors import MachineError
from libmachine.promote import put_candidate
from libmachine.purse import Purse
from libmachine.sft import service
from libmachine.sft.candidate import data_record, training_record
from libmachine.sft.examples import loss_ends
from libmachine.sft.folder import Training
from libmachine.sft.job import Job
from libmachine.sft.plan import Plan, Step
from libmachine.sft.trainer import Trainer as Loop
from libmachine.store.store import Store
from libmachine.tinkerd import daemon

_COMPARED = 20
"""Prompts on which the two engines of the local model are compared."""


class _Bill:
    """The ledger's side of a training: all must fit before the first step; each step is paid by itself,
    so that one that is killed has paid what it trained and no more."""

    def __init__(self, purse: Purse, plan: Plan, price: prices.Price | None, machine: str) -> None:
        self.ledger, self.plan, self.price = purse.ledger, plan, price
        self.what = {
            "kind": "train",
            "machine": machine,
            "model": plan.settings.base_model,
            "verb": purse.verb,
        }
        self.usd: float | None = 0.0

    def check(self, first: int) -> None:
        """Raise BudgetReached or PriceUnknown if the steps from `first` on do not fit."""
        self.ledger.release(self.ledger.reserve(self.plan.cost(self.price, first), self.what))

    def start(self, step: Step) -> Reservation:
        return self.ledger.reserve(self.plan.cost_of(self.price, step), self.what)

    def finish(self, held: Reservation, step: Step) -> None:
        amount = self.plan.cost_of(self.price, step)
        self.ledger.settle(held, amount, {"prompt_tokens": self.plan.tokens_of(step)})
        self.usd = None if amount is None or self.usd is None else self.usd + amount

    def free(self, held: Reservation) -> None:
        self.ledger.release(held)


def train(job: Job, store: Store, stop: threading.Event, purse: Purse) -> Record:
    """Train, or take up what was trained; the stored candidate."""
    assert job.trainer.address is not None
    folder = Training(job.project.store, job.plan.id)
    bill = _Bill(purse, job.plan, job.price, job.name)
    failure: BaseException | None = None
    told = f"{job.name}: training {job.plan.id}"
    try:
        result = folder.result()
        if result is not None and not _is_there(job, result):
            console.say(f"the checkpoint of training {job.plan.id} is gone; training again")
            folder.restart()
            result = None
        if result is None:
            result = _trained(job, folder, store, bill, stop)
            folder.put("result.json", result)
        else:
            console.say(f"{job.name}: trained already ({folder.path}); nothing was spent")
        record = _candidate(job, store, result)
        told = f"{job.name}: {console.count(result['steps'], 'step')}, {_losses(result)}"
        return record
    except BaseException as error:
        failure = error
        raise
    finally:
        purse.told(told, failure)
        folder.close()


def _is_there(job: Job, result: Record) -> bool:
    """Can what was trained before still be sampled? An adapter in our own store can."""
    if job.trainer.engine is not None or job.trainer.address is None:
        return True
    return service.is_there(job.trainer.address, result["sampler_path"])


def _losses(result: Record) -> str:
    ends = loss_ends(result["losses"])
    return f"loss {ends[0]:.3f} to {ends[1]:.3f}" if ends else "no loss"


def _trained(job: Job, folder: Training, store: Store, bill: _Bill, stop: threading.Event) -> Record:
    assert job.trainer.address is not None
    saved = folder.saved()
    done = int(saved.get("steps", 0)) if saved else 0
    bill.check(done)
    settings = job.plan.settings
    folder.put("config.json", plain({"machine": job.name, **settings.record(), "trainer": job.trainer.name}))
    console.say(f"training {job.plan.id}: {len(job.plan.steps)} steps; log: {folder.log}")
    bar = console.Progress("training", len(job.plan.steps), lambda: bill.usd)
    bar.resume(done)

    def tell(text: str) -> None:
        bar.clear()
        console.say(text)

    with folder.open_log() as log:

        def say(text: str) -> None:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")

        def progress(step: int, steps: int, loss: float | None) -> None:
            shown = "" if loss is None else f"loss {loss:.3f}"
            say(f"step {step} of {steps} {shown}")
            bar.step(shown)

        client = None
        succeeded = False
        try:
            say(f"training {job.plan.id} at {job.trainer.base_url}: {settings.record()}")
            client = service.Client(
                job.trainer.address,
                {"machine": job.name, "training": job.plan.id, "renderer_name": settings.renderer},
                say,
                tell,
                stop,
                None if job.trainer.engine else service.TTL_S,
            )
            result = Loop(job.plan, folder, client, bill, tell, progress, stop).train()
            result["cost_usd"] = usd(bill.usd)
            result |= _served(job, store, result["sampler_path"], say)
            succeeded = True
            return result
        except MachineError as error:
            say(f"failed: {error}")
            raise
        finally:
            bar.clear()
            if client is not None:
                client.close(succeeded)


def _served(job: Job, store: Store, path: str, say: Any) -> Record:
    """{"model", ...}: the id under which the trained weights are sampled.

    Hosted: the checkpoint's path. From our own local server: local/NAME+ADAPTER, ADAPTER the tree in the
    store that holds the adapter as llama.cpp loads it (of the fake engine: the checkpoint's address).
    """
    base, engine = job.plan.settings.base_model, job.trainer.engine
    if engine is None:
        return {"model": path}
    if engine == "fake":
        files = {"checkpoint.json": canonical({"base": base, "path": path})}
        return {"model": f"{base}+{_tree(store, files)}"}
    prompts = [_prompt(example.rendered) for example in job.plan.examples[:_COMPARED]]
    told = daemon.adapter(job.project.store, engine, path, prompts)
    say(f"adapter {told['file']}: log-probabilities differ by {told['difference']:.4f} nats from torch's")
    with open(told["file"], "rb") as file:
        adapter = _tree(store, {"adapter.gguf": file.read()})
    return {"model": f"{base}+{adapter}", "adapter": adapter, "difference": told["difference"]}


def _prompt(rendered: Any) -> list[int]:
    first = next(i for i, weight in enumerate(rendered.weights) if weight)
    return list(rendered.tokens[:first])


def _tree(store: Store, files: dict[str, bytes]) -> str:
    return store.objects.tree(("100644", name, store.blob(data)) for name, data in sorted(files.items()))


def _candidate(job: Job, store: Store, result: Record) -> Record:
    """The candidate of a finished training, stored."""
    finished = datetime.fromisoformat(result["finished_at"])
    weights: Record = {
        name: result[name]
        for name in ("state_path", "sampler_path", "adapter", "difference")
        if result.get(name) is not None
    }
    if job.trainer.engine is None:
        weights["expires_at"] = (finished + timedelta(seconds=service.TTL_S)).isoformat()
    record = put_candidate(
        job.repo,
        job.name,
        {"model.json": job.live.changed(result["model"], job.plan.settings.base_model)},
        "train",
        job.base,
        weights=weights,
        data=data_record(job.plan, job.dataset, job.dropped, job.solved, job.instructions, job.live),
        training=training_record(job.plan, result, job.warnings, result.get("cost_usd")),
    )
    # named as a part of the candidate, the adapter is reachable from refs/runs as the runs are
    parts = {"weights": result["adapter"]} if result.get("adapter") else {}
    return store.add_record(record, parts)

"""What machine-sft works with: the trainer it has found, and all of a training before money is spent."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from libmachine import env, export, prices
from libmachine.canon import Record
from libmachine.errors import MachineError, ProviderError
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.harness import shared
from libmachine.harness.local import CONTEXT
from libmachine.project import Project
from libmachine.sft import service
from libmachine.sft.candidate import Live
from libmachine.sft.dataset import Dataset
from libmachine.sft.plan import Plan
from libmachine.sft.renderers import Renderer
from libmachine.tinkerd import daemon


@dataclass(frozen=True)
class Trainer:
    """Where training happens. name: host or engine, as it enters the training's id; engine: of our own
    local server, None for others. offer: None in a dry run without one."""

    name: str
    address: service.Address | None
    engine: str | None
    offer: service.Offer | None

    @property
    def base_url(self) -> str | None:
        """Its address, None if it is not known."""
        return self.address.base_url if self.address else None

    def context(self, base_model: str) -> int | None:
        """Most tokens of an example, None if it does not say."""
        if self.offer is not None:
            return self.offer.models.get(base_model)
        return CONTEXT if base_model.startswith("local/") else None


def find(project: Project, base_model: str, base_url: str | None, must: bool) -> Trainer:
    """The trainer: --base-url, TINKER_BASE_URL, the local one for local models (started), else Tinker's.

    must: it has to answer and to train the model; else (a dry run) it is asked if it is there, and
    none is started. Raises MachineError.
    """
    url = base_url or env.get("TINKER_BASE_URL")
    key = env.key_of("tinker")
    is_local = base_model.startswith("local/")
    if url is None and is_local:
        ours = shared.chosen() or "torch"
        if must:
            url, key = daemon.connect(project.store, ours)
        else:
            found = daemon.running(project.store, ours)
            url, key = (daemon.base_url(found), str(found["key"])) if found else (None, None)
            if found is None:
                return Trainer(f"local/{ours}", None, ours, None)
    url = (url or service.DEFAULT_URL).rstrip("/")
    engine = _engine_of(project, url) if is_local else None
    name = f"local/{engine}" if engine else urlsplit(url).hostname or url
    if key is None:
        if must:
            raise MachineError(f"no key for the trainer at '{url}'; set TINKER_API_KEY")
        return Trainer(name, service.Address(url, ""), engine, None)
    address = service.Address(url, key)
    try:
        offer = service.preflight(address)
    except ProviderError:
        if must:
            raise
        return Trainer(name, address, engine, None)
    if must and offer.models and base_model not in offer.models:
        shown = ", ".join(sorted(offer.models)[:8])
        raise MachineError(f"the trainer at '{url}' does not train '{base_model}'; it trains: {shown}")
    return Trainer(name, address, engine, offer)


def _engine_of(project: Project, url: str) -> str | None:
    """The engine of our own local server at an address, None if another one is there."""
    if not prices.is_private(url):
        return None
    for engine in daemon.ENGINES:
        found = daemon.running(project.store, engine)
        if found is not None and daemon.base_url(found) == url:
            return engine
    return None


@dataclass
class Job:
    """All that a training needs, before anything is spent."""

    project: Project
    repo: Repository
    base: Place
    name: str
    live: Live
    plan: Plan
    dataset: Dataset
    dropped: export.Dropped
    solved: Record
    renderer: Renderer
    trainer: Trainer
    price: prices.Price | None
    instructions: str
    """What a run is given now."""
    warnings: list[str]

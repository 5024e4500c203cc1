"""Which engine answers: from --harness, the model's id, model.json, the environment, in that order.

It never puts another model in the place of the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from libmachine import env
from libmachine.errors import MachineError
from libmachine.folder import Model
from libmachine.harness.base import Engine
from libmachine.harness.echo import EchoEngine

if TYPE_CHECKING:
    from libmachine.harness.chat import ChatEngine

LOCAL_MODEL = "local/smollm2-135m-instruct"
OFFLINE = ("echo", "scripted", "local")
HOSTED = ("openai", "openrouter", "tinker")


def names() -> list[str]:
    """Every harness there is here."""
    return [*OFFLINE, *HOSTED, *env.endpoints()]


def engine(
    model: Model,
    harness: str | None = None,
    model_id: str | None = None,
    base_url: str | None = None,
    progress: Callable[[str], None] | None = None,
    trained: Callable[[str], str] | None = None,
    together: Sequence[str | None] = (),
    store: str | None = None,
) -> Engine:
    """The engine for a machine's model and the options --harness, --model, --base-url (None: not given).

    progress: takes lines about retries and long waits. trained: the id of an adapter -> its GGUF
    file. together: models to be compared with this one, served beside it. store: the one whose server
    answers for local models, started by the first call. Raises MachineError before any run if there is no
    way to serve the model.
    """
    wanted = model_id or model.model
    chosen = harness or _prefix(model_id) or model.harness or _prefix(wanted) or env.get("MACHINE_HARNESS")
    if chosen is None and wanted and env.key_of("tinker"):
        chosen = "tinker"
    if chosen == "echo":
        return EchoEngine()
    if chosen == "scripted":
        if model_id is None and model.harness != "scripted":
            raise MachineError("harness 'scripted' wants a file of rules; add --model FILE")
        from libmachine.harness.scripted import ScriptedEngine

        return ScriptedEngine(wanted or "")
    if chosen == "local":
        alone = harness == "local" and model_id is None  # --harness local: the embedded model
        if wanted and not wanted.startswith("local/") and not alone:
            raise MachineError(f"harness 'local' does not serve '{wanted}'; name a model local/ID")
        served = wanted if wanted and wanted.startswith("local/") else LOCAL_MODEL
        from libmachine.harness import shared

        server = shared.chosen() if store else None
        if store and server == "fake":
            return shared.FakeEngine(served, store)
        from libmachine.harness.local import LocalEngine

        base = served.partition("+")[0]
        beside = {m.partition("+")[2] for m in (served, *together) if m and m.partition("+")[0] == base}
        files = [(a, trained(a)) for a in sorted(beside - {""})] if trained else []
        return LocalEngine(served, adapters=files, store=store if server else None)
    if chosen in names():
        chat = _chat(chosen, wanted, base_url, progress)
        if wanted == model.model and "tinker://" in chat.model:
            chat.base = model.base
        return chat
    if chosen is not None:
        raise MachineError(f"no harness '{chosen}'; there are: {', '.join(names())}")
    raise MachineError(
        f"no endpoint for model '{wanted or ''}'; name one: --harness {'|'.join(names())}, an id with its "
        'prefix (local/ID, openrouter/ID ...), a "harness" in model.json, or MACHINE_HARNESS'
    )


def _prefix(model_id: str | None) -> str | None:
    """The harness that a model's id names by its prefix."""
    head, slash, _ = (model_id or "").partition("/")
    if slash and (head in ("local", *HOSTED) or head in env.endpoints()):
        return head
    return "tinker" if head == "tinker:" else None


def _chat(
    endpoint: str, wanted: str | None, base_url: str | None, progress: Callable[[str], None] | None
) -> ChatEngine:
    if not wanted or wanted.startswith("local/"):
        raise MachineError(f"harness '{endpoint}' wants a model it serves; add --model ID")
    if endpoint == "openai":
        base_url = base_url or env.get("OPENAI_BASE_URL")
        if base_url is None:
            raise MachineError("harness 'openai' has no address; add --base-url URL or set OPENAI_BASE_URL")
    else:
        base_url = base_url or env.endpoints().get(endpoint)
    from libmachine.harness.chat import ChatEngine

    served = wanted.removeprefix(f"{endpoint}/")
    chat = ChatEngine(endpoint, served, base_url, env.key_of(endpoint), progress=progress)
    chat.model = wanted
    return chat

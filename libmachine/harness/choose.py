"""Which engine answers: from --harness, the model's id, model.json, the environment, in that order.

It never puts another model in the place of the one that was asked for.
"""

from __future__ import annotations

from libmachine import env
from libmachine.errors import MachineError
from libmachine.folder import Model
from libmachine.harness.base import Engine
from libmachine.harness.echo import EchoEngine
from libmachine.harness.scripted import ScriptedEngine

LOCAL_MODEL = "local/smollm2-135m-instruct"
HARNESSES = ("echo", "scripted", "local")


def engine(model: Model, harness: str | None, model_id: str | None) -> Engine:
    """The engine for a machine's model and the options --harness and --model (None: not given).

    Raises MachineError before any run if there is no way to serve the model.
    """
    wanted = model_id or model.model
    chosen = harness or _prefix(model_id) or model.harness or _prefix(wanted) or env.get("MACHINE_HARNESS")
    if chosen == "echo":
        return EchoEngine()
    if chosen == "scripted":
        if model_id is None and model.harness != "scripted":
            raise MachineError("harness 'scripted' wants a file of rules; add --model FILE")
        return ScriptedEngine(wanted or "")
    if chosen == "local":
        from libmachine.harness.local import LocalEngine

        return LocalEngine(wanted if wanted and wanted.startswith("local/") else LOCAL_MODEL)
    if chosen is not None:
        raise MachineError(f"no harness '{chosen}'; there are: {', '.join(HARNESSES)}")
    raise MachineError(
        f"no endpoint for model '{wanted or ''}'; name one: --harness {'|'.join(HARNESSES)}, --model local/ID, "
        'a "harness" in model.json, or MACHINE_HARNESS'
    )


def _prefix(model_id: str | None) -> str | None:
    """The harness that a model's id names by its prefix."""
    head, slash, _ = (model_id or "").partition("/")
    return head if slash and head in ("local",) else None

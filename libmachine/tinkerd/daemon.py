"""The local trainer as commands see it: found or started (libmachine.harness.ondemand), asked, stopped.

Beside the server's other files, STORE/tinkerd/ENGINE/checkpoints/: see libmachine.tinkerd.checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import time

from libmachine.canon import Record
from libmachine.errors import MachineError
from libmachine.harness import ondemand, weights
from libmachine.harness.ondemand import HEALTH_S, IDLE_S, call, is_locked
from libmachine.tinkerd.engine import BASE_MODEL
from libmachine.tinkerd.engine_none import missing

ENGINES = ("torch", "fake")


def folder(directory: str, engine: str) -> str:
    """The folder of an engine's server in a store. Raises MachineError for an unknown engine."""
    if engine not in ENGINES:
        raise MachineError(f"no engine '{engine}'; there are: {', '.join(ENGINES)}")
    return ondemand.folder(directory, engine)


def running(directory: str, engine: str = "torch") -> Record | None:
    """The runtime record {port, key, pid, started_at, engine} of a server that answers, or None. Raises
    MachineError for an unknown engine."""
    folder(directory, engine)
    return ondemand.running(directory, engine)


def connect(
    directory: str, engine: str = "torch", threads: int = 1, idle_s: float = IDLE_S
) -> tuple[str, str]:
    """(TINKER_BASE_URL, TINKER_API_KEY) of the server of this store, started if none runs that trains.

    directory: the store's. threads, idle_s: of a server that is started now. Raises MachineError if it
    cannot be started, with the last line of its log.
    """
    folder(directory, engine)
    if engine == "torch":
        weights.ensure_weights(BASE_MODEL)  # here, where pip's settings are known
    found = ondemand.ensure(directory, engine, threads, idle_s)
    if found.get("trains_not") and missing(engine) is None:  # a command without the packages started it
        stop(directory, engine)
        found = ondemand.ensure(directory, engine, threads, idle_s)
    if found.get("trains_not"):
        raise MachineError(f"{found['trains_not']}; 'machine-tinkerd --stop' ends it (pid {found['pid']})")
    return base_url(found), str(found["key"])


def base_url(runtime: Record) -> str:
    """What TINKER_BASE_URL must be for a server."""
    return f"http://127.0.0.1:{runtime['port']}"


def stop(directory: str, engine: str = "torch", wait_s: float = 30.0) -> bool:
    """Stop the server; False if none runs. What is being computed is finished, what waits is dropped.

    Raises MachineError if it does not end within wait_s.
    """
    place = folder(directory, engine)
    with ondemand.starting(place) if os.path.isdir(place) else contextlib.nullcontext():
        found = running(directory, engine)
        if found is None:
            return False
        call(found, "POST", "machine/stop", {}, HEALTH_S)
        deadline = time.monotonic() + wait_s
        while is_locked(os.path.join(place, "lock")):
            if time.monotonic() > deadline:
                raise MachineError(
                    f"the local trainer (pid {found['pid']}) is still computing after {wait_s:.0f} s"
                )
            time.sleep(0.05)
    return True


def adapter(
    directory: str, engine: str, path: str, prompts: list[list[int]] | None = None, wait_s: float = 600.0
) -> Record:
    """A checkpoint (tinker://...) as a GGUF adapter: {file, difference, prompts}.

    difference: mean, in nats, between the next-token log-probabilities of torch and llama.cpp on the
    prompts (token ids; None: twenty of our own). Raises MachineError above MOST_DIFFERENCE.
    """
    from libmachine.tinkerd.adapter import MOST_DIFFERENCE

    found = running(directory, engine)
    if found is None:
        raise MachineError("the local trainer does not run")
    asked = call(found, "POST", "machine/adapter", {"path": path, "prompts": prompts}, HEALTH_S)
    deadline = time.monotonic() + wait_s
    told: Record = {"type": "try_again"}
    while told.get("type") == "try_again":
        if time.monotonic() > deadline:
            raise MachineError(f"the adapter of '{path}' was not converted within {wait_s:.0f} s")
        told = call(found, "POST", "retrieve_future", {"request_id": asked["request_id"]}, 60.0)
    if "error" in told:
        raise MachineError(f"cannot convert the adapter of '{path}': {told['error']}")
    if not told["difference"] <= MOST_DIFFERENCE:
        raise MachineError(
            f"the adapter of '{path}' answers otherwise in llama.cpp than in torch: log-probabilities differ "
            f"by {told['difference']:.3f} on average, more than {MOST_DIFFERENCE}"
        )
    return told

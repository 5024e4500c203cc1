"""What machine-tinkerd does."""

from __future__ import annotations

import threading
from typing import Any

from libmachine import console
from libmachine.canon import Record, dump_line
from libmachine.cmd import _cli, _extra
from libmachine.errors import NO, MachineError, UsageError


def main(
    workspace: str | None,
    engine: str,
    port: int,
    directory: str | None,
    idle: float,
    threads: int,
    status: bool,
    stop: bool,
    as_json: bool,
) -> int:
    """See machine-tinkerd(1)."""
    from libmachine.tinkerd import daemon

    if status and stop:
        raise UsageError("--status and --stop exclude each other")
    found = None if directory else _cli.project(workspace)
    place = directory or (found.store if found else "")
    if status:
        return _status(daemon.running(place, engine), engine, as_json)
    if stop:
        stopped = daemon.stop(place, engine)
        console.say("stopped" if stopped else f"no {engine} trainer runs here")
        return 0 if stopped else NO
    _ensure_trainer(engine)
    from libmachine import project
    from libmachine.tinkerd.serve import serve
    from libmachine.tinkerd.speaker import Trees

    trained = found or project.Project(place, place, ())
    if found is not None:
        project.make_store(found)
    serve(place, engine, port, idle, threads, Trees(trained.trained, trained.trained_file))
    return 0


def _ensure_trainer(engine: str) -> None:
    """Go on in MACHINE_PYTHON if it can train and this Python cannot; else here, where chat is served."""
    from libmachine.tinkerd.engine_none import missing

    if missing(engine) is None:
        return
    try:
        _extra.ensure("tinkerd")
    except MachineError as error:
        console.say(f"no training here, chat only: {error}")


def _status(found: Record | None, engine: str, as_json: bool) -> int:
    from libmachine.tinkerd.daemon import base_url

    out = _cli.Output(threading.Event())
    if as_json:
        told: dict[str, Any] = {"v": 1, "type": "tinkerd", "engine": engine, "running": found is not None}
        if found is not None:
            told |= {"base_url": base_url(found), "openai_base_url": f"{base_url(found)}/v1"}
            told |= {"trains": "trains_not" not in found}
            told |= {"pid": found["pid"], "started_at": found["started_at"]}
        out.write(dump_line(told))
    elif found is None:
        out.text(f"no {engine} trainer runs here")
    else:
        chat = ", chat only" if "trains_not" in found else ""
        where = f"{engine} trainer at {base_url(found)}{chat}"
        out.text(f"{where}, pid {found['pid']}, since {found['started_at']}")
    return 0 if found is not None else NO

"""A server in this process, on the fake engine, that remembers what it was asked."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libmachine.errors import MachineError
from libmachine.tinkerd import rest
from libmachine.tinkerd.chat import Chat
from libmachine.tinkerd.checkpoints import Checkpoints
from libmachine.tinkerd.engine_fake import FakeEngine
from libmachine.tinkerd.processor import Processor
from libmachine.tinkerd.server import Server, _Handler
from libmachine.tinkerd.service import Service
from libmachine.tinkerd.speaker import Trees
from libmachine.tinkerd.speaker_fake import FakeSpeaker

KEY = "tml-test"
BASE = "local/smollm2-135m-instruct"


class Recorded:
    """A running server. asked: (method, path, JSON body or None) of every request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str, Any]] = []
        self.stopped = threading.Event()
        self.faults: list[str] = []
        self.service = Service(FakeEngine(), Checkpoints(str(folder)), self.faults.append)
        speaker = FakeSpeaker(Trees(self.nothing, self.tree_file), self.service.weights)
        paths = functools.partial(rest.sampler_paths, self.service)
        self.chat = Chat(speaker, Processor(self.stopped), paths, self.faults.append)
        self.server = Server(0, KEY, self.service, self.chat, {"pid": os.getpid()}, self.stopped.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def nothing(self, tree: str) -> str:
        raise MachineError(f"no {tree}")

    def tree_file(self, tree: str, name: str) -> bytes:
        """What a store would have of trees: their id is their checkpoint's path, in hex."""
        return json.dumps({"path": bytes.fromhex(tree).decode()}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.service.futures.close(10)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    found = Recorded(tmp_path_factory.mktemp("checkpoints"))
    call = _Handler._call

    def noted(self: _Handler, body: bytes) -> Any:
        kind = self.headers.get("Content-Type") or ""
        sent = json.loads(body) if body and "json" in kind else None
        found.asked.append((self.command, re.sub(r"\?.*", "", self.path), sent))
        return call(self, body)

    _Handler._call = noted  # type: ignore[method-assign]
    yield found
    _Handler._call = call  # type: ignore[method-assign]
    found.close()
    assert found.faults == []

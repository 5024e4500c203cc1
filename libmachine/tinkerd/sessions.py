"""What the server remembers of its clients while it runs: sessions, training clients, samplers."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record
from libmachine.tinkerd.engine import Lora, Refusal, Weights

LOST_S = 900.0
"""Seconds without a heartbeat (the SDK sends one every ten) after which a session is over."""


@dataclass
class Model:
    """A training client's model. state: the engine's, set by the first request that runs."""

    id: str
    about: Record
    lora: Lora | None = None
    state: Any = None
    gradients: int = 0
    failed: str = ""
    """Why gradients since the last step are not whole; the next step is refused."""


@dataclass
class Sampler:
    """A sampling client's model: trained weights, or the base."""

    id: str
    model_path: str | None
    weights: Weights | None
    folder: str | None = None
    """Where weights without a name lie until the session is over."""


@dataclass
class Session:
    """One client process."""

    id: str
    about: Record
    seen: float = 0.0
    models: dict[str, Model] = field(default_factory=dict)
    samplers: dict[str, Sampler] = field(default_factory=dict)


class Sessions:
    """All of them. on_end: called with a session that is over."""

    def __init__(self, on_end: Callable[[Session], None]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def open(self, about: Record) -> Session:
        """A new session."""
        session = Session(f"sess-{secrets.token_hex(8)}", about, time.monotonic())
        with self._lock:
            self._sessions[session.id] = session
        return session

    def get(self, session_id: Any) -> Session:
        """A session, seen now. Raises Refusal (404)."""
        with self._lock:
            session = self._sessions.get(str(session_id))
        if session is None:
            raise Refusal(f"no session '{session_id}' here; was the trainer restarted?", status=404)
        session.seen = time.monotonic()
        return session

    def ids(self) -> list[str]:
        """Of all sessions, newest first."""
        with self._lock:
            return list(self._sessions)[::-1]

    def model(self, model_id: Any) -> Model:
        """A training client's model. Raises Refusal (404)."""
        model = self._owner(model_id, "train").models.get(str(model_id))
        if model is None:
            raise Refusal(f"no model '{model_id}' here; was the trainer restarted?", status=404)
        return model

    def sampler(self, sampler_id: Any) -> Sampler:
        """A sampler. Raises Refusal (404)."""
        sampler = self._owner(sampler_id, "sample").samplers.get(str(sampler_id))
        if sampler is None:
            raise Refusal(f"no sampler '{sampler_id}' here; was the trainer restarted?", status=404)
        return sampler

    def _owner(self, name: Any, kind: str) -> Session:
        return self.get(str(name).partition(f":{kind}:")[0])

    def close(self, session_id: str) -> None:
        """End a session. Unknown ones are over already."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is not None:
            self._on_end(session)

    def sweep(self) -> None:
        """End the sessions whose clients are gone."""
        now = time.monotonic()
        with self._lock:
            lost = [session.id for session in self._sessions.values() if now - session.seen > LOST_S]
        for session_id in lost:
            self.close(session_id)

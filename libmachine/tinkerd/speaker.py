"""Who answers chat requests: llama.cpp with the adapters that are asked for, or the fake engine.

Answers come from the very engine that a command has in its own process (libmachine.harness.local), and
are what it would answer itself, as far as that says.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from libmachine.errors import ContextOverflow, MachineError, ProviderError
from libmachine.harness import weights
from libmachine.harness.base import Completion, Request
from libmachine.harness.local import LocalEngine
from libmachine.tinkerd.checkpoints import SCHEME
from libmachine.tinkerd.engine import BASE_MODEL, Refusal

MOST_HOSTS = 2
"""Models loaded at once, each with the adapters beside it: the one used longest ago makes room."""


class Trees(NamedTuple):
    """The trained weights of the store, by the id of the tree that holds them. Both raise MachineError.

    gguf: its adapter as a file for llama.cpp. file: the bytes of one of its files.
    """

    gguf: Callable[[str], str]
    file: Callable[[str, str], bytes]


class Unlike(MachineError):
    """The answer would come from another engine than the one that was asked for."""


class Expected(NamedTuple):
    """The engine an answer must come from, as runs name it: engine and model."""

    name: str
    model: str

    def check(self, name: str, model: str) -> None:
        """Raise Unlike if this is another."""
        if self != (name, model):
            raise Unlike(f"the server has {name} with {model}, not {self.name} with {self.model}")


class Speaker(Protocol):
    """Answers for a base model, `BASE+TREE` of the store, or a checkpoint of this server."""

    def check(self, model: str) -> None:
        """Raise Refusal (404) if there is no such model. To be called before it is asked."""

    def complete(
        self, model: str, beside: Sequence[str], request: Request, expected: Expected | None
    ) -> Completion:
        """Answer once. beside: further trees to be loaded. Raises what an engine raises, and Unlike."""

    def close(self) -> None:
        """Let go of the models."""


def unknown(model: str) -> Refusal:
    """What is raised for a model that is not there."""
    return Refusal(
        f"no model '{model}' here; there are: {BASE_MODEL}, {BASE_MODEL}+ADAPTER of the store, "
        f"and {SCHEME}RUN/sampler_weights/NAME of this server",
        status=404,
    )


@dataclass
class _Host:
    """Engines that share one loaded model. adapters: (id, file) beside it."""

    adapters: tuple[tuple[str, str], ...]
    engines: dict[str, LocalEngine] = field(default_factory=dict)
    users: int = 0

    def engine(self, model_id: str) -> LocalEngine:
        if model_id not in self.engines:
            self.engines[model_id] = LocalEngine(model_id, adapters=self.adapters)
        return self.engines[model_id]

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


class LlamaSpeaker:
    """llama.cpp. converted: (id, GGUF file) of a checkpoint of this server, made if need be."""

    def __init__(self, trees: Trees, converted: Callable[[str], tuple[str, str]]) -> None:
        self._trees, self._converted = trees, converted
        self._checkpoints: dict[str, tuple[str, str]] = {}
        self._changed = threading.Condition()
        self._hosts: OrderedDict[tuple[object, ...], _Host] = OrderedDict()
        self._closed = False

    def check(self, model: str) -> None:
        if model.startswith(SCHEME):
            self._checkpoints[model] = self._converted(model)  # here: nothing waits for the processor yet
            return
        base, _, tree = model.partition("+")
        try:
            weights.weights_hash(base)
            if tree:
                self._trees.gguf(tree)
        except MachineError:
            raise unknown(model) from None

    def complete(
        self, model: str, beside: Sequence[str], request: Request, expected: Expected | None
    ) -> Completion:
        model_id, adapters = self._resolved(model, beside)
        with self._lent(model_id, adapters) as engine:
            if expected is not None:
                expected.check(engine.name, engine.model)
            return engine.complete(request)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for host in self._hosts.values():
                host.close()
            self._hosts.clear()
            self._changed.notify_all()

    def _resolved(self, model: str, beside: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """(id of the model, adapters with their files) that LocalEngine wants."""
        if model.startswith(SCHEME):
            adapter = self._checkpoints.get(model)
            if adapter is None:
                raise unknown(model)
            return f"{BASE_MODEL}+{adapter[0]}", (adapter,)
        trees = {*beside, model.partition("+")[2]} - {""}
        return model, tuple((tree, self._trees.gguf(tree)) for tree in sorted(trees))

    @contextmanager
    def _lent(self, model_id: str, adapters: tuple[tuple[str, str], ...]) -> Iterator[LocalEngine]:
        key = (model_id.partition("+")[0], adapters)
        with self._changed:
            while not self._closed and key not in self._hosts and not self._room():
                self._changed.wait(0.5)
            if self._closed:
                raise ProviderError("the local model was closed")
            host = self._hosts.setdefault(key, _Host(adapters))
            self._hosts.move_to_end(key)
            engine = host.engine(model_id)
            host.users += 1
        broken = False
        try:
            yield engine
        except (ContextOverflow, ProviderError, Unlike):
            raise
        except MachineError:
            broken = True  # it could not be loaded; the next call may be luckier
            raise
        finally:
            with self._changed:
                host.users -= 1
                if broken and self._hosts.get(key) is host:
                    self._hosts.pop(key).close()
                self._changed.notify_all()

    def _room(self) -> bool:
        """Is there room for one more, or could it be made?"""
        if len(self._hosts) < MOST_HOSTS:
            return True
        idle = next((key for key, host in self._hosts.items() if not host.users), None)
        if idle is None:
            return False
        self._hosts.pop(idle).close()
        return True

"""The ledger of one command, and engines that are billed to it: what run, grade and gate share."""

from __future__ import annotations

import json
import sys
from typing import Any

from libmachine import console, env, prices
from libmachine.budget.guard import guarded, scripted_worst_case
from libmachine.budget.ledger import BudgetReached, Ledger, limit_of
from libmachine.folder import Model
from libmachine.harness import choose
from libmachine.harness.base import Engine
from libmachine.load import Loaded
from libmachine.project import Project


def price_of(engine: Engine, price_as: str | None) -> prices.Price | None:
    """The price of an engine's model, None if nobody knows it. A checkpoint costs what its base costs."""
    base = getattr(engine, "base", None)
    if price_as is None and base is not None:
        return prices.price_of(base, None, getattr(engine, "base_url", None))
    return prices.price_of(engine.model, price_as, getattr(engine, "base_url", None))


class Purse:
    """One command's money: a ledger over its own limit, the pipe's around it, and the store's record."""

    def __init__(self, project: Project, verb: str, budget: str | None, price_as: str | None = None) -> None:
        self.project, self.verb, self.price_as = project, verb, price_as
        pipe = env.get("MACHINE_LEDGER")
        self.ledger = Ledger(
            limit_of(budget, False, pipe),
            pipe=pipe,
            spend=f"{project.store}/spend",
            fsync=env.get("MACHINE_FSYNC") != "0",
        )

    def bill(self, engine: Engine, kind: str, machine: str | None = None) -> Engine:
        """The engine with its calls on this ledger. What is free reserves nothing."""
        what: dict[str, Any] = {"kind": kind, "machine": machine, "verb": self.verb}
        worst = scripted_worst_case(engine)
        return guarded(engine, self.ledger, price_of(engine, self.price_as), what, worst_case_usd=worst)

    def judge(self, model: str) -> Engine:
        """An engine for a judge's model (jev/NAME: a decision model), billed as judging."""
        from libmachine.harness import jev

        if model.startswith(jev.PREFIX):
            engine = jev.JevEngine(model, env.get("TYPESAFE_BASE_URL"), env.get("TYPESAFE_API_KEY"))
            engine.needs_usage = self.ledger.is_limited() and price_of(engine, None) != prices.FREE
            return self.bill(engine, "judge")
        served = choose.engine(Model(model), progress=console.say, store=self.project.store)
        return self.bill(served, "judge")

    def told(self, summary: str, failure: BaseException | None = None) -> None:
        """What a command came to and spent, on stderr, also when it failed; and how to go on after that."""
        console.say(f"{summary}, {self.ledger.told()}")
        if isinstance(failure, BudgetReached):
            import shlex

            words = shlex.join([sys.argv[0].rpartition("/")[2], *sys.argv[1:]])
            console.say(f"what was bought is stored; to go on: {words}")


class Engines:
    """Engines under one purse: machines that name one model share one. kind: what their calls are for."""

    def __init__(
        self,
        purse: Purse,
        harness: str | None = None,
        model: str | None = None,
        base_url: str | None = None,
        kind: str = "run",
    ) -> None:
        self.kind = kind
        self.purse, self.harness, self.model, self.base_url = purse, harness, model, base_url
        self._open: dict[str, Engine] = {}

    def of(self, machine: Loaded) -> Engine:
        """The engine that serves a machine."""
        key = json.dumps([self.model or machine.model.model, machine.model.harness])
        if key not in self._open:
            engine = choose.engine(
                machine.model,
                self.harness,
                self.model,
                self.base_url,
                console.say,
                self.purse.project.trained,
                store=self.purse.project.store,
            )
            self._open[key] = self.purse.bill(engine, self.kind, machine.name)
        return self._open[key]

    def close(self) -> None:
        """Let go of them."""
        for engine in self._open.values():
            engine.close()

"""An engine under a ledger: each call reserves the most it can cost and settles what it did cost.

Calls that were billed and brought nothing count; those that were not billed give their money back.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from libmachine import prices
from libmachine.budget.ledger import TOKENS, Ledger, Reservation
from libmachine.canon import canonical, usd
from libmachine.errors import MachineError
from libmachine.harness.base import Completion, Engine, Request
from libmachine.harness.scripted import ScriptedEngine


def guarded(
    engine: Engine,
    ledger: Ledger,
    price: prices.Price | None,
    what: Mapping[str, Any],
    *,
    worst_case_usd: float | None = None,
    finish_runs: bool = True,
) -> Guarded:
    """The engine with its money accounted for.

    price: None where it is not known; then a limit refuses each call before it is made. what: kind,
    machine and verb of the rows (the model is added). worst_case_usd: of one call, in the place of the
    one by price and size: for the scripted engine (scripted_worst_case). finish_runs: later steps of
    a run that has begun are made even over the limit; so it is passed by at most the runs in flight.

    complete() raises BudgetReached and PriceUnknown (both Refused) besides what the engine raises.
    """
    return Guarded(engine, ledger, price, what, worst_case_usd, finish_runs)


def scripted_worst_case(engine: Engine) -> float | None:
    """The dearest reply in a scripted engine's rules; None for any other engine."""
    if not isinstance(engine, ScriptedEngine):
        return None
    bills = [reply.get("cost_usd") for rule in engine.rules for reply in rule.replies]
    return max((float(bill) for bill in bills if isinstance(bill, int | float) and bill > 0), default=0.0)


class _Call:
    """One complete() under way. billed, unknown: failed attempts that are settled already."""

    def __init__(self, worst: float | None, force: bool) -> None:
        self.worst, self.force = worst, force
        self.reservation: Reservation | None = None
        self.billed = self.unknown = 0


class Guarded:
    """See guarded. An engine that tries again by itself may call its `on_retry` before each further
    attempt: then the failed one is settled and the next reserves anew."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        price: prices.Price | None,
        what: Mapping[str, Any],
        worst_case_usd: float | None,
        finish_runs: bool,
    ) -> None:
        self.engine, self.ledger, self.price = engine, ledger, price
        self.name, self.model = engine.name, engine.model
        self.what = {"kind": "run", "machine": None, "verb": None, **what, "model": engine.model}
        self.worst_case_usd, self.finish_runs = worst_case_usd, finish_runs
        self._free = price == prices.FREE and worst_case_usd is None
        self._threads = threading.local()
        if hasattr(engine, "on_retry"):
            engine.on_retry = self.on_retry

    def complete(self, request: Request) -> Completion:
        """Answer once, or refuse before the call. May wait for money that others hold back."""
        call = _Call(self.worst_case(request), self.finish_runs and request.step > 0)
        call.reservation = self.ledger.reserve(call.worst, self.what, force=call.force)
        self._threads.call = call
        try:
            completion = self.engine.complete(request)
        except MachineError as failure:
            billed = list(getattr(failure, "billed", ()))[call.billed :]
            self._settle(call, billed, getattr(failure, "unknown_bills", 0) - call.unknown)
            raise
        except BaseException:  # a bug, or ^C in the middle: nobody knows whether it was billed
            self._settle(call, [], 1)
            raise
        finally:
            self._threads.call = None
        wasted = list(getattr(completion, "wasted", ()))[call.billed :]
        unknown = getattr(completion, "unknown_bills", 0) - call.unknown
        self._settle(call, [completion, *wasted], unknown)
        for reply in getattr(completion, "wasted", ()):
            if reply.cost_usd is None:
                reply.cost_usd = usd(self.bill(reply))
        if completion.cost_usd is None:
            completion.cost_usd = usd(self.bill(completion))
        return completion

    def close(self) -> None:
        """Let go of the engine's servers, sockets and locks."""
        self.engine.close()

    def worst_case(self, request: Request) -> float | None:
        """Dollars that one attempt can cost at most, rounded up; None where its price is not known."""
        if self.worst_case_usd is not None:
            return self.worst_case_usd
        if self._free:
            return 0.0
        if self.price is None:
            return None
        size = len(canonical([request.messages, request.tools]))  # a token is at least one byte
        return prices.worst_case(self.price, size, len(request.messages), request.sampling.max_tokens)

    def bill(self, usage: Any) -> float | None:
        """Dollars that a reply was billed, by what it says: a cost, else token counts at the price.

        usage: an object with cost_usd and token counts. None where that is not enough.
        """
        if usage.cost_usd is not None and 0 <= usage.cost_usd < math.inf:
            return float(usage.cost_usd)
        if self._free:
            return 0.0
        if self.price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        if self.price == prices.FREE:  # free by its price, billed by its replies, and this one says nothing
            return None
        return prices.cost(self.price, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)

    def on_retry(self, usage: Any | None, unknown_bill: bool) -> None:
        """A failed attempt of the call of this thread is settled, and the next one reserved.

        usage: what the failed attempt was billed for, None if it does not say. unknown_bill: it may
        have been billed all the same. Raises BudgetReached: then no further attempt may be made.
        """
        call: _Call | None = getattr(self._threads, "call", None)
        if call is None or call.reservation is None:
            return
        self._settle(call, [] if usage is None else [usage], int(unknown_bill))
        call.billed += usage is not None
        call.unknown += unknown_bill
        # Nothing is held while this waits, so that two calls cannot wait for each other.
        call.reservation = self.ledger.reserve(call.worst, self.what, force=call.force)

    def _settle(self, call: _Call, replies: Sequence[Any], unknown: int) -> None:
        """Settle the reservation of a call by the replies it is for; one without a bill, and each
        attempt of an unknown one, counts in full."""
        reservation, call.reservation = call.reservation, None
        if reservation is None:
            return
        if not replies and unknown <= 0:
            self.ledger.release(reservation)
            return
        bills: list[float | None] = [self.bill(reply) for reply in replies]
        known = sum(bill for bill in bills if bill is not None)
        whole: float | None = known
        missing = bills.count(None) + max(0, unknown)
        if missing:
            whole = known + missing * call.worst if call.worst is not None else known or None
        usage = {name: _sum([getattr(reply, name) for reply in replies]) for name in TOKENS}
        self.ledger.settle(reservation, whole, usage, estimated=missing > 0)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None

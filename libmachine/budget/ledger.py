"""The ledger: money is reserved before a call and settled after it, in every account that is concerned.

A command's ledger has its own account (--budget), those of the machine-budget commands around it
(MACHINE_LEDGER), and the store's permanent one (<store>/spend, which machine-spend sums). A
reservation is taken in each, in this order; one that does not fit waits while others are in flight
and raises BudgetReached when none is. Do not reserve while the same thread holds a reservation
that others must see ended.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libmachine import errors
from libmachine.budget.book import Account, Book, Figures, FileBook, Journal, Row, create_pipe, micro
from libmachine.budget.holder import holder
from libmachine.canon import now

DEFAULT_USD = 1.0  # limit of a command on a paid endpoint that names none
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


class BudgetReached(errors.Refused):
    """The next call does not fit into what is left. Exit 4."""

    exit_code = errors.BUDGET


class PriceUnknown(errors.Refused):
    """Nobody knows what the next call costs, and there is a limit. Exit 128."""


@dataclass
class Reservation:
    """What is held back for one call. usd: None where its price is not known (then there is no limit)."""

    id: str
    usd: float | None
    what: Mapping[str, Any]
    is_open: bool = True


class Ledger:
    """Reserve, settle, and say what was spent. Safe to use from several threads.

    limit_usd: of the own account, None for none. pipe: MACHINE_LEDGER, the file of the pipe's
    account. spend: file of the permanent account. fsync: wait for the disk when it is settled.
    """

    def __init__(
        self,
        limit_usd: float | None = None,
        *,
        pipe: str | None = None,
        spend: str | None = None,
        fsync: bool = True,
    ) -> None:
        self._own = Book(None if limit_usd is None else micro(limit_usd), "the budget")
        self._pipes = pipe_accounts(pipe)
        self._accounts: list[Account] = [self._own, *self._pipes]
        if spend is not None:
            self._accounts.append(Journal(spend, fsync))

    def reserve(
        self, amount_usd: float | None, what: Mapping[str, Any], *, force: bool = False
    ) -> Reservation:
        """Hold back the most a call can cost. An amount of 0 holds nothing and always fits.

        what: kind (run, judge, train or author), machine, model, verb: for machine-spend. force: fit
        or not, for work under way that is to be finished; it is counted all the same. May wait.
        Raises BudgetReached, PriceUnknown (amount None under a limit), ValueError for no amount.
        """
        if amount_usd is None and self.is_limited():
            raise PriceUnknown(
                f"the price of '{what.get('model')}' is not known, and there is a budget; "
                "--price-as MODEL prices it as another, --budget none removes the limit"
            )
        usd = None if amount_usd is None else micro(amount_usd) / 1e6
        reservation = Reservation(os.urandom(10).hex(), usd, dict(what))
        if usd == 0:
            return reservation
        row = {"type": "reserve", "id": reservation.id, "at": now(), "usd": usd, "holder": holder()}
        row |= reservation.what
        taken: list[Account] = []
        try:
            for account in self._accounts:
                if not account.take(row, force):
                    raise _reached(account, usd or 0.0)
                taken.append(account)
        except BaseException:
            self._enter({"type": "release", "id": reservation.id, "at": now()}, taken)
            raise
        return reservation

    def settle(
        self,
        reservation: Reservation,
        actual_usd: float | None,
        usage: Mapping[str, Any] | None = None,
        *,
        estimated: bool = False,
    ) -> float | None:
        """Put the bill in the place of what was held back. Returns it, in dollars.

        actual_usd: None, or what is no amount, if it is not known: then all that was held back counts.
        usage: token counts. estimated: a part of the bill is not known; the row is marked so, as it is
        with None. A bill of 0 where nothing was held back leaves no row.
        """
        try:
            bill = reservation.usd if actual_usd is None else micro(actual_usd) / 1e6
            estimated = estimated or actual_usd is None
        except ValueError:
            bill, estimated = reservation.usd, True
        row: Row = {"type": "settle", "id": reservation.id, "at": now(), "usd": bill, **reservation.what}
        row |= {name: (usage or {}).get(name) for name in TOKENS}
        if estimated:
            row["estimated"] = True
        self._close(reservation, row, silent=reservation.usd == 0 and bill == 0)
        return bill

    def release(self, reservation: Reservation) -> None:
        """Give back what was held for a call that was not billed."""
        row = {"type": "release", "id": reservation.id, "at": now()}
        self._close(reservation, row, silent=reservation.usd == 0)

    def _close(self, reservation: Reservation, row: Row, silent: bool) -> None:
        if not reservation.is_open:
            raise ValueError("the reservation was settled before")
        reservation.is_open = False
        if not silent:
            self._enter(row, self._accounts)

    @staticmethod
    def _enter(row: Row, accounts: list[Account]) -> None:
        failure: OSError | None = None
        for account in accounts:
            try:
                account.enter(row)
            except OSError as error:  # a full disk in one account: the others are told all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def is_limited(self) -> bool:
        """Is there a limit, of the command's own or around it?"""
        return any(account.limit is not None for account in self._accounts)

    def spent(self) -> float:
        """Dollars that calls through this ledger came to; those in flight are not in it."""
        return self._own.figures().spent / 1e6

    def left(self) -> float | None:
        """Dollars that may still be reserved, in the account with the least; None without a limit."""
        rooms = [
            book.limit - figures.spent - figures.held
            for book in (self._own, *self._pipes)
            if book.limit is not None and (figures := book.figures())
        ]
        return max(0, min(rooms)) / 1e6 if rooms else None

    def in_flight(self) -> int:
        """Calls of live processes that hold something back, in the widest account that counts them."""
        return [self._own, *self._pipes][-1].figures().in_flight

    def told(self) -> str:
        """What was spent, for a line of talk: `$0.05`, or `$0.05 and 2 calls of unknown cost`."""
        return told(self._own.figures())


def told(figures: Figures) -> str:
    """Figures of an account as a line of talk says them."""
    text = money(figures.spent)
    if figures.unknown:
        text += f" and {figures.unknown} call{'s' * (figures.unknown > 1)} of unknown cost"
    if figures.lost:
        text += f" ({money(figures.lost)} of it held back by calls that never ended)"
    return text


def money(amount: int) -> str:
    """Microdollars as dollars: two decimals, or as many as there are."""
    whole, rest = divmod(amount, 1_000_000)
    return f"${whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def _reached(account: Account, usd: float) -> BudgetReached:
    limit = account.limit or 0
    counted = account.figures() if isinstance(account, Book) else None
    used = counted.spent + counted.held if counted else 0
    return BudgetReached(
        f"{account.name} of {money(limit)} is reached: {money(used)} is spent or held back, "
        f"and the next call may cost {money(micro(usd))}; raise it, or lower --max-tokens"
    )


def read_limit(text: str) -> float | None:
    """A limit as it is typed: dollars, or `none`. Raises UsageError."""
    if text == "none":
        return None
    try:
        usd = float(text)
    except ValueError:
        usd = math.nan
    if not 0 <= usd < 1e9:
        raise errors.UsageError(f"'{text}' is no budget; write dollars, such as 0.50, or none")
    return usd


def limit_of(given: str | None, free: bool, pipe: str | None) -> float | None:
    """The limit of a command, in dollars. given: --budget. free: it calls nothing that is paid.

    Without --budget it is DEFAULT_USD on paid endpoints, unless the pipe has an account of its own.
    """
    if given is not None:
        return read_limit(given)
    return None if free or pipe is not None else DEFAULT_USD


def pipe_accounts(path: str | None) -> list[FileBook]:
    """The account of a file and those around it, innermost first. Raises MachineError for no ledger."""
    books: list[FileBook] = []
    while path is not None and path not in [book.path for book in books]:
        books.append(FileBook(path))
        path = books[-1].above
    return books


def open_pipe(path: str, limit_usd: float | None, above: str | None) -> FileBook:
    """Make the account of a pipe. above: MACHINE_LEDGER as it was, so that both limits hold."""
    pipe_accounts(above)
    create_pipe(path, None if limit_usd is None else micro(limit_usd), above)
    return FileBook(path)

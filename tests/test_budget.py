"""The ledger: no cent is spent twice, none is forgotten; guarded engines; machine-budget."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, completion
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine import prices
from libmachine.budget import book as budget_book
from libmachine.budget import ledger as budget
from libmachine.budget.guard import guarded, scripted_worst_case
from libmachine.budget.ledger import BudgetReached, Ledger, PriceUnknown
from libmachine.errors import BUDGET, ContextOverflow, MachineError, ProviderError, Refused, UsageError
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.chat import ChatEngine
from libmachine.harness.chat_bill import Usage
from libmachine.harness.scripted import ScriptedEngine
from libmachine.store import disk

ROOT = Path(__file__).resolve().parent.parent
WHAT = {"kind": "run", "machine": "say", "model": "m", "verb": "run"}
PRICE = prices.Price(3.0, 0.3, 10.0, None, "a test", "2026-11-01")
JOIN_S = 60.0


@pytest.fixture(params=["memory", "file"])
def ledger_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[float | None], Ledger]:
    """Makes a ledger of either kind with a limit."""

    def make(limit: float | None) -> Ledger:
        if request.param == "memory":
            return Ledger(limit)
        budget.open_pipe(str(tmp_path / "ledger"), limit, None)
        return Ledger(pipe=str(tmp_path / "ledger"))

    return make


@pytest.fixture
def no_faults() -> Iterator[None]:
    yield
    disk.plan_fault(None)


@dataclass
class Fake:
    """An engine that answers what it is told to: a completion, or an exception to raise."""

    answer: Any = None
    name: str = "fake"
    model: str = "fake-model"
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(self, request: Request) -> Completion:
        with self.lock:
            self.calls += 1
        answer = self.answer(request) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        pass


def said(cost_usd: float | None = None, **counts: int | None) -> Completion:
    return Completion({"role": "assistant", "content": "x"}, "stop", "m", cost_usd=cost_usd, **counts)


def request(text: str = "hello", step: int = 0, max_tokens: int = 100) -> Request:
    messages = [{"role": "user", "content": text}]
    return Request(messages, [], Sampling(max_tokens=max_tokens), 60.0, text, 1, step)


def in_threads(number: int, work: Callable[[], Any]) -> list[Any]:
    """What work returned or raised, once in each of several threads."""
    results: list[Any] = []
    start = threading.Barrier(number)

    def target() -> None:
        start.wait(JOIN_S)
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=target, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert len(results) == number, "a thread hangs"
    return results


def python(code: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Another process of ours, with this checkout on its path."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# concurrency -----------------------------------------------------------------------------


def test_exactly_five_calls(ledger_of: Callable[..., Ledger]) -> None:
    ledger, fake = ledger_of(0.05), Fake(lambda _: said(0.01))
    engine = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.01)
    results = in_threads(10, lambda: engine.complete(request()))
    assert fake.calls == 5
    assert sum(isinstance(result, BudgetReached) for result in results) == 5
    assert (ledger.spent(), ledger.left(), ledger.in_flight()) == (0.05, 0.0, 0)


def test_five_calls_where_the_worst_case_is_above_the_bill(ledger_of: Callable[..., Ledger]) -> None:
    # Two fit at once; the others wait for what those give back. After five $0.02 is left.
    ledger, fake = ledger_of(0.07), Fake(lambda _: said(0.01))
    engine = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.03)
    results = in_threads(10, lambda: engine.complete(request()))
    assert fake.calls == 5
    assert sum(isinstance(result, BudgetReached) for result in results) == 5
    assert ledger.spent() == 0.05


def test_five_runs_that_do_not_fit_at_once_are_all_bought(ledger_of: Callable[..., Ledger]) -> None:
    ledger, fake = ledger_of(0.07), Fake(lambda _: said(0.01))
    engine = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.03)
    assert not [r for r in in_threads(5, lambda: engine.complete(request())) if isinstance(r, Exception)]
    assert fake.calls == 5


def test_what_may_not_fit_is_refused_though_it_might_have_been_cheap() -> None:
    ledger, fake = Ledger(0.05), Fake(lambda _: said(0.01))
    engine = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.03)
    with pytest.raises(BudgetReached, match=r"\$0.05 is reached: \$0.03 is spent.*may cost \$0.03") as caught:
        for _ in range(10):
            engine.complete(request())
    assert fake.calls == 3
    assert caught.value.exit_code == BUDGET


def test_a_call_dearer_than_the_budget_is_never_made(ledger_of: Callable[..., Ledger]) -> None:
    fake = Fake(said(0.0))
    with pytest.raises(BudgetReached):
        guarded(fake, ledger_of(0.05), prices.FREE, WHAT, worst_case_usd=0.06).complete(request())
    assert fake.calls == 0


BUYER = """
import sys
from libmachine.budget.ledger import BudgetReached, Ledger
ledger = Ledger(pipe=sys.argv[1])
try:
    while True:
        reservation = ledger.reserve(0.01, {"model": "m"})
        print("call", flush=True)
        ledger.settle(reservation, 0.01)
except BudgetReached:
    pass
"""


def test_processes_cannot_take_the_last_cent_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    budget.open_pipe(str(path), 0.25, None)
    buyers = [python(BUYER, str(path)) for _ in range(4)]
    calls = sum(len(buyer.communicate(timeout=JOIN_S)[0].splitlines()) for buyer in buyers)
    assert [buyer.returncode for buyer in buyers] == [0] * 4
    assert calls == 25
    assert budget_book.FileBook(str(path)).figures() == (250_000, 0, 0, 0, 25, 0)


HOLDER = """
import sys
from libmachine.budget.ledger import Ledger
ledger = Ledger(pipe=sys.argv[1])
reservation = ledger.reserve(float(sys.argv[2]), {"model": "m"})
print("held", flush=True)
sys.stdin.readline()
ledger.settle(reservation, 0.01)
"""


def held_elsewhere(path: Path, usd: str) -> subprocess.Popen[str]:
    """A process that has reserved, and settles at $0.01 when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), usd],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once somebody has looked whether others are alive, and found one."""
    seen = threading.Event()
    look = budget_book.is_alive

    def watched(row: Any) -> bool:
        lives = look(row)
        if lives:
            seen.set()
        return lives

    monkeypatch.setattr(budget_book, "is_alive", watched)
    return seen


def test_killed_between_reserve_and_settle(tmp_path: Path, waiting: threading.Event) -> None:
    path = tmp_path / "ledger"
    budget.open_pipe(str(path), 0.05, None)
    other = held_elsewhere(path, "0.04")
    ledger = Ledger(pipe=str(path))
    assert (ledger.in_flight(), ledger.left()) == (1, 0.01)
    waiting.clear()
    outcome: list[Any] = []
    killed = threading.Event()

    def wait_for_it() -> None:
        try:
            ledger.reserve(0.02, WHAT)
        except BudgetReached:
            outcome.append(killed.is_set())

    thread = threading.Thread(target=wait_for_it, daemon=True)
    thread.start()
    assert waiting.wait(JOIN_S)
    assert outcome == []
    killed.set()
    other.kill()
    # Not yet reaped: a zombie is dead.
    thread.join(JOIN_S)
    assert outcome == [True], "refused once the holder was dead, and not before"
    other.communicate()
    assert (ledger.in_flight(), ledger.left()) == (0, 0.01)
    figures = budget_book.FileBook(str(path)).figures()
    assert (figures.spent, figures.lost) == (40_000, 40_000)
    assert "never ended" in budget.told(figures)


def test_a_waiting_reservation_goes_through_when_another_process_settles(
    tmp_path: Path, waiting: threading.Event
) -> None:
    path = tmp_path / "ledger"
    budget.open_pipe(str(path), 0.05, None)
    other = held_elsewhere(path, "0.05")
    ledger = Ledger(pipe=str(path))
    got: list[budget.Reservation] = []
    thread = threading.Thread(target=lambda: got.append(ledger.reserve(0.02, WHAT)), daemon=True)
    thread.start()
    assert waiting.wait(JOIN_S)
    assert got == []
    other.communicate("go\n", timeout=JOIN_S)
    thread.join(JOIN_S)
    assert len(got) == 1
    assert ledger.left() == 0.02


def test_the_own_thread_is_not_waited_for(ledger_of: Callable[..., Ledger]) -> None:
    ledger = ledger_of(0.05)
    ledger.reserve(0.04, WHAT)
    with pytest.raises(BudgetReached, match=r"\$0.04 is spent or held back"):
        ledger.reserve(0.02, WHAT)


KILLED = """
import sys
from libmachine.budget.ledger import Ledger
from libmachine.store import disk
ledger = Ledger(pipe=sys.argv[1], spend=sys.argv[2])
disk.plan_fault("kill:" + sys.argv[3])
for _ in range(3):
    reservation = ledger.reserve(0.01, {"model": "m"})
    print("call", flush=True)
    ledger.settle(reservation, 0.01)
"""


@pytest.mark.parametrize("step", range(1, 16))
def test_kill_at_any_write_never_forgets_a_call(tmp_path: Path, step: int) -> None:
    from libmachine import spend

    path, store = tmp_path / "ledger", tmp_path / "store"
    store.mkdir()
    (store / "format").write_text("1\n")
    budget.open_pipe(str(path), 1.0, None)
    child = python(KILLED, str(path), str(store / "spend"), str(step))
    calls = len(child.communicate(timeout=JOIN_S)[0].splitlines())
    spent = budget_book.FileBook(str(path)).figures().spent
    assert calls * 10_000 <= spent <= (calls + 1) * 10_000
    permanent = spend.total(spend.sums(spend.rows(str(store / "spend")), "kind"))["usd"]
    assert calls * 0.01 <= permanent + 1e-9 <= (calls + 1) * 0.01 + 1e-9


# the file --------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b"{", b'{"type": "settle", "id": "', b"\0\0\0"])
def test_a_torn_tail_is_mended(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "ledger"
    budget.open_pipe(str(path), 0.05, None)
    ledger = Ledger(pipe=str(path))
    ledger.settle(ledger.reserve(0.02, WHAT), 0.01)
    with path.open("ab") as file:
        file.write(torn)
    ledger.settle(ledger.reserve(0.02, WHAT), 0.02)
    assert [row["type"] for row in rows(path)] == ["budget", "reserve", "settle", "reserve", "settle"]
    assert Ledger(pipe=str(path)).left() == 0.02


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, no_faults: None) -> None:
    path = tmp_path / "ledger"
    budget.open_pipe(str(path), 0.05, None)
    ledger = Ledger(pipe=str(path))
    before = path.read_bytes()
    disk.plan_fault("short:1")
    with pytest.raises(OSError, match="space"):
        ledger.reserve(0.01, WHAT)
    assert path.read_bytes() == before
    reservation = ledger.reserve(0.01, WHAT)
    disk.plan_fault("enospc:1")
    with pytest.raises(OSError, match="space"):
        ledger.settle(reservation, 0.001)
    assert ledger.left() == 0.04, "it stays held back"
    assert ledger.spent() == 0.001, "the command's own account was told all the same"


def test_the_file_is_private(tmp_path: Path) -> None:
    budget.open_pipe(str(tmp_path / "ledger"), 0.05, None)
    assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    ["", "x\n", "[]\n", '{"type":"run"}\n', '{"type":"budget"}\n', '{"type":"budget","limit_usd":-1}\n'],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger").write_text(text)
    with pytest.raises(MachineError, match="MACHINE_LEDGER names"):
        Ledger(pipe=str(tmp_path / "ledger"))
    with pytest.raises(MachineError, match="MACHINE_LEDGER names"):
        Ledger(pipe=str(tmp_path / "missing"))


def test_when_the_file_is_gone_nothing_new_is_bought(tmp_path: Path) -> None:
    budget.open_pipe(str(tmp_path / "ledger"), None, None)
    ledger = Ledger(pipe=str(tmp_path / "ledger"))
    reservation = ledger.reserve(0.01, WHAT)
    (tmp_path / "ledger").unlink()
    ledger.settle(reservation, 0.01)
    with pytest.raises(MachineError, match="is gone"):
        ledger.reserve(0.01, WHAT)


def test_the_smallest_of_the_accounts_counts(tmp_path: Path) -> None:
    outer, inner = str(tmp_path / "outer"), str(tmp_path / "inner")
    budget.open_pipe(outer, 0.05, None)
    budget.open_pipe(inner, 1.0, outer)
    ledger = Ledger(0.5, pipe=inner)
    assert ledger.left() == 0.05
    ledger.settle(ledger.reserve(0.03, WHAT), 0.03)
    assert Ledger(pipe=outer).left() == 0.02
    with pytest.raises(BudgetReached, match=r"machine-budget of \$0.05"):
        ledger.reserve(0.03, WHAT)
    assert Ledger(pipe=inner).in_flight() == 0, "what was taken on the way is given back"
    small = Ledger(0.01, pipe=inner)
    with pytest.raises(BudgetReached, match=r"the budget of \$0.01"):
        small.reserve(0.02, WHAT)
    free = Ledger(None, pipe=inner)
    assert free.left() == 0.02, "--budget none does not lift the pipe's limit"


def test_two_ledgers_in_one_process_wait_for_each_other(tmp_path: Path, waiting: threading.Event) -> None:
    budget.open_pipe(str(tmp_path / "ledger"), 0.05, None)
    one, two = Ledger(pipe=str(tmp_path / "ledger")), Ledger(pipe=str(tmp_path / "ledger"))
    held = one.reserve(0.05, WHAT)
    got: list[budget.Reservation] = []
    thread = threading.Thread(target=lambda: got.append(two.reserve(0.05, WHAT)), daemon=True)
    thread.start()
    assert waiting.wait(JOIN_S)
    one.release(held)
    thread.join(JOIN_S)
    assert len(got) == 1


OPERATION = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 9), st.none() | st.integers(0, 90)),
    st.tuples(st.just("release"), st.integers(0, 9), st.none()),
    st.tuples(st.sampled_from(["reopen", "tear"]), st.none(), st.none()),
)


@settings(max_examples=100, deadline=None)
@given(limit=st.none() | st.integers(0, 150), operations=st.lists(OPERATION, max_size=30))
def test_any_interleaving_keeps_the_limit(
    tmp_path_factory: pytest.TempPathFactory, limit: int | None, operations: list[tuple[str, Any, Any]]
) -> None:
    """In microdollars: what is spent and held passes the limit by no more than bills were above their worst
    case, and what was taken by force."""
    path = tmp_path_factory.mktemp("any") / "ledger"
    budget.open_pipe(str(path), None if limit is None else limit / 1e6, None)
    ledger = Ledger(pipe=str(path))
    held: list[tuple[int, budget.Reservation, Ledger]] = []
    settled = allowed = 0
    for name, first, second in operations:
        if name == "reserve":
            fits = limit is None or settled + sum(h[0] for h in held) + first <= limit or first == 0
            try:
                held.append((first, ledger.reserve(first / 1e6, WHAT, force=second), ledger))
                assert fits or second
                allowed += first if not fits else 0
            except BudgetReached:
                assert not fits and not second
        elif name == "reopen":
            # The older ledgers stay in use, as those of other processes would. This one's thread holds
            # what the others do, so a reservation that does not fit would wait for them: settle first.
            while held:
                micro, reservation, owner = held.pop()
                owner.settle(reservation, None)
                settled += micro
            ledger = Ledger(pipe=str(path))
        elif name == "tear":
            with path.open("ab") as file:
                file.write(b'{"type": "settle", "id')
        elif held:
            micro, reservation, owner = held.pop(first % len(held))
            if name == "release":
                owner.release(reservation)
            else:
                bill = micro if second is None else second
                assert owner.settle(reservation, None if second is None else second / 1e6) == bill / 1e6
                settled += bill
                allowed += max(0, bill - micro)
        figures = budget_book.FileBook(str(path)).figures()
        assert (figures.spent, figures.held) == (settled, sum(h[0] for h in held))
        if limit is not None:
            assert figures.spent + figures.held <= limit + allowed
            assert ledger.left() == max(0, limit - figures.spent - figures.held) / 1e6


@given(st.lists(st.integers(0, 10**12), max_size=50))
def test_money_is_counted_in_integers(amounts: list[int]) -> None:
    ledger = Ledger()
    for amount in amounts:
        ledger.settle(ledger.reserve(amount / 1e6, WHAT), amount / 1e6)
    assert ledger.spent() == sum(amounts) / 1e6


@pytest.mark.parametrize("amount", [-0.01, float("nan"), float("inf"), 1e12])
def test_no_amount(amount: float) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="no amount"):
        ledger.reserve(amount, WHAT)
    assert ledger.settle(ledger.reserve(0.01, WHAT), amount) == 0.01, "a bill that is none is the worst case"


def test_settled_once() -> None:
    ledger = Ledger()
    reservation = ledger.reserve(0.01, WHAT)
    ledger.settle(reservation, None)
    with pytest.raises(ValueError, match="before"):
        ledger.release(reservation)
    assert ledger.spent() == 0.01


def test_rows_of_the_permanent_account(tmp_path: Path) -> None:
    path = tmp_path / ".machine" / "spend"
    ledger = Ledger(1.0, spend=str(path))
    ledger.settle(ledger.reserve(0.02, WHAT), 0.01, {"prompt_tokens": 7, "completion_tokens": 2})
    ledger.settle(ledger.reserve(0.02, {**WHAT, "kind": "judge"}), None)
    ledger.release(ledger.reserve(0.02, WHAT))
    ledger.settle(ledger.reserve(0.0, WHAT), 0.0)
    assert (tmp_path / ".machine" / "format").exists(), "the store is made at the first spend"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = rows(path)
    assert [row["type"] for row in found] == ["reserve", "settle", "reserve", "settle", "reserve", "release"]
    assert found[1] | {"id": 0, "at": 0} == {
        **{"type": "settle", "id": 0, "at": 0, "usd": 0.01, "kind": "run", "machine": "say", "model": "m"},
        **{"verb": "run", "prompt_tokens": 7, "cached_tokens": None, "completion_tokens": 2},
        "reasoning_tokens": None,
    }
    assert (found[3]["kind"], found[3]["usd"], found[3]["estimated"]) == ("judge", 0.02, True)


# guarded engines -------------------------------------------------------------------------


def test_cached_tokens_are_taken_from_the_prompt_and_priced_as_cached() -> None:
    ledger = Ledger(1.0)
    usage = {"prompt_tokens": 1999, "cached_tokens": 1792, "completion_tokens": 50, "reasoning_tokens": 20}
    answer = said(None, **usage)
    guarded(Fake(answer), ledger, PRICE, WHAT).complete(request())
    bill = round((207 * 3.0 + 1792 * 0.3 + 50 * 10.0) / 1e6, 6)
    assert ledger.spent() == bill
    assert answer.cost_usd == bill, "the run says it too"


def test_the_cost_of_the_reply_wins() -> None:
    ledger = Ledger(1.0)
    answer = said(0.0021, prompt_tokens=1000, completion_tokens=1000)
    assert guarded(Fake(answer), ledger, PRICE, WHAT).complete(request()).cost_usd == 0.0021
    assert ledger.spent() == 0.0021


def test_a_known_zero_is_free() -> None:
    ledger = Ledger(1.0)
    guarded(Fake(said(0.0)), ledger, PRICE, WHAT).complete(request())
    assert (ledger.spent(), ledger.told()) == (0.0, "$0.00")


@pytest.mark.parametrize("cost", [None, -1.0, float("nan"), float("inf")])
def test_an_unknown_bill_counts_in_full(cost: float | None) -> None:
    ledger = Ledger(1.0)
    engine = guarded(Fake(said(cost, prompt_tokens=5)), ledger, PRICE, WHAT)
    engine.complete(request())
    assert ledger.spent() == engine.worst_case(request()) > 0


def test_the_worst_case_bounds_the_bill() -> None:
    engine = guarded(Fake(), Ledger(), PRICE, WHAT)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    plain, wide = engine.worst_case(request("é" * 100)), engine.worst_case(request("e" * 100))
    assert plain is not None and wide is not None
    assert plain - wide == pytest.approx(100 * 3.0 / 1e6, abs=2e-6), "bytes, not characters"
    asked = Request(request().messages, tools, Sampling(max_tokens=100), 60.0)
    assert (engine.worst_case(asked) or 0) > (engine.worst_case(request()) or 0)
    more = engine.worst_case(request(max_tokens=1100)) or 0
    assert more - (engine.worst_case(request()) or 0) == pytest.approx(1000 * 10.0 / 1e6)


def test_a_failure_that_was_not_billed_gives_the_money_back() -> None:
    ledger = Ledger(0.05)
    for failure in (ProviderError("down"), ContextOverflow("too long")):
        engine = guarded(Fake(failure), ledger, prices.FREE, WHAT, worst_case_usd=0.04)
        with pytest.raises(type(failure)):
            engine.complete(request())
    assert (ledger.spent(), ledger.left(), ledger.in_flight()) == (0.0, 0.05, 0)


@pytest.mark.parametrize("failure", [KeyError("bug"), KeyboardInterrupt()])
def test_a_call_that_broke_off_counts_in_full(failure: BaseException) -> None:
    ledger = Ledger(0.05)
    with pytest.raises(type(failure)):
        guarded(Fake(failure), ledger, prices.FREE, WHAT, worst_case_usd=0.04).complete(request())
    assert (ledger.spent(), ledger.in_flight()) == (0.04, 0)


def test_a_billed_reply_that_cannot_be_used_counts() -> None:
    ledger = Ledger(1.0)
    failure = ProviderError("empty")
    failure.billed, failure.unknown_bills = [Usage(cost_usd=0.002), Usage(1000, 0, 0)], 1  # type: ignore[attr-defined]
    engine = guarded(Fake(failure), ledger, PRICE, WHAT)
    with pytest.raises(ProviderError):
        engine.complete(request())
    worst = engine.worst_case(request())
    assert worst is not None
    assert ledger.spent() == pytest.approx(0.002 + 0.003 + worst)


def test_wasted_replies_before_a_good_one_count(tmp_path: Path) -> None:
    empty = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 0, "cost": 0.01}}
    good = completion("hello") | {"usage": {"prompt_tokens": 10, "completion_tokens": 2, "cost": 0.02}}
    spend = tmp_path / "store" / "spend"
    with FakeEndpoint([empty, good]) as fake:
        chat = ChatEngine("openai", "m", fake.url, sleep=lambda _: None)
        ledger = Ledger(1.0, spend=str(spend))
        engine = guarded(chat, ledger, PRICE, WHAT)
        assert engine.complete(request()).cost_usd == 0.02
        engine.close()
    assert ledger.spent() == 0.03
    settled = [row for row in rows(spend) if row["type"] == "settle"]
    assert [row["prompt_tokens"] for row in settled] == [10, 10]


class Retrying(Fake):
    """Fails twice before it answers: once billed, once perhaps billed."""

    on_retry: Callable[[Any, bool], None] | None = None

    def complete(self, request: Request) -> Completion:
        assert self.on_retry is not None
        self.calls += 1
        self.on_retry(Usage(cost_usd=0.01), False)
        self.calls += 1
        self.on_retry(None, True)
        self.calls += 1
        answer = said(0.01)
        answer.wasted, answer.unknown_bills = [Usage(cost_usd=0.01)], 1  # type: ignore[attr-defined]
        return answer


def test_retries_reserve_again() -> None:
    ledger, fake = Ledger(0.08), Retrying()
    guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.03).complete(request())
    assert ledger.spent() == 0.05, "nothing is counted twice"
    ledger, fake = Ledger(0.06), Retrying()
    with pytest.raises(BudgetReached):
        guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.03).complete(request())
    assert (fake.calls, ledger.spent(), ledger.in_flight()) == (2, 0.04, 0)


def test_an_unknown_price_is_refused_under_a_limit_before_the_call(ledger_of: Callable[..., Ledger]) -> None:
    fake = Fake(said(None))
    with pytest.raises(PriceUnknown, match=r"'fake-model'.*--price-as MODEL.*--budget none") as caught:
        guarded(fake, ledger_of(5.0), None, WHAT).complete(request())
    assert isinstance(caught.value, Refused)
    assert fake.calls == 0


def test_an_unknown_price_without_a_limit_is_said_to_be_unknown(tmp_path: Path) -> None:
    ledger = Ledger(None, spend=str(tmp_path / "store" / "spend"))
    answer = said(None, prompt_tokens=5, completion_tokens=5)
    guarded(Fake(answer), ledger, None, WHAT).complete(request())
    guarded(Fake(said(0.01)), ledger, None, WHAT).complete(request())
    assert answer.cost_usd is None
    assert ledger.told() == "$0.01 and 1 call of unknown cost"
    assert [row["usd"] for row in rows(tmp_path / "store" / "spend") if row["type"] == "settle"] == [
        None,
        0.01,
    ]


def test_what_is_free_reserves_nothing(tmp_path: Path) -> None:
    spend = tmp_path / "store" / "spend"
    ledger = Ledger(0.0, spend=str(spend))
    answer = said(None)
    guarded(Fake(answer), ledger, prices.FREE, WHAT).complete(request())
    assert answer.cost_usd == 0.0
    with pytest.raises(ProviderError):
        guarded(Fake(ProviderError("down")), ledger, prices.FREE, WHAT).complete(request())
    assert not spend.exists()
    guarded(Fake(said(0.01)), ledger, prices.FREE, WHAT).complete(request())
    assert ledger.spent() == 0.01, "what bills all the same is charged"


def test_a_run_that_has_begun_is_finished() -> None:
    ledger, fake = Ledger(0.01), Fake(lambda _: said(0.01))
    engine = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.01)
    engine.complete(request(step=0))
    engine.complete(request(step=1))
    with pytest.raises(BudgetReached):
        engine.complete(request(step=0))
    assert (ledger.spent(), ledger.left()) == (0.02, 0.0)
    strict = guarded(fake, ledger, prices.FREE, WHAT, worst_case_usd=0.01, finish_runs=False)
    with pytest.raises(BudgetReached):
        strict.complete(request(step=1))


def test_the_scripted_engine_stands_in_for_a_paid_one(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text(
        '{"match": "lost", "replies": [{"content": "?", "cost_usd": null}]}\n'
        '{"match": "down", "replies": [{"error": "down", "cost_usd": 0.02}]}\n'
        '{"match": ".", "replies": [{"content": "x", "cost_usd": 0.01}, "free"]}\n'
    )
    inner = ScriptedEngine(str(rules))
    assert scripted_worst_case(inner) == 0.02
    assert scripted_worst_case(Fake()) is None
    ledger = Ledger(0.1)
    engine = guarded(inner, ledger, prices.FREE, WHAT, worst_case_usd=scripted_worst_case(inner))
    assert (engine.name, engine.model) == (inner.name, inner.model)
    engine.complete(request("hello"))
    assert ledger.spent() == 0.01
    engine.complete(request("lost"))
    assert ledger.spent() == 0.03
    with pytest.raises(ProviderError):
        engine.complete(request("down"))
    assert ledger.spent() == 0.03


# limits as typed -------------------------------------------------------------------------


def test_limits() -> None:
    assert budget.read_limit("none") is None
    assert budget.read_limit("0.5") == 0.5
    for text in ("", "x", "-1", "nan", "inf", "1e99", "None"):
        with pytest.raises(UsageError, match="is no budget"):
            budget.read_limit(text)
    assert budget.limit_of(None, free=False, pipe=None) == 1.0
    assert budget.limit_of(None, free=True, pipe=None) is None
    assert budget.limit_of(None, free=False, pipe="ledger") is None
    assert budget.limit_of("2", free=True, pipe="ledger") == 2.0
    assert budget.limit_of("none", free=False, pipe=None) is None


def test_money() -> None:
    amounts = (0, 50_000, 123, 1_500_000, 12_345_678)
    assert [budget.money(a) for a in amounts] == ["$0.00", "$0.05", "$0.000123", "$1.50", "$12.345678"]


# machine-budget --------------------------------------------------------------------------


def machine_budget(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MACHINE_")}
    return subprocess.run(
        [sys.executable, str(ROOT / "libmachine" / "boot.py"), "budget", "machine-budget", *words],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=JOIN_S,
        check=False,
    )


BUY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from libmachine.budget.ledger import BudgetReached, Ledger
ledger = Ledger(pipe=os.environ["MACHINE_LEDGER"])
print(ledger.left())
ledger.settle(ledger.reserve(0.02, {"model": "m"}), 0.01)
sys.exit(int(sys.argv[2]))
"""


def buy(code: int = 0) -> list[str]:
    return [sys.executable, "-c", BUY, str(ROOT), str(code)]


def test_the_exit_code_is_passed_on_and_the_spend_said() -> None:
    done = machine_budget("0.05", *buy(7))
    assert (done.returncode, done.stdout, done.stderr) == (7, "0.05\n", "budget of $0.05: $0.01 spent\n")
    done = machine_budget("none", "--", *buy())
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "budget: $0.01 spent\n")


def test_options_of_the_command_are_its_own() -> None:
    done = machine_budget("1", "printf", "%s %s", "--help", "-h")
    assert (done.returncode, done.stdout) == (0, "--help -h")


def test_nested_the_smaller_holds() -> None:
    boot = [sys.executable, str(ROOT / "libmachine" / "boot.py"), "budget", "machine-budget"]
    for inner, left in (("1", "0.05"), ("0.03", "0.03"), ("none", "0.05")):
        done = machine_budget("0.05", *boot, inner, *buy())
        assert (done.returncode, done.stdout) == (0, f"{left}\n")
        assert done.stderr.splitlines()[-1] == "budget of $0.05: $0.01 spent"
        assert "$0.01 spent" in done.stderr.splitlines()[0]


def test_commands_that_cannot_be_run(tmp_path: Path) -> None:
    done = machine_budget("1", "no-such-command-here")
    assert done.returncode == 127
    assert "no-such-command-here" in done.stderr and "$0.00 spent" in done.stderr
    (tmp_path / "file").write_text("")
    assert machine_budget("1", str(tmp_path / "file")).returncode == 126


def test_usage() -> None:
    for words in ((), ("1",), ("1", "--"), ("much", "true"), ("--no-such-option",), ("-1", "true")):
        done = machine_budget(*words)
        assert done.returncode == 129, words
        assert done.stderr.startswith("usage: ")
    done = machine_budget("1", "true", MACHINE_LEDGER="/nonexistent")
    assert done.returncode == 128
    assert "MACHINE_LEDGER" in done.stderr


def test_a_command_killed_by_a_signal() -> None:
    assert machine_budget("1", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_signals_are_passed_on_and_the_spend_is_said_all_the_same(tmp_path: Path) -> None:
    waiter = "import time; print('ready', flush=True); time.sleep(600)"
    words = [sys.executable, str(ROOT / "libmachine" / "boot.py"), "budget", "machine-budget", "1"]
    with subprocess.Popen(
        [*words, sys.executable, "-c", waiter], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=JOIN_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert told == "budget of $1.00: $0.00 spent\n"


def test_the_ledger_is_removed_at_the_end(tmp_path: Path) -> None:
    done = machine_budget("1", "sh", "-c", 'echo "$MACHINE_LEDGER"; stat -c %a "$MACHINE_LEDGER"')
    path, mode = done.stdout.split()
    assert mode == "600"
    assert not os.path.exists(os.path.dirname(path))

"""Prices: the dated table, what is free, what is unknown, and the arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.folder import Model
from libmachine.harness import choose
from libmachine.prices import FREE, TABLE, Price, cost, is_private, price_of, table, worst_case
from libmachine.purse import price_of as priced

SMALL = "thinkingmachines/Inkling-Small"


def test_the_table_is_dated_and_sourced() -> None:
    data = json.loads(Path(TABLE).read_text(encoding="utf-8"))
    assert data["unit"] == "USD per million tokens"
    for price in table().values():
        assert price.source and price.date
        assert 0 < price.cached <= price.prefill < price.sample or price.prefill == price.sample
        assert price.train is None or price.train > 0


def test_inkling_is_at_list_price() -> None:
    inkling = price_of("thinkingmachines/Inkling")
    assert inkling is not None and inkling[:4] == (3.74, 0.748, 9.36, 11.22)
    assert price_of("thinkingmachines/Inkling:peft:65536") == inkling
    long = price_of("thinkingmachines/Inkling:peft:262144")
    assert long is not None and (long.prefill, long.sample) == (7.48, 18.72)


def test_an_old_table_counts_with_its_margin() -> None:
    old = price_of("Qwen/Qwen3.5-4B")
    assert old is not None and old.prefill == pytest.approx(0.33) and old.sample == pytest.approx(1.005)


@pytest.mark.parametrize(
    "model", ["echo", "scripted/4f1a", "local/smollm2-135m-instruct", "local/x+abc", "z-ai/glm:free",
              "openrouter/thinkingmachines/inkling:free"],
)  # fmt: skip
def test_free(model: str) -> None:
    assert price_of(model) == FREE
    assert cost(FREE, 1000, 10, 1000) == 0.0


@pytest.mark.parametrize(
    "model", ["", "gpt-9", "tinker://run/sampler_weights/8", "qwen/qwen3-8b", "openrouter/Qwen/Qwen3-8B",
              "scripted", "echoes", "x:freer"],
)  # fmt: skip
def test_unknown_is_none_not_zero(model: str) -> None:
    assert price_of(model) is None


def test_prefix_and_checkpoint_are_priced_as_the_base() -> None:
    assert price_of(f"tinker/{SMALL}") == price_of(SMALL)
    assert price_of(f"{SMALL};tinker://run/sampler_weights/8") == price_of(SMALL)
    assert price_of("tinker://run/sampler_weights/8", price_as=SMALL) == price_of(SMALL)
    assert price_of("tinker://run/sampler_weights/8", price_as="unheard/of") is None


def test_a_committed_checkpoint_costs_what_its_base_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    base, checkpoint = "thinkingmachines/Inkling", "tinker://r/sampler_weights/final"
    trained = Model(checkpoint, base)
    assert priced(choose.engine(trained), None) == price_of(base) is not None
    assert priced(choose.engine(Model(checkpoint)), None) is None, "nobody says what it was trained from"
    assert priced(choose.engine(trained, model_id="tinker://other/sampler_weights/1"), None) is None
    assert (
        priced(choose.engine(Model("Qwen/Qwen3-8B", base)), None)
        == price_of("Qwen/Qwen3-8B")
        != price_of(base)
    )
    assert priced(choose.engine(trained), "Qwen/Qwen3-8B") == price_of("Qwen/Qwen3-8B"), "--price-as beats it"
    assert priced(choose.engine(trained, base_url="http://127.0.0.1:1/v1"), None) == FREE
    assert priced(choose.engine(trained, base_url="https://example.com/v1"), None) is None


def test_the_endpoint_decides_whether_the_table_holds() -> None:
    tinker = "https://tinker.thinkingmachines.dev/services/tinker-prod/oai/api/v1"
    assert price_of(SMALL, base_url=tinker) == price_of(SMALL)
    assert price_of(SMALL, base_url="https://openrouter.ai/api/v1") is None
    assert price_of(SMALL, base_url="https://thinkingmachines.dev.example.com/v1") is None
    assert price_of("anything", base_url="http://127.0.0.1:8000/v1") == FREE
    assert price_of("anything", price_as=SMALL, base_url="http://127.0.0.1:8000/v1") == price_of(SMALL)


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("http://localhost:11434/v1", True),
        ("http://LOCALHOST./v1", True),
        ("http://a.localhost", True),
        ("http://127.8.9.1", True),
        ("http://0.0.0.0:8000", True),
        ("http://[::1]:80/v1", True),
        ("http://[fe80::1%25eth0]/v1", True),
        ("http://[fd00::1]/v1", True),
        ("http://[::ffff:10.0.0.1]/v1", True),
        ("http://[::ffff:8.8.8.8]/v1", False),
        ("http://10.1.2.3", True),
        ("http://192.168.1.2:8000/v1", True),
        ("http://172.16.0.1", True),
        ("http://172.32.0.1", False),
        ("https://8.8.8.8/v1", False),
        ("https://localhost.example.com", False),
        ("https://10.example.com", False),
        ("http://user:127.0.0.1@example.com", False),
        ("http://134744072/", False),
        ("https://openrouter.ai/api/v1", False),
        ("", False),
    ],
)
def test_is_private(url: str, private: bool) -> None:
    assert is_private(url) is private


def test_cached_tokens_are_part_of_the_prompt() -> None:
    """langfuse#5568: 1999 of which 1792 cached is 207 at the full rate and 1792 at the cached one."""
    price = Price(10.0, 1.0, 100.0, None, "test", "")
    assert cost(price, 1999, 1792, 0) == round((207 * 10 + 1792) / 1e6, 6) == 0.003862
    assert cost(price, 1999, None, 10) == 0.02099
    assert cost(price, 100, 150, 0) == 0.00115  # counted apart: both are paid
    assert cost(price, 0, 0, 0) == 0.0


tokens = st.integers(0, 2_000_000)


@given(tokens, st.integers(0, 200), st.integers(0, 100_000), st.data())
def test_the_worst_case_bounds_the_bill(
    prompt_bytes: int, messages: int, limit: int, data: st.DataObject
) -> None:
    price = price_of(SMALL)
    assert price is not None
    most = worst_case(price, prompt_bytes, messages, limit)
    prompt = data.draw(st.integers(0, prompt_bytes + 16 * messages))
    bill = cost(price, prompt, data.draw(st.integers(0, prompt)), data.draw(st.integers(0, limit)))
    assert 0 <= bill <= most
    assert round(most, 6) == most


def test_worst_case_of_nothing_free_is_zero() -> None:
    assert worst_case(FREE, 10_000, 10, 10_000) == 0.0

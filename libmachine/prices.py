"""What a call costs: the dated price table (prices.json), and the arithmetic on token counts.

A price that is not known is None, never 0: a budget refuses such a call before it is made.
Estimates err high: list prices, a worst case that counts every byte of the prompt as a token.
The table holds Tinker's models only; other endpoints say the cost in their reply, or nothing.
"""

from __future__ import annotations

import functools
import json
import math
import os
from typing import Any, NamedTuple

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prices.json")
TINKER_HOST = "thinkingmachines.dev"
MESSAGE_TOKENS = 16  # of a chat template around one message, role and control tokens
TEMPLATE_TOKENS = 512  # of a chat template around all: a default system prompt, how to call tools


class Price(NamedTuple):
    """USD per million tokens. train is None where it is not known."""

    prefill: float
    cached: float
    sample: float
    train: float | None
    source: str
    date: str


FREE = Price(0.0, 0.0, 0.0, 0.0, "free", "")
JEV = Price(
    0.042, 0.042, 0.0, None, "TypeSafe's models page, as mirrored by datawhalechina/jev-cookbook", "2026-11"
)
"""Of jev/... ids at TypeSafe and OpenRouter: input alone is paid for."""
JEV_HOSTS = ("typesafe.ai", "openrouter.ai")


def price_of(model: str, price_as: str | None = None, base_url: str | None = None) -> Price | None:
    """The price of a model, or None if it is not known.

    model: the id, with or without its endpoint's prefix. price_as: the id whose price to take
    (a tinker:// checkpoint costs what its base costs); it outweighs all else. base_url: where the
    call goes, if known: a loopback or private address is free, the table holds at Tinker only.
    """
    if model.startswith("jev/") and base_url is not None and _at(base_url, JEV_HOSTS):
        return JEV  # whatever --price-as says of the judges
    if price_as is not None:
        return price_of(price_as)
    if model == "echo" or model.startswith(("scripted/", "local/")) or model.endswith(":free"):
        return FREE
    if base_url is not None and is_private(base_url):
        return FREE
    if base_url is not None and not _at(base_url, (TINKER_HOST,)):
        return None
    base = model.removeprefix("tinker/").partition(";")[0]  # BASE;tinker://CHECKPOINT is priced as its base
    return table().get(base)


@functools.cache
def table() -> dict[str, Price]:
    """Every priced model of prices.json, the margin of its source applied."""
    with open(TABLE, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    prices: dict[str, Price] = {}
    for model, row in data["models"].items():
        source = data["sources"][row["source"]]
        rate: dict[str, Any] = {
            n: None if row[n] is None else row[n] * source["margin"] for n in Price._fields[:4]
        }
        prices[model] = Price(**rate, source=source["text"], date=source["date"])
    return prices


def cost(price: Price, prompt_tokens: int, cached_tokens: int | None, completion_tokens: int) -> float:
    """USD of one call, to 6 decimals. cached_tokens is part of prompt_tokens, reasoning of completion_tokens.

    More cached than prompt tokens means an endpoint that counts them apart: then both are paid.
    """
    cached = cached_tokens or 0
    full = prompt_tokens - cached if cached <= prompt_tokens else prompt_tokens
    return round((full * price.prefill + cached * price.cached + completion_tokens * price.sample) / 1e6, 6)


def worst_case(price: Price, prompt_bytes: int, messages: int, max_tokens: int) -> float:
    """USD that one call can cost at most, rounded up to 6 decimals: what to reserve before it.

    prompt_bytes: UTF-8 bytes of messages and tool schemas as sent; a token is at least one byte.
    messages: how many, for what the chat template adds to each. max_tokens: of the completion.
    """
    prompt_tokens = prompt_bytes + messages * MESSAGE_TOKENS + TEMPLATE_TOKENS
    prefill = max(price.prefill, price.cached)
    # In microdollars; rounded first, so that float dust does not add one.
    return math.ceil(round(prompt_tokens * prefill + max_tokens * price.sample, 3)) / 1e6


def is_private(url: str) -> bool:
    """Whether a URL names this machine or a private network: no bill, no proxy. Looks up no names."""
    host = _host(url).rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress  # only for an address

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_private or address.is_loopback


def _at(url: str, domains: tuple[str, ...]) -> bool:
    host = _host(url)
    return any(host == domain or host.endswith("." + domain) for domain in domains)


def _host(url: str) -> str:
    from urllib.parse import urlsplit  # it takes as long to import as all of this module, and echo has no URL

    return urlsplit(url).hostname or ""

"""A decision model behind System One's one call, as an engine: a question record in, its answer out.

The body of the request is the content of the one message, the reply's body that of the completion:
what is in them is libmachine.graders.jev's. Here are address, key, retries and the bill. TypeSafe's
own endpoint and OpenRouter's (base URL https://openrouter.ai/api) speak the same way.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from libmachine import prices
from libmachine.errors import MachineError, ProviderError
from libmachine.harness.base import Completion, Request

if TYPE_CHECKING:
    import httpx

PREFIX = "jev/"
BASE_URL = "https://api.typesafe.ai"
RETRIES = 2
TIMEOUT_S = 30.0
LONGEST_WAIT_S = 20.0
MAX_REPLY = 4 * 2**20  # bytes
_SHOWN = 300
_SECRET = 8  # characters; a shorter key is a placeholder
_NO_KEY = (
    "a question for jev needs TYPESAFE_API_KEY, which is not set: a key of TypeSafe, or one of OpenRouter "
    "together with TYPESAFE_BASE_URL=https://openrouter.ai/api"
)
_ADVICE = {
    401: "see TYPESAFE_API_KEY",
    403: "see TYPESAFE_API_KEY",
    413: "the run is too long for this model",
}


class JevError(ProviderError):
    """A request that brought no answer. billed: always none; unknown_bills: it may have been billed."""

    billed: tuple[Any, ...] = ()
    unknown_bills = 0


class JevEngine:
    """The engine. needs_usage: a reply that does not say what it used is refused: there is a budget."""

    def __init__(
        self, model: str, base_url: str | None, key: str | None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """model: jev/NAME, as in a grade. Raises MachineError without a usable key or address."""
        self.model = model
        self.name = "jev"
        self.base_url = (base_url or BASE_URL).strip().rstrip("/")
        self.needs_usage = False
        self.on_retry: Callable[[Any | None, bool], None] | None = None
        self._key = (key or "").strip()
        self._sleep = sleep
        self._client: httpx.Client | None = None
        if not self._key:
            raise MachineError(_NO_KEY)
        if not re.fullmatch(r"[!-~]+", self._key):
            raise MachineError("TYPESAFE_API_KEY is no key: it has blanks or characters that are not ASCII")
        place = urlsplit(self.base_url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise MachineError("no usable address in TYPESAFE_BASE_URL; it looks like https://HOST")

    def complete(self, request: Request) -> Completion:
        """Ask once; again after 408, 429 and 5xx. Raises JevError."""
        import httpx

        if self._client is None:
            # a proxy of the environment is not for this machine
            own = not prices.is_private(self.base_url)
            self._client = httpx.Client(trust_env=own, timeout=TIMEOUT_S)
        body = str(request.messages[0]["content"]).encode()
        for number in range(RETRIES + 1):
            try:
                status, headers, data = self._post(self._client, body)
            except httpx.HTTPError as error:
                heard = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                told = str(error) or type(error).__name__
                raise self._error(f"gave no reply: {told}", unknown=heard) from None
            if status == 200:
                return self._read(data)
            again = status in (408, 429) or status >= 500
            if not again or number == RETRIES:
                tried = f" (after {number} retries)" if number else ""
                advice = f"; {_ADVICE[status]}" if status in _ADVICE else ""
                raise self._error(f"answered {status}: {_message(data)}{tried}{advice}")
            self._sleep(_wait(number, headers))
            if self.on_retry is not None:
                self.on_retry(None, False)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _post(self, client: httpx.Client, body: bytes) -> tuple[int, Any, bytes]:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        url = f"{self.base_url}/v1/systemone"
        deadline = time.monotonic() + TIMEOUT_S
        with client.stream(
            "POST", url, content=body, headers=headers | {"Accept": "application/json"}
        ) as reply:
            data = b""
            for piece in reply.iter_bytes():
                data += piece
                if len(data) > MAX_REPLY or time.monotonic() > deadline:
                    raise self._error("sends without an end", unknown=True)
            return reply.status_code, reply.headers, data

    def _read(self, data: bytes) -> Completion:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise self._error(f"answered no JSON: {_message(data)}", unknown=True) from None
        body = value if isinstance(value, dict) else {}
        usage: Any = body.get("usage") if isinstance(body.get("usage"), dict) else {}
        read, written = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
        cost: Any = usage.get("cost")  # OpenRouter's, in dollars
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < 1e6:
            cost = None
        if self.needs_usage and read is None and cost is None:
            raise self._error(
                "does not say what it used, and there is a budget; --budget none removes it", unknown=True
            )
        model = body.get("model")
        return Completion(
            message={"role": "assistant", "content": data.decode("utf-8", "replace")},
            finish_reason="stop",
            model=model if isinstance(model, str) else "",
            prompt_tokens=read,
            completion_tokens=written if written is not None or read is None else 0,
            cost_usd=None if cost is None else float(cost),
        )

    def _error(self, what: str, unknown: bool = False) -> JevError:
        place = urlsplit(self.base_url)
        where = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"
        text = f"jev ({where}) {what}"
        if len(self._key) >= _SECRET:
            text = text.replace(self._key, "[redacted]")
        error = JevError("".join(c if c.isprintable() else " " for c in text))
        error.unknown_bills = int(unknown)
        return error


def _count(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if good else None


def _wait(number: int, headers: Any) -> float:
    """Seconds before the next attempt: what the reply asks for, else half a second, doubling, with jitter."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            asked = float(headers.get(name, "")) / scale
        except ValueError:
            continue
        if 0 <= asked < math.inf:
            return min(asked, LONGEST_WAIT_S)
    import random  # a fifth of the time that this module takes to import

    return 0.5 * 2.0**number * random.uniform(0.75, 1.0)


def _message(data: bytes) -> str:
    """What an error's body says, short."""
    text = data[:4000].decode("utf-8", "replace")
    try:
        found: Any = json.loads(data)
        while isinstance(found, dict | list) and found:
            if isinstance(found, list):
                found = found[0]
            else:
                names = ("detail", "error", "message", "msg", "type")
                found = next((found[name] for name in names if found.get(name)), "")
        text = str(found) or text
    except (ValueError, RecursionError):
        pass
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."

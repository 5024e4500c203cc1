"""The bytes of chat completions: one request out, one reply in, through the official `openai` SDK.

The SDK is imported at the first request. Its typed reply drops what it does not know (an error
inside a 200, reasoning_details, arguments as an object), so the raw bytes are read here, and
the body goes out as `extra_body`, just as it was built. Its own retries are off: ours are
counted and shown.
"""

from __future__ import annotations

import base64
import email.utils
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from libmachine.harness.chat_bill import Failure, read_error, retryable
from libmachine.harness.chat_stream import body_of

if TYPE_CHECKING:
    import openai

CONNECT_S = 20.0
GRACE_S = 5.0  # the caller's clock ends a request; the sockets' only clears up after it
MAX_REPLY = 64 * 2**20  # bytes
_HEADERS = {"host", "accept", "accept-encoding", "connection", "content-type", "content-length", "user-agent"}
_HEADERS.add("x-stainless-raw-response")  # by which the SDK knows later that it must not read the reply


class Wire:
    """Connections to one endpoint. Used from several threads at once. key: empty for none.

    private: the address is on this machine or network. client: an openai.OpenAI to use as it is.
    """

    def __init__(self, base_url: str, key: str, private: bool, client: openai.OpenAI | None = None) -> None:
        place = urlsplit(base_url)
        user, _, host = place.netloc.rpartition("@")
        # Not left in the address: HTTP libraries log addresses.
        self._base_url = place._replace(netloc=host).geturl()
        self._private = private
        self._authorization = f"Bearer {key}" if key else ""
        if user and not key:
            self._authorization = "Basic " + base64.b64encode(unquote(user).encode()).decode()
        self._client = client
        self._lock = threading.Lock()

    def post(self, body: Mapping[str, Any], seconds: float, abandoned: threading.Event) -> bytes | Failure:
        """Send a request body; the bytes of a `200 OK`, or what went wrong. Stops reading once abandoned."""
        import openai

        failures: tuple[type[Exception], ...] = (openai.OpenAIError, *_transport_errors())
        raw = bytearray()
        try:
            client = self._sdk()
            with client.chat.completions.with_streaming_response.create(
                model="",
                messages=[],  # overlaid, as all else, by extra_body
                extra_body=dict(body),
                timeout=openai.Timeout(seconds + GRACE_S, connect=CONNECT_S),
            ) as response:
                for chunk in response.iter_bytes():
                    raw += chunk
                    if abandoned.is_set() or len(raw) > MAX_REPLY:
                        return Failure("the reply is too long to read", final=True, unknown_bill=True)
        except openai.APIStatusError as error:
            return _refused(error.status_code, _content(error.response), error.response.headers)
        except failures as error:
            return _broken(error)
        except ImportError as error:  # a SOCKS proxy in the environment wants a further package
            return Failure(str(error), final=True)
        return bytes(raw)

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _sdk(self) -> openai.OpenAI:
        import openai

        with self._lock:
            if self._client is None:
                self._client = openai.OpenAI(
                    api_key="none",  # _only_our_headers has the real one
                    base_url=self._base_url,
                    max_retries=0,
                    http_client=openai.DefaultHttpxClient(
                        # Proxies and certificates of the environment are the way out of some networks,
                        # but nothing local goes through them.
                        trust_env=not self._private,
                        follow_redirects=False,  # a conversation goes where the user sent it
                        event_hooks={"request": [self._only_our_headers]},
                    ),
                )
            return self._client

    def _only_our_headers(self, request: Any) -> None:
        """Take out what the SDK adds for any endpoint: organisation, project, the environment's headers."""
        for name in list(request.headers):
            if name.lower() not in _HEADERS:
                del request.headers[name]
        if self._authorization:
            request.headers["authorization"] = self._authorization


def _transport_errors() -> tuple[type[Exception], ...]:
    """What a connection raises while a reply is read; the SDK runs on httpx or on httpx2."""
    found = [sys.modules[name].HTTPError for name in ("httpx", "httpx2") if name in sys.modules]
    if "anyio" in sys.modules:
        found.append(sys.modules["anyio"].EndOfStream)
    return (OSError, *found)


def _content(response: Any) -> bytes:
    try:
        return bytes(response.content)
    except RuntimeError:  # closed before it was read
        return b""


def _refused(status: int, raw: bytes, headers: Mapping[str, str]) -> Failure:
    """A status of 300 and above."""
    body = body_of(raw)
    if isinstance(body, Failure):
        text = raw.decode("utf-8", "replace").strip()
        text = "a web page" if text.startswith("<") else text or "no text"
        failure = Failure(text, status, final=not retryable(status))
    else:
        failure = read_error(body.get("error") or body, status)
    if 300 <= status < 400:
        failure.text = f"moved to '{headers.get('location', '')}': set the base URL to where it is now"
    failure.retry_after = retry_after(headers, time.time())
    return failure


def _broken(error: BaseException) -> Failure:
    """A connection that could not be made, or broke. Final if a certificate is wrong."""
    cause: BaseException = error
    names = {type(error).__name__}
    while deeper := cause.__cause__ or cause.__context__:
        cause = deeper
        names.add(type(cause).__name__)
    text = str(cause) or str(error) or type(cause).__name__
    unsent = names & {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"}
    return Failure(
        text,
        final=bool(names & {"SSLCertVerificationError", "UnsupportedProtocol", "InvalidURL"}),
        unknown_bill=not unsent,
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds an endpoint asks to wait, None if it does not: Retry-After in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        at = email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, at - now)

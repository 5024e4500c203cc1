"""One GET of a public page: the address that was judged is the one that is dialled, within one time limit.

A name is resolved once for each request, every address judged, and a judged one dialled as it
stands; SNI, certificate and Host keep the name. So a name that answers otherwise a moment later
(DNS rebinding) gains nothing. Redirects are followed here, each judged anew. Nothing is taken from
the environment: no proxy, no netrc, no cookie, no key.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from libmachine import __version__
from libmachine.errors import MachineError
from libmachine.web.address import Target, next_url, public, target

LIMIT_S = 15.0
MOST_BODY = 2_000_000
"""Bytes of a page that are read, after decompression."""
MOST_WIRE = 5_000_000
"""Bytes that a server may send for one request, headers and all."""
MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE = 65_536
_GZIP = b"\x1f\x8b"
_HEADERS = {
    "User-Agent": f"libmachine/{__version__} web_fetch",
    "Accept": "text/html, application/xhtml+xml, text/*, application/json, application/xml;q=0.9, */*;q=0.1",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "close",
}

Resolve = Callable[[str, int], list[str]]
"""(host, port) -> its addresses, literal."""
Connect = Callable[[str, int, float], socket.socket]
"""(address, port, seconds) -> a connected socket."""


class Reply(NamedTuple):
    """What a server answered. url: the last one, after redirects; size: bytes by its own account, if it
    gave one; body: decompressed; cut: why it is not whole, None if it is."""

    url: str
    status: int
    reason: str
    content_type: str
    size: int | None
    body: bytes
    cut: str | None


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def dial(address: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to a literal address. Raises OSError; MachineError if it is this computer itself,
    which has public addresses too."""
    connected = socket.create_connection((address, port), timeout_s)
    if connected.getpeername()[0] == connected.getsockname()[0]:
        connected.close()
        raise MachineError(f"{address} is an address of this computer; only public pages are fetched")
    return connected


def get(
    url: str,
    wanted: Callable[[str], bool],
    *,
    resolve: Resolve = resolve,
    connect: Connect = dial,
    tls: ssl.SSLContext | None = None,
    limit_s: float = LIMIT_S,
) -> Reply:
    """GET a URL, redirects followed. Raises MachineError for whatever goes wrong, the limit included.

    wanted: whether a Content-Type is worth its body; where not, the body is left unread. resolve,
    connect, tls: how names are looked up and sockets made.
    """
    deadline = time.monotonic() + limit_s
    for _ in range(MOST_REDIRECTS + 1):
        asked = target(url)
        try:
            reply, location = _ask(asked, wanted, resolve, connect, tls, deadline)
        except TimeoutError:
            raise MachineError(f"'{asked.url}' did not answer within {limit_s:g} s in all") from None
        except ssl.SSLCertVerificationError as error:
            raise MachineError(
                f"'{asked.url}' has no valid certificate: {error.verify_message or error}"
            ) from None
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
            told = str(error) or type(error).__name__
            raise MachineError(f"'{asked.url}' cannot be fetched: {told[:300]}") from None
        if location is None:
            return reply
        url = next_url(asked.url, location)
    raise MachineError(f"'{url}' is one redirect too many; at most {MOST_REDIRECTS} are followed")


def _ask(
    asked: Target,
    wanted: Callable[[str], bool],
    resolve: Resolve,
    connect: Connect,
    tls: ssl.SSLContext | None,
    deadline: float,
) -> tuple[Reply, str | None]:
    """One request: the reply, and where it leads if it is a redirect."""
    addresses = public(asked, _within(deadline, lambda: resolve(asked.host, asked.port)))
    wire = _Wire(_first(addresses, asked.port, connect, deadline), deadline)
    try:
        if asked.scheme == "https":
            wire.secure(tls or _context(), asked.host.rstrip("."))
        lines = [f"GET {asked.path} HTTP/1.1", f"Host: {asked.authority}"]
        lines += [f"{name}: {value}" for name, value in _HEADERS.items()]
        wire.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        response = http.client.HTTPResponse(wire, method="GET")  # type: ignore[arg-type]
        response.begin()
        while 100 <= response.status < 200:  # a hint before the answer; http.client passes over 100 alone
            response.headers = response.msg = None  # type: ignore[assignment]
            response.begin()
        location = response.getheader("Location") if response.status in _REDIRECTS else None
        kind = response.getheader("Content-Type") or ""
        body, cut = b"", None
        if location is None and wanted(kind):
            body, cut = _body(response)
        size = response.getheader("Content-Length") or ""
        known = int(size) if size.isascii() and size.isdigit() and len(size) < 20 else None
        return Reply(asked.url, response.status, response.reason, kind, known, body, cut), location
    finally:
        wire.close()


def _within(deadline: float, call: Callable[[], list[str]]) -> list[str]:
    """What a call gives that cannot be told to stop, or TimeoutError; then it ends unheard."""
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True, name="resolve")
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not answers:
        raise TimeoutError
    if isinstance(answers[0], Exception):
        raise answers[0]
    return list(answers[0])


def _first(addresses: list[str], port: int, connect: Connect, deadline: float) -> socket.socket:
    """A connection to the first address that takes one; each has its share of the time that is left."""
    failed: OSError | None = None
    for number, address in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return connect(address, port, left / (len(addresses) - number))
        except OSError as error:
            failed = error
    raise failed or TimeoutError()


def _context() -> ssl.SSLContext:
    import httpx  # its certificates are those that models are asked with

    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _body(response: http.client.HTTPResponse) -> tuple[bytes, str | None]:
    """The body, decompressed, and why it is not whole."""
    opened = _Opened(response.getheader("Content-Encoding") or "")
    while len(opened.data) <= MOST_BODY:
        piece = response.read(_PIECE)
        if not piece:
            early = not opened.whole() or response.length not in (None, 0)
            return bytes(opened.data), "the connection ended early" if early else None
        opened.add(piece)
    return bytes(opened.data[:MOST_BODY]), f"only its first {MOST_BODY} bytes were read"


class _Opened:
    """Bytes as they were before a Content-Encoding, no more than MOST_BODY + 1 of them."""

    def __init__(self, encoding: str) -> None:
        self.data = bytearray()
        self._encoding = encoding.strip().lower()
        self._inflate: Any = None
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise MachineError(f"the page is compressed as '{encoding[:50]}', which was not asked for")

    def add(self, piece: bytes) -> None:
        if self._encoding in ("", "identity"):
            self.data += piece
            return
        while piece and len(self.data) <= MOST_BODY:
            if self._inflate is None:
                self._inflate = zlib.decompressobj(self._window(piece))
            elif self._inflate.eof:  # a gzip may have several members; anything else behind it is padding
                if self._encoding == "deflate" or not piece.startswith(_GZIP):
                    return
                self._inflate = zlib.decompressobj(self._window(piece))
            self.data += self._inflate.decompress(piece, MOST_BODY + 1 - len(self.data))
            piece = self._inflate.unconsumed_tail or self._inflate.unused_data

    def _window(self, piece: bytes) -> int:
        if self._encoding != "deflate":
            return 31
        return 15 if piece[0] & 15 == 8 and int.from_bytes(piece[:2], "big") % 31 == 0 else -15

    def whole(self) -> bool:
        return self._inflate is None or self._inflate.eof


class _Wire(io.RawIOBase):
    """A socket as http.client reads it: each wait has what is left of the time, and bytes are counted."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._left = MOST_WIRE

    def _timed(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket

    def secure(self, context: ssl.SSLContext, name: str) -> None:
        """Speak TLS from here on. Raises ssl.SSLError, also where the certificate is not the name's."""
        self._socket = context.wrap_socket(self._timed(), server_hostname=name, do_handshake_on_connect=False)
        handshaking = self._timed()
        assert isinstance(handshaking, ssl.SSLSocket)
        handshaking.do_handshake()

    def sendall(self, data: bytes) -> None:
        self._timed().sendall(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise MachineError(f"the server sends more than {MOST_WIRE} bytes for one page")
        got = self._timed().recv_into(buffer)
        self._left -= got
        return got

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, _PIECE)

    def close(self) -> None:
        super().close()
        self._socket.close()

"""web_fetch: what is refused, that what was judged is what is dialled, limits, and pages as text.

The server is a real one on this computer; a resolver and a connector of the test's own lead there,
as the tool itself has no way to.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.errors import MachineError
from libmachine.sandbox.workspace import Cut
from libmachine.tools import Tool
from libmachine.web import page, transfer, web_fetch
from libmachine.web.address import next_url, public, refusal, target
from libmachine.web.html import title_and_text
from libmachine.web.tool import _Pages, fetch

PUBLIC, OTHER = "93.184.215.14", "2606:4700::6810:84e5"


# addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *(
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
        ),
        *("127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1"),
        *("172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1"),
        *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe"),
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1"),
        *("2002:7f00:1::", "2002:808:808::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1"),
        *("fe80::1%eth0", "fec0::1", "ff02::1", "4000::1", "", "localhost", "127.1", "0x7f.1"),
    ],
)
def test_no_address_but_a_public_one(address: str) -> None:
    assert refusal(address)


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
        *("126.255.255.255", "128.0.0.1", "168.63.129.15", "169.253.255.255", "172.15.255.255"),
        *("172.32.0.0", "192.167.255.255", "223.255.255.255", PUBLIC, OTHER, "2001:200::1"),
        *("2001:4860:4860::8888", "2a00:1450::1"),
    ],
)
def test_public_addresses_pass(address: str) -> None:
    assert refusal(address) is None


@given(st.ip_addresses())
def test_nothing_passes_that_python_calls_private(address: Any) -> None:
    if refusal(str(address)) is None:
        assert address.is_global and not address.is_multicast and not address.is_reserved


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "017700000001",
            "0177.0.0.1",
        ),
        *("0", "0.0.0.0", "127。0。0。1", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "[::]", "[::1]", "[::ffff:127.0.0.1]"),
        *("[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[fe80::1]"),
        *(
            "[fe80::1%25lo]",
            "[fe80::1%lo]",
            "169.254.169.254",
            "0xa9fea9fe",
            "2852039166",
            "10.1",
            "192.168.257",
        ),
        *(
            "localhost",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "printer.local",
            "db.internal",
            "x.home.arpa",
        ),
        *("metadata.google.internal", "metadata.google.internal.", "127.0.0.1.", "100.100.100.200"),
    ],
)
@pytest.mark.parametrize("form", ["http://{}/", "https://{}", "http://{}:8080/x?y#z"])
def test_no_spelling_leads_here(host: str, form: str) -> None:
    """With the real resolver and the real connector."""
    dialled: list[str] = []

    def connect(address: str, port: int, timeout_s: float) -> socket.socket:
        dialled.append(address)
        raise OSError("dialled")

    with pytest.raises(MachineError) as raised:
        transfer.get(form.format(host), lambda kind: True, connect=connect)
    assert dialled == []
    assert "is refused" in str(raised.value) or "cannot be fetched" in str(raised.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file:///etc/passwd", "only http"),
        ("ftp://example.org/", "only http"),
        ("gopher://example.org/", "only http"),
        ("data:text/html,x", "only http"),
        ("javascript:alert(1)", "only http"),
        ("example.org", "only http"),
        ("//example.org/", "only http"),
        ("", "only http"),
        ("http://", "no name"),
        ("http:///x", "no name"),
        ("http://user@example.org/", "user name"),
        ("http://user:word@example.org/", "user name"),
        ("http://example.org@127.0.0.1/", "user name"),
        ("http://@example.org/", "user name"),
        ("http://example.org\\@127.0.0.1/", "backslash"),
        ("http://exam ple.org/", "blanks"),
        ("http://example.org/a b", "blanks"),
        ("http://example.org/\r\nX: y", "blanks"),
        ("http://example.org/\ta", "blanks"),
        ("http://example.org:22/", "port 22"),
        ("http://localhost./", "internal name"),
        ("http://a.INTERNAL./", "internal name"),
        ("http://example.org:0/", "port 0"),
        ("http://example.org:99999/", "no URL"),
        ("http://example.org:x/", "no URL"),
        ("http://[::1/", "no URL"),
        ("http://[x]/", "no "),
        ("http://a..b/", "no name"),
        ("http://.a/", "no name"),
        ("http://-/", "no name"),
        ("http://" + "a" * 64 + ".org/", "no name"),
        ("http://exa%6dple.org/", "no name"),
        ("http://example.org/" + "x" * 3000, "3019 characters"),
    ],
)
def test_urls_that_are_never_asked(url: str, why: str) -> None:
    with pytest.raises(MachineError, match=why):
        target(url)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        (" https://Example.ORG ", "https://example.org/"),
        ("HTTP://example.org:80/a?b=c&d#e", "http://example.org/a?b=c&d"),
        ("https://example.org:8443/", "https://example.org:8443/"),
        ("https://example.org?q=ä ".strip(), "https://example.org/?q=%C3%A4"),
        ("https://bücher.example/straße/%C3%9F", "https://xn--bcher-kva.example/stra%C3%9Fe/%C3%9F"),
        ("http://[2606:4700:0::1]:8080/", "http://[2606:4700::1]:8080/"),
        ("http://a_b.example.org./~x/", "http://a_b.example.org./~x/"),
    ],
)
def test_urls_as_they_are_asked(url: str, asked: str) -> None:
    assert target(url).url == asked


@given(st.text(max_size=60))
def test_any_text_is_judged_as_a_url(text: str) -> None:
    for url in (text, "http://" + text, "https://example.org/" + text):
        with contextlib.suppress(MachineError):
            asked = target(url)
            assert asked.url.isascii() and not re.search(r"\s", asked.url + asked.host)
    with contextlib.suppress(MachineError):
        next_url("http://example.org/", text)


@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1", OTHER], [OTHER, "fe80::1%2"]]
)
def test_one_private_address_spoils_a_name(addresses: list[str]) -> None:
    with pytest.raises(MachineError, match=r"is refused: a\.example is .* address"):
        public(target("http://a.example"), addresses)
    assert public(target("http://a.example"), [PUBLIC, OTHER, PUBLIC]) == [PUBLIC, OTHER]


def test_this_computer_is_not_dialled() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, pytest.raises(MachineError, match="this computer"):
        transfer.dial("127.0.0.1", here.getsockname()[1], 5)


# a server ---------------------------------------------------------------------------------

Answer = Callable[[str], Iterable[bytes]]


class Server:
    """Answers each connection with the pieces that answer(path) gives; names and dials are noted."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.tls = answer, tls
        self.names: dict[str, list[list[str]]] = {}
        self.resolved: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self.heads: list[str] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connected, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(connected,), daemon=True).start()

    def one(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError), connected:
            connected.settimeout(10)
            if self.tls:
                connected = self.tls.wrap_socket(connected, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                head += connected.recv(4096)
            self.heads.append(head.decode())
            for piece in self.answer(head.split()[1].decode()):
                connected.sendall(piece)
            if self.tls:
                connected.unwrap()

    def resolve(self, host: str, port: int) -> list[str]:
        self.resolved.append(host)
        answers = self.names.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        self.dialled.append((address, port))
        return socket.create_connection(self.socket.getsockname(), timeout_s)

    def fetch(self, url: str, offset: int = 0, **how: Any) -> str:
        how = {"resolve": self.resolve, "connect": self.connect, "pages": _Pages(), "limit_s": 10.0, **how}
        return fetch(url, offset, **how)


def reply(body: bytes, kind: str = "text/html", status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def leads(to: str, status: str = "302 Found") -> bytes:
    return reply(b"", "text/html", status, f"Location: {to}")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(answer: Answer | dict[str, bytes], tls: ssl.SSLContext | None = None) -> Server:
        known = answer if callable(answer) else lambda path: [answer[path]]
        made.append(Server(known, tls))
        return made[-1]

    yield start
    for server in made:
        server.socket.close()


def test_a_page(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = serve(
        {
            "/a?b=c": reply(
                b"<title>T</title><p>Hello <a href=d>there</a>", "text/html", "200 OK", "Set-Cookie: a=b"
            )
        }
    )
    for _ in range(2):
        assert server.fetch("http://a.example/a?b=c#d") == "T\n\nHello there (http://a.example/d)".replace(
            "T\n", "[from http://a.example/a?b=c]\nT\n", 1
        )
    assert server.dialled == [(PUBLIC, 80)] * 2
    head = server.heads[1]
    assert head.startswith("GET /a?b=c HTTP/1.1\r\nHost: a.example\r\n")
    assert not re.search(r"(?i)cookie|authorization|referer", head)


def test_redirects_are_followed_and_each_is_judged(serve: Callable[..., Server]) -> None:
    server = serve(
        {
            "/": leads("/next", "301 M"),
            "/next": leads("http://b.example/c d"),
            "/c%20d": reply(b"end", "text/plain"),
        }
    )
    assert server.fetch("http://a.example/") == "[from http://b.example/c%20d]\nend"
    assert server.resolved == ["a.example", "a.example", "b.example"]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("http://[::1]/", "loopback"),
        ("http://169.254.169.254/latest/meta-data/", "link-local"),
        ("//inside.example/", "inside.example is 10.0.0.7, and that is a private address"),
        ("http://localhost/", "internal name"),
        ("file:///etc/passwd", "only http"),
        ("http://a.example:22/", "port 22"),
        ("http://u:p@a.example/", "user name"),
        ("http://[/", "no URL"),
    ],
)
def test_redirects_to_what_is_private(serve: Callable[..., Server], to: str, why: str) -> None:
    server = serve({"/": leads(to)})
    server.names = {"inside.example": [["10.0.0.7"]], "127.0.0.1": [["127.0.0.1"]], "::1": [["::1"]]}
    server.names["169.254.169.254"] = [["169.254.169.254"]]
    with pytest.raises(MachineError, match=why):
        server.fetch("http://a.example/")
    assert server.dialled == [(PUBLIC, 80)]


def test_redirects_end(serve: Callable[..., Server]) -> None:
    server = serve({"/": leads("/")})
    with pytest.raises(MachineError, match="one redirect too many; at most 5"):
        server.fetch("http://a.example/")
    assert len(server.dialled) == 6
    server = serve({"/": reply(b"nowhere", "text/plain", "302 Found")})
    with pytest.raises(MachineError, match="status 302 Found:\nnowhere"):
        server.fetch("http://a.example/")


def test_hints_before_the_answer(serve: Callable[..., Server]) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
    whole = hint + hint + OK + b"Content-Length: 6\r\n\r\nanswer"
    assert serve(lambda path: iter([whole])).fetch("http://a.example/") == "answer"


def test_rebinding_gains_nothing(serve: Callable[..., Server]) -> None:
    """The first answer is public, every later one is not: one look-up, and its address is dialled."""
    server = serve({"/": reply(b"public", "text/plain"), "/on": leads("/")})
    server.names["a.example"] = [[OTHER], ["127.0.0.1"]]
    assert server.fetch("http://a.example/") == "public"
    assert (server.resolved, server.dialled) == (["a.example"], [(OTHER, 80)])
    # a redirect to the same name is a new look-up, judged anew
    server.names["a.example"] = [[OTHER], ["127.0.0.1"]]
    with pytest.raises(MachineError, match=r"a\.example is 127\.0\.0\.1, and that is a loopback address"):
        server.fetch("http://a.example/on")
    assert server.dialled == [(OTHER, 80)] * 2


def test_the_next_address_is_tried(serve: Callable[..., Server]) -> None:
    server = serve({"/": reply(b"there", "text/plain")})
    server.names["a.example"] = [[OTHER, PUBLIC]]

    def connect(address: str, port: int, timeout_s: float) -> socket.socket:
        if address == OTHER:
            raise ConnectionRefusedError("no")
        return server.connect(address, port, timeout_s)

    assert server.fetch("http://a.example/", connect=connect) == "there"
    server.names["a.example"] = [[OTHER]]
    with pytest.raises(MachineError, match="cannot be fetched: no"):
        server.fetch("http://a.example/", connect=connect)


def drip(first: bytes, piece: bytes) -> Answer:
    def answer(path: str) -> Iterator[bytes]:
        yield first
        for _ in range(400):
            time.sleep(0.02)
            yield piece

    return answer


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        drip(OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        drip(b"HTTP/1.1 200 OK\r\nX-A: ", b"x"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        drip(b"", b""),
    ],
    ids=["body", "header", "continue", "hints", "chunks", "silence"],
)
def test_a_slow_server_has_one_limit_for_all(serve: Callable[..., Server], answer: Answer) -> None:
    started = time.monotonic()
    with pytest.raises(MachineError, match=r"did not answer within 0\.4 s in all"):
        serve(answer).fetch("http://a.example/", limit_s=0.4)
    assert 0.3 < time.monotonic() - started < 5


def test_slow_names_and_slow_redirects_are_limited(serve: Callable[..., Server]) -> None:
    def slow(host: str, port: int) -> list[str]:
        time.sleep(8)
        return [PUBLIC]

    def hop(path: str) -> Iterator[bytes]:
        time.sleep(0.3)
        yield leads("/")

    started = time.monotonic()
    for how in ({"resolve": slow}, {}):
        with pytest.raises(MachineError, match=r"within 0\.5 s in all"):
            serve(hop).fetch("http://a.example/", limit_s=0.5, **how)
    assert time.monotonic() - started < 6


def test_endless_bodies_are_cut_and_said_so(serve: Callable[..., Server]) -> None:
    def endless(path: str) -> Iterator[bytes]:
        yield OK + (b"\r\n" if path == "/plain" else b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            yield b"x" * 9998 + b" \n" if path == "/plain" else b"4000\r\n" + b"y" * 0x4000 + b"\r\n"

    server, pages = serve(endless), _Pages()
    for path in ("plain", "chunks"):
        url = f"http://a.example/{path}"
        text = server.fetch(url, pages=pages)
        assert "of 2000000; offset=" in text
        last = server.fetch(url, 1_999_990, pages=pages)
        assert last.endswith("\n[the page goes on, but only its first 2000000 bytes were read]")
        assert isinstance(last, Cut)
    assert len(server.heads) == 2, "what is read on is not fetched again"


def test_endless_headers_and_tiny_chunks_are_refused(serve: Callable[..., Server]) -> None:
    def endless(path: str) -> Iterator[bytes]:
        yield OK if path == "/head" else OK + b"Transfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"X-A: b\r\n" * 1000 if path == "/head" else b"1;" + b"x" * 900 + b"\r\nx\r\n"

    server = serve(endless)
    with pytest.raises(MachineError, match="more than 100 headers"):
        server.fetch("http://a.example/head")
    with pytest.raises(MachineError, match="sends more than 5000000 bytes"):
        server.fetch("http://a.example/chunks")


def encoded(data: bytes, encoding: str) -> bytes:
    return reply(data, "text/plain", "200 OK", f"Content-Encoding: {encoding}")


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


def test_compression(serve: Callable[..., Server]) -> None:
    bomb = gzip.compress(bytes(60_000_000).replace(b"\0", b"z"), 9)
    server = serve(
        {
            "/gzip": encoded(gzip.compress(b"one ") + gzip.compress(b"two"), "gzip"),
            "/padded": encoded(gzip.compress(b"padded") + bytes(600), "gzip"),
            "/deflate": encoded(zlib.compress(b"three"), "deflate"),
            "/raw": encoded(raw_deflate(b"four"), "deflate"),
            "/bomb": encoded(bomb, "gzip"),
            "/br": encoded(b"x", "br"),
            "/twice": encoded(b"x", "gzip, gzip"),
            "/broken": encoded(b"no gzip at all", "gzip"),
            "/short": encoded(gzip.compress(b"five" * 100)[:-12], "gzip"),
        }
    )
    for path, text in {"gzip": "one two", "padded": "padded", "deflate": "three", "raw": "four"}.items():
        assert server.fetch(f"http://a.example/{path}") == text
    assert len(bomb) < 100_000
    assert "of 2000000; offset=" in server.fetch("http://a.example/bomb")
    for path in ("br", "twice"):
        with pytest.raises(MachineError, match="which was not asked for"):
            server.fetch(f"http://a.example/{path}")
    with pytest.raises(MachineError, match="cannot be fetched: Error -3"):
        server.fetch("http://a.example/broken")
    assert "the connection ended early" in server.fetch("http://a.example/short")


def test_a_bomb_is_never_whole_in_memory() -> None:
    opened = transfer._Opened("gzip")
    opened.add(gzip.compress(b"z" * 20_000_000, 9))
    assert len(opened.data) == transfer.MOST_BODY + 1


def test_kinds_and_statuses(serve: Callable[..., Server]) -> None:
    server = serve(
        {
            "/pdf": reply(b"%PDF" * 10, "application/pdf"),
            "/image": b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\x89PNG",
            "/json": reply(b'{"a": "<b>&amp;"}', "application/ld+json; charset=utf-8"),
            "/none": b"HTTP/1.0 200 OK\r\n\r\n<!DOCTYPE html><p>a&amp;b",
            "/bytes": b"HTTP/1.0 200 OK\r\n\r\n\x7fELF\0\0",
            "/gone": reply(b"<p>Not <b>here</b>", "text/html", "404 Not Found"),
            "/error": reply(b"", "image/png", "503 Down"),
            "/empty": reply(b"<title></title><script>EVIL</script>", "text/html"),
            "/nonsense": b"nonsense\r\n\r\n",
            "/closed": b"",
        }
    )
    assert server.fetch("http://a.example/json") == '{"a": "<b>&amp;"}'
    assert server.fetch("http://a.example/none") == "a&b"
    assert server.fetch("http://a.example/empty") == "(the page has no text)"
    for path, why in {
        "pdf": "'application/pdf' of 40 bytes; only text, HTML",
        "image": "'image/png' of unknown size",
        "bytes": "is no text: 6 bytes",
        "gone": "answered with status 404 Not Found:\nNot here",
        "error": "answered with status 503, but is 'image/png' of 0 bytes",
        "nonsense": "cannot be fetched: ",
        "closed": "cannot be fetched: ",
    }.items():
        with pytest.raises(MachineError, match=why):
            server.fetch(f"http://a.example/{path}")


def test_certificates(serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is dialled, the name is what the certificate must be for."""
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    words += [
        "-keyout",
        "key",
        "-out",
        "cert",
        "-subj",
        "/CN=x",
        "-addext",
        "subjectAltName=DNS:right.example",
    ]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    names: list[str] = []
    ours.sni_callback = lambda connected, name, context: names.append(name)
    server = serve({"/": reply(b"safe", "text/plain")}, tls=ours)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert"))
    assert server.fetch("https://right.example/", tls=trusted) == "safe"
    assert (names, server.dialled) == (["right.example"], [(PUBLIC, 443)])
    with pytest.raises(MachineError, match=r"no valid certificate: .*not valid for 'wrong\.example'"):
        server.fetch("https://wrong.example/", tls=trusted)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))  # not the environment's to say
    with pytest.raises(MachineError, match=r"no valid certificate: .*self.signed"):
        server.fetch("https://right.example/")
    assert len(server.heads) == 1, "nothing was asked of the others"


# what the model is told -----------------------------------------------------------------------


def test_parts_are_the_whole(serve: Callable[..., Server]) -> None:
    lines = "".join(f"line {number} of a long page, äöü 😀\n" for number in range(3000))
    server, pages = serve({"/": reply(lines.encode(), "text/plain; charset=utf-8")}), _Pages()
    found, offset = "", 0
    while True:
        text = server.fetch("http://a.example/", offset, pages=pages)
        assert len(text) <= 20_000
        note = re.search(r"\n\[characters (\d+) to (\d+) of (\d+); offset=(\d+) shows more\]$", text)
        assert isinstance(text, Cut) is (note is not None)
        if note is None:
            break
        assert (int(note[1]), int(note[2]), int(note[3])) == (offset, int(note[4]), len(lines))
        found, offset = found + text[: note.start()], int(note[4])
    assert found + text == lines
    assert len(server.heads) == 1
    for wrong, why in (
        (-1, "0 or more"),
        (len(lines), f"has {len(lines)} characters"),
        (10**9, "nothing at"),
    ):
        with pytest.raises(MachineError, match=why):
            server.fetch("http://a.example/", wrong, pages=pages)
    server.fetch("http://a.example/", 0, pages=pages)
    assert len(server.heads) == 2, "from the beginning it is fetched anew"


@given(st.text(max_size=200), st.integers(1, 50))
def test_any_parts_are_the_whole(text: str, most: int) -> None:
    found, offset = "", 0
    while offset is not None:
        shown, following = page.part(text, offset, most)
        found, offset = found + shown, following
        assert len(shown) <= most
    assert found == text


def test_no_key_travels_in_a_url(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame-open-now-1")
    server = serve({"/?k=sesame": reply(b"ok", "text/plain")})
    with pytest.raises(MachineError, match="holds a key or token"):
        server.fetch("http://a.example/?k=sesame-open-now-1")
    assert server.resolved == []
    assert server.fetch("http://a.example/?k=sesame") == "ok"


def test_few_pages_are_kept() -> None:
    pages = _Pages()
    for number in range(12):
        pages.keep(f"{number}", page.Page("", "x" * 1_000_000, None))
    assert [number for number in range(12) if pages.get(f"{number}")] == list(range(4, 12))


def test_the_tool_as_a_model_has_it() -> None:
    tool = Tool(web_fetch)
    parameters = tool.schema["function"]["parameters"]
    assert list(parameters["properties"]) == ["url", "offset"] and parameters["required"] == ["url"]
    for url, told in {
        "http://localhost:8080/": "internal name",
        "http://127.0.0.1/": "loopback",
        "http://127.0.0.1:631/": "port 631",
        "file:///etc/passwd": "only http",
    }.items():
        outcome = tool.call(json.dumps({"url": url}))
        assert not outcome.ok and outcome.content.startswith("error: ") and told in outcome.content


# character sets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("é".encode(), "text/plain", "é"),
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "é"),
        (b"\x80", "text/plain; charset=latin1", "€"),
        ("é".encode("latin-1"), "text/plain", "\ufffd"),
        ("é".encode("latin-1"), "text/plain; charset=nonsense", "\ufffd"),
        ("\ufeffé".encode(), "text/plain; charset=latin1", "é"),
        ("\ufeffé".encode("utf-16-le"), "text/html", "é"),
        ("日本".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "日本"),
        ("日本".encode("gb18030"), "text/plain; charset=gb2312", "日本"),
        ('<meta charset="windows-1252">é'.encode("cp1252"), "text/html", "é"),
        ('<meta http-equiv=x content="text/html; charset=koi8-r">Б'.encode("koi8-r"), "text/html", "Б"),
        ('<meta charset="utf-16">é'.encode(), "text/html", "é"),
        ('<?xml version="1.0" encoding="iso-8859-2"?>ł'.encode("iso-8859-2"), "text/xml", "ł"),
        (b"a\\x41", "text/plain; charset=unicode_escape", "a\\x41"),
        (zlib.compress(b"x" * 99)[:2], "text/plain; charset=zlib", "x\ufffd"),
        (b"a\0b\x1b[31mc\r\nd\re\tf", "text/plain", "ab[31mc\nd\ne\tf"),
    ],
)
def test_character_sets(body: bytes, kind: str, text: str) -> None:
    assert page.text_of(body, kind, "http://a.example/").endswith(text)


@given(st.binary(max_size=200), st.text(max_size=30))
def test_any_bytes_are_text(body: bytes, charset: str) -> None:
    for kind in (f"text/plain; charset={charset}", f"text/html; charset={charset}", "text/html", "text/xml"):
        text = page.text_of(body, kind, "http://a.example/")
        assert "\0" not in text and "\r" not in text


# HTML as text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h1>A</h1>b<h2>C</h2>", "# A\n\nb\n\n## C"),
        ("<p>a\n  b<p>c<br>d", "a b\n\nc\nd"),
        ("a<b>b</b> <i> c </i>d", "ab c d"),
        ("<div>a</div><div>b</div>", "a\nb"),
        ("<ul><li>a<li>b<ol><li>c</li><li>d</ol></ul>e", "- a\n- b\n  1. c\n  2. d\n\ne"),
        ("<table><tr><th>a<th>b<tr><td><p>c</p><p>d</p><td>e</table>", "a | b\nc d | e"),
        ("<pre>\n a\n  b</pre>c", " a\n  b\n\nc"),
        ('<a href="/x?a=1&amp;b=2">y</a>', "y (http://a.example/x?a=1&b=2)"),
        ('<a href="https://b.example/">https://b.example</a>', "https://b.example"),
        ('<a href="#x">y</a> <a href="javascript:z">y</a> <a>y</a> <a href="http://[">y</a>', "y y y y"),
        ('<base href="http://b.example/d/"><a href=x>y</a>', "y (http://b.example/d/x)"),
        ('<img src=x alt="a cat"><img src=y>', "[a cat]"),
        ("&lt;b&gt; &amp;amp; &#65;&#x42; &copy &nosuch; &#99999999999;", "<b> &amp; AB © &nosuch; \ufffd"),
        ("1 < 2 <3 a<", "1 < 2 <3 a<"),
        ("a<!-- EVIL --!-- EVIL > -->b<!-->c<!doctype EVIL><?EVIL?></EVIL>d", "abcd"),
        ("a<!-- EVIL", "a"),
        ('a<b title="> EVIL">b</b>', "ab"),
        ("a<b EVIL='", "a"),
        ("a<script>if (x < y) '</scripty> EVIL'</script >b", "ab"),
        ("a<SCRIPT>EVIL<!-- <script> EVIL </script> EVIL --> EVIL</sCript\n>b", "ab"),
        ("a<script><!--> EVIL</script>b", "ab"),
        ("a<script>EVIL", "a"),
        ("a<style>EVIL</b></style/>b<noscript><p>EVIL</noscript>c", "abc"),
        ("a<template><p>EVIL<template>EVIL</template>EVIL</template>b", "a\nb".replace("\n", "")),
        ("a<svg><title>EVIL</title><text>EVIL</text></svg>b", "ab"),
        ("<div hidden>EVIL<div>EVIL</div>EVIL</div>b", "b"),
        ('<p style="color: red; DISPLAY : none">EVIL<p>b', "b"),
        ("<input type=text value=EVIL hidden>b<textarea>EVIL</textarea>", "b"),
        ("<div hidden>EVIL</b></p></a>EVIL</div>b", "b"),
        (f"a&#{'9' * 5000};b&#x{'f' * 5000};c", "a\ufffdb\ufffdc"),
        ("</p></div></table>a", "a"),
        ("<div><a href=x>y", "y (http://a.example/x)"),
        ("<plaintext>a<b>", "a<b>"),
    ],
)
def test_html_as_text(html: str, text: str) -> None:
    assert title_and_text(html, "http://a.example/")[1] == text


def test_the_title_is_first() -> None:
    def text(html: str) -> str:
        return page.text_of(html.encode(), "text/html", "http://a.example/")

    assert text("<title> A &amp;\n B </title><p>c") == "A & B\n\nc"
    assert text("<title>A</title><h1>A</h1><p>c") == "# A\n\nc"
    assert text("<svg><title>no</title></svg><title>A</title><title>no</title>") == "A"


PIECES = st.sampled_from(
    [
        *("<div>", "</div>", "<p>", "<p hidden>", "<li>", "<ul>", "</ul>", "<table><tr><td>"),
        *("</table>", "<a href=x>", "</a>", "<b ", "'", '"', "<!--", "-->", "<![CDATA[", "]]>"),
        *("<?", "</", "<", ">", "&", "&#", "=", "/", "\n", "<pre>", "</pre>", "<template>"),
        *("</template>", "<svg>", "<title>", "</title>", "<br>", "<base href=", "é"),
    ]
)
UNSHOWN = st.sampled_from(["<script>{}</script>", "<style x='>'>{}</STYLE >", "<noscript>{}</noscript\n>"])


@given(st.lists(st.one_of(PIECES, st.text(max_size=5))).map("".join))
def test_any_text_is_read_as_html(html: str) -> None:
    title, text = title_and_text(html, "http://a.example/")
    assert len(text) <= 40 * len(html) + 40 and title.split() == title.split(" ")[: len(title.split())]


@given(
    st.lists(
        st.sampled_from(
            ["<div>", "</div>", "<p>", "<li>", "<table>", "<td>", "</b>", "<a href=x>", "<pre>", "x "]
        )
    ),
    UNSHOWN,
    st.lists(st.one_of(PIECES, st.text(max_size=5))).map("".join),
)
def test_nothing_of_a_script_is_shown(before: list[str], element: str, inside: str) -> None:
    inside = re.sub(r"(?i)</(?=[sn])|<!", "", inside) + " EVIL " + "<b>EVIL"
    html = "".join(before) + element.format(inside) + "<p>seen"
    title, text = title_and_text(html, "http://a.example/")
    assert "EVIL" not in title + text
    assert re.search(r"seen( \(http://a\.example/x\))*$", text)


@pytest.mark.parametrize(
    "unit",
    [
        *("<!-- ", "<a <a", "<![CDATA[", "<?", "</", "<div>", "<li><b>", '<a b="', "<"),
        *("<script><!--", "<a b= c='", "</b><i>", "&#1", "<a ", "<table><tr><td>"),
        *("<a href=x><b>y", "<ul><li>x", "<p hidden>", "<title>", "<x/"),
    ],
)
def test_hostile_pages_take_time_in_proportion(unit: str) -> None:
    """Eight times the page may take up to thirty times as long; what is quadratic takes sixty-four."""
    title_and_text(unit, "http://a.example/")
    took = []
    for size in (25_000, 200_000):
        html = unit * (size // len(unit))
        started = time.process_time()
        title_and_text(html, "http://a.example/")
        took.append(time.process_time() - started)
    assert took[1] < 30 * took[0] + 0.2


def test_links_without_end_take_time_and_room_in_proportion() -> None:
    took = []
    for number in (2_000, 32_000):
        started = time.process_time()
        title_and_text("<a href=x><b>y" * number, "http://a.example/")
        took.append(time.process_time() - started)
    assert took[1] < 40 * took[0] + 0.2
    base = f"<base href=http://b.example/{'d' * 900}/>"
    assert len(title_and_text(base + "<a href=x>y</a>" * 10_000)[1]) < 2_200_000

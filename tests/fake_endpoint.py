"""A small real endpoint for tests: HTTP on 127.0.0.1, scripted replies, everything it got on record.

    with FakeEndpoint(completion("hello")) as fake:
        ChatEngine("openai", "m", fake.url).complete(...)
        assert fake.requests[0].body["model"] == "m"

Replies are a value used for every request, a list (one a request, the last repeated), or a rule:
a function of the request's number (from 0) and body. A reply is a Reply, or what becomes one: a dict (the
JSON body of a 200), bytes or str (the raw body), an int (a status with an error body).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Reply:
    """What to answer. chunks: a body sent piece by piece, chunked. wait: an event to wait for before
    answering. delay_s: seconds before it. hang_up: close the connection without an answer. cut: close it
    after so many bytes of the body."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[str] | None = None
    wait: threading.Event | None = None
    delay_s: float = 0.0
    hang_up: bool = False
    cut: int | None = None


Rule = Callable[[int, dict[str, Any]], Any]


@dataclass(frozen=True)
class Got:
    """One request as it came in. Header names in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def completion(content: Any = "hello", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    """A reply body as OpenAI sends it. message: further fields of the assistant message."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "fake-model",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish,
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }


def tool_call(name: Any = "look", arguments: Any = '{"at":1}', **more: Any) -> dict[str, Any]:
    """A tool call as OpenAI sends it; a field given as None is left out."""
    call: dict[str, Any] = {"id": "call_a", "type": "function", **more}
    call["function"] = {"name": name, "arguments": arguments}
    return {key: value for key, value in call.items() if value is not None}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "fake-model", "choices": [choice]}


def stream(*chunks: Any, done: bool = True, **reply: Any) -> Reply:
    """A reply as server-sent events; a str among the chunks goes out as it is, a comment for example."""
    lines = [c if isinstance(c, str) else f"data: {json.dumps(c)}\n\n" for c in chunks]
    lines += ["data: [DONE]\n\n"] if done else []
    return Reply(chunks=lines, headers={"Content-Type": "text/event-stream"}, **reply)


class FakeEndpoint:
    """The server. url: its base URL. requests: all it got, in order. most: the most at one time."""

    def __init__(self, replies: Any = None) -> None:
        self.replies = completion() if replies is None else replies
        self.requests: list[Got] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, got: Got) -> Reply:
        """Record a request and find its reply."""
        with self._lock:
            number = len(self.requests)
            self.requests.append(got)
        found: Any = self.replies
        if callable(found):
            found = found(number, got.body)
        elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
            found = found[min(number, len(found) - 1)]
        if isinstance(found, Reply):
            return found
        if isinstance(found, int):
            return Reply({"error": {"message": f"scripted {found}"}}, status=found)
        return Reply(found)

    def enter(self, step: int) -> None:
        with self._lock:
            self._now += step
            self.most = max(self.most, self._now)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeEndpoint

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        got = Got(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
        self.fake.enter(1)
        try:
            self._answer(self.fake.take(got))
        finally:
            self.fake.enter(-1)

    def _answer(self, reply: Reply) -> None:
        if reply.wait is not None:
            reply.wait.wait(60)
        time.sleep(reply.delay_s)
        if reply.hang_up:
            self.close_connection = True
            return
        if reply.chunks is not None:
            self._head(reply, {"Transfer-Encoding": "chunked"})
            for piece in reply.chunks:
                data = piece.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            return
        body = reply.body if isinstance(reply.body, bytes | str) else json.dumps(reply.body)
        data = body.encode() if isinstance(body, str) else body
        self._head(reply, {"Content-Length": str(len(data))})
        self.wfile.write(data if reply.cut is None else data[: reply.cut])
        self.close_connection = self.close_connection or reply.cut is not None

    def _head(self, reply: Reply, length: dict[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in ({"Content-Type": "application/json"} | reply.headers | length).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""

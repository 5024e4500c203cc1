"""HTTP for the local trainer: routes, the key, limits. Standard library only; one thread a connection.

Answers only on 127.0.0.1, to requests that carry the key (X-API-Key, or Authorization: Bearer), name this
server as their Host and have no Origin, so no page in a browser can reach it.
"""

from __future__ import annotations

import hmac
import re
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from libmachine.canon import Record
from libmachine.errors import MachineError
from libmachine.tinkerd import rest, wire
from libmachine.tinkerd.chat import Chat, Stream, refusal
from libmachine.tinkerd.checkpoints import Place
from libmachine.tinkerd.engine import Refusal
from libmachine.tinkerd.service import CLIENT_CONFIG, Service

MOST_BODY = 64 << 20
MOST_CONNECTIONS = 256
_STALE_S = 120.0
Reply = dict[str, Any] | bytes | Stream | None
"""JSON, protobuf, what comes bit by bit, or nothing (204)."""
_OPENAI = "/v1/"


class _Call:
    """One request: its body as it came, its headers' type, its query."""

    def __init__(self, body: bytes, kind: str, query: Record) -> None:
        self.body, self.kind, self.query = body, kind, query

    @property
    def json(self) -> Record:
        return wire.json_body(self.body)


Handler = Callable[..., Reply]


def routes(
    service: Service, chat: Chat, stop: Callable[[], None], about: Record
) -> list[tuple[str, re.Pattern[str], Handler]]:
    """(method, pattern of the path, handler of call and the pattern's groups)."""

    def forward_backward(call: _Call) -> Reply:
        if call.kind != wire.PROTO:
            raise Refusal(
                "forward_backward takes protobuf, as tinker 0.38 sends it; update the SDK", status=415
            )
        return service.forward_backward(wire.train_body(call.body))

    def finish(call: _Call, session_id: str) -> Reply:
        service.sessions.close(session_id)
        return {}

    def stop_server(call: _Call) -> Reply:
        stop()
        return {"status": "stopping"}

    table: list[tuple[str, str, Handler]] = [
        ("POST", "client/config", lambda call: CLIENT_CONFIG),
        ("POST", "client/dynamic_config", lambda call: {"refresh_interval_sec": 300}),
        ("POST", "create_session", lambda call: service.create_session(call.json)),
        ("POST", "session_heartbeat", lambda call: service.heartbeat(call.json)),
        ("POST", "create_model", lambda call: service.create_model(call.json)),
        ("POST", "get_info", lambda call: service.get_info(call.json)),
        ("POST", "forward_backward", forward_backward),
        ("POST", "optim_step", lambda call: service.optim_step(call.json)),
        ("POST", "save_weights", lambda call: service.save_weights(call.json)),
        ("POST", "save_weights_for_sampler", lambda call: service.save_weights_for_sampler(call.json)),
        ("POST", "load_weights", lambda call: service.load_weights(call.json)),
        ("POST", "create_sampling_session", lambda call: service.create_sampling_session(call.json)),
        ("GET", "samplers/([^/]+)", lambda call, name: service.sampler(name)),
        ("POST", "asample", lambda call: service.asample(call.json)),
        ("POST", "retrieve_future", lambda call: service.retrieve(call.json)),
        ("POST", "sessions/([^/]+)/finish", finish),
        ("GET", "sessions/([^/]+)", lambda call, name: rest.session(service, name)),
        ("GET", "sessions", lambda call: {"sessions": service.sessions.ids()}),
        ("POST", "telemetry", lambda call: {"status": "accepted"}),
        ("GET", "get_server_capabilities", lambda call: rest.capabilities(service)),
        ("GET", "healthz", lambda call: {"status": "ok", **about}),
        ("GET", "training_runs", lambda call: rest.training_runs(service, call.query)),
        ("GET", "training_runs/([^/]+)", lambda call, run: rest.training_run(service, run)),
        ("GET", "training_runs/([^/]+)/checkpoints", lambda call, run: rest.run_checkpoints(service, run)),
        (
            "DELETE",
            "training_runs/([^/]+)/checkpoints/([^/]+)/([^/]+)",
            lambda call, *place: rest.delete_checkpoint(service, Place(*place)),
        ),
        (
            "PUT",
            "training_runs/([^/]+)/checkpoints/([^/]+)/([^/]+)/ttl",
            lambda call, *place: rest.set_ttl(service, Place(*place), call.json),
        ),
        ("GET", "checkpoints", lambda call: rest.all_checkpoints(service, call.query)),
        ("POST", "weights_info", lambda call: rest.weights_info(service, call.json)),
        ("POST", "machine/adapter", lambda call: service.adapter(call.json)),
        ("POST", "machine/complete", lambda call: chat.private(call.body)),
        ("POST", "machine/stop", stop_server),
    ]
    openai: list[tuple[str, str, Handler]] = [
        ("GET", "models", lambda call: chat.listed()),
        ("GET", "models/(.+)", lambda call, model: chat.model(model)),
        ("POST", "chat/completions", lambda call: chat.completions(call.json)),
    ]
    return [
        (method, re.compile(start + path), handler)
        for start, rows in (("/api/v1/", table), (_OPENAI, openai))
        for method, path, handler in rows
    ]


class Server(ThreadingHTTPServer):
    """The trainer on a port of 127.0.0.1 (0: a free one).

    token: the key that clients must send. about: told by /healthz. stop: what /machine/stop calls.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, port: int, token: str, service: Service, chat: Chat, about: Record, stop: Callable[[], None]
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.token, self.service = token, service
        self.routes = routes(service, chat, stop, about)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.last_request = time.monotonic()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)  # too many: the SDK comes again
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _STALE_S
    server: Server
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def _serve(self) -> None:
        try:
            self._check()
            body = self._body()
            self.server.last_request = time.monotonic()
            reply = self._call(body)
            self.server.last_request = time.monotonic()
        except (OSError, ConnectionError):
            raise
        except Exception as error:
            self._send(*self._failure(error))
        else:
            self._send(200 if reply is not None else 204, reply)
            self.server.last_request = time.monotonic()

    def _failure(self, error: Exception) -> tuple[int, Reply]:
        status = (
            error.status if isinstance(error, Refusal) else 501 if isinstance(error, MachineError) else 500
        )
        if urlsplit(self.path).path.startswith(_OPENAI):
            return status, refusal(error)
        category = error.category if isinstance(error, Refusal) else "server"
        bug = "" if isinstance(error, MachineError) else f"bug: {type(error).__name__}: "
        return status, {"error": f"{bug}{error}", "category": category}

    def _check(self) -> None:
        keep, self.close_connection = not self.close_connection, True  # what is refused is not read
        if self.headers.get("Host", "") not in self.server.hosts or self.headers.get("Origin"):
            raise Refusal("this server answers local programs only", status=403)
        key = self.headers.get("X-API-Key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(key.encode(), self.server.token.encode()):
            raise Refusal("wrong API key (X-API-Key, or Authorization: Bearer)", status=401)
        self.close_connection = not keep

    def _body(self) -> bytes:
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if self.headers.get("Transfer-Encoding") or not 0 <= length <= MOST_BODY:
            self.close_connection = True
            raise Refusal(f"a body must have a Content-Length of at most {MOST_BODY}", status=413)
        return self.rfile.read(length)

    def _call(self, body: bytes) -> Reply:
        parts = urlsplit(self.path)
        body = wire.unpacked(body, self.headers.get("Content-Encoding", ""))
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        call = _Call(body, kind, dict(parse_qsl(parts.query)))
        for method, pattern, handler in self.server.routes:
            found = pattern.fullmatch(parts.path)
            if found and method == self.command:
                return handler(call, *map(unquote, found.groups()))
        raise Refusal(f"{self.command} {parts.path} is not served by the local trainer", status=404)

    def _send(self, status: int, reply: Reply) -> None:
        if isinstance(reply, Stream):
            self._send_stream(reply)
            return
        data = reply if isinstance(reply, bytes) else b"" if reply is None else orjson.dumps(reply)
        self.send_response_only(status, HTTPStatus(status).phrase)
        if reply is not None:
            self.send_header("Content-Type", wire.PROTO if isinstance(reply, bytes) else wire.JSON)
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_stream(self, reply: Stream) -> None:
        """Until its end, which is the connection's."""
        self.close_connection = True
        self.send_response_only(200, HTTPStatus(200).phrase)
        for name, value in (
            ("Content-Type", reply.kind),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        try:
            for piece in reply.pieces:
                self.wfile.write(piece)
                self.wfile.flush()
        finally:
            reply.pieces.close()

    def log_message(self, *_: Any) -> None:
        """Nothing: requests are many and none is news."""

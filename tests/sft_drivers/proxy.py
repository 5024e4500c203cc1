"""A proxy before a trainer that spoils the answers from the Nth forward_backward on.

    python proxy.py TARGET_URL URL_FILE N 402|hang

Its address goes into URL_FILE. It runs until it is killed.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TARGET = urlsplit(sys.argv[1])
AFTER, HOW = int(sys.argv[3]), sys.argv[4]
seen = 0
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do(self) -> None:
        global seen
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with lock:
            seen += self.path.endswith("/forward_backward")
            spoilt = seen >= AFTER and not self.path.endswith(("/healthz", "/get_server_capabilities"))
        if spoilt and HOW == "hang":
            time.sleep(3600)
        if spoilt:
            self.reply(402, b'{"detail": "no payment method"}', "application/json")
            return
        connection = http.client.HTTPConnection(TARGET.hostname or "", TARGET.port, timeout=60)
        headers = {n: v for n, v in self.headers.items() if n.lower() not in ("host", "connection")}
        connection.request(self.command, self.path, body or None, headers)
        response = connection.getresponse()
        self.reply(response.status, response.read(), response.headers.get("Content-Type", ""))

    def reply(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
with open(sys.argv[2], "w", encoding="ascii") as file:
    file.write(f"http://127.0.0.1:{server.server_port}")
server.serve_forever()

"""A webhook's receiver: a real HTTP server that checks signatures and answers as it is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote_to_bytes

from tests.eventstore.publishing.bridges.feeds import Received

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> Any:
        return json.loads(unquote_to_bytes(self.headers["tailrace-key"]))

    def received(self) -> Received:
        return Received(self.headers["webhook-id"], self.key, json.loads(self.body) if self.body else None)

    def is_signed_by(self, key: bytes) -> bool:
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        own = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{own}" in self.headers["webhook-signature"].split()


@dataclass(slots=True)
class Endpoint:
    """``answer`` decides on each request; every request is kept with what was answered."""

    url: str
    answer: Callable[[Request], Answer] = lambda _: (204, {}, b"")
    requests: list[tuple[Request, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, request: Request) -> Answer:
        found = self.answer(request)
        with self._lock:
            self.requests.append((request, found[0]))
        return found

    def taken(self) -> list[Received]:
        return [each.received() for each, status in self.requests if 200 <= status < 300]


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, body = found.handle(Request(self.command, headers, self.rfile.read(length)))
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    found = Endpoint(f"http://127.0.0.1:{server.server_port}/hook?token=t0ken-of-the-address")
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

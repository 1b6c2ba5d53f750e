"""A schema registry of one process: Confluent's API as far as a reader of schemas asks it, over HTTP or HTTPS."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Registry:
    """``schemas``: answers by number, an Avro schema's text or a whole document. ``login``: USER:PASSWORD that is asked
    for. ``broken``: a status, and a body, of every answer. ``asked``: the paths of all questions."""

    url: str = ""
    schemas: dict[int, str | dict[str, Any]] = field(default_factory=dict)
    login: str = ""
    broken: tuple[int, bytes] | None = None
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.broken is not None:
            return self.broken
        if self.login and authorization != "Basic " + base64.b64encode(self.login.encode()).decode():
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        if path == "/schemas/types":
            return 200, b'["JSON", "PROTOBUF", "AVRO"]'
        number = path.removeprefix("/schemas/ids/")
        if number == path:
            return 404, b"<html>no such page</html>"
        found = self.schemas.get(int(number))
        if found is None:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, json.dumps({"schema": found} if isinstance(found, str) else found).encode()


@contextmanager
def schema_registry(
    schemas: Mapping[int, str | dict[str, Any]] | None = None, certificate: Path | None = None
) -> Iterator[Registry]:
    """``certificate``: with its key in one file, for TLS; its host is localhost then."""
    registry = Registry(schemas=dict(schemas or {}))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            registry.url = f"https://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()

"""A server whose certificate is of an authority that nobody has named is an operator's business, over every bridge."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.publishing.bridges.open import open_bridge
from tailrace.eventstore.settings import BridgeSettings, Settings
from tests.eventstore.publishing.bridges.endpoint import SECRET
from tests.support.certificates import make_authority

pytestmark = pytest.mark.servers  # Proton and openssl
_INFO = b'INFO {"server_id":"s","version":"2.10.0","proto":1,"max_payload":1048576,"tls_required":true}\r\n'
_DESTINATIONS: dict[str, dict[str, str]] = {
    "webhook": {"url": "https://{}/", "secret": SECRET},
    "redis": {"url": "rediss://{}/0"},
    "amqp": {"url": "amqps://guest:guest@{}/%2F"},
    "amqp1": {"url": "amqps://{}"},
    "nats": {"url": "tls://{}"},
    "sqs": {"url": "https://{}/queue", "endpoint": "https://{}", "region": "eu-central-1"},
    "kinesis": {"endpoint": "https://{}", "region": "eu-central-1"},
}


@pytest.fixture
def address(tmp_path: Path, kind: str) -> Iterator[str]:
    """Of a server that ends each connection once it is encrypted. One of NATS says in plain text that it will be."""
    make_authority(tmp_path, "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        if kind == "nats":
                            connection.sendall(_INFO)
                        context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def settings_of(kind: str, address: str) -> BridgeSettings:
    given: dict[str, Any] = {name: value.format(address) for name, value in _DESTINATIONS[kind].items()}
    found = Settings.model_validate({"destinations": {"there": {"kind": kind, **given}}}).destinations[
        "there"
    ]
    assert found.kind != "kafka"
    return found


def ask(kind: str, address: str) -> None:
    with closing(open_bridge(settings_of(kind, address))) as bridge:
        bridge.check()


@pytest.mark.parametrize("kind", _DESTINATIONS)
def test_a_certificate_that_is_not_right_is_not_tried_again(
    kind: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(OperatorError, match="shows a certificate that is not right: ") as refused:
        ask(kind, address)
    assert "name the authority it is from in " in refused.value.hint


@pytest.mark.parametrize("kind", [kind for kind in _DESTINATIONS if kind not in ("sqs", "kinesis")])
def test_a_name_that_nobody_knows_may_be_tried_again(kind: str) -> None:
    with pytest.raises(TransientError):
        ask(kind, "nobody.invalid:1234")

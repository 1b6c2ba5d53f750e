"""The bridge to AMQP 1.0 keeps the contract, on ActiveMQ Artemis; and on RabbitMQ, which asks who we are."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Bridge, Later, Message, Refused
from tailrace.eventstore.settings import Amqp1DestinationSettings
from tailrace.testing import Arrived, BridgeContract
from tests.eventstore.publishing.bridges.feeds import (
    Feed,
    Received,
    commits,
    each_in_order,
    filled,
    killed_and_again,
)
from tests.eventstore.publishing.bridges.test_message_servers import declare, drained
from tests.fixtures.message_servers import LARGE, Artemis, free_port
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.certificates import make_authority, make_certificate, openssl
from tests.tailrace.conftest import until

pytestmark = pytest.mark.servers


def bridge_to(url: str, **settings: Any) -> Bridge:
    from tailrace.eventstore.publishing.bridges.amqp.amqp_1_0 import (
        Amqp1Bridge,  # compiled for these tests alone
    )

    return Amqp1Bridge(Amqp1DestinationSettings(kind="amqp1", url=SecretStr(url), **settings))


class TestAmqp1(BridgeContract):
    @pytest.fixture(autouse=True)
    def place(self, artemis: str) -> None:
        self.url, self.name = artemis, f"q{secrets.token_hex(4)}"
        self.found: list[Arrived] = []

    def open(self) -> Bridge:
        return bridge_to(self.url)

    def received(self) -> Sequence[Arrived]:
        self.found += [Arrived(each.id, bytes(each.body)) for each in taken(self.url, self.name)]
        return self.found

    def open_unreachable(self) -> Bridge:
        return bridge_to("amqp://127.0.0.1:1")

    def test_an_address_that_is_not_there_stops_before_anything_is_sent(self) -> None:
        bridge = bridge_to(self.url, address="none")
        with pytest.raises(OperatorError, match=r"refuses us: .*target address none does not exist"):
            bridge.check()
        bridge.close()

    def test_a_full_address_takes_the_message_later(self) -> None:
        self.name = "small"
        bridge = self.open()
        (first,) = bridge.send([self.message(b"1" * 5000)])
        (second,) = bridge.send([self.message()])
        bridge.close()
        assert first == TAKEN
        assert isinstance(second, Later)
        assert "amqp:resource-limit-exceeded" in second.reason


def test_whom_a_broker_does_not_know_is_told_so_without_the_password(rabbitmq: str) -> None:
    with pytest.raises(OperatorError, match=r"refuses us: .*Authentication failed") as refused:
        bridge_to(rabbitmq.partition("/%2F")[0].replace("guest@", "secret@"))
    assert "secret" not in str(refused.value)


def test_a_message_that_the_broker_finds_too_large_is_refused_alone(rabbitmq: str) -> None:
    """RabbitMQ does not say its limit before, and ends the session."""
    name = f"q{secrets.token_hex(4)}"
    declare(rabbitmq, name)
    bridge = bridge_to(rabbitmq.partition("/%2F")[0], address="/amq/queue/{name}")
    sent = [message(name, size) for size in (10, LARGE + 1, 10)]
    first, second, third = bridge.send(sent)
    bridge.close()
    assert (first, third) == (TAKEN, TAKEN)
    assert isinstance(second, Refused)
    assert "larger than configured max size" in second.reason
    assert {each for each, _, _ in drained(rabbitmq, name)} == {sent[0].id, sent[2].id}


@one_catalog
def test_a_publisher_over_amqp1_that_is_killed_loses_nothing(
    artemis: str, new_store: StoreFactory, store_dir: Path
) -> None:
    filled(new_store)
    name = f"q{secrets.token_hex(4)}"
    killed_and_again(
        Feed({"kind": "amqp1", "url": artemis}, {"topic": name, "transaction_bytes": 1}), store_dir
    )
    found = taken(artemis, name)
    received = [
        Received(each.id, json.loads(each.properties["tailrace-key"]), json.loads(bytes(each.body)))
        for each in found
    ]
    assert commits(received) == each_in_order()
    assert len(found) > 18
    assert {each.subject for each in found} == {name}


def test_a_message_above_what_the_broker_says_that_it_takes_is_not_sent() -> None:
    with peer_that_takes(1000) as url:
        bridge = bridge_to(url)
        first, second, third = bridge.send([message("q", size) for size in (10, 2000, 10)])
        bridge.close()
    assert (first, third) == (TAKEN, TAKEN)
    assert isinstance(second, Refused)
    assert second.reason == "it is larger than the 1000 bytes that the broker takes"


def test_messages_go_over_tls_to_a_broker_whose_certificate_is_right(tmp_path: Path) -> None:
    make_authority(tmp_path, "ca")
    make_certificate(tmp_path, "broker", "-addext", "subjectAltName=DNS:localhost")
    openssl(
        tmp_path, "pkcs12", "-export", "-in", "broker.crt", "-inkey", "broker.key", "-passout", "pass:",
        "-out", "broker.p12",
    )  # fmt: skip
    (tmp_path / "home").mkdir()
    broker = Artemis(tmp_path / "home", tmp_path / "broker.p12")
    broker.start()
    try:
        bridge = bridge_to(broker.url, ca_file=tmp_path / "ca.crt")
        assert bridge.send([message("q", 10)]) == [TAKEN]
        bridge.close()
        with pytest.raises(OperatorError, match="shows a certificate that is not right") as refused:
            bridge_to(broker.url)
        assert "ca_file" in refused.value.hint
    finally:
        broker.kill()


@one_catalog
def test_a_broker_that_is_killed_loses_nothing_that_it_took(tmp_path: Path, new_store: StoreFactory) -> None:
    store = filled(new_store, epochs=30)
    broker = Artemis(tmp_path)
    broker.start()
    name, reported, stop = f"q{secrets.token_hex(4)}", threading.Event(), threading.Event()
    feed = Feed({"kind": "amqp1", "url": broker.url}, {"topic": name, "transaction_bytes": 1})
    publisher = feed.publisher(store, report=lambda _: reported.set(), stop=stop, patience_seconds=120)
    try:
        with ThreadPoolExecutor() as pool:
            running = pool.submit(publisher.run)
            for _ in range(2):
                reported.clear()
                assert reported.wait(60)
                broker.kill()
                broker.start()
            until(lambda: running.done() or publisher.progress.epoch == 30, 60)
            stop.set()
            running.result(60)
        received = [
            Received(each.id, json.loads(each.properties["tailrace-key"]), json.loads(bytes(each.body)))
            for each in taken(broker.url, name)
        ]
        assert commits(received) == each_in_order(30)
    finally:
        stop.set()
        broker.kill()


@contextmanager
def peer_that_takes(size: int) -> Iterator[str]:
    """The address of a peer that says on each link how many bytes a message may have, for one connection."""
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    port, begun = free_port(), threading.Event()

    class Peer(MessagingHandler):  # type: ignore[misc]  # which mypy does not read
        def on_start(self, event: Any) -> None:
            self.listener = event.container.listen(f"127.0.0.1:{port}")
            begun.set()

        def on_link_opening(self, event: Any) -> None:
            event.link.target.address = event.link.remote_target.address
            event.link.max_message_size = size

        def on_connection_closed(self, event: Any) -> None:
            self.listener.close()

    thread = threading.Thread(target=Container(Peer()).run, daemon=True)
    thread.start()
    assert begun.wait(30)
    yield f"amqp://127.0.0.1:{port}"
    thread.join(30)
    assert not thread.is_alive()


def message(name: str, size: int) -> Message:
    key = secrets.token_hex(4).encode()
    return Message(secrets.token_hex(16), name, "shop.public.orders", "0/1", key, b"1" * size)


def taken(url: str, name: str) -> list[Any]:
    """All that is in a queue, in its order, up to a last message of ours."""
    import proton
    from proton import utils

    connection = utils.BlockingConnection(url)
    connection.create_sender(name).send(proton.Message(id="last"))
    receiver = connection.create_receiver(name, credit=100)
    found: list[Any] = []
    while not found or found[-1].id != "last":
        found.append(receiver.receive())
        receiver.accept()
    connection.close()
    return found[:-1]

"""The bridge to AMQP 1.0 keeps the contract, on ActiveMQ Artemis; and on RabbitMQ, which asks who we are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
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
from tests.fixtures.message_servers import LARGE
from tests.fixtures.stores import StoreFactory, one_catalog

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

"""Bridges to RabbitMQ and NATS JetStream keep the contract, on real servers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import nats
import pika
import pytest
from nats.js import errors as stream_errors
from pydantic import SecretStr

from tailrace.eventstore.publishing.bridges.amqp.amqp_0_9_1 import AmqpBridge
from tailrace.eventstore.publishing.bridges.bridge import Bridge, Refused
from tailrace.eventstore.publishing.bridges.nats import NatsBridge
from tailrace.eventstore.settings import AmqpDestinationSettings, NatsDestinationSettings
from tailrace.testing import Arrived, BridgeContract
from tests.eventstore.publishing.bridges.feeds import (
    Feed,
    Received,
    commits,
    each_in_order,
    filled,
    killed_and_again,
)
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = pytest.mark.servers

Found = list[tuple[str, dict[str, Any], bytes]]  # id, headers, body


class TestAmqp(BridgeContract):
    @pytest.fixture(autouse=True)
    def place(self, rabbitmq: str) -> None:
        self.url, self.name = rabbitmq, f"q{secrets.token_hex(4)}"
        declare(rabbitmq, self.name)
        self.found: Found = []

    def open(self) -> Bridge:
        return self._bridge(self.url)

    def received(self) -> Sequence[Arrived]:
        self.found += drained(self.url, self.name)
        return [Arrived(each, body) for each, _, body in self.found]

    def open_unreachable(self) -> Bridge:
        return self._bridge("amqp://guest:guest@127.0.0.1:1/%2F")

    def _bridge(self, url: str) -> Bridge:
        return AmqpBridge(AmqpDestinationSettings(kind="amqp", url=SecretStr(url)))

    def test_what_no_queue_takes_is_refused_and_not_dropped(self) -> None:
        bridge = self.open()
        self.name = f"{self.name}.nowhere"
        (answer,) = bridge.send([self.message()])
        bridge.close()
        assert isinstance(answer, Refused)
        assert answer.reason == f"no queue takes the routing key {self.name}"


class TestNats(BridgeContract):
    @pytest.fixture(autouse=True)
    def place(self, nats_url: str) -> None:
        self.url, self.name = nats_url, f"s{secrets.token_hex(4)}.orders"
        asyncio.run(make_stream(nats_url, self.name.partition(".")[0]))

    def open(self) -> Bridge:
        return self._bridge(self.url)

    def received(self) -> Sequence[Arrived]:
        found = asyncio.run(stored(self.url, self.name.partition(".")[0]))
        return [Arrived(each, body) for each, _, body in found]

    def open_unreachable(self) -> Bridge:
        return self._bridge("nats://127.0.0.1:1")

    def _bridge(self, url: str) -> Bridge:
        return NatsBridge(NatsDestinationSettings(kind="nats", url=SecretStr(url)))

    def test_what_is_sent_again_is_stored_once(self) -> None:
        sent = self.message()
        for _ in range(3):
            bridge = self.open()
            self.answers(bridge, [sent])
            bridge.close()
        assert [each.id for each in self.received()] == [sent.id]


@one_catalog
def test_a_publisher_to_rabbitmq_that_is_killed_loses_nothing(
    rabbitmq: str, new_store: StoreFactory, store_dir: Path
) -> None:
    filled(new_store)
    name = f"q{secrets.token_hex(4)}"
    declare(rabbitmq, name)
    feed = Feed({"kind": "amqp", "url": rabbitmq}, {"topic": name, "transaction_bytes": 1})
    killed_and_again(feed, store_dir)
    found = drained(rabbitmq, name)
    received = [
        Received(each, json.loads(headers["tailrace-key"]), json.loads(body)) for each, headers, body in found
    ]
    assert commits(received) == each_in_order()
    assert len(found) > 18


@one_catalog
def test_what_a_killed_publisher_repeats_is_in_jetstream_once(
    nats_url: str, new_store: StoreFactory, store_dir: Path
) -> None:
    filled(new_store)
    name = f"s{secrets.token_hex(4)}"
    asyncio.run(make_stream(nats_url, name))
    feed = Feed({"kind": "nats", "url": nats_url}, {"topic": name + ".{table}", "transaction_bytes": 1})
    killed_and_again(feed, store_dir)
    found = asyncio.run(stored(nats_url, name))
    received = [
        Received(each, json.loads(unquote_to_bytes(headers["tailrace-key"])), json.loads(body))
        for each, headers, body in found
    ]
    assert commits(received) == each_in_order()
    assert len(found) == 18


def declare(url: str, name: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(name, durable=True)
    connection.close()


def drained(url: str, name: str) -> Found:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    found: Found = []
    while True:
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method is None:
            connection.close()
            return found
        found.append((properties.message_id, properties.headers, body))


async def make_stream(url: str, name: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    await client.close()


async def stored(url: str, name: str) -> Found:
    client = await nats.connect(url)
    streams = client.jetstream()
    found: Found = []
    for number in range(1, (await streams.stream_info(name)).state.last_seq + 1):
        try:
            each = await streams.get_msg(name, number)
        except stream_errors.NotFoundError:
            continue
        headers = dict(each.headers or {})
        found.append((headers["Nats-Msg-Id"], headers, each.data or b""))
    await client.close()
    return found

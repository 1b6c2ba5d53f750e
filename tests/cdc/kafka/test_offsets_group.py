"""A consumer group is told how far capture is, for tools that show lag; it decides nothing and stops nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
from kafka.structs import OffsetAndMetadata

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import capturing, history, read_up_to, settings_of
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.capturing import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300), one_catalog]


@pytest.fixture
def connector(kafka: KafkaServer, database: str) -> Iterator[Connector]:
    name = f"p{secrets.token_hex(4)}.public.items"
    make_topic(kafka, name)
    made = Connector(database, kafka.address, name)
    yield made
    made.close()


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


@pytest.fixture
def admin(kafka: KafkaServer) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka.address)
    yield client
    client.close()


def told(admin: KafkaAdminClient, group: str) -> dict[int, int]:
    """By partition the group's offset; none while the broker prepares for its first group."""
    try:
        found = admin.list_group_offsets({group: None})[group]
    except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
        return {}
    return {partition.partition: each.offset for partition, each in found.items()}


def test_a_group_is_told_each_offset_and_never_asked(
    store: Store, connector: Connector, admin: KafkaAdminClient
) -> None:
    group = f"watched-{secrets.token_hex(4)}"
    settings = settings_of(connector, offsets_group=group)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.flush()
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 2))
        running.wait(lambda: told(admin, group) == {0: 2})
        connector.change(("u", 1, "c"))
        connector.flush()
        running.wait(lambda: told(admin, group) == {0: 3})
    admin.alter_group_offsets(group, {TopicPartition(connector.topic, 0): OffsetAndMetadata(1, "", -1)})
    with capturing(store, settings) as running:
        running.wait(lambda: told(admin, group) == {0: 3})
    assert history(store) == [("c", 1), ("c", 2), ("u", 1)]


def test_a_group_that_does_not_take_offsets_stops_nothing_and_is_reported(
    store: Store, connector: Connector
) -> None:
    group = f"busy-{secrets.token_hex(4)}"
    settings = settings_of(connector, offsets_group=group)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.flush()
    member = KafkaConsumer(bootstrap_servers=connector.brokers, group_id=group, enable_auto_commit=False)
    try:
        wait_until(lambda: connector.topic in member.topics())  # who joins before it hears of it joins twice
        member.subscribe([connector.topic])
        while not member.assignment():
            member.poll(timeout_ms=200)
        with capturing(store, settings) as running:
            running.wait(read_up_to(store, 1))
            said = f"offsets are not told to the consumer group {group}"
            running.wait(lambda: any(said in text for text in running.capture.status.messages))
    finally:
        member.close()
    assert history(store) == [("c", 1)]

"""A parked record of a source also is in its topic of dead letters, at least once, with its place and the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.settings import KafkaDestinationSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import capturing, connector, history, read_up_to, settings_of
from tests.cdc.kafka.test_crashes import capture_process
from tests.eventstore.publishing.publications import Record, committed

__all__ = ["connector"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest.fixture
def store(store_dir: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(inline_bytes=200), create=True, root=store_dir) as opened:
        yield opened


def letters(connector: Connector, topic: str) -> list[Record]:
    return list(committed(KafkaDestinationSettings(kind="kafka", brokers=(connector.brokers,)), topic))


def two_good_and_a_bad_one(store: Store, connector: Connector, value: bytes = b"\x01 no JSON") -> None:
    prepare_kafka(store, "shop", settings_of(connector))
    connector.change(("c", 1, "a"))
    connector.send_raw(b'{"id": 2}', value)
    connector.change(("c", 3, "c"))
    connector.flush()


def test_a_parked_record_is_a_dead_letter_with_its_place_and_the_reason(
    store: Store, connector: Connector
) -> None:
    two_good_and_a_bad_one(store, connector)
    topic = f"{connector.topic}.dead"
    with capturing(store, settings_of(connector, on_bad_record="park", dead_letter=topic)) as running:
        running.wait(read_up_to(store, 3))
    assert history(store) == [("c", 1), ("c", 3)]
    (letter,) = letters(connector, topic)
    assert (letter.key, letter.value) == (b'{"id": 2}', b"\x01 no JSON")
    assert dict(letter.headers) == {
        "tailrace-topic": connector.topic.encode(),
        "tailrace-partition": b"0",
        "tailrace-offset": b"1",
        "tailrace-reason": b"its value: not a JSON object (at byte 0)",
        "tailrace-tries": b"1",
    }


def test_a_capture_that_is_killed_sends_it_again_and_never_loses_it(
    store: Store, connector: Connector
) -> None:
    two_good_and_a_bad_one(store, connector)
    topic = f"{connector.topic}.dead"
    settings = settings_of(connector, on_bad_record="park", dead_letter=topic)
    killed = capture_process(store, settings, "epoch_decoded")
    assert killed.wait(60) == -9
    assert not parked(store.catalog, "shop") and len(letters(connector, topic)) == 1
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 3))
    assert len(parked(store.catalog, "shop")) == 1
    assert {dict(each.headers)["tailrace-offset"] for each in letters(connector, topic)} == {b"1"}


def test_a_value_that_the_topic_does_not_take_is_left_out(store: Store, connector: Connector) -> None:
    two_good_and_a_bad_one(store, connector, json.dumps({"text": "x" * 20_000}).encode())
    topic = f"{connector.topic}.dead"
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    small = {"num_partitions": 1, "configs": {"max.message.bytes": "5000"}}
    admin.create_topics({topic: small}, wait_for_metadata=True)
    admin.close()
    with capturing(store, settings_of(connector, on_bad_record="park", dead_letter=topic)) as running:
        running.wait(read_up_to(store, 3))
    (letter,) = letters(connector, topic)
    assert letter.value is None
    assert dict(letter.headers)["tailrace-omitted-bytes"] == b"20012"

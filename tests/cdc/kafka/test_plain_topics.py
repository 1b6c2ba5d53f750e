"""Topics of a producer of one's own, from a real broker into the log."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from tailrace.cdc.kafka.epochs.epoch import BadRecord
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.cdc.kafka.requests import PARKED, REREAD
from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.test_capture import Running, capturing
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
LARGEST = 104_857_600  # of a request that brokers take, unless told otherwise
PRICES = {"columns": {"sku": "text", "price": "numeric(8,2)"}, "key": ["sku"], "key_format": "text"}
CLICKS = {"columns": {"page": "text", "at": "timestamp with time zone"}, "records": "events"}


class Topic:
    """A topic of the session's broker and its producer."""

    def __init__(
        self,
        kafka: KafkaServer,
        partitions: int = 1,
        settings: dict[str, str] | None = None,
        prefix: str = "plain-",
    ) -> None:
        self.name = f"{prefix}{secrets.token_hex(4)}"
        make_topic(kafka, self.name, partitions, settings)
        self.brokers = kafka.address
        self.producer = KafkaProducer(bootstrap_servers=kafka.address, acks="all", max_request_size=LARGEST)

    def send(
        self, key: str | None, value: Any, partition: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        pairs = [(name, text.encode()) for name, text in (headers or {}).items()]
        named = None if key is None else key.encode()
        self.producer.send(self.name, key=named, value=data, partition=partition, headers=pairs).get(60)

    def settings(
        self, mine: dict[str, Any], more: dict[str, Any] | None = None, **others: Any
    ) -> KafkaSourceSettings:
        where = {"kind": "kafka", "brokers": [self.brokers], "linger_ms": 20}
        return KafkaSourceSettings.model_validate(
            {**where, "plain": {self.name: mine, **(more or {})}, **others}
        )

    def cut(self, partition: int, offset: int) -> None:
        """Remove the records in front of an offset, as retention does."""
        admin = KafkaAdminClient(bootstrap_servers=self.brokers)
        admin.delete_records({TopicPartition(self.name, partition): offset})
        admin.close()


@pytest.fixture
def topics(kafka: KafkaServer) -> Iterator[Any]:
    made: list[Topic] = []

    def make(*arguments: Any) -> Topic:
        made.append(Topic(kafka, *arguments))
        return made[-1]

    yield make
    for topic in made:
        topic.producer.close()


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


def read(store: Store, running: Running, records: int) -> None:
    running.wait(lambda: sum(each.next_offset for each in chained_partitions(store, "shop")) == records)


def prices(store: Store, topic: TopicId) -> dict[str, str]:
    return {row["sku"]: str(row["price"]) for part in store.state(topic) for row in part.to_pylist()}


@one_catalog
def test_a_compacted_topic_is_whole_when_all_partitions_were_read_to_where_they_ended(
    store: Store, topics: Any
) -> None:
    topic = topics(2, {"cleanup.policy": "compact"})
    mine = TopicId.table("shop", "kafka", topic.name)
    settings = topic.settings(PRICES)
    topic.send("a", {"sku": "a", "price": 1.5}, 0)
    topic.send("b", {"price": "2.50"}, 1)
    topic.send("a", {"price": 3}, 0)
    assert [(each.topic, each.records) for each in prepare_kafka(store, "shop", settings).topics] == [
        (mine, 3)
    ]
    with capturing(store, settings) as running:
        read(store, running, 3)
        running.wait(lambda: store.topic(mine).complete_since is not None)
    assert prices(store, mine) == {"a": "3.00", "b": "2.50"}
    topic.send("b", None, 1)
    topic.send("c", {"price": 4}, 0)
    with capturing(store, settings) as running:
        read(store, running, 5)
    assert prices(store, mine) == {"a": "3.00", "c": "4.00"}
    assert store.verify().findings == ()


@one_catalog
def test_a_topic_whose_first_records_are_gone_is_not_whole_unless_it_is_said_to_be(
    store: Store, topics: Any
) -> None:
    topic = topics()
    mine = TopicId.table("shop", "kafka", topic.name)
    for number in range(3):
        topic.send("k", {"page": f"/{number}", "at": "2026-03-01T10:00:00Z"})
    topic.cut(0, 1)
    prepare_kafka(store, "shop", topic.settings(CLICKS))
    with capturing(store, topic.settings(CLICKS)) as running:
        read(store, running, 3)
    assert store.topic(mine).complete_since is None
    (asked,) = store.requests.ask(REREAD, [mine])
    with capturing(store, topic.settings(CLICKS, without_snapshot="complete")) as running:
        running.wait(lambda: store.requests.get([asked.id])[0].state.value == "done")
        running.wait(lambda: store.topic(mine).complete_since is not None)
    assert sorted(row["page"] for part in store.state(mine) for row in part.to_pylist()) == ["/1", "/2"]
    assert store.verify().findings == ()


@one_catalog
def test_a_record_that_does_not_fit_stops_with_its_member_or_is_parked(store: Store, topics: Any) -> None:
    topic = topics()
    topic.send("a", {"price": 1})
    topic.send("a", {"price": "dear"})
    topic.send("b", {"price": 2})
    prepare_kafka(store, "shop", topic.settings(PRICES))
    running = Running(store, topic.settings(PRICES))
    running.thread.join(60)
    with pytest.raises(BadRecord, match=r"partition 0, offset 1: its member 'price' is no numeric\(8,2\)"):
        running.end()
    with capturing(store, topic.settings(PRICES, on_bad_record="park")) as running:
        read(store, running, 3)
    assert [each.place.offset for each in parked(store.catalog, "shop")] == [1]
    assert prices(store, TopicId.table("shop", "kafka", topic.name)) == {"a": "1.00", "b": "2.00"}


@one_catalog
def test_two_topics_that_lead_to_one_are_refused_with_both_names(store: Store, topics: Any) -> None:
    one, other = topics(), topics()
    table = f"public.{one.name}"
    debezium = f"{one.name}.public.{one.name}"
    mine = {**PRICES, "table": table}
    with pytest.raises(ValueError, match=f"{one.name} and {other.name} both lead to the table {table}"):
        one.settings(mine, more={other.name: mine})
    make_topic_at(one.brokers, debezium)
    with pytest.raises(OperatorError, match=f"{one.name} and {debezium} of Kafka both lead to shop.{table}"):
        prepare_kafka(store, "shop", one.settings(mine, topics=[debezium]))


def make_topic_at(brokers: str, name: str) -> None:
    from kafka.admin import NewTopic

    admin = KafkaAdminClient(bootstrap_servers=brokers)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()


def answer_of(store: Store, running: Running, topic: TopicId) -> str:
    (asked,) = store.requests.ask(PARKED, [topic])
    running.wait(lambda: store.requests.get([asked.id])[0].ended_at is not None)
    return str(store.requests.get([asked.id])[0].detail)


@pytest.mark.timeout(600)
@one_catalog
def test_a_record_of_100_mb_is_parked_and_read_from_kafka_again(store: Store, topics: Any) -> None:
    topic = topics(1, {"max.message.bytes": str(LARGEST)})
    mine = TopicId.table("shop", "kafka", topic.name)
    large = b'{"price": 7, "more": "%b"}' % (b"x" * 100_000_000)
    topic.send("large", large)
    topic.send("a", {"price": 1})
    prepare_kafka(store, "shop", topic.settings(PRICES))
    with capturing(store, topic.settings(PRICES, on_bad_record="park")) as running:
        read(store, running, 2)
        (record,) = parked(store.catalog, "shop")
        assert not record.is_kept and record.reason.endswith("100,000,029 bytes and is left in Kafka")
        assert record.reason.startswith("its member 'more' is no column")
        assert answer_of(store, running, mine).startswith("0 of 1 records are in the log now")
    with capturing(store, topic.settings({**PRICES, "unknown_fields": "ignore"})) as running:
        assert answer_of(store, running, mine) == "1 of 1 records are in the log now"
    assert prices(store, mine) == {"a": "1.00", "large": "7.00"}
    assert parked(store.catalog, "shop") == [] and store.verify().findings == ()


@one_catalog
def test_a_record_that_was_too_large_to_keep_and_is_gone_stays_parked(store: Store, topics: Any) -> None:
    topic = topics()
    mine = TopicId.table("shop", "kafka", topic.name)
    topic.send("large", b"x" * 2000)
    topic.send("kept", b"x" * 100)
    topic.send("a", {"price": 1})
    settings = topic.settings(PRICES, on_bad_record="park", parked_bytes=1024)
    prepare_kafka(store, "shop", settings)
    with capturing(store, settings) as running:
        read(store, running, 3)
        topic.cut(0, 2)
        said = answer_of(store, running, mine)
    assert "offset 0: Kafka has it no more; give it up with --discard" in said
    assert "offset 1: its value: not a JSON object" in said
    assert len(parked(store.catalog, "shop")) == 2

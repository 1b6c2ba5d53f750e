"""Topics of Debezium's outbox router, from a real broker into the log: events, each once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.test_capture import capturing
from tests.cdc.kafka.test_plain_topics import Topic, answer_of, read
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


@pytest.fixture
def router(kafka: KafkaServer) -> Iterator[Topic]:
    topic = Topic(kafka, prefix=f"outbox.{secrets.token_hex(4)}.")
    yield topic
    topic.producer.close()


def settings_of(router: Topic, **more: Any) -> KafkaSourceSettings:
    prefix, _, _ = router.name.rpartition(".")
    outbox = {"topics": [f"{prefix}.*"], "additional_placement": "type:header:eventType,tenant:header"}
    where = {"kind": "kafka", "brokers": [router.brokers], "linger_ms": 20}
    return KafkaSourceSettings.model_validate({**where, "outbox": outbox, **more})


def send(router: Topic, stream: str, number: int, id: UUID | None = None, **headers: str) -> UUID:
    """As the router does with its default settings and a text column, by Kafka Connect's JSON without schemas."""
    made = id or uuid4()
    told = {"id": str(made), "eventType": "order_placed", **headers}
    router.send(json.dumps(stream), json.dumps(json.dumps({"n": number})).encode(), None, told)
    return made


def events(store: Store, topic: TopicId) -> list[dict[str, Any]]:
    return [row["after"] for batch in store.read(topic, columns=["after"]) for row in batch.to_pylist()]


@one_catalog
def test_events_come_once_however_often_a_connector_sends_them(store: Store, router: Topic) -> None:
    settings = settings_of(router)
    mine = TopicId.events("shop", router.name.rpartition(".")[2])
    ids = [send(router, "1", 1), send(router, "2", 2, tenant="acme")]
    assert [each.topic for each in prepare_kafka(store, "shop", settings).topics] == [mine]
    with capturing(store, settings) as running:
        read(store, running, 2)
        for number, id in enumerate(ids, 1):
            send(router, str(number), number, id)
        ids.append(send(router, "1", 3))
        read(store, running, 5)
    for stream, number, id in zip("121", (1, 2, 3), ids, strict=True):
        send(router, stream, number, id)
    ids.append(send(router, "2", 4))
    with capturing(store, settings) as running:
        read(store, running, 9)
    found = events(store, mine)
    assert [UUID(event["event_id"]) for event in found] == ids
    assert [(event["stream"], event["version"]) for event in found] == [
        ("1", 1),
        ("2", 2),
        ("1", 5),
        ("2", 9),
    ]
    assert [json.loads(event["data"])["n"] for event in found] == [1, 2, 3, 4]
    assert json.loads(found[1]["metadata"]) == {"tenant": "acme"}
    assert store.topic(mine).kind is TopicKind.EVENTS and store.topic(mine).complete_since is not None
    assert store.verify().findings == ()


@one_catalog
def test_a_retry_has_the_headers_of_a_record_that_was_parked_and_an_event_that_came_again_is_not_twice(
    store: Store, router: Topic
) -> None:
    mine = TopicId.events("shop", router.name.rpartition(".")[2])
    send(router, "1", 1)
    late = send(router, "2", 2, v="3")
    send(router, "3", 3, v="1")
    send(router, "2", 2, late, v="3")
    outbox = settings_of(router).outbox
    assert outbox is not None
    placed = {**outbox.model_dump(), "additional_placement": "type:header:eventType,version:header:v"}
    strict = settings_of(router, outbox={**placed, "version_column": "version"}, on_bad_record="park")
    prepare_kafka(store, "shop", strict)
    wrong = settings_of(
        router, outbox={**placed, "additional_placement": "type:header:kind"}, on_bad_record="park"
    )
    with capturing(store, wrong) as running:
        read(store, running, 4)
        assert len(parked(store.catalog, "shop")) == 4
    send(router, "9", 9, v="1")
    with capturing(store, strict) as running:
        read(store, running, 5)
        said = answer_of(store, running, mine)
    assert (
        said.startswith("3 of 4 records are in the log now; ")
        and "offset 0: its 'version' is no whole" in said
    )
    assert sorted((event["stream"], event["version"]) for event in events(store, mine)) == [
        ("2", 3),
        ("3", 1),
        ("9", 1),
    ]
    assert store.verify().findings == ()

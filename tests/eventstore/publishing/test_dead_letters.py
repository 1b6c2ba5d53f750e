"""What waits is also a dead letter: once each, with where it is from and why it waits."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tailrace.embedded import KafkaServer
from tailrace.eventstore.failpoints import VARIABLE
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.publishing.dead_letters import dead_letters
from tailrace.eventstore.store import Store
from tests.eventstore.publishing.publications import Publication, Record, committed
from tests.eventstore.publishing.test_parked import PARKED, records
from tests.eventstore.shop import ORDERS, batch, rows, writer
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog


def test_what_waits_has_its_origin_and_reason_and_whether_it_was_tried() -> None:
    given = records((7, 1, 4), (7, 1, 5), (8, 1, 6), (0, 1, 7), (7, 1, 8))
    found = dead_letters(given, [PARKED, replace(PARKED, hash=9)]).records.to_pylist()
    told = [{each["name"].decode(): each["value"].decode() for each in row["headers"]} for row in found]
    assert told == [
        {
            "tailrace-topic": ORDERS.text, "tailrace-partition": "1", "tailrace-offset": offset,
            "tailrace-reason": "too large", "tailrace-tries": tries,
        }
        for offset, tries in (("5", "1"), ("8", "0"))
    ]  # fmt: skip


def with_large_row(store: Store) -> None:
    """Of three keys; the second change of key 1 is larger than 2,000 bytes."""
    to = writer(store)
    large = rows(100, [("c", 1), ("c", 2), ("u", 1), ("c", 3)])
    changed = large.to_pylist()
    changed[2]["after"]["note"] = secrets.token_hex(4000)
    told = [TopicRows(ORDERS, 1, pa.Table.from_pylist(changed, large.schema))]
    to.append(replace(batch(100, [("c", 1)]), rows=told))
    for number in (2, 3, 4):
        to.append(batch(100 * number, [("u", 1), ("u", 2)]))


def letters(feed: Publication) -> list[tuple[int, dict[str, str], Record]]:
    """With their keys and headers."""
    found = []
    for each in committed(feed.cluster, f"{feed.name}.dead"):
        headers = {name: value.decode() for name, value in each.headers}
        found.append((json.loads(each.key or b"")["id"], headers, each))
    return found


@pytest.mark.servers
@one_catalog
@pytest.mark.parametrize("step", ["portion_sent", "portion_published"])
def test_what_waits_is_a_dead_letter_once_also_when_the_publisher_is_killed(
    kafka: KafkaServer, new_store: StoreFactory, store_dir: Path, step: str
) -> None:
    store = new_store()
    with_large_row(store)
    feed = Publication.new(kafka, transaction_bytes=1)
    name = f"{feed.name}.orders"
    make_topic(kafka, name, 1, {"max.message.bytes": "2000"})
    feed = replace(feed, settings=feed.settings.model_copy(update={"dead_letter": f"{feed.name}.dead"}))
    project = feed.project(store_dir)
    killed = project.run("publish", feed.name, "--once", environment={VARIABLE: f"{step}:3"})
    assert killed.code == -9, killed.err
    project.ok("publish", feed.name, "--once")
    project.ok("publish", feed.name, "--once")
    found = letters(feed)
    places = [headers["tailrace-offset"] for _, headers, _ in found]
    assert [key for key, _, _ in found] == [1] * 4 and len(set(places)) == 4
    assert [headers["tailrace-tries"] for _, headers, _ in found] == ["1", "0", "0", "0"]
    assert {headers["tailrace-topic"] for _, headers, _ in found} == {ORDERS.text}
    assert "2000" in found[0][1]["tailrace-reason"].replace(",", "")
    assert len(found[0][2].value or b"") > 8000  # this topic takes it
    assert all(each.value is not None for _, _, each in found)

    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": "20000"})])
    admin.close()
    project.ok("publish", feed.name, "--once")
    assert len(letters(feed)) == 4
    assert len([each for each in feed.records() if json.loads(each.key or b"")["id"] == 1]) == 5


@pytest.mark.servers
@one_catalog
def test_a_value_that_the_topic_of_dead_letters_does_not_take_either_is_left_out(
    kafka: KafkaServer, new_store: StoreFactory
) -> None:
    store = new_store()
    with_large_row(store)
    feed = Publication.new(kafka)
    feed = replace(feed, settings=feed.settings.model_copy(update={"dead_letter": f"{feed.name}.dead"}))
    for topic in ("orders", "dead"):
        make_topic(kafka, f"{feed.name}.{topic}", 1, {"max.message.bytes": "2000"})
    feed.once(store)
    found = letters(feed)
    assert [each.value is None for _, _, each in found] == [True, False, False, False]
    assert int(found[0][1]["tailrace-omitted-bytes"]) > 8000

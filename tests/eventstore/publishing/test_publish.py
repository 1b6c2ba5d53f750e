"""What the log holds is in Kafka: each row once, in the order of its key, with the position beside it."""

from __future__ import annotations

import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import Fenced, OperatorError
from tailrace.eventstore.failpoints import VARIABLE
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.store import Store
from tests.eventstore.publishing.publications import Publication, value_of
from tests.eventstore.shop import ORDERS, SCHEMA, batch, rows, writer
from tests.fixtures.brokers import KafkaFactory, make_topic
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.tailrace.conftest import until

pytestmark = [pytest.mark.servers, one_catalog]

STEPS = ["portion_read", "portion_sent", "publication_committing", "portion_published"]


def filled(new_store: StoreFactory, epochs: int = 6) -> Store:
    """Three keys, each changed in every epoch; a transaction of Kafka for each epoch where it takes one byte."""
    store = new_store()
    to = writer(store)
    for number in range(1, epochs + 1):
        op = "c" if number == 1 else "u"
        to.append(batch(100 * number, [(op, key) for key in (1, 2, 3)]))
    return store


def lsns(publication: Publication) -> dict[int, list[int]]:
    """By key, what was done to it, in the order in which consumers see it."""
    found: dict[int, list[int]] = {}
    for each in publication.records():
        value = value_of(each)
        found.setdefault(json.loads(each.key or b"")["id"], []).append(commit_of(value) if value else 0)
    return found


def commit_of(value: dict[str, Any]) -> int:
    commit, _ = json.loads(value["source"]["sequence"])
    return int(commit)


def each_once(epochs: int = 6) -> dict[int, list[int]]:
    return {key: [100 * number for number in range(1, epochs + 1)] for key in (1, 2, 3)}


@pytest.mark.kafka_versions
def test_each_row_is_published_once_and_in_the_order_of_its_key(
    kafka: KafkaServer, new_store: StoreFactory
) -> None:
    store = new_store()
    to = writer(store)
    feed = Publication.new(kafka, partitions=3)
    to.append(batch(100, [("c", 1), ("c", 2), ("u", 1)]))
    position, reports = feed.once(store)
    assert (position.epoch, [each.records for each in reports]) == (1, [3])
    to.append(batch(200, [("d", 1), ("u", 2)], [("c", 5)]))
    to.append(batch(300, [("c", 1)]))
    feed.once(store)
    position, reports = feed.once(store)
    assert (position.epoch, reports) == (3, [])

    found: list[tuple[int, Any]] = [
        (json.loads(each.key or b"")["id"], value_of(each)) for each in feed.records()
    ]
    by_key = {key: [value for other, value in found if other == key] for key in (1, 2)}
    assert [value and (value["op"], commit_of(value)) for value in by_key[1]] == [
        ("c", 100), ("u", 100), ("d", 200), None, ("c", 300),
    ]  # fmt: skip
    assert [value and value["op"] for value in by_key[2]] == ["c", "u"]
    (customer,) = feed.records("customers")
    assert (
        customer.timestamp.timestamp() > time.time() - 3600
    )  # not of its commit, which retention would find too old
    assert json.loads(customer.value or b"")["after"] == {"id": 5, "note": "200.0"}


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_killed_at_any_step_repeats_and_loses_nothing(
    kafka: KafkaServer, new_store: StoreFactory, store_dir: Path, step: str
) -> None:
    filled(new_store)
    feed = Publication.new(kafka, partitions=2, transaction_bytes=1)
    project = feed.project(store_dir)
    killed = project.run("publish", feed.name, "--once", environment={VARIABLE: f"{step}:3"})
    assert killed.code == -9, killed.err
    project.ok("publish", feed.name, "--once")
    assert lsns(feed) == each_once()


@pytest.mark.kafka_versions
def test_a_second_publisher_fences_the_first(kafka: KafkaServer, new_store: StoreFactory) -> None:
    store = filled(new_store, 1)
    feed = Publication.new(kafka, partitions=2)
    stop, first = threading.Event(), Begun()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(feed.publisher(store, report=first, stop=stop).run)
        assert first.wait(60)
        second = feed.open()
        to = store.take_over("shop")
        to.append(batch(200, [("u", key) for key in (1, 2, 3)]))
        with pytest.raises(Fenced, match="another process publishes it now"):
            running.result(60)
        second.close()
    feed.once(store)
    assert lsns(feed) == each_once(2)


class Begun(threading.Event):
    """Set with the first report."""

    def __call__(self, _: object) -> None:
        self.set()


def test_a_position_that_is_not_of_this_log_is_refused(kafka: KafkaServer, new_store: StoreFactory) -> None:
    store = filled(new_store, 2)
    feed = Publication.new(kafka)
    feed.once(store)
    (_, last) = store.epochs()
    for position, said in (
        (
            Position("f" * 32, 2, last.hash),
            f"the position of log {'f' * 32}; this store is log {store.log_id}",
        ),
        (Position(store.log_id, 3, last.hash), "epoch 3 is published, and the log ends at epoch 2"),
        (Position(store.log_id, 2, "0" * 64), "epoch 2 was published with the hash 000"),
    ):
        with closing(feed.open()) as session:
            session.publish([], position)
        with pytest.raises(OperatorError, match=said):
            feed.once(store)
    assert lsns(feed) == each_once(2)


@pytest.mark.timeout(400)  # kafka-python gives a lost connection up after a minute
def test_a_broker_that_is_killed_repeats_and_loses_nothing(
    kafka_server: KafkaFactory, new_store: StoreFactory, store_dir: Path
) -> None:
    server = kafka_server(trust=True)
    store = filled(new_store, 3)
    feed = Publication.new(server, partitions=2)
    with feed.project(store_dir).start("publish", feed.name) as process:
        try:
            until(lambda: lsns(feed) == each_once(3), 60)
            to = store.take_over("shop")
            server.kill()
            for number in (4, 5, 6):
                to.append(batch(100 * number, [("u", key) for key in (1, 2, 3)]))
            server.start()
            until(lambda: lsns(feed) == each_once(), 150)
        finally:
            process.terminate()
            _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert lsns(feed) == each_once()


def test_status_says_how_far_a_publication_is(
    kafka: KafkaServer, new_store: StoreFactory, store_dir: Path
) -> None:
    store = filled(new_store, 2)
    feed = Publication.new(kafka)
    project = feed.project(store_dir)
    project.configure(
        (store_dir / "tailrace.toml").read_text() + "\n[sources.shop]\ndsn = 'host=127.0.0.1 port=1'\n"
    )

    def shown() -> tuple[str, int | None, int | None]:
        (document,) = project.ok("--json", "status").documents
        (found,) = document["publications"]
        return found["state"], found["epoch"], found["waiting"]

    assert shown() == ("nothing is published yet", 0, 2)
    project.ok("publish", feed.name, "--once")
    assert shown() == ("up to date", 2, 0)
    store.take_over("shop").append(batch(300, [("u", 1)]))
    assert shown() == ("behind", 2, 1)
    assert feed.name in project.ok("status").out
    assert f"publish {feed.name}" in project.run("doctor").out


def test_a_publisher_killed_inside_an_epoch_goes_on_there(
    kafka: KafkaServer, new_store: StoreFactory, store_dir: Path
) -> None:
    """Rows of a topic are read in pieces of 65,536."""
    store = new_store()
    writer(store).append(batch(100, [("c", key) for key in range(150_000)]))
    feed = Publication.new(kafka, transaction_bytes=1 << 20)
    project = feed.project(store_dir)
    killed = project.run("publish", feed.name, "--once", environment={VARIABLE: "portion_published:2"})
    assert killed.code == -9, killed.err
    before = len(feed.records())
    assert 0 < before < 150_000
    project.ok("publish", feed.name, "--once")
    keys = [each.key for each in feed.records()]
    assert len(set(keys)) == len(keys) == 150_000


def test_a_key_with_a_record_that_is_too_large_waits_and_the_others_go_on(
    kafka: KafkaServer, new_store: StoreFactory
) -> None:
    store = new_store()
    to = writer(store)
    feed = Publication.new(kafka)
    name = f"{feed.name}.orders"
    make_topic(kafka, name, 1, {"max.message.bytes": "2000"})
    large = rows(100, [("c", 1), ("c", 2), ("u", 1), ("c", 3)])
    changed = large.to_pylist()
    changed[2]["after"]["note"] = secrets.token_hex(4000)
    to.append(
        replace(
            batch(100, [("c", 1)]), rows=[TopicRows(ORDERS, 1, pa.Table.from_pylist(changed, large.schema))]
        )
    )
    to.append(batch(200, [("u", 1), ("u", 2)]))
    feed.once(store)
    to.append(batch(300, [("u", 1), ("u", 3)]))
    notes: list[str] = []
    feed.publisher(store, note=notes.append).run_once()
    assert lsns(feed) == {1: [100], 2: [100, 200], 3: [100, 300]}
    assert [each.partition(":")[0] for each in notes] == ["still waiting"]

    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": "20000"})])
    admin.close()
    feed.once(store)
    feed.once(store)
    assert lsns(feed) == {1: [100, 100, 200, 300], 2: [100, 200], 3: [100, 300]}


def test_a_key_that_waited_for_long_follows_in_portions_also_when_it_is_killed_between_them(
    kafka: KafkaServer, new_store: StoreFactory, store_dir: Path
) -> None:
    store = new_store()
    to = writer(store)
    feed = Publication.new(kafka, transaction_bytes=1)
    name = f"{feed.name}.orders"
    make_topic(kafka, name, 1, {"max.message.bytes": "2000"})
    large = rows(100, [("c", 1)])
    changed = large.to_pylist()
    changed[0]["after"]["note"] = secrets.token_hex(4000)
    first = [TopicRows(ORDERS, 1, pa.Table.from_pylist(changed, large.schema))]
    to.append(replace(batch(100, [("c", 1)]), rows=first))
    for number in range(2, 7):
        to.append(batch(100 * number, [("u", 1), ("c" if number == 2 else "u", 2)]))
    feed.once(store)
    assert lsns(feed) == {2: [200, 300, 400, 500, 600]}
    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": "20000"})])
    admin.close()
    project = feed.project(store_dir)
    killed = project.run("publish", feed.name, "--once", environment={VARIABLE: "publication_committing:4"})
    assert killed.code == -9, killed.err
    assert lsns(feed)[1] == [100, 200, 300]
    feed.once(store)
    assert lsns(feed) == {1: [100, 200, 300, 400, 500, 600], 2: [200, 300, 400, 500, 600]}


def test_a_table_that_comes_later_and_would_share_a_topic_is_refused_before_anything_of_it_is_sent(
    kafka: KafkaServer, new_store: StoreFactory
) -> None:
    store = filled(new_store, 1)
    feed = Publication.new(kafka)
    feed.once(store)
    other = TopicId.table("shop", "archive", "orders")
    register_topic(store, other, SCHEMA)
    store.take_over("shop").append(
        replace(batch(200, [("u", 1)]), rows=[TopicRows(other, 1, rows(200, [("c", 9)]))])
    )
    with pytest.raises(OperatorError, match=f"(?s){other}.*{ORDERS}|{ORDERS}.*{other}"):
        feed.once(store)
    assert lsns(feed) == each_once(1)

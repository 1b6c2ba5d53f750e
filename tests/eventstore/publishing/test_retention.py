"""Retention waits for what a publication has not sent, and for the rows of keys that wait."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.metadata.publications import publication_needs
from tailrace.eventstore.model.epoch import TopicRows
from tests.eventstore.maintenance.retention.test_retention import SetClock, fill, open_store, set_clock
from tests.eventstore.publishing.publications import Publication
from tests.eventstore.shop import ORDERS, batch, content, rows
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, one_catalog]
__all__ = ["set_clock"]


def keys(feed: Publication) -> list[int]:
    return [json.loads(each.key or b"")["id"] for each in feed.records() if each.value is not None]


def test_rows_stay_until_they_are_published(
    kafka: KafkaServer, new_store: StoreFactory, set_clock: SetClock, store_dir: Path
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    feed = Publication.new(kafka)
    fill(store, 1, 10)
    feed.once(store)
    fill(store, 11, 30)
    set_clock(60)
    assert [each.reader for each in store.maintain().held] == ["publication " + feed.name]
    project = feed.project(store_dir)
    feed.once(store)
    assert store.maintain().held == ()
    assert sorted(key for key in keys(feed) if key > 1000) == [*range(1001, 1031)]

    # Others' rows go on, and these of the publication's own are gone: it goes on behind them.
    to = store.take_over("shop")
    only = Publication(feed.cluster, feed.settings.model_copy(update={"topics": (ORDERS.text,)}), feed.name)
    for lsn in range(31, 40):
        to.append(batch(lsn, [], [("c", lsn)]))
    only.once(store)
    set_clock(90)
    store.maintain()
    to.append(batch(100, [("c", 2000)]))
    only.once(store)
    assert keys(feed)[-1] == 2000

    configured = (store_dir / "tailrace.toml").read_text()
    source = "\n[sources.shop]\ndsn = 'host=127.0.0.1 port=1'\n"
    project.configure(configured + source)
    assert feed.name in project.ok("status").out
    project.configure(configured.split("[publish.")[0] + source)
    assert f"tailrace publish --forget {feed.name}" in project.ok("status").out
    project.ok("publish", "--forget", feed.name)
    assert feed.name not in project.ok("status").out
    assert publication_needs(store.groups_database) == []
    assert "retention keeps rows for none" in project.run("publish", "--forget", feed.name).err


def test_a_publication_that_is_passed_says_so_and_what_to_do(
    kafka: KafkaServer, new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    feed = Publication.new(kafka)
    fill(store, 1, 10)
    feed.once(store)
    fill(store, 11, 30)
    set_clock(60)
    store.maintain(force_past=[f"publication:{feed.name}"])
    with pytest.raises(HistoryGone, match=f"publication {feed.name} was passed by retention") as raised:
        feed.once(store)
    assert "another name" in raised.value.hint


def test_rows_of_a_key_that_waits_stay(
    kafka: KafkaServer, new_store: StoreFactory, set_clock: SetClock
) -> None:
    store = open_store(new_store, orders={"retention": "5s"})
    feed = Publication.new(kafka, topics=(ORDERS.text,))
    name = f"{feed.name}.orders"
    make_topic(kafka, name, 1, {"max.message.bytes": "2000"})
    fill(store, 1, 3)
    large = rows(4, [("c", 5)])
    changed = large.to_pylist()
    changed[0]["after"]["note"] = secrets.token_hex(4000)
    told = [TopicRows(ORDERS, 1, pa.Table.from_pylist(changed, large.schema))]
    store.take_over("shop").append(replace(batch(4, [("c", 5)]), rows=told))
    fill(store, 5, 30)
    feed.once(store)
    set_clock(60)
    (held,) = store.maintain().held
    assert (held.reader, held.why) == (f"publication {feed.name}", "a key waits behind epoch 0")
    assert 4 in [row["_epoch"] for row in content(store)]

    admin = KafkaAdminClient(bootstrap_servers=kafka.address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"max.message.bytes": "20000"})])
    admin.close()
    feed.once(store)
    assert 5 in keys(feed)
    assert store.maintain().held == ()

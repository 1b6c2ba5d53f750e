"""From the log to Kafka and by the source of the kind kafka into another log: the same rows, none taken for another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.test_capture import capturing
from tests.eventstore.publishing.publications import Publication
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, one_catalog]


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Store]:
    settings = StoreSettings(catalog=f"sqlite:///{tmp_path / 'second.db'}", segments=tmp_path / "segments")
    with Store.open(settings, create=True, root=tmp_path) as store:
        yield store


def history(store: Store, topic: Any) -> dict[int, list[tuple[str, str | None]]]:
    """By key, what was done to it."""
    found: dict[int, list[tuple[str, str | None]]] = {}
    for rows in store.read(topic, columns=["_op", "key", "after", "_partition", "_offset"]):
        for row in rows.to_pylist():
            note = row["after"] and row["after"]["note"]
            found.setdefault(row["key"]["id"], []).append((row["_op"], note))
    return found


def test_what_is_published_is_captured_as_the_same_rows(
    kafka: KafkaServer, new_store: StoreFactory, second: Store
) -> None:
    first = new_store()
    to = writer(first)
    feed = Publication.new(kafka, partitions=3, topic="placeholder")
    settings = feed.settings.model_copy(update={"topic": f"{feed.name}.{{schema}}.{{table}}"})
    feed = Publication(feed.cluster, settings, feed.name)
    to.append(batch(1000, [("c", 1), ("u", 1), ("u", 1), ("c", 2), ("u", 1), ("d", 2)], [("c", 1)]))
    to.append(batch(2000, [("u", 1), ("c", 2), ("u", 2), ("u", 1)]))
    feed.once(first)
    to.append(batch(2010, [("u", 1), ("u", 1)], [("u", 1), ("u", 1), ("d", 1)]))
    feed.once(first)

    table = {"columns": {"id": "integer", "note": "text"}, "key": ["id"]}
    source = KafkaSourceSettings.model_validate(
        {
            "kind": "kafka", "brokers": [kafka.address], "topics": [f"{feed.name}.*"], "linger_ms": 20,
            "tables": {"public.orders": table, "public.customers": table},
        }
    )  # fmt: skip
    prepare_kafka(second, "shop", source)
    with capturing(second, source) as running:
        running.wait(lambda: {each.id for each in second.topics()} >= {ORDERS, CUSTOMERS})
        running.wait(lambda: history(second, ORDERS) == history(first, ORDERS))
        running.wait(lambda: history(second, CUSTOMERS) == history(first, CUSTOMERS))

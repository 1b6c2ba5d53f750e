"""What is published is read by the consumers that others have: the converters of Kafka Connect, and Flink's decoder of
Debezium's format, in Java."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.embedded import KafkaServer
from tailrace.eventstore.log.sources import register_source
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.store import Store
from tests.cdc.kafka.decoding.recorded import decoded
from tests.eventstore.publishing.publications import Publication
from tests.eventstore.shop import NOON, ORDERS, at, rows, writer
from tests.fixtures.java import JavaFactory
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600), one_catalog]
TABLES = ("every", "pairs", "whole", "bag", "toasted")


@pytest.fixture(scope="session")
def reader(java_program: JavaFactory) -> list[str]:
    return java_program("readers", "ReadChanges")


def read_by_java(reader: list[str], feed: Publication, table: str, *more: str) -> list[dict[str, Any]]:
    """In the order of partitions and offsets."""
    command = [*reader, feed.cluster.brokers[0], f"{feed.name}.{table}", *more]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return sorted(
        map(json.loads, ran.stdout.split("\n")[:-1]), key=lambda line: (line["partition"], line["offset"])
    )


def appended(store: Store) -> None:
    """Rows of every type and operation, as one epoch."""
    register_source(store.catalog, "shop", slot="shop_slot", publication="shop_pub", system_id="7001")
    given: list[TopicRows] = []
    schemas, ordinal = [], 0
    for table in TABLES:
        found = decoded("nanos", table)
        schemas += [(each.topic, schema) for each, schema in zip(found.rows, found.schemas, strict=True)]
        for each in found.rows:
            numbers = pa.array(range(ordinal, ordinal + each.rows.num_rows), pa.int64())
            place = each.rows.schema.get_field_index("_ordinal")
            ordinal += each.rows.num_rows
            given.append(
                replace(each, rows=each.rows.set_column(place, each.rows.schema.field(place), numbers))
            )
    store.take_over("shop").append(
        EpochBatch("shop", 5, 6, 6, NOON, transactions=1, rows=given, new_schemas=schemas)
    )


def test_kafka_connects_converters_read_every_type_and_operation(
    kafka: KafkaServer, new_store: StoreFactory, reader: list[str]
) -> None:
    store = new_store()
    appended(store)
    feed = Publication.new(kafka, partitions=1)
    feed.once(store)
    for table in TABLES:
        lines = read_by_java(reader, feed, table)
        sent = feed.records(table)
        assert [(line["key"], line["value"]) for line in lines] == [
            (parsed(each.key), parsed(each.value)) for each in sent
        ], "and nothing of it is another number or text than Python reads"
        assert [line["headers"] for line in lines] == [[name for name, _ in each.headers] for each in sent]
        assert [line["value"] and line["value"]["op"] for line in lines] == operations(store, table)


def parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def operations(store: Store, table: str) -> list[str | None]:
    """Those of the log, with a tombstone behind each delete that has a key."""
    found: dict[int, list[str | None]] = {}
    for batch in store.read(f"shop.public.{table}", columns=["_ordinal", "_op", "key"]):
        for row in batch.to_pylist():  # of a truncate each partition has a copy
            has_tombstone = row["_op"] == "d" and table != "bag"
            found[row["_ordinal"]] = [row["_op"], *([None] if has_tombstone else [])]
    return [each for ordinal in sorted(found) for each in found[ordinal]]


def test_flinks_decoder_of_debeziums_json_makes_the_changes_of_the_log(
    kafka: KafkaServer, new_store: StoreFactory, reader: list[str]
) -> None:
    """It wants old rows whole, of updates as of deletes: tables with REPLICA IDENTITY FULL. Tombstones it skips."""
    store = new_store()
    to = writer(store)
    steps = [
        ("c", 1, None, "a"), ("c", 2, None, "ü\n\"'"), ("u", 1, "a", "b"), ("d", 2, "ü\n\"'", None),
        ("u", 1, "b", None), ("d", 1, None, None), ("c", 2, None, "again"),
    ]  # fmt: skip
    for number, (op, key, old, new) in enumerate(steps, 1):
        table = rows(100 * number, [(op, key)], at(number))
        (row,) = table.to_pylist()
        row["_raw"] = None
        row["after"] = None if op == "d" else {"id": key, "note": new}
        if op != "c":
            row |= {"_before": "full", "before": {"id": key, "note": old}}
        made = pa.Table.from_pylist([row], schema=table.schema)
        lsn = 100 * number
        to.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, at(number), 1, rows=[TopicRows(ORDERS, 1, made)]))
    feed = Publication.new(kafka, partitions=2)
    feed.once(store)
    lines = read_by_java(reader, feed, "orders", "flink")
    for key in (1, 2):
        found = [change for line in lines if line["key"] == {"id": key} for change in line["flink"]]
        expected = []
        for op, of, old, new in steps:
            if of == key:
                expected += [["-U" if op == "u" else "-D", key, old]] if op != "c" else []
                expected += [["+U" if op == "u" else "+I", key, new]] if op != "d" else []
        assert found == expected
    assert sum(line["value"] is None for line in lines) == 2

"""How the records of a source's tables are read, as its settings and Postgres' catalog say."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pyarrow as pa

from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.decoder import TableDecoder
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tests.cdc.kafka.decoding.recorded import rows_of, table_of


def settings(**more: Any) -> KafkaSourceSettings:
    return KafkaSourceSettings.model_validate(
        {"kind": "kafka", "brokers": ["127.0.0.1:9"], "topics": ["shop.*"], **more}
    )


def records(table: str, *afters: dict[str, Any]) -> pa.Table:
    source = {"schema": "public", "table": table, "txId": 7, "lsn": 9, "ts_us": 1}
    return table_of(
        [
            {"key": b'{"id":1}', "value": json.dumps({"op": "r", "after": after, "source": source}).encode()}
            for after in afters
        ]
    )


def test_the_catalog_says_types_keys_and_what_only_a_snapshot_sends(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            'CREATE TABLE "Odd näme" (id bigint PRIMARY KEY, due date,'
            " twice bigint GENERATED ALWAYS AS (id * 2) STORED)"
        )
        connection.execute('ALTER TABLE "Odd näme" REPLICA IDENTITY FULL')
    decoder = TableDecoder.of(settings(catalog_dsn=database))
    declared = decoder.declarations["public.Odd_n_me"]
    assert declared.full_identity
    topic = TopicId.table("shop", "public", "Odd_n_me")
    found = decoder(
        topic,
        None,
        records("Odd näme", {"id": 1, "due": 19782, "twice": 2}, {"id": 1, "due": None}),
        Place(1),
    )
    assert found.parked == ()
    assert [row["after"] for row in rows_of(found)] == [
        {"id": 1, "due": "2024-02-29"},
        {"id": 1, "due": None},
    ]


def test_settings_say_types_and_modes_and_count_before_the_catalog(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, gone text)")
    decoder = TableDecoder.of(
        settings(
            catalog_dsn=database,
            tables={"public.orders": {"columns": {"id": "bigint", "paid": "numeric(6,2)"}, "key": ["id"]}},
            connector={"decimal_handling_mode": "string"},
        )
    )
    found = decoder(
        TopicId.table("shop", "public", "orders"),
        None,
        records("orders", {"id": 1, "paid": "1.50"}),
        Place(1),
    )
    assert [row["after"] for row in rows_of(found)] == [{"id": 1, "paid": "1.50"}]

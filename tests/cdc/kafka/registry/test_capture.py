"""From a real broker into the log, by way of a schema registry that is not always there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import ITEMS, answer_of, capturing, history, offset_of, state
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory
from tests.support import avro
from tests.support.schema_registry import Registry, schema_registry

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
Schema = dict[str, Any]


def struct(name: str, *fields: Schema) -> Schema:
    return {"type": "struct", "name": name, "optional": True, "fields": [*fields]}


def field(name: str, kind: str) -> Schema:
    return {"field": name, "type": kind, "optional": True}


ROW = struct("shop.public.items.Value", {"field": "id", "type": "int32"}, field("note", "string"))
KEY = {**struct("shop.public.items.Key", {"field": "id", "type": "int32"}), "optional": False}
SOURCE = struct(
    "io.debezium.connector.postgresql.Source",
    *(field(name, "string") for name in ("schema", "table", "snapshot", "sequence")),
    *(field(name, "int64") for name in ("txId", "lsn", "ts_ms")),
)
TRANSACTION = struct("event.block", field("id", "string"), field("total_order", "int64"))
ENVELOPE = {
    **struct(
        "shop.public.items.Envelope",
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {**SOURCE, "field": "source"},
        {**TRANSACTION, "field": "transaction"},
        field("op", "string"),
    ),
    "optional": False,
}
COUNT = struct("event.collection", field("data_collection", "string"), field("event_count", "int64"))
END = {
    **struct(
        "io.debezium.connector.common.TransactionMetadataValue",
        field("status", "string"),
        field("id", "string"),
        {"field": "data_collections", "type": "array", "optional": True, "items": COUNT},
    ),
    "optional": False,
}
SCHEMAS = {1: KEY, 2: ENVELOPE, 3: END}


def filled(schema: Schema, value: Any) -> Any:
    """With null for what a record in JSON leaves out."""
    if schema["type"] != "struct" or value is None:
        return value
    return {each["field"]: filled(each, value.get(each["field"])) for each in schema["fields"]}


def in_avro(number: int, document: bytes) -> bytes:
    schema = SCHEMAS[number]
    return avro.record(number, schema, filled(schema, json.loads(document)))


class AvroConnector(Connector):
    """Writes keys, envelopes and ends in Avro; and as before while it is ``plain``."""

    plain = False

    def _put(self, key: bytes, value: bytes | None) -> None:
        if not self.plain:
            key, value = in_avro(1, key), None if value is None else in_avro(2, value)
        super()._put(key, value)

    def _end(self, xid: int, rows: int) -> None:
        counts = [{"data_collection": ".".join(self.topic.split(".")[1:]), "event_count": rows}]
        end = {"status": "END", "id": f"{xid}:{self._lsn()}", "data_collections": counts}
        self._producer.send(self.transactions, value=in_avro(3, json.dumps(end).encode()))


@pytest.fixture
def connector(kafka: KafkaServer, database: str) -> Iterator[AvroConnector]:
    name = f"p{secrets.token_hex(4)}.public.items"
    make_topic(kafka, name)
    made = AvroConnector(database, kafka.address, name)
    yield made
    made.close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry({number: avro.schema_text(schema) for number, schema in SCHEMAS.items()}) as server:
        yield server


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


def settings_of(connector: Connector, registry: Registry, **more: object) -> KafkaSourceSettings:
    where = {"kind": "kafka", "brokers": [connector.brokers], "topics": [connector.topic], "linger_ms": 20}
    given = {**where, "registry": {"url": registry.url}, "without_snapshot": "complete", **more}
    return KafkaSourceSettings.model_validate(given)


def test_topics_in_avro_hold_what_the_table_holds_also_where_json_is_between(
    store: Store, connector: AvroConnector, registry: Registry
) -> None:
    metadata = connector.topic.replace("public.items", "transaction")
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.create_topics([NewTopic(metadata, 1, 1)])
    admin.close()
    connector.transactions = metadata
    table = {"public.items": {"columns": {"id": "integer", "note": "text"}, "key": ["id"]}}
    settings = settings_of(
        connector, registry, transaction_topic=metadata, linger_ms=0, epoch_changes=5, tables=table
    )
    prepared = prepare_kafka(store, "shop", settings)
    assert (
        prepared.registry is not None and prepared.registry.text == f"schema registry {registry.url}: answers"
    )
    with capturing(store, settings) as running:
        for number in range(20):
            connector.plain = number % 5 == 4
            connector.change(
                *[("d" if key == number % 5 else "u", key, f"{number}") for key in range(number % 7)]
            )
            connector.flush()
        running.wait(lambda: offset_of(store, connector.topic) == len(connector.sent))
    assert state(store) == connector.rows()
    batches = store.read(ITEMS, columns=["_epoch", "_txn"])
    rows = {(row["_txn"], row["_epoch"]) for batch in batches for row in batch.to_pylist()}
    assert len(rows) == len({xid for xid, _ in rows}) > 10, "no transaction is in two epochs"
    assert store.verify().findings == ()


def test_a_registry_out_of_reach_parks_nothing_and_is_waited_for(
    store: Store, connector: AvroConnector, registry: Registry
) -> None:
    registry.broken = 503, b""
    settings = settings_of(connector, registry, on_bad_record="park")
    prepared = prepare_kafka(store, "shop", settings)
    assert prepared.registry is not None and "cannot answer now (503)" in prepared.registry.problem
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.flush()
    with capturing(store, settings) as running:
        running.wait(
            lambda: any("cannot answer now (503)" in text for text in running.capture.status.messages)
        )
        assert sum(each.next_offset for each in chained_partitions(store, "shop")) == 0
        registry.broken = None
        running.wait(lambda: offset_of(store, connector.topic) == 2)
    assert state(store) == {1: "a", 2: "b"}
    assert list(parked(store.catalog, "shop")) == []


def test_a_record_whose_schema_nobody_knows_is_parked_and_read_when_it_is_registered(
    store: Store, connector: AvroConnector, registry: Registry
) -> None:
    known = registry.schemas.pop(2)
    settings = settings_of(connector, registry, on_bad_record="park")
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.flush()
    with capturing(store, settings) as running:
        running.wait(lambda: offset_of(store, connector.topic) == 1)
    (record,) = parked(store.catalog, "shop")
    assert record.reason == "its value: the schema registry has no schema 2"
    assert record.value is not None and record.value[:5] == b"\0\0\0\0\2", "it is kept as it came"
    registry.schemas[2] = known
    with capturing(store, settings) as running:
        assert answer_of(store, running) == ("done", "1 of 1 records are in the log now")
    assert history(store) == [("c", 1)]

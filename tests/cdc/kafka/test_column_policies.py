"""Protected columns of tables in Kafka: from a real broker into a real store, their plain text is written nowhere."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from tailrace.cdc.kafka.epochs.epoch import BadRecord
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.cdc.kafka.requests import PARKED
from tailrace.cdc.status import CapturePhase
from tailrace.embedded import KafkaServer
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files.seal import seal
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.test_capture import Running, answer_of, capturing, offset_of
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.plaintext import places_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

ITEMS = TopicId.table("shop", "public", "items")
KEY = "only the environment knows this key"
SECRET = "Zq7xVn2w"
COLUMNS = {"id": "text", "email": "text", "phone": "text", "seen": "integer"}
POLICIES = {"public.items.id": "hash", "public.items.email": "hash", "*.*.phone": "drop"}


def hashed(text: str) -> str:
    return hmac.digest(KEY.encode(), text.encode(), "sha256").hex()


class People:
    """Writes records of one table; each protected value begins with the mark."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.brokers, self.topic, self.offset = brokers, topic, 0
        self._producer = KafkaProducer(bootstrap_servers=brokers, acks="all")

    def settings(self, **more: Any) -> KafkaSourceSettings:
        where = {"kind": "kafka", "brokers": [self.brokers], "topics": [self.topic], "linger_ms": 20}
        tables = {"public.items": {"columns": COLUMNS, "key": ["id"], "full_identity": True}}
        protection = {"columns": POLICIES, "hash_key": KEY}
        return KafkaSourceSettings.model_validate({**where, "tables": tables, **protection, **more})

    def row(self, number: int, **cells: Any) -> dict[str, Any]:
        values = {name: f"{SECRET}-{name}-{number}" for name in ("id", "email", "phone")}
        return {**values, "seen": number, **cells}

    def write(self, op: str, number: int, snapshot: str = "false", **more: Any) -> None:
        row = self.row(number, **more)
        before, after = row if op in "ud" else None, None if op == "d" else row
        source = {"schema": "public", "table": "items", "txId": 7, "lsn": self.offset, "ts_ms": 1}
        source |= {"snapshot": snapshot, "sequence": f'["{self.offset}","{self.offset}"]'}
        envelope = {"op": op, "before": before, "after": after, "source": source}
        self.send({"id": row["id"]}, json.dumps(envelope).encode())

    def send(self, key: Mapping[str, Any], value: bytes | None, **headers: bytes) -> None:
        named = [(f"__debezium.{name}", data) for name, data in headers.items()]
        self._producer.send(self.topic, key=json.dumps(key).encode(), value=value, headers=named)
        self._producer.flush()
        self.offset += 1

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def people(kafka: KafkaServer) -> Iterator[People]:
    name = f"p{secrets.token_hex(4)}.public.items"
    make_topic(kafka, name)
    made = People(kafka.address, name)
    yield made
    made.close()


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


def rows_of(store: Store) -> list[dict[str, Any]]:
    parts = [part for part in store.state(ITEMS) if part.num_rows]
    names = [name for name in COLUMNS if parts and name in parts[0].schema.names]
    rows = [row for part in parts for row in part.select(names).to_pylist()]
    return sorted(rows, key=lambda row: int(row["seen"]))


def written(number: int) -> dict[str, Any]:
    return {
        "id": hashed(f"{SECRET}-id-{number}"),
        "email": hashed(f"{SECRET}-email-{number}"),
        "seen": number,
    }


def write_everything(people: People) -> None:
    """A snapshot, changes of every kind, a key change, and records that cannot be read."""
    for number in range(5):
        people.write("r", number, "last" if number == 4 else "true")
    people.write("c", 5)
    people.write("u", 1)
    people.write("d", 2)
    people.send({"id": people.row(2)["id"]}, None)
    people.write("d", 3)
    moved = people.row(6)
    source = {"schema": "public", "table": "items", "txId": 8, "lsn": 99, "ts_ms": 1}
    source |= {"snapshot": "false", "sequence": '["98","99"]'}
    value = json.dumps({"op": "c", "before": None, "after": moved, "source": source}).encode()
    people.send({"id": moved["id"]}, value, oldkey=json.dumps({"id": people.row(3)["id"]}).encode())
    people.send({"id": moved["id"]}, f"{SECRET} is no JSON".encode())
    people.send({"id": moved["id"]}, json.dumps({"op": "c", "after": people.row(7, seen=SECRET)}).encode())
    other = {"op": "c", "after": people.row(8), "source": {"schema": "public", "table": "customers"}}
    people.send({"id": moved["id"]}, json.dumps(other).encode())


def test_the_plain_text_of_a_protected_column_is_nowhere_in_the_store(
    store: Store, people: People, store_dir: Path
) -> None:
    settings = people.settings(on_bad_record="park")
    prepare_kafka(store, "shop", settings)
    write_everything(people)
    with capturing(store, settings) as running:
        running.wait(lambda: offset_of(store, people.topic) == people.offset)
        said = repr(running.capture.status)
    assert SECRET not in said and KEY not in said
    assert rows_of(store) == [written(number) for number in (0, 1, 4, 5, 6)]
    records = parked(store.catalog, "shop")
    assert len(records) == 3 and not any(record.is_kept for record in records)
    assert SECRET not in repr(records)
    assert store.verify().findings == ()
    assert seal(store)
    assert places_of(store, store_dir, SECRET, KEY) == []
    assert places_of(store, store_dir, hashed(f"{SECRET}-email-1")), "what is there is found"


@one_catalog
def test_a_record_that_stops_the_capture_is_not_shown(store: Store, people: People, store_dir: Path) -> None:
    settings = people.settings()
    prepare_kafka(store, "shop", settings)
    people.write("c", 1, seen=SECRET)
    running = Running(store, settings)
    running.thread.join(60)
    with pytest.raises(BadRecord, match="column 'seen' is not what its schema or declaration says"):
        running.end()
    assert SECRET not in repr(running.error) + str(running.error) + repr(running.capture.status)
    assert places_of(store, store_dir, SECRET) == []


@one_catalog
def test_a_parked_record_is_read_from_kafka_again_and_protected_then(
    store: Store, people: People, store_dir: Path
) -> None:
    wrong = {"public.items": {"columns": COLUMNS | {"seen": "bytea"}, "key": ["id"]}}
    settings = people.settings(on_bad_record="park", tables=wrong)
    prepare_kafka(store, "shop", settings)
    people.write("c", 1, seen="no base64!")
    people.write("c", 2, seen="no base64!")
    with capturing(store, settings) as running:
        running.wait(lambda: offset_of(store, people.topic) == 2)
    assert [record.is_kept for record in parked(store.catalog, "shop")] == [False, False]
    right = {"public.items": {"columns": COLUMNS | {"seen": "text"}, "key": ["id"]}}
    with KafkaAdmin(people) as admin:
        admin.delete_records({TopicPartition(people.topic, 0): 1})  # as retention does
    with capturing(store, people.settings(on_bad_record="park", tables=right)) as running:
        (asked,) = store.requests.ask(PARKED, [ITEMS])
        running.wait(lambda: store.requests.get([asked.id])[0].ended_at is not None)
        detail = store.requests.get([asked.id])[0].detail
        assert detail.startswith("1 of 2 records are in the log now; ")
        assert detail.endswith("offset 0: Kafka has it no more; give it up with --discard")
        assert [record.place.offset for record in parked(store.catalog, "shop")] == [0]
        assert answer_of(store, running, discard=True) == ("done", "1 of 1 records are given up")
    assert store.verify().findings == ()
    assert places_of(store, store_dir, SECRET) == []


class KafkaAdmin:
    def __init__(self, people: People) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=people.brokers)

    def __enter__(self) -> KafkaAdminClient:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()


@one_catalog
def test_a_change_of_policy_is_reported_and_the_topic_is_read_again(
    store: Store, people: People, store_dir: Path
) -> None:
    plain = people.settings(columns={}, hash_key=None, on_bad_record="park")
    prepare_kafka(store, "shop", plain)
    write_everything(people)

    def captured(settings: KafkaSourceSettings, reason: str) -> list[dict[str, Any]]:
        before = store.topic(ITEMS).complete_since if ITEMS in {each.id for each in store.topics()} else 0
        with capturing(store, settings) as running:
            running.wait(lambda: running.capture.status.phase is CapturePhase.STREAMING)
            running.wait(lambda: offset_of(store, people.topic) == people.offset)
            running.wait(lambda: store.topic(ITEMS).complete_since is not None)
            messages = [text for text in running.capture.status.messages if "is read again" in text]
        assert [reason in text for text in messages] == [True] * bool(reason)
        assert (store.topic(ITEMS).complete_since != before) == bool(reason or not before)
        assert store.verify().findings == ()
        return rows_of(store)

    numbers = (0, 1, 4, 5, 6)
    assert captured(plain, "") == [people.row(number) for number in numbers]
    assert all(record.is_kept for record in parked(store.catalog, "shop"))
    protected = people.settings(on_bad_record="park")
    assert captured(protected, "phone: in plain text until now, left out") == [
        written(number) for number in numbers
    ]
    records = parked(store.catalog, "shop")
    assert len(records) == 3 and not any(record.is_kept for record in records), "they came again"
    assert captured(protected, "") == [written(number) for number in numbers]
    silent = people.settings(columns={}, on_bad_record="park")
    assert captured(silent, "") == [written(number) for number in numbers], "silence lifts nothing"
    other = people.settings(hash_key="another key that only it knows of", on_bad_record="park")
    again = captured(other, "email: hashed with key")
    assert again != [written(number) for number in numbers] and len(again) == len(numbers)


@one_catalog
def test_a_policy_that_cannot_be_is_said_before_anything_is_written(store: Store, people: People) -> None:
    people.write("c", 1)
    for columns, said in (
        ({"public.items.id": "drop"}, r"public\.items\.id is part of the key"),
        ({"public.items.e_mail": "drop"}, r"public\.items\.e_mail names no column"),
        ({"public.itmes.email": "drop"}, r"public\.itmes\.email names no table"),
    ):
        wrong = people.settings(columns=columns)
        findings = prepare_kafka(store, "shop", wrong, dry_run=True).blocking_findings
        assert len(findings) == 1 and findings[0].hint
        with pytest.raises(OperatorError, match=said):
            prepare_kafka(store, "shop", wrong)
    assert store.topics() == []
    assert store.source("shop") is None

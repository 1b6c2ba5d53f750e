"""With Debezium itself, stopped in the middle of a transaction. ``tests/servers-setup debezium`` brings its jars."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tailrace.cdc.adoption.adopt import AdoptResult
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer, PostgresServer
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.adoption.test_adopt import ITEMS, Place, change, partitions, place, require_equal
from tests.cdc.kafka.decoding.golden.make import GOLDEN, debezium
from tests.cdc.kafka.decoding.golden.scenarios import Configuration
from tests.fixtures.brokers import make_topic
from tests.support import REPOSITORY
from tests.support.capturing import RunningCapture, execute

__all__ = ["partitions", "place"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
_JARS = REPOSITORY / ".venv/servers/debezium/jars"
_SNAPSHOT = 5  # rows that were there before


@pytest.fixture
def engine(tmp_path: Path) -> list[str]:
    """The command that runs Debezium's engine."""
    if not _JARS.is_dir() or shutil.which("javac") is None:
        pytest.fail("neither jars of Debezium nor a compiler of Java: tests/servers-setup debezium")
    classes = tmp_path / "classes"
    subprocess.run(
        ["javac", "-cp", f"{_JARS}/*", "-d", str(classes), str(GOLDEN / "Record.java")], check=True
    )
    return ["java", "-cp", f"{classes}:{_JARS}/*"]


def test_a_connector_that_was_killed_in_the_middle_of_a_transaction(
    place: Place, engine: list[str], postgres: PostgresServer, tmp_path: Path
) -> None:
    execute(place.dsn, "INSERT INTO public.items SELECT n, 'old ' || n FROM generate_series(1, 5) n")
    records = record(place, engine, postgres, tmp_path, {}, lambda: change(place))
    sent = records[: _SNAPSHOT + 11]
    send(place, sent)
    done = taken_over(place)
    assert done.dropped == sum(value != "-" for _, _, value, *_ in sent) - _SNAPSHOT
    assert done.added > 0 and not done.again
    change(place)
    require_equal(place, ITEMS)


_KINDS = {
    "whole": "(id integer PRIMARY KEY, note text)",
    "bare": "(id integer, note text)",
    "parts": "(id integer PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "emptied": "(id integer PRIMARY KEY, note text)",
    "indexed": "(id integer PRIMARY KEY, note text, code serial UNIQUE)",
}


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_tables_with_full_identity_without_a_key_in_partitions_emptied_or_with_an_index_for_a_key(
    place: Place,
    kafka: KafkaServer,
    engine: list[str],
    postgres: PostgresServer,
    tmp_path: Path,
    share: float,
) -> None:
    for name in _KINDS:
        make_topic(kafka, f"{place.connector.prefix}.public.{name}")
    execute(
        place.dsn,
        *(f"CREATE TABLE public.{name} {columns}" for name, columns in _KINDS.items()),
        *(f"ALTER TABLE public.{name} REPLICA IDENTITY FULL" for name in ("whole", "bare")),
        "ALTER TABLE public.indexed REPLICA IDENTITY USING INDEX indexed_code_key",
        "CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.parts_2 PARTITION OF public.parts FOR VALUES FROM (10) TO (100)",
        *(f"INSERT INTO public.{name} VALUES (1, 'old'), (2, 'old'), (11, 'old')" for name in _KINDS),  # noqa: S608
    )
    tables = ",".join(f"public.{name}" for name in ("items", *_KINDS))  # without the partitions
    settings = {
        "publish.via.partition.root": "true",
        "table.include.list": tables,
        "message.key.columns": "public.indexed:code",
    }
    records = record(place, engine, postgres, tmp_path, settings, lambda: change_kinds(place))
    before = 3 * len(_KINDS)
    send(place, records[: before + int(share * (len(records) - before))])
    done = taken_over(place)
    topics = [TopicId.table("shop", "public", name) for name in _KINDS]
    assert (dict(done.again), sorted(done.carried)) == ({}, sorted(topics))
    change_kinds(place)
    require_equal(place, *topics)


def change_kinds(place: Place) -> None:
    statements = (
        "INSERT INTO public.{} VALUES (5, 'equal'), (6, 'equal'), (12, NULL)",
        "UPDATE public.{} SET note = 'new' WHERE id IN (1, 11)",
        "UPDATE public.{} SET id = id + 20 WHERE id = 2",
        "DELETE FROM public.{} WHERE id IN (5, 6, 12)",
        "UPDATE public.{} SET id = id - 20 WHERE id = 22",
    )
    execute(place.dsn, *(each.format(name) for each in statements for name in _KINDS))
    execute(place.dsn, "; ".join(each.format(name) for each in statements for name in _KINDS))
    execute(
        place.dsn,
        "TRUNCATE public.emptied",
        "BEGIN; INSERT INTO public.emptied VALUES (1, 'behind'), (2, 'behind'), (11, 'behind'); COMMIT",
        "INSERT INTO public.bare VALUES (7, 'twice'), (7, 'twice')",
        "DELETE FROM public.bare WHERE id = 7",
    )


Record = list[str]  # topic, key, value, headers


def record(
    place: Place,
    engine: list[str],
    postgres: PostgresServer,
    folder: Path,
    settings: dict[str, str],
    make: Callable[[], None],
) -> list[Record]:
    """What Debezium sends of the tables and of changes to them. It confirms nothing, as if it were killed before."""
    place.truth.init()
    with RunningCapture(place.truth) as capture:
        capture.catch_up()
    (folder / "engine").mkdir()
    name = place.dsn.rpartition("/")[2]
    unconfirmed = Configuration(settings={"lsn.flush.mode": "manual", **settings})
    with debezium(name, postgres, unconfirmed, engine, folder / "engine") as lines:
        make()
        records = [line.split(" ") for line in lines().splitlines()]
    return [each for each in records if each[0].startswith("shop.public.")]


def send(place: Place, records: Sequence[Record]) -> None:
    producer = KafkaProducer(bootstrap_servers=place.connector.brokers, acks="all")
    for topic, key, value, *headers in records:
        found = [(each.partition("=")[0], _bytes("=" + each.partition("=")[2]) or b"") for each in headers]
        name = place.connector.prefix + topic.removeprefix("shop")
        if (key, value) != ("-", "-"):  # a tombstone without a key, which kafka-python does not send
            producer.send(name, key=_bytes(key), value=_bytes(value), headers=found)
    producer.close()


def taken_over(place: Place) -> AdoptResult:
    with place.site.open() as store:
        prepare_kafka(store, "shop", place.kafka)
    name = f"debezium_{place.dsn.rpartition('/')[2]}"
    return place.adopt(slot=name, publication=name)


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])

"""From a real broker into the log: each record once, whatever ends or comes again, and what is not sure stops."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka.errors import TopicAlreadyExistsError

from tailrace.cdc.kafka import session
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoder import TableDecoder
from tailrace.cdc.kafka.epochs.epoch import BadRecord, Decode
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.cdc.kafka.requests import PARKED, REREAD
from tailrace.cdc.kafka.rereading import READ_AGAIN
from tailrace.cdc.kafka.topics.discovery import OtherRecords
from tailrace.embedded import KafkaServer
from tailrace.eventstore.catalog.leases import AlreadyRunning
from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.fixtures.brokers import make_topic
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
ITEMS = TopicId.table("shop", "public", "items")


@pytest.fixture
def connector(kafka: KafkaServer, database: str) -> Iterator[Connector]:
    name = f"p{secrets.token_hex(4)}.public.items"
    make_topic(kafka, name)
    made = Connector(database, kafka.address, name)
    yield made
    made.close()


def settings_of(connector: Connector, **more: object) -> KafkaSourceSettings:
    table = {"columns": {"id": "integer", "note": "text"}, "key": ["id"]}
    where = {"kind": "kafka", "brokers": [connector.brokers], "topics": [connector.topic], "linger_ms": 20}
    tables = {"public.items": table, "public.more": table}
    return KafkaSourceSettings.model_validate({**where, "tables": tables, **more})


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    return new_store()


class Running:
    """A capture on a thread of its own."""

    def __init__(self, store: Store, settings: KafkaSourceSettings, decode: Decode | None = None) -> None:
        self.stop = threading.Event()
        self.capture = KafkaCapture(
            store, "shop", settings, stop=self.stop, decoder=lambda *given: decode or TableDecoder.of(*given)
        )
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(60)
        if self.error is not None:
            raise self.error

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert self.thread.is_alive(), self.error
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.02)


@contextmanager
def capturing(store: Store, settings: KafkaSourceSettings, decode: Decode | None = None) -> Iterator[Running]:
    running = Running(store, settings, decode)
    try:
        yield running
    finally:
        running.stop.set()
        running.thread.join(60)
    if running.error is not None:
        raise running.error


def read_up_to(store: Store, offset: int) -> Callable[[], bool]:
    return lambda: [each.next_offset for each in chained_partitions(store, "shop")] == [offset]


def state(store: Store) -> dict[int, str]:
    return {row["id"]: row["note"] for part in store.state(ITEMS) for row in part.to_pylist()}


def history(store: Store) -> list[tuple[str, int]]:
    batches = store.read(ITEMS, columns=["_op", "key"])
    return [(row["_op"], row["key"]["id"]) for batch in batches for row in batch.to_pylist()]


def test_a_snapshot_and_what_follows_make_the_table(store: Store, connector: Connector) -> None:
    settings = settings_of(connector)
    assert [each.topic for each in prepare_kafka(store, "shop", settings).topics] == [ITEMS]
    connector.change(("c", 1, "before"), ("c", 2, "before"))
    connector.sent.clear()
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 2))
        assert store.topic(ITEMS).complete_since is None, "no snapshot has come"
        connector.snapshot()
        connector.change(("u", 1, "one"), ("c", 3, "three"))
        connector.change(("d", 2, ""))
        running.wait(read_up_to(store, 8))
    assert state(store) == connector.rows() == {1: "one", 3: "three"}
    assert store.verify().findings == ()


@pytest.mark.kafka_versions
def test_rows_that_come_again_are_dropped_and_a_second_snapshot_changes_nothing(
    store: Store, connector: Connector
) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.sent.clear()
    connector.snapshot()
    for note in "bcd":
        connector.change(("u", 1, note), ("u", 1, note * 2), ("c", ord(note), note))
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 11))
        connector.restart(again=5)
        connector.change(("d", 1, ""))
        running.wait(read_up_to(store, 18))
    assert [each for each in history(store) if each[1] == 1] == [
        ("c", 1),
        ("r", 1),
        *[("u", 1)] * 6,
        ("d", 1),
    ]
    with capturing(store, settings) as running:
        connector.restart(again=8)
        connector.snapshot()
        running.wait(read_up_to(store, 29))
    assert state(store) == connector.rows()
    assert len(history(store)) == 12 + 3
    assert store.verify().findings == ()


def test_a_bad_record_stops_the_capture_or_is_parked_and_the_others_go_on(
    store: Store, connector: Connector
) -> None:
    prepare_kafka(store, "shop", settings_of(connector))
    connector.change(("c", 1, "a"))
    connector.send_raw(b'{"id": 2}', b"\x01 no JSON")
    connector.change(("c", 3, "c"))
    connector.flush()
    running = Running(store, settings_of(connector))
    running.thread.join(60)
    with pytest.raises(BadRecord, match=r"partition 0, offset 1: its value: not a JSON object.*"):
        running.end()
    assert "on_bad_record" in str(running.error)
    with capturing(store, settings_of(connector, on_bad_record="park")) as running:
        running.wait(read_up_to(store, 3))
    assert history(store) == [("c", 1), ("c", 3)]
    (record,) = parked(store.catalog, "shop")
    assert (record.place.offset, record.reason, record.value) == (
        1,
        "its value: not a JSON object (at byte 0)",
        b"\x01 no JSON",
    )
    assert any("parked: " in text for text in running.capture.status.messages)
    assert store.verify().findings == ()


@one_catalog
def test_a_second_capture_is_refused_and_one_that_takes_over_fences(
    store: Store, connector: Connector
) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.flush()
    first = Running(store, settings)
    first.wait(lambda: bool(chained_partitions(store, "shop")))
    second = Running(store, settings)
    second.thread.join(60)
    with pytest.raises(AlreadyRunning, match="source shop is captured already"):
        second.end()
    first.wait(read_up_to(store, 1))
    store.take_over("shop")  # as a capture does that cannot see the first one's lease
    connector.change(("c", 2, "b"))
    connector.flush()
    first.thread.join(60)
    with pytest.raises(Fenced):
        first.end()
    assert history(store) == [("c", 1)]


@one_catalog
def test_records_that_went_before_they_were_read_stop_with_what_to_do(
    store: Store, connector: Connector
) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.flush()
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 1))
    connector.change(("c", 2, "b"), ("c", 3, "c"))
    connector.flush()
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.delete_records({TopicPartition(connector.topic, 0): 2})
    running = Running(store, settings)
    running.thread.join(60)
    with pytest.raises(
        OtherRecords, match="offset 1 is next, and Kafka has records from offset 2 on"
    ) as caught:
        running.end()
    assert "tailrace source reread shop.public.items" in caught.value.hint
    admin.delete_topics([connector.topic])
    make_topic_again(connector)
    admin.close()
    running = Running(store, settings)
    running.thread.join(60)
    with pytest.raises(OtherRecords, match="was made anew"):
        running.end()


def make_topic_again(connector: Connector) -> None:
    """Deleting takes the broker a moment."""
    deadline = time.monotonic() + 60
    while True:
        try:
            admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
            admin.create_topics([NewTopic(connector.topic, 1, 1)])
            return
        except TopicAlreadyExistsError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        finally:
            admin.close()


@one_catalog
def test_a_partition_that_came_and_lost_its_first_records_stops(store: Store, connector: Connector) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    with capturing(store, settings) as running:
        running.wait(lambda: bool(chained_partitions(store, "shop")))
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.create_partitions({connector.topic: NewPartitions(2)})
    deadline = time.monotonic() + 60
    while not first_offset(connector, 1):
        assert time.monotonic() < deadline
        connector.change(*[("u", key, "x") for key in range(20)])
        connector.flush()
        admin.delete_records({TopicPartition(connector.topic, 1): -1})
    admin.close()
    running = Running(store, settings)
    running.thread.join(60)
    with pytest.raises(OtherRecords, match="in a partition that came later"):
        running.end()


@one_catalog
def test_new_topics_and_partitions_are_taken_up_from_their_first_record(
    store: Store, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LOOK_SECONDS", 0.2)
    prefix = connector.topic.split(".")[0]
    settings = settings_of(connector).model_copy(update={"topics": (f"{prefix}.public.*",)})
    prepare_kafka(store, "shop", settings)
    with capturing(store, settings) as running:
        running.wait(lambda: bool(chained_partitions(store, "shop")))
        other = Connector(connector.dsn, connector.brokers, f"{prefix}.public.more")
        admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
        admin.create_topics([NewTopic(other.topic, 1, 1)])
        admin.create_partitions({connector.topic: NewPartitions(3)})
        admin.close()
        other.change(("c", 9, "other"))
        connector.change(*[("c", key, "x") for key in range(20)])
        other.close()
        connector.flush()
        running.wait(lambda: sum(each.next_offset for each in chained_partitions(store, "shop")) == 21)
    assert {each.id.text for each in store.topics("shop")} > {"shop.public.items", "shop.public.more"}
    assert sorted(key for _, key in history(store)) == list(range(20))
    assert len(chained_partitions(store, "shop")) == 4


@one_catalog
def test_a_parked_record_is_tried_again_and_never_put_in_front_of_a_later_one(
    store: Store, connector: Connector
) -> None:
    settings = settings_of(connector, on_bad_record="park")
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    good = [(key, value) for key, value in connector.sent if value is not None]
    connector.send_raw(b'{"id": 1}', b"no JSON")
    connector.send_raw(b'{"id": 2}', b"no JSON")
    connector.change(("u", 1, "b"))
    connector.flush()
    corrected = threading.Event()  # as a declaration is

    def repairing(topic: TopicId, latest: TopicSchema | None, records: pa.Table, place: Place) -> Decoded:
        values = records["value"].to_pylist()
        if corrected.is_set():
            values = [good[0][1].replace(b'{"id": 1', key[:-1]) for key in records["key"].to_pylist()]
        column = pa.array(values, pa.large_binary())
        return TableDecoder.of(settings)(topic, latest, records.set_column(3, "value", column), place)

    with capturing(store, settings, repairing) as running:
        running.wait(read_up_to(store, 4))
        assert answer_of(store, running) == ("failed", "0 of 2 records are in the log now")
        assert len(parked(store.catalog, "shop")) == 2
        corrected.set()
        state, said = answer_of(store, running)
        assert (state, said) == ("failed", "1 of 2 records are in the log now")
        assert [each.place.offset for each in parked(store.catalog, "shop")] == [1]
        assert answer_of(store, running, discard=True) == ("done", "1 of 1 records are given up")
    assert parked(store.catalog, "shop") == []
    assert sorted(history(store)) == [("c", 1), ("c", 2), ("u", 1)]
    assert store.verify().findings == ()


def answer_of(store: Store, running: Running, **options: object) -> tuple[str, str]:
    (asked,) = store.requests.ask(PARKED, [ITEMS], **options)
    running.wait(lambda: store.requests.get([asked.id])[0].ended_at is not None)
    (answered,) = store.requests.get([asked.id])
    return answered.state.value, answered.detail.split("; ")[0]


@pytest.mark.kafka_versions
@one_catalog
def test_a_topic_that_was_made_anew_is_read_again_on_request(store: Store, connector: Connector) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.snapshot()
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 4))
    assert state(store) == connector.rows()
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.delete_topics([connector.topic])
    admin.close()
    make_topic_again(connector)
    connector.change(("d", 2, ""), ("c", 3, "c"))  # while nobody wrote to Kafka
    make_topic_empty(connector)
    (asked,) = store.requests.ask(REREAD, [ITEMS])
    with capturing(store, settings) as running:
        running.wait(lambda: store.requests.get([asked.id])[0].state.value == "done")
        running.wait(lambda: store.topic(ITEMS).reason == READ_AGAIN)
        connector.snapshot()
        connector.change(("u", 1, "z"))
        connector.flush()
        running.wait(
            lambda: store.topic(ITEMS).complete_since is not None and state(store) == connector.rows()
        )
    assert state(store) == {1: "z", 3: "c"}
    assert store.verify().findings == ()


def make_topic_empty(connector: Connector) -> None:
    """What the connector sent meanwhile is lost."""
    connector.flush()
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    partition = TopicPartition(connector.topic, 0)
    admin.delete_records({partition: -1})
    admin.close()


@one_catalog
def test_epochs_hold_whole_transactions_where_the_connector_says_what_they_are(
    store: Store, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = connector.topic.replace("public.items", "transaction")
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.create_topics([NewTopic(metadata, 1, 1)])
    admin.close()
    connector.transactions = metadata
    settings = settings_of(connector, transaction_topic=metadata, linger_ms=0, epoch_changes=5)
    prepare_kafka(store, "shop", settings)
    with capturing(store, settings) as running:
        for number in range(40):
            connector.change(*[("u", key, f"{number}") for key in range(number % 7)])
            connector.flush()
        sent = len(connector.sent)
        running.wait(lambda: offset_of(store, connector.topic) == sent)
    batches = store.read(ITEMS, columns=["_epoch", "_txn"])
    rows = {(row["_txn"], row["_epoch"]) for batch in batches for row in batch.to_pylist()}
    assert len(rows) == len({xid for xid, _ in rows}) > 30, "no transaction is in two epochs"
    monkeypatch.setattr(session, "_STUCK_SECONDS", 1.0)
    connector.transactions = ""  # ends are not sent any more
    connector.change(("u", 1, "last"))
    connector.flush()
    with capturing(store, settings) as running:
        running.wait(lambda: offset_of(store, connector.topic) == sent + 1)
        running.wait(
            lambda: any(
                "does not hold whole transactions" in text for text in running.capture.status.messages
            )
        )
    assert store.verify().findings == ()


def offset_of(store: Store, topic: str) -> int:
    return sum(each.next_offset for each in chained_partitions(store, "shop") if each.topic == topic)


def first_offset(connector: Connector, partition: int) -> int:
    with Cluster(settings_of(connector)) as cluster:
        place = Partition(connector.topic, partition)
        return cluster.offsets([place])[place].earliest

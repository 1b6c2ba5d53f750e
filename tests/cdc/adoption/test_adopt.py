"""From Debezium's topics to native capture of the same Postgres. The truth is native capture that ran all the time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.adoption.adopt import AdoptResult, adopt
from tailrace.cdc.adoption.ending import confirm
from tailrace.cdc.adoption.held import LEFT_OUT
from tailrace.cdc.adoption.inspection import Request, inspect
from tailrace.cdc.adoption.undo import undo
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.cdc.kafka.lag import read_lag
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.postgres.errors import SlotActive
from tailrace.cdc.postgres.replication import ReplicationStream
from tailrace.embedded import KafkaServer
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store
from tests.cdc.adoption.connector import SlotConnector
from tests.fixtures.brokers import make_topic
from tests.support.capturing import RunningCapture, Site, execute

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
ITEMS = TopicId.table("shop", "public", "items")


@dataclass
class Place:
    """A database with ``connector``, a store that reads its topics (``site``: as native capture has it), and another
    one that captures natively from the beginning (``truth``)."""

    dsn: str
    kafka: KafkaSourceSettings
    connector: SlotConnector
    site: Site
    truth: Site

    def request(self, **changes: Any) -> Request:
        values = {
            "source": "shop",
            "settings": self.kafka,
            "address": Address.parse(self.dsn),
            "slot": self.connector.slot,
            "publication": self.connector.publication,
        }
        return Request(**{**values, **changes})

    def adopt(self, **changes: Any) -> AdoptResult:
        with self.site.open() as store:
            return adopt(store, self.request(**changes))

    def confirmed(self) -> str:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                [self.connector.slot],
            ).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def partitions() -> int:
    return 1


@pytest.fixture
def place(kafka: KafkaServer, database: str, tmp_path: Path, partitions: int) -> Iterator[Place]:
    prefix = f"p{secrets.token_hex(4)}"
    make_topic(kafka, f"{prefix}.public.items", partitions)
    suffix = secrets.token_hex(4)
    connector = SlotConnector(
        database, kafka.address, prefix, slot=f"debezium_{suffix}", publication=f"dbz_{suffix}"
    )
    execute(database, "CREATE TABLE public.items (id integer PRIMARY KEY, note text)")
    settings = KafkaSourceSettings.model_validate(
        {
            "kind": "kafka", "brokers": [kafka.address], "topics": [f"{prefix}.public.*"], "linger_ms": 20,
            "catalog_dsn": database,
        }
    )  # fmt: skip
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    site = Site.at(tmp_path / "a", database, name=f"a{suffix}")
    truth = Site.at(tmp_path / "b", database, name=f"b{suffix}")
    yield Place(database, settings, connector, site, truth)
    connector.close()


def history(store: Store, topic: TopicId) -> dict[str, list[tuple[Any, ...]]]:
    """By key what was done to it, and what was there then."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    columns = ["_op", "key", "after", "_moved_from", "_unchanged", "_txn"]
    for batch in store.read(topic, columns=columns):
        for row in batch.to_pylist():
            transaction = row.pop("_txn") if row["_op"] != "r" else 0
            found.setdefault(str(row["key"]), []).append((*row.values(), transaction))
    return found


def state(store: Store, topic: TopicId) -> list[str]:
    rows = (row for part in store.state(topic) for row in part.to_pylist())
    return sorted(str([(name, row[name]) for name in sorted(row) if name[0] != "_"]) for row in rows)


def require_equal(place: Place, *topics: TopicId) -> None:
    """Both captures have all that was committed; their histories by key and their states are the same."""
    with RunningCapture(place.site) as mine, RunningCapture(place.truth) as other:
        mine.catch_up()
        other.catch_up()
        for topic in topics:
            assert history(mine.store, topic) == history(other.store, topic)
            assert state(mine.store, topic) == state(other.store, topic)
        assert mine.store.verify().findings == ()


def begin(place: Place, publication: str = "FOR ALL TABLES") -> None:
    """Rows that are there before, a snapshot by both, and the Kafka source."""
    execute(place.dsn, "INSERT INTO public.items SELECT n, 'old ' || n FROM generate_series(1, 5) n")
    place.connector.start(publication)
    place.connector.snapshot("public.items")
    place.truth.init()
    with RunningCapture(place.truth) as capture:
        capture.catch_up()
    with place.site.open() as store:
        prepare_kafka(store, "shop", place.kafka)


def change(place: Place) -> None:
    execute(place.dsn, "DELETE FROM public.items WHERE id >= 10")
    execute(place.dsn, "UPDATE public.items SET note = 'one' WHERE id = 1")
    with (
        psycopg.connect(place.dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY public.items FROM STDIN") as copy,
    ):
        copy.write("".join(f"{number}\tmany\n" for number in range(10, 16)))  # rows share one LSN
    execute(
        place.dsn,
        "BEGIN; UPDATE public.items SET note = 'two' WHERE id = 2; UPDATE public.items SET note = 'two again'"
        " WHERE id = 2; DELETE FROM public.items WHERE id = 3; UPDATE public.items SET id = 40 WHERE id = 4;"
        " INSERT INTO public.items VALUES (3, 'back'); COMMIT",
    )
    execute(place.dsn, "UPDATE public.items SET note = 'last'")


@pytest.mark.parametrize(("sent", "confirmed"), [(0, 0), (7, 1), (10, 7), (None, 0), (None, 100)])
def test_rows_that_kafka_has_are_not_taken_again_and_all_others_are(
    place: Place, sent: int | None, confirmed: int
) -> None:
    begin(place)
    change(place)
    place.connector.send(sent)
    place.connector.confirm(confirmed)
    held = place.connector.position
    before = place.confirmed()
    done = place.adopt()
    assert (done.dropped, dict(done.again), list(done.carried)) == (held, {}, [ITEMS])
    execute(
        place.dsn, "DELETE FROM public.items WHERE id = 12", "INSERT INTO public.items VALUES (99, 'new')"
    )
    require_equal(place, ITEMS)
    assert place.confirmed() == before, "the connector could be started again"
    assert not place.site.init(dry_run=True).changes_something, "it has the connector's publication"
    with place.site.open() as store:
        confirm(store, "shop", Address.parse(place.dsn))
    require_equal(place, ITEMS)
    assert place.confirmed() != before


@pytest.mark.parametrize("partitions", [3])
def test_of_several_partitions_each_may_have_been_cut_off_elsewhere(place: Place) -> None:
    begin(place)
    change(place)
    rows, seen, late = place.connector.pending(), dict[bytes, int](), list[int]()
    for number, each in enumerate(rows):  # each key has a beginning of its rows, some more of it than others
        seen[each.key] = seen.get(each.key, 0) + 1
        if seen[each.key] > 1 + each.key[-2] % 3:
            late.append(number)
    place.connector.send(skip=late)
    done = place.adopt()
    assert (done.dropped, done.added, dict(done.again)) == (len(rows) - len(late), len(late), {})
    change(place)
    require_equal(place, ITEMS)


def read_kafka(place: Place) -> None:
    """Capture what Kafka has now."""
    stop = threading.Event()
    with place.site.open() as store:

        def look(_: object) -> None:
            if inspect_behind(place, store) == 0:
                stop.set()

        KafkaCapture(store, "shop", place.kafka, stop=stop, report=look).run()


def inspect_behind(place: Place, store: Store) -> int:
    lags = read_lag(store, "shop", place.kafka)
    return sum(each.records for each in lags) if lags else 1


def test_what_native_capture_brought_in_is_known_when_the_connector_sends_it_again(place: Place) -> None:
    begin(place)
    change(place)
    place.connector.send(9)
    place.connector.confirm(7)
    place.adopt()
    change(place)
    with RunningCapture(place.site) as capture:
        capture.catch_up()
        with pytest.raises(SlotActive):
            undo(capture.store, "shop", Address.parse(place.dsn))
    with place.site.open() as store:
        undo(store, "shop", Address.parse(place.dsn))
        with pytest.raises(UsageError, match="not in between"):
            undo(store, "shop", Address.parse(place.dsn))
    execute(
        place.dsn,
        "UPDATE public.items SET note = 'behind' WHERE id = 2",
        "DELETE FROM public.items WHERE id = 3",
    )
    place.connector.position = 0  # it did not keep how far it was
    place.connector.send()
    read_kafka(place)
    with RunningCapture(place.truth) as other, place.site.open() as store:
        other.catch_up()
        assert history(store, ITEMS) == history(other.store, ITEMS)
        assert state(store, ITEMS) == state(other.store, ITEMS)
    place.adopt()
    change(place)
    require_equal(place, ITEMS)


def test_a_table_of_which_rows_were_lost_or_changed_is_read_again(place: Place) -> None:
    begin(place)
    change(place)
    place.connector.send(12, skip=[3])
    done = place.adopt()
    assert done.again == {ITEMS: LEFT_OUT}
    with place.site.open() as store:
        assert store.topic(ITEMS).complete_since is None
    execute(place.dsn, "UPDATE public.items SET note = 'behind' WHERE id = 2")
    with RunningCapture(place.site) as mine, RunningCapture(place.truth) as other:
        mine.wait_until_complete(ITEMS)
        mine.catch_up()
        other.catch_up()
        assert state(mine.store, ITEMS) == state(other.store, ITEMS)


def test_a_table_whose_columns_are_not_those_of_its_topic_is_read_again(place: Place) -> None:
    begin(place)
    change(place)
    place.connector.send()
    read_kafka(place)
    execute(
        place.dsn,
        "ALTER TABLE public.items ADD extra integer DEFAULT 7",
        "ALTER TABLE public.items DROP note",
        "ALTER TABLE public.items ADD note text",
        "UPDATE public.items SET note = 'anew' WHERE id < 3",
    )
    assert "extra" in place.adopt().again[ITEMS]
    with RunningCapture(place.site) as mine, RunningCapture(place.truth) as other:
        mine.wait_until_complete(ITEMS)
        mine.catch_up()
        other.wait_until_complete(ITEMS)
        other.catch_up()
        assert state(mine.store, ITEMS) == state(other.store, ITEMS)


def test_partitions_of_which_each_is_published_go_on_as_tables(place: Place, kafka: KafkaServer) -> None:
    execute(
        place.dsn,
        "CREATE TABLE public.parts (id integer PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.parts_2 PARTITION OF public.parts FOR VALUES FROM (10) TO (100)",
        "INSERT INTO public.parts SELECT n, 'old' FROM generate_series(1, 20) n",
    )
    names = ["parts_1", "parts_2"]
    for name in names:
        make_topic(kafka, f"{place.connector.prefix}.public.{name}")
    begin(place)
    for name in names:
        place.connector.snapshot(f"public.{name}")
    statements = (
        "UPDATE public.parts SET note = 'new' WHERE id IN (1, 11)",
        "UPDATE public.parts SET id = 22 WHERE id = 2",  # into the other one
        "DELETE FROM public.parts WHERE id IN (3, 13)",
        "UPDATE public.parts SET id = 2 WHERE id = 22",
    )
    execute(place.dsn, *statements)
    place.connector.send(5)
    topics = [TopicId.table("shop", "public", name) for name in names]
    done = place.adopt()
    assert (dict(done.again), sorted(done.carried)) == ({}, [ITEMS, *topics])
    execute(place.dsn, *statements)
    with RunningCapture(place.site) as mine, RunningCapture(place.truth) as other:
        mine.catch_up()
        other.catch_up()
        found = [row for topic in topics for row in state(mine.store, topic)]
        assert sorted(found) == state(other.store, TopicId.table("shop", "public", "parts"))


def test_a_table_that_comes_later_is_taken_up_by_init(place: Place) -> None:
    begin(place, "FOR TABLE public.items")
    change(place)
    place.connector.send(9)
    place.adopt()
    execute(
        place.dsn,
        "CREATE TABLE public.later (id integer PRIMARY KEY, note text)",
        "INSERT INTO public.later SELECT n, 'old' FROM generate_series(1, 100) n",
    )
    for each in (place.site, place.truth):
        each.init()
    execute(place.dsn, "UPDATE public.later SET note = 'new' WHERE id < 9")
    later = TopicId.table("shop", "public", "later")
    with RunningCapture(place.site) as mine, RunningCapture(place.truth) as other:
        for capture in (mine, other):
            capture.wait_until(partial(_knows, capture, later))
            capture.wait_until_complete(later)
        mine.catch_up()
        other.catch_up()
        assert state(mine.store, later) == state(other.store, later)
        assert state(mine.store, ITEMS) == state(other.store, ITEMS)


def _knows(capture: RunningCapture, topic: TopicId) -> bool:
    return topic in {info.id for info in capture.store.topics()}


def test_a_truncate_that_the_connector_left_out_is_found_by_verify(place: Place) -> None:
    begin(place)
    execute(place.dsn, "TRUNCATE public.items")
    change(place)
    place.connector.send()  # no truncates, as Debezium by default
    place.connector.confirm(100)
    assert not place.adopt().again
    with RunningCapture(place.site) as mine:
        mine.catch_up()
        (found,) = place.site.verify(ITEMS)
    assert found.only_in_log and not found.only_in_source and not found.different


def test_what_stands_in_the_way_is_said_and_nothing_is_changed(place: Place) -> None:
    begin(place)
    change(place)
    place.connector.send()
    read_kafka(place)
    address = Address.parse(place.dsn)
    with place.site.open() as store:
        before = (store.head(), store.source("shop"))

        def refused(match: str, **changes: Any) -> None:
            seen = inspect(store, place.request(**changes))
            with pytest.raises(OperatorError, match=match) as raised:
                seen.require_possible()
            assert raised.value.hint
            assert (store.head(), store.source("shop")) == before

        refused("there is none of this name", slot="nobody")
        refused("there is none of this name", publication="nobody")
        with closing(
            ReplicationStream.open(
                address, place.connector.slot, 0, place.connector.publication,
                message_bytes=1 << 20, skipped=lambda size: None,
            )
        ):  # fmt: skip
            refused(f"slot {place.connector.slot}: server process [0-9]+ uses it")
        execute(place.dsn, f"ALTER PUBLICATION {place.connector.publication} SET (publish = 'insert')")
        refused("does not publish delete, truncate, update")
        execute(
            place.dsn,
            f"ALTER PUBLICATION {place.connector.publication} SET (publish = 'insert, update, delete, truncate')",
        )
        execute(place.dsn, "ALTER TABLE public.items REPLICA IDENTITY NOTHING")
        refused("shop.public.items: ")
        execute(place.dsn, "ALTER TABLE public.items REPLICA IDENTITY DEFAULT")
        with pytest.raises(UsageError, match="not in between"):
            confirm(store, "shop", address)
        inspect(store, place.request()).require_possible()


def test_a_snapshot_that_has_begun_and_a_transaction_that_the_slot_does_not_send_are_refused(
    place: Place,
) -> None:
    execute(place.dsn, "INSERT INTO public.items SELECT n, 'old' FROM generate_series(1, 5) n")
    place.connector.start()
    place.connector.snapshot("public.items", last=False)
    with place.site.open() as store:
        prepare_kafka(store, "shop", place.kafka)
    with pytest.raises(OperatorError, match="a snapshot by Debezium has begun there and not ended"):
        place.adopt()
    change(place)
    place.connector.send()
    place.connector.send_forged(xid=99_999_999)
    with pytest.raises(
        OperatorError, match=r"1 transactions behind .*, such as 99999999, which slot .* not send"
    ):
        place.adopt()
    with place.site.open() as store:
        found = store.source("shop")
    assert found is not None and (found.incarnation, found.slot) == (1, "")


def test_an_adoption_that_was_cut_off_leaves_the_source_as_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(place)
    change(place)
    place.connector.send(9)

    def hit(name: str, times: int = 1) -> None:
        if name == "adoption_read":
            raise failpoints.Refused

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hit", hit)
        with pytest.raises(failpoints.Refused):
            place.adopt()
    read_kafka(place)
    place.connector.send(1)
    assert place.adopt().dropped == 10
    require_equal(place, ITEMS)

"""Three brokers, each killed while it leads: capture and publication go on with the others, nothing is lost and nothing
is seen twice; a second publisher fences the first, whichever broker coordinates its transactions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.eventstore.errors import Fenced, TailraceError
from tailrace.eventstore.publishing.publisher import Publisher
from tailrace.eventstore.settings import KafkaDestinationSettings, PublicationSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import ITEMS, capturing, history, settings_of, state
from tests.eventstore.publishing.publications import Publication
from tests.fixtures.scale import Scale
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.kafka_cluster import KafkaCluster
from tests.tailrace.conftest import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(5400), one_catalog]
IN = "p.public.items"
SECONDS = 900.0


@pytest.fixture
def connector(kafka_cluster: KafkaCluster, database: str) -> Iterator[Connector]:
    kafka_cluster.make_topic(IN)
    made = Connector(database, ",".join(kafka_cluster.brokers), IN)
    yield made
    made.close()


class Publishing:
    """A publisher on a thread of its own, begun again when the cluster was away for longer than it waits."""

    def __init__(self, feed: Publication, store: Store) -> None:
        self._feed, self._store = feed, store
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            publisher: Publisher = self._feed.publisher(self._store, stop=self._stop)
            publisher.run()

    @property
    def ended(self) -> bool:
        return self._running.done()

    def end(self) -> BaseException | None:
        self._stop.set()
        error = self._running.exception(SECONDS)
        self._pool.shutdown()
        return error


def published(feed: Publication) -> dict[int, list[tuple[str, str | None]]]:
    """By key, what a reader of committed records sees of it; tombstones left out."""
    found: dict[int, list[tuple[str, str | None]]] = {}
    for each in feed.records("items"):
        if each.value is not None:
            value: dict[str, Any] = json.loads(each.value)
            note = value["after"] and value["after"]["note"]
            found.setdefault(json.loads(each.key or b"")["id"], []).append((value["op"], note))
    return found


def sent(connector: Connector) -> dict[int, list[tuple[str, str | None]]]:
    found: dict[int, list[tuple[str, str | None]]] = {}
    for key, value in connector.sent:
        if value is not None:
            envelope = json.loads(value)
            note = envelope["after"] and envelope["after"]["note"]
            found.setdefault(json.loads(key)["id"], []).append((envelope["op"], note))
    return found


def test_leaders_that_are_killed_and_come_back_lose_nothing_and_repeat_nothing(
    kafka_cluster: KafkaCluster, new_store: StoreFactory, connector: Connector, scale: Scale
) -> None:
    store = new_store()
    source = settings_of(connector, brokers=kafka_cluster.brokers)
    prepare_kafka(store, "shop", source)
    cluster = KafkaDestinationSettings(kind="kafka", brokers=tuple(kafka_cluster.brokers))
    wanted = PublicationSettings(
        destination="bus", topics=("shop.public.*",), topic="out.{table}", partitions=2, replication=3
    )
    feed = Publication(cluster, wanted, "out")
    with psycopg.connect(connector.dsn) as connection:
        connection.execute("INSERT INTO items SELECT key, 'first' FROM generate_series(0, 5) key")
    connector.snapshot()

    def everything_is_out() -> bool:
        with suppress(TailraceError):  # a broker is away
            return published(feed) == sent(connector)
        return False

    with capturing(store, source):
        publishing = Publishing(feed, store)

        def comes_out(when: str) -> None:
            try:
                until(everything_is_out, SECONDS)
            except AssertionError:
                pytest.fail(
                    f"{when}: {counts(sent(connector))} were sent, {counts(history(store))} are in the log,"
                    f" {published_so_far(feed)} published;"
                    f" the publisher: {publishing.end() if publishing.ended else 'runs'!r}"
                )

        comes_out("with all nodes")
        leaders = [(IN, 0), ("out.items", 0), ("__transaction_state", 0)]
        for number in range(scale.pick(smoke=3, full=60)):
            node = kafka_cluster.leader(*leaders[number % len(leaders)])
            connector.change(("u", number % 6, f"before {number}"), ("u", (number + 1) % 6, "x"))
            kafka_cluster.nodes[node].kill()
            connector.change(("u", number % 6, f"without {number}"), ("c", 100 + number, "new"))
            connector.change(("d", 100 + number, ""))
            connector.flush()
            comes_out(f"round {number}, node {node} is away")
            kafka_cluster.start(node)
        fenced = fence_while_the_coordinator_is_away(kafka_cluster, feed)
        connector.change(("u", 0, "behind the fence"))
        connector.flush()
        error = publishing_ended(publishing)
        assert isinstance(error, Fenced) and "another process publishes it now" in str(error)
        fenced.close()
        feed.once(store)
        until(everything_is_out, SECONDS)
    assert state(store) == connector.rows()
    assert len(history(store)) == sum(map(len, sent(connector).values()))
    assert {each.id for each in store.topics()} >= {ITEMS}
    assert store.verify().findings == ()


def counts(found: Mapping[Any, Sized] | Sized) -> int:
    return sum(map(len, found.values())) if isinstance(found, Mapping) else len(found)


def published_so_far(feed: Publication) -> int | str:
    try:
        return counts(published(feed))
    except TailraceError as error:
        return f"({error.message})"


def publishing_ended(publishing: Publishing) -> BaseException | None:
    until(lambda: publishing.ended, SECONDS)
    return publishing.end()


def fence_while_the_coordinator_is_away(cluster: KafkaCluster, feed: Publication) -> Any:
    """A second session of the same publication: another broker then coordinates its transactions."""
    node = cluster.leader("__transaction_state")
    cluster.nodes[node].kill()
    opened: list[Any] = []

    def opens() -> bool:
        with suppress(TailraceError):
            opened.append(feed.open())
        return bool(opened)

    until(opens, SECONDS)
    cluster.start(node)
    return opened[0]

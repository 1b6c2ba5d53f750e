"""Debezium, the broker, capture of Kafka and a publication are killed at random while the source is written to. In the
end the log that came by way of Kafka holds what native capture has, and Postgres' own rows; what is published again is
seen once by readers of committed records."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer, PostgresServer
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.publishing.publications import Publication, committed
from tests.fixtures.brokers import KafkaFactory, make_topic
from tests.fixtures.scale import Scale
from tests.support import REPOSITORY
from tests.support.capturing import RunningCapture, Site, execute

pytestmark = [pytest.mark.servers, pytest.mark.timeout(3600)]
_JARS = REPOSITORY / ".venv/servers/debezium/jars"
_RELAY = REPOSITORY / "tests/servers/debezium/Relay.java"
_TOPIC, _TABLE = "dbz.public.items", "shop.public.items"
_REST_SECONDS = 300.0
CAPTURE = """
import json, sys, threading
from pathlib import Path
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
with Store.open(StoreSettings(), root=Path(sys.argv[1])) as store:
    settings = KafkaSourceSettings.model_validate(json.loads(sys.argv[2]))
    KafkaCapture(store, "shop", settings, stop=threading.Event()).run()
"""
PUBLISH = """
import json, sys, threading
from functools import partial
from pathlib import Path
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.publishing.kafka.session import KafkaSession
from tailrace.eventstore.publishing.publisher import Publisher
from tailrace.eventstore.settings import KafkaDestinationSettings, PublicationSettings, StoreSettings
from tailrace.eventstore.store import Store
load_compiler()
cluster = KafkaDestinationSettings.model_validate(json.loads(sys.argv[3]))
wanted = PublicationSettings.model_validate(json.loads(sys.argv[4]))
with Store.open(StoreSettings(), root=Path(sys.argv[1])) as store:
    open_session = partial(KafkaSession, cluster, wanted, "acme", sys.argv[2])
    Publisher(store, sys.argv[2], wanted, open_session, stop=threading.Event()).run()
"""


@dataclass
class Supervised:
    """A process that is started again when it was killed; also when it ended by itself, if it said ``may_end`` last.
    What it says is in ``log``."""

    command: Sequence[str]
    log: Path
    may_end: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def revive(self) -> None:
        code = None if self.process is None else self.process.poll()
        if code is not None:
            last = self.log.read_text()[-3000:]
            assert code == -signal.SIGKILL or (self.may_end is not None and self.may_end in last), last
        if self.process is None or code is not None:
            with self.log.open("ab") as said:
                self.process = subprocess.Popen(self.command, stdout=said, stderr=said)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@dataclass
class Writing:
    """Transactions of single rows, on a thread of its own: of a statement with several rows Debezium loses some when
    it starts again in its middle."""

    dsn: str
    rng: random.Random
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            while not self.stop.is_set():
                for _ in range(self.rng.randint(1, 4)):
                    self._statement(connection)
                connection.commit()
                time.sleep(self.rng.random() * 0.02)

    def _statement(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        key, note = self.rng.randint(1, 60), f"{self.rng.random()}"
        if self.rng.random() < 0.25:
            connection.execute("DELETE FROM items WHERE id = %s", [key])
        else:
            upsert = "INSERT INTO items VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note"
            connection.execute(upsert, [key, note])


@pytest.fixture
def relay(tmp_path: Path) -> list[str]:
    """The command that runs Debezium, but for its settings."""
    if not _JARS.is_dir() or shutil.which("javac") is None:
        pytest.fail("neither jars of Debezium nor a compiler of Java: tests/servers-setup debezium")
    classes = tmp_path / "classes"
    subprocess.run(["javac", "-cp", f"{_JARS}/*", "-d", str(classes), str(_RELAY)], check=True)
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{classes}:{_JARS}/*", "Relay"]


def relay_settings(folder: Path, name: str, postgres: PostgresServer, broker: str) -> Path:
    settings = {
        "name": "relay",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "500",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": name,
        "topic.prefix": "dbz",
        "plugin.name": "pgoutput",
        "slot.name": f"relay_{name}",
        "slot.max.retries": "60",
        "slot.retry.delay.ms": "500",
        "publication.name": f"relay_{name}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.items",
        "poll.interval.ms": "50",
        "producer.bootstrap.servers": broker,
        "producer.acks": "all",
        "producer.delivery.timeout.ms": "60000",
    }
    path = folder / "relay.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def source_settings(broker: str) -> KafkaSourceSettings:
    table = {"columns": {"id": "integer", "note": "text"}, "key": ["id"]}
    given = {"kind": "kafka", "brokers": [broker], "topics": [_TOPIC], "linger_ms": 20}
    return KafkaSourceSettings.model_validate({**given, "tables": {"public.items": table}})


@pytest.fixture
def random_kills(scale: Scale) -> random.Random:
    seed = scale.pick(smoke=7, full=random.randrange(10**9))
    print(f"seed {seed}")
    return random.Random(seed)


def test_nothing_is_lost_and_nothing_is_seen_twice_whoever_is_killed(
    kafka_server: KafkaFactory,
    database: str,
    postgres: PostgresServer,
    relay: list[str],
    tmp_path: Path,
    scale: Scale,
    random_kills: random.Random,
) -> None:
    broker = kafka_server(trust=True)
    make_topic(broker, _TOPIC)
    execute(database, "CREATE TABLE items (id integer PRIMARY KEY, note text)")
    execute(database, "INSERT INTO items SELECT n, 'old' FROM generate_series(1, 5) n")
    name = database.rpartition("/")[2]
    store_folder, native_folder = tmp_path / "store", tmp_path / "native"
    store_folder.mkdir()
    native = Site.at(native_folder, database)
    native.init()
    source = source_settings(broker.address)
    feed = Publication.new(broker, topics=("shop.*",), partitions=2)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(StoreSettings(), create=True, root=store_folder))
        prepare_kafka(store, "shop", source)
        reference = stack.enter_context(RunningCapture(native))
        reference.catch_up()
        settings = relay_settings(tmp_path, name, postgres, broker.address)
        processes = {
            "debezium": Supervised([*relay, str(settings)], tmp_path / "debezium.log", may_end=""),
            "capture": Supervised(  # one that finds no broker when it begins ends, and says so
                capture_command(store, source), tmp_path / "capture.log", may_end="TransientError"
            ),
            "publish": Supervised(publish_command(store, feed), tmp_path / "publish.log"),
        }
        for each in processes.values():
            stack.callback(each.kill)
        begin(processes)
        writing = Writing(database, random.Random(random_kills.random()))
        thread = threading.Thread(target=writing.run)
        thread.start()
        stack.callback(writing.stop.set)
        kill_at_random(processes, broker, random_kills, scale.pick(smoke=8, full=300))
        writing.stop.set()
        thread.join()
        truth = rows_of(database)
        come_to_rest(processes, lambda: state(store) == truth, store)
        reference.catch_up()
        assert history(store) == history(reference.store)
        come_to_rest(processes, lambda: published(feed) == truth, store)
        assert published_history(feed) == history(store)
        assert [each for each, times in Counter(places(feed)).items() if times > 1] == []
        assert store.verify().findings == ()


def capture_command(store: Store, source: KafkaSourceSettings) -> list[str]:
    given = json.dumps(source.model_dump(mode="json", exclude_none=True))
    return [sys.executable, "-c", CAPTURE, str(store.root), given]


def publish_command(store: Store, feed: Publication) -> list[str]:
    cluster, wanted = (
        json.dumps(each.model_dump(mode="json", exclude_none=True, exclude_unset=True))
        for each in (feed.cluster, feed.settings)
    )
    return [sys.executable, "-c", PUBLISH, str(store.root), feed.name, cluster, wanted]


def begin(processes: dict[str, Supervised]) -> None:
    """Until the connector's snapshot is over: what changes before it, it does not tell."""
    for each in processes.values():
        each.revive()
    until = time.monotonic() + _REST_SECONDS
    while "Starting streaming" not in processes["debezium"].log.read_text():
        assert time.monotonic() < until, processes["debezium"].log.read_text()[-3000:]
        time.sleep(0.5)


def kill_at_random(
    processes: dict[str, Supervised], broker: KafkaServer, rng: random.Random, kills: int
) -> None:
    victims: list[str] = []
    for _ in range(kills):
        if not victims:
            victims = rng.sample([*processes, "broker"], 4)
        victim = victims.pop()
        if victim == "broker":
            broker.kill()
            time.sleep(rng.random() * 2)
            broker.start()
        else:
            processes[victim].kill()
        time.sleep(rng.random())
        for each in processes.values():
            each.revive()
        time.sleep(rng.random() * 6)


def come_to_rest(processes: dict[str, Supervised], done: Callable[[], bool], store: Store) -> None:
    until = time.monotonic() + _REST_SECONDS
    while not done():
        for each in processes.values():
            each.revive()
        if time.monotonic() > until:
            said = {name: each.log.read_text()[-1500:] for name, each in processes.items()}
            pytest.fail(
                f"it does not come to rest: {json.dumps(said, indent=1)}; log: {len(state(store))} keys"
            )
        time.sleep(0.5)


def rows_of(dsn: str) -> dict[int, str]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT id, note FROM items").fetchall())


def state(store: Store) -> dict[int, str]:
    with suppress(UsageError):  # no epoch has come yet
        return {row["id"]: row["note"] for part in store.state(_TABLE) for row in part.to_pylist()}
    return {}


def history(store: Store) -> dict[int, list[tuple[str, str | None]]]:
    """What was done to each key, in its order."""
    found: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
    for batch in store.read(_TABLE):
        for row in batch.to_pylist():
            after = row["after"] or {}
            found[row["key"]["id"]].append((row["_op"], after.get("note")))
    return dict(found)


def records(feed: Publication) -> Iterator[Any]:
    return committed(feed.cluster, f"{feed.name}.items")


def published(feed: Publication) -> dict[int, str]:
    found: dict[int, str] = {}
    for record in records(feed):
        key = json.loads(record.key or b"{}")["id"]
        value = json.loads(record.value) if record.value else None
        if value is None or value["after"] is None:
            found.pop(key, None)
        else:
            found[key] = value["after"]["note"]
    return found


def published_history(feed: Publication) -> dict[int, list[tuple[str, str | None]]]:
    """As ``history``, in the order of each partition."""
    found: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
    for record in records(feed):
        if record.value is not None:
            envelope = json.loads(record.value)
            after = envelope["after"] or {}
            found[json.loads(record.key or b"{}")["id"]].append((envelope["op"], after.get("note")))
    return dict(found)


def places(feed: Publication) -> Iterator[tuple[Any, ...]]:
    """Of each published row its key, what was done, and where it is in the order of commits."""
    for record in records(feed):
        if record.value is not None:
            envelope = json.loads(record.value)
            source = envelope["source"]
            yield record.key, envelope["op"], source["sequence"], source["lsn"]

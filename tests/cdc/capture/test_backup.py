"""A backup of a store whose catalog is on Postgres: pg_dump and a copy of the segments while everything runs, restored
elsewhere. What has moved on since is noticed by name, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files import tiers
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.store import Store
from tests.fixtures.databases import Databases
from tests.support.capturing import RunningCapture, Site, assert_equals_source, execute

ITEMS = TopicId.table("shop", "public", "items")
Place = tuple[int, int]  # partition, offset


@pytest.fixture
def catalogs(databases: Databases) -> Iterator[list[str]]:
    """Two empty databases: for the catalog, and for its copy elsewhere."""
    with databases.lend() as catalog, databases.lend() as restored:
        yield [catalog, restored]


def write(dsn: str, first: int) -> None:
    """Forty rows, twice changed: some in every partition."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO items SELECT i, 0 FROM generate_series(%s, %s + 39) i", [first, first]
        )
        connection.execute("UPDATE items SET n = n + 1 WHERE id >= %s", [first])
        connection.execute("UPDATE items SET n = n + 1")


def copy_files(source: Path, target: Path) -> None:
    """As rsync does: what vanishes meanwhile is no file that the copied catalog names."""
    for path in [each for each in source.rglob("*") if each.is_file()]:
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            shutil.copy2(path, target / path.relative_to(source))


class Consumer:
    """One with effects in a database of its own, and one whose position is in the store, until there is no more."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.logged: Counter[Place] = Counter()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE seen (partition int, event_offset int)"))

    def drain(self, store: Store) -> None:
        with store.group("logs").join("one") as member:
            for batch in member.batches(0):
                self.logged.update((change.partition, change.offset) for change in batch.changes())
                batch.commit()
        with store.group("effects").join("one", effects=self.engine) as member:
            for batch in member.batches(0):
                with Session(self.engine) as session, session.begin():
                    for change in batch.changes():
                        values = {"partition": change.partition, "offset": change.offset}
                        session.execute(text("INSERT INTO seen VALUES (:partition, :offset)"), values)
                    batch.commit(session)

    def effects(self) -> Counter[Place]:
        with self.engine.connect() as connection:
            return Counter((row[0], row[1]) for row in connection.execute(text("SELECT * FROM seen")))


def places(store: Store, cut: Cut | None = None) -> list[tuple[int, int, int, int]]:
    names = ["_partition", "_offset", "_epoch", "_lsn"]
    found = (given.select(names).to_pylist() for given in store.read(ITEMS, cut=cut, columns=names))
    return sorted(tuple(row[name] for name in names) for rows in found for row in rows)


def test_a_dump_of_the_catalog_and_a_copy_of_the_segments_are_restored_and_nothing_is_lost(
    postgres: PostgresServer,
    database: str,
    catalogs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)  # files are replaced all the time
    settings = StoreSettings(
        name="acme",
        catalog=catalogs[0],
        segments=tmp_path / "segments",
        inline_bytes=0,
        upkeep=UpkeepSettings(keep_seconds=0, keep_epochs=2),
    )
    site = replace(Site.at(tmp_path, database), store_settings=settings)
    execute(database, "CREATE TABLE items (id int PRIMARY KEY, n int)", "INSERT INTO items VALUES (0, 0)")
    site.init()
    ended = threading.Event()
    engine = create_engine(f"sqlite:///{tmp_path / 'effects.db'}")
    consumer = Consumer(engine)

    def maintain() -> None:
        with site.open() as store:
            while not ended.wait(0.05):
                store.maintain()

    def consume() -> None:
        with site.open() as store:
            while not ended.wait(0.05):
                consumer.drain(store)
            consumer.drain(store)

    with RunningCapture(site) as capture, site.open() as store, ThreadPoolExecutor() as pool:
        capture.catch_up()
        for name in ("logs", "effects"):
            store.group(name, [ITEMS.text], start="earliest")
        work = [pool.submit(maintain), pool.submit(consume)]
        try:
            write(database, 1)
            capture.catch_up()
            with store.pinned(
                "store hold"
            ):  # as docs/operations/running.md says: the catalog, then the segments
                dump: list[str | Path] = [
                    postgres.bin("pg_dump"),
                    "--schema=acme_log",
                    f"--dbname={catalogs[0]}",
                ]
                dumped = subprocess.run(dump, check=True, capture_output=True).stdout
                write(database, 101)
                capture.catch_up()
                copy_files(Path(settings.segments), tmp_path / "copy")
            write(database, 201)
            capture.catch_up()
        finally:
            ended.set()
        for each in work:
            each.result()
        whole = places(store)

    load: list[str | Path] = [postgres.bin("psql"), "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={catalogs[1]}"]
    subprocess.run(load, input=dumped, check=True, capture_output=True)
    elsewhere = settings.model_copy(update={"catalog": catalogs[1], "segments": tmp_path / "copy"})
    restored = replace(site, store_settings=elsewhere)
    with closing(restored.open()) as store:
        found = store.verify()
        assert found.findings == ()
        assert places(store) == [place for place in whole if place[2] <= found.epoch] != whole
        consumer.logged.clear()
        with pytest.raises(OperatorError, match="was restored from a backup") as ahead:
            consumer.drain(store)
        assert "tailrace group reset effects --to latest" in ahead.value.hint
        store.group("effects").reset("latest")
        before = consumer.effects()
        consumer.drain(store)
        assert consumer.effects() == before

    error = restored.capture_error()
    assert isinstance(error, OperatorError), error
    assert "the log reaches only" in error.message and "tailrace source repair shop" in error.hint
    restored.repair()
    with RunningCapture(restored) as capture:
        write(database, 301)
        capture.catch_up()
        assert_equals_source(restored)
    with restored.open() as store:
        assert store.verify().findings == ()
        consumer.drain(store)
        after = {place[:2] for place in places(store) if place[2] > found.epoch}
        assert after <= set(consumer.logged)
        assert consumer.effects() - before == Counter(dict.fromkeys(after, 1))
    engine.dispose()

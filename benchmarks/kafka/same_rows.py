"""A backlog of changes of one table, in Postgres and as Debezium's records of the same rows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.cdc.capture import TABLE, WORK
from benchmarks.cdc.size import envelope
from benchmarks.spent import Spent
from tailrace.cdc.capture import Capture
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.cdc.setup.prepare import prepare_source
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import PostgresSourceSettings, StoreSettings
from tailrace.eventstore.store import Store

TOPIC = TopicId.table("shop", "public", "orders")
_LOOK_SECONDS = 0.02
_LOAD_SECONDS = 120.0


def store_in(folder: Path, name: str) -> Store:
    settings = StoreSettings(name=name, catalog="sqlite:///catalog.db", segments=Path("segments"))
    (folder / name).mkdir()
    return Store.open(settings, create=True, root=folder / name)


def rows_of(store: Store, *columns: str) -> pa.Table:
    """All changes by partition and offset, so equal for equal rows whatever epochs they came in."""
    place = ["_partition", "_offset"]
    found = pa.Table.from_batches(store.read(TOPIC, columns=[*columns, *place] if columns else None))
    return found.take(pc.sort_indices(found, [(name, "ascending") for name in place])).drop_columns(place)


def until(reached: Callable[[], bool], alive: Callable[[], bool], seconds: float = float("inf")) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if not alive() or time.monotonic() > deadline:
            raise SystemExit("the capture ended before it was through")
        time.sleep(_LOOK_SECONDS)


def captured(capture: Capture | KafkaCapture, stop: threading.Event, reached: Callable[[], bool]) -> Spent:
    """What a capture takes to its goal, on a thread of its own."""

    def work() -> None:
        thread = threading.Thread(target=capture.run, name="capture")
        thread.start()
        try:
            until(reached, thread.is_alive)
        finally:
            stop.set()
            thread.join()

    return Spent.on(work)


class Natively:
    """A store that captures the table natively, prepared before the changes are made."""

    def __init__(self, server: PostgresServer, folder: Path, name: str) -> None:
        self.store = store_in(folder, name)
        self._settings = PostgresSourceSettings(dsn=server.dsn(), tables=("public.*",))
        prepare_source(self.store, "shop", self._settings)
        self._run(lambda: self.store.topic(TOPIC).complete_since is not None)  # the load of an empty table

    def _run(self, reached: Callable[[], bool]) -> Spent:
        stop = threading.Event()
        return captured(Capture(self.store, "shop", self._settings, stop=stop), stop, reached)

    def spent(self, changes: int) -> Spent:
        stop = threading.Event()
        capture = Capture(self.store, "shop", self._settings, stop=stop)
        return captured(capture, stop, lambda: capture.status.changes >= changes)


def prepare(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(WORK)


def make_changes(server: PostgresServer, changes: int) -> None:
    """Three inserts and two updates a transaction, into an empty table."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")  # of the work alone; its WAL is the same
        connection.execute("CALL oltp(%s)", [changes])
        connection.execute("CHECKPOINT")


def empty(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("TRUNCATE orders")


def as_debezium(store: Store) -> pa.Table:
    """The changes of the log as records of Debezium in the order of commits, without schemas, decimals as strings."""
    found = rows_of(store)
    rows = found.take(pc.sort_indices(found, [("_lsn", "ascending"), ("_ordinal", "ascending")]))
    keys, values, times = list[bytes](), list[bytes](), list[datetime]()
    for batch in rows.to_batches(10_000):
        for row in batch.to_pylist():
            document = envelope(row)
            document["source"]["lsn"] = (
                row["_lsn"] + row["_ordinal"]
            )  # each row has a place of its own in the WAL
            keys.append(_json(row["key"]))
            values.append(_json(document))
            times.append(row["_commit_ts"])
    return pa.table(
        {
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC"), safe=False),
            "key": pa.array(keys, pa.large_binary()),
            "value": pa.array(values, pa.large_binary()),
        }
    )


def _json(document: Any) -> bytes:
    return json.dumps(document, default=_text, separators=(",", ":"), ensure_ascii=False).encode()


def _text(value: object) -> str:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)

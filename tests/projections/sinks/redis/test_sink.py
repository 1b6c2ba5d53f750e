"""What holds for a Redis sink beside the contract: physical names, stamps and tombstones, lost writes, its checks."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
import redis as redis_client
from pydantic import SecretStr

from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError, UsageError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.redis import connect as redis_connect
from tailrace.projections.sinks.redis import sink as redis_sink
from tailrace.projections.sinks.redis.connect import RedisPlace, run
from tailrace.projections.sinks.specs import RedisCache, RedisFormat
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.fixtures.servers import RedisFactory
from tests.projections.sinks.sink_data import apply, fence, fill, rows_of, target

pytestmark = pytest.mark.valkey

ANNA = {"customer_id": 1, "name": "Anna", "total": Decimal("10.50")}
BERT = {"customer_id": 2, "name": "", "total": None}
CARL = {"customer_id": 3, "name": None, "total": Decimal("0.00")}


def sink_at(url: str, format: RedisFormat = "hash", prefix: str | None = None) -> Sink:
    sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(url))}
    return open_sink(RedisCache("cache", prefix, format), Settings(sinks=sinks))


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis_client.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture(params=["hash", "json", "msgpack"])
def sink(request: pytest.FixtureRequest, redis_url: str) -> Sink:
    return sink_at(redis_url, request.param)


def row_key(client: Any, key: int, generation: int = 1) -> str:
    found = [name for name in client.keys("*") if name.endswith(f"}}:{key}") and f":g{generation}:" in name]
    assert len(found) == 1, found
    return str(found[0])


def stored(client: Any, key: str) -> dict[str, Any]:
    """A row or tombstone as it lies there."""
    if client.type(key) == "hash":
        return dict(client.hgetall(key))
    value = client.execute_command("GET", key, NEVER_DECODE=True)
    return dict(json.loads(value) if value.startswith(b"{") else msgpack.unpackb(value))


def test_rows_are_plain_hashes_under_their_buckets_tag(redis_url: str, client: Any) -> None:
    sink = sink_at(redis_url)
    fill(sink, target(), [ANNA, BERT, CARL])
    sink.promote(target(), None)
    assert row_key(client, 1) in {f"{{acme:customer_totals:g1:b00{bucket}}}:1" for bucket in (0, 1)}
    assert client.hgetall(row_key(client, 1)) == {
        "_epoch": "10",
        "customer_id": "1",
        "name": "Anna",
        "total": "10.50",
    }
    assert client.get("acme:customer_totals:live") == "1"


def test_null_an_empty_text_and_no_row_are_three_things(redis_url: str, client: Any) -> None:
    fill(sink_at(redis_url), target(), [BERT, CARL])
    assert client.hget(row_key(client, 2), "name") == ""
    assert not client.hexists(row_key(client, 3), "name")
    assert not [name for name in client.keys("*") if name.endswith("}:1")]
    assert rows_of(sink_at(redis_url), target()) == [BERT, CARL]


def test_rows_can_be_json(redis_url: str, client: Any) -> None:
    fill(sink_at(redis_url, "json"), target(), [ANNA])
    assert client.get(row_key(client, 1)) == '{"_epoch":10,"customer_id":1,"name":"Anna","total":"10.50"}'


def test_rows_can_be_messagepack(redis_url: str, client: Any) -> None:
    fill(sink_at(redis_url, "msgpack"), target(), [ANNA, CARL])
    wanted = {"_epoch": 10, "customer_id": 1, "name": "Anna", "total": "10.50"}
    assert stored(client, row_key(client, 1)) == wanted
    assert stored(client, row_key(client, 3))["name"] is None


def test_a_value_that_became_null_loses_its_field(redis_url: str, client: Any) -> None:
    sink = sink_at(redis_url)
    fill(sink, target(), [ANNA])
    apply(sink, target(), 10, 11, [ANNA | {"name": None}])
    assert client.hgetall(row_key(client, 1)) == {"_epoch": "11", "customer_id": "1", "total": "10.50"}


def test_deleted_rows_are_tombstones_until_the_fence_passes(sink: Sink, client: Any) -> None:
    fill(sink, target(), [ANNA, BERT])
    with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
        for part in pieces(target(), SinkStep(fence(target(), 11), deletes=({"customer_id": 1},))):
            load.write(*part)
        stone = row_key(client, 1)
        assert "_deleted" in stored(client, stone)
        load.commit()
    assert not client.exists(stone)
    assert client.keys("*#gone") == []
    assert rows_of(sink, target()) == [BERT]


def test_who_comes_late_with_the_same_step_writes_nothing_and_finds_it_done(
    redis_url: str, client: Any
) -> None:
    sink = sink_at(redis_url)
    fill(sink, target(), [ANNA, BERT])
    step = SinkStep(fence(target(), 11), deletes=({"customer_id": 1},))
    with sink.load(target(), fence(target(), 10), step.to) as late:
        apply(sink, target(), 10, 11, [], [{"customer_id": 1}])
        for part in pieces(target(), step):
            late.write(*part)
        assert client.keys("*#gone") == [], "what the fence has passed leaves no tombstone again"
        late.commit()
    assert sink.fence(target()) == step.to and rows_of(sink, target()) == [BERT]


def test_a_filled_generation_is_not_created_again_with_other_columns(redis_url: str) -> None:
    sink = sink_at(redis_url)
    fill(sink, target(), [ANNA])
    other = target(schema=pa.schema([("customer_id", pa.int64()), ("city", pa.string())]))
    with pytest.raises(OperatorError, match="is in the sink with other columns"):
        sink.create(other)
    assert rows_of(sink, target()) == [ANNA]


def test_a_step_of_many_calls_is_written_whole(redis_url: str) -> None:
    sink = sink_at(redis_url)
    fill(sink, target(), [ANNA])
    many = [{"customer_id": number, "name": "x", "total": None} for number in range(2, 3000)]
    apply(sink, target(), 10, 11, many)
    assert rows_of(sink, target()) == [ANNA, *many]


def test_a_step_cut_off_at_any_round_trip_gives_the_same_when_applied_again(
    sink: Sink, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    class CutOffError(Exception):
        pass

    def run_until_cut_off(client: Any, commands: Any) -> list[Any]:
        nonlocal left
        if any(command[0] == "EVAL" for command in commands):
            left -= 1
            if left < 0:
                # The server got half of what was on its way.
                run(client, commands[: len(commands) // 2])
                raise CutOffError
        return run(client, commands)

    monkeypatch.setattr(redis_sink, "run", run_until_cut_off)
    before = [{"customer_id": n, "name": f"n{n}", "total": None} for n in range(12)]
    changed = [row | {"name": "changed"} for row in before[:5]]
    gone = [{"customer_id": n} for n in range(5, 9)]
    cuts, cut_off = 0, True
    while cut_off:
        left = 1000
        client.flushall()
        fill(sink, target(), before)
        left = cuts
        try:
            apply(sink, target(), 10, 11, changed, gone)
            cut_off = False
        except CutOffError:
            cuts += 1
        left = 1000
        if sink.fence(target()) == fence(target(), 10):
            apply(sink, target(), 10, 11, changed, gone)
        apply(sink, target(), 11, 12)
        assert rows_of(sink, target()) == changed + before[9:]
        assert client.keys("*#gone") == []
    assert cuts >= 5


@pytest.mark.parametrize("columns", [14, 15])  # with key and epoch a map of 16 has a longer header
def test_the_epoch_of_a_packed_row_is_found_however_many_columns_it_has(
    redis_url: str, client: Any, columns: int
) -> None:
    wide = target(
        schema=pa.schema([("customer_id", pa.int64()), *((f"c{i}", pa.int64()) for i in range(columns))])
    )
    row, sink = dict.fromkeys(wide.schema.names, 1), sink_at(redis_url, "msgpack")
    fill(sink, wide, [row])
    apply(sink, wide, 10, 2**40, [row | {"c0": 2}])
    client.delete(*client.keys("*fence"))
    with sink.load(wide, None, fence(wide, 2**40 - 1)) as load:
        for part in pieces(wide, SinkStep(fence(wide, 2**40 - 1), deletes=({"customer_id": 1},))):
            load.write(*part)
    assert stored(client, row_key(client, 1)) == {"_epoch": 2**40} | row | {"c0": 2}


def test_an_older_epoch_never_overwrites_a_newer_row(sink: Sink, client: Any) -> None:
    """Even where the bucket's fence was lost, the stamp of each row holds."""
    fill(sink, target(), [ANNA, BERT])
    apply(sink, target(), 10, 20, [ANNA | {"name": "new"}])
    client.delete(*client.keys("*fence"))
    assert sink.fence(target()) is None
    apply(sink, target(), None, 15, [ANNA | {"name": "old"}, BERT | {"name": "newer than 10"}])
    names = [stored(client, row_key(client, key))["name"] for key in (1, 2)]
    assert names == ["new", "newer than 10"]


def test_a_bucket_that_lost_its_writes_takes_the_fence_back(sink: Sink, client: Any) -> None:
    fill(sink, target(), [ANNA, BERT])
    apply(sink, target(), 10, 11, [ANNA | {"name": "new"}])
    bucket = row_key(client, 1).partition("}")[0] + "}#fence"
    client.hset(bucket, mapping={"epoch": "10", "epoch_hash": "hash-10"})
    assert sink.fence(target()) == fence(target(), 10)
    apply(sink, target(), 10, 11, [ANNA | {"name": "new"}])
    assert sink.fence(target()) == fence(target(), 11)
    client.delete(bucket)
    assert sink.fence(target()) is None


def test_dropping_leaves_nothing_behind_and_touches_nothing_else(sink: Sink, client: Any) -> None:
    client.set("acme:customer_totals:g10:other", "keep")
    client.set("somebody", "keep")
    fill(sink, target(2), [BERT])
    others = set(client.keys("*"))
    fill(sink, target(1), [{"customer_id": n, "name": "x", "total": None} for n in range(3000)])
    sink.drop(target(1))
    assert set(client.keys("*")) == others
    assert rows_of(sink, target(2)) == [BERT]


@pytest.mark.parametrize("format", ["hash", "json", "msgpack"])
def test_rows_go_by_themselves_after_their_time_and_tombstones_stay(
    redis_url: str, client: Any, format: RedisFormat
) -> None:
    sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(redis_url))}
    sink = open_sink(RedisCache("cache", None, format, ttl_seconds=1000.5), Settings(sinks=sinks))
    before = time.monotonic()
    fill(sink, target(), [ANNA, BERT])
    left = client.pttl(row_key(client, 1))
    assert 1_000_499 - 1000 * (time.monotonic() - before) <= left <= 1_000_500
    client.persist(row_key(client, 1))
    with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
        step = SinkStep(fence(target(), 11), upserts=(ANNA,), deletes=({"customer_id": 2},))
        for part in pieces(target(), step):
            load.write(*part)
        assert client.pttl(row_key(client, 1)) > 0, "written again, its time begins anew"
        assert client.pttl(row_key(client, 2)) == -1, "what says that a row is gone must not go before it"
        load.commit()
    client.delete(row_key(client, 1))  # as its end would
    assert rows_of(sink, target()) == []
    with pytest.raises(OperatorError, match="ttl_seconds is 0"):
        open_sink(RedisCache("cache", ttl_seconds=0), Settings(sinks=sinks)).check(target())


def test_a_format_that_is_none_is_refused_by_name(redis_url: str) -> None:
    unknown: Any = "msgpck"
    with pytest.raises(OperatorError, match="format 'msgpck' is none of hash, json, msgpack"):
        sink_at(redis_url, unknown).check(target())


def test_two_stores_cannot_share_a_prefix(redis_url: str) -> None:
    fill(sink_at(redis_url, prefix="shop"), target(), [ANNA])
    foreign = target(store="other")
    with pytest.raises(OperatorError, match="belong to store 'acme'"):
        sink_at(redis_url, prefix="shop").check(foreign)
    with pytest.raises(OperatorError, match="belong to store 'acme'"):
        sink_at(redis_url, prefix="shop").create(foreign)
    assert sink_at(redis_url).check(foreign) == sink_at(redis_url).check(target())


@pytest.mark.parametrize("prefix", ["{x}", "a:b", "a b"])
def test_a_prefix_that_would_break_names_is_refused_before_the_server_is_asked(prefix: str) -> None:
    with pytest.raises(OperatorError, match="prefix"):
        sink_at("redis://127.0.0.1:1/0", prefix=prefix).check(target())


def test_a_cache_that_evicts_any_key_is_refused(redis_server: RedisFactory) -> None:
    server = redis_server(settings={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    with pytest.raises(OperatorError, match="allkeys-lru"):
        sink_at(server.url).check(target())
    with redis_client.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
    (remark,) = sink_at(server.url).check(target())
    assert "appendonly off: after a crash rows may be missing" in remark


def test_a_password_is_asked_for_and_not_repeated(redis_server: RedisFactory) -> None:
    server = redis_server(settings={"requirepass": "richtig"})
    for url in (server.url, server.url.replace("//", "//:geheim@")):
        with pytest.raises(OperatorError) as caught:
            sink_at(url).check(target())
        assert "geheim" not in str(caught.value) + repr(caught.value)
        assert f"127.0.0.1:{server.port}" in str(caught.value)
    fill(sink_at(server.url.replace("//", "//:richtig@")), target(), [ANNA])


def test_a_server_that_is_down_can_be_tried_again(redis_server: RedisFactory) -> None:
    server = redis_server(settings={"appendonly": "yes", "appendfsync": "always"})
    sink = sink_at(server.url)
    assert sink.check(target()) == []
    fill(sink, target(), [ANNA])
    server.kill()
    for attempt in (sink.fence, sink.check, sink.create, sink.drop):
        with pytest.raises(TransientError, match=f"127.0.0.1:{server.port}"):
            attempt(target())
    server.start()
    assert rows_of(sink, target()) == [ANNA]
    assert sink.fence(target()) == fence(target(), 10)
    apply(sink, target(), 10, 11, [BERT])
    assert rows_of(sink, target()) == [ANNA, BERT]


def test_a_full_server_is_told_to_the_operator(redis_server: RedisFactory) -> None:
    server = redis_server(settings={"maxmemory": "3mb"})
    sink = sink_at(server.url)
    rows = [{"customer_id": n, "name": "x" * 1000, "total": None} for n in range(5000)]
    with pytest.raises(OperatorError, match=r"maxmemory"):
        fill(sink, target(), rows)
    assert sink.fence(target()) is None


@pytest.mark.parametrize("url", ["localhost:6379", "http://geheim@x", "redis://h:port/0"])
def test_a_url_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        sink_at(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("database", ["abc", "3/4", "-1", "1_0", "geheim?db=2"])
def test_a_database_that_is_no_number_is_refused_and_not_taken_for_another(database: str) -> None:
    for scheme in ("redis", "rediss"):
        with pytest.raises(UsageError, match="sink 'cache': the database in its url is no number") as caught:
            sink_at(f"{scheme}://127.0.0.1:1/{database}")
        assert "geheim" not in str(caught.value) and "/0" in caught.value.hint


def test_a_certificate_counts_in_its_own_name_alone_unless_the_url_says_otherwise() -> None:
    """Whatever the default of the driver's version."""

    def checked(query: str) -> object:
        place = RedisPlace("sink 'cache'", f"rediss://cache.example/0{query}")
        return place._client.connection_pool.make_connection().check_hostname  # type: ignore[attr-defined]

    assert redis_connect._options("rediss://cache.example")["ssl_check_hostname"] is True
    assert checked("") is True
    assert checked("?ssl_check_hostname=false") is False
    assert checked("?ssl_cert_reqs=none") is False


@pytest.mark.parametrize("written", ["", "/", "/0", "/0/", "?db=0", "/?db=0", "/0?protocol=3"])
def test_a_database_is_named_by_its_number_or_not_at_all(redis_server: RedisFactory, written: str) -> None:
    server = redis_server()
    sink = sink_at(server.url.removesuffix("/0") + written)
    fill(sink, target(), [ANNA])
    with redis_client.Redis.from_url(server.url) as first:
        assert first.dbsize() > 0


def test_a_database_that_the_server_does_not_have_is_said_to_be_that(redis_server: RedisFactory) -> None:
    server = redis_server()
    for number in (16, 10**6):
        with pytest.raises(OperatorError, match="has no database of that number") as caught:
            sink_at(f"{server.url.removesuffix('/0')}/{number}").check(target())
        assert "databases" in caught.value.hint and "log" not in caught.value.hint


def test_a_replica_is_refused(redis_server: RedisFactory) -> None:
    primary, replica = redis_server(), redis_server()
    with redis_client.Redis.from_url(replica.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    with pytest.raises(TailraceError, match="replica"):
        sink_at(replica.url).check(target())

"""Somebody else's writes to a Redis: other keys do not matter, and ours are not believed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import redis as redis_client
from redis.exceptions import NoPermissionError, ResponseError

from tailrace.eventstore.errors import DifferenceFound, Fenced, IntegrityError, OperatorError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.open import open_reader
from tailrace.projections.sinks.reader import Reader
from tailrace.projections.sinks.rows import schema_to_text
from tailrace.projections.sinks.specs import RedisCache
from tests.projections.sinks.redis.test_sink import ANNA, BERT, CARL, row_key, sink_at
from tests.projections.sinks.sink_data import apply, fill, rows_of, target

pytestmark = pytest.mark.valkey

BASE = "acme:customer_totals"
META, FENCE, LIVE = f"{BASE}:g1:meta", f"{BASE}:g1:fence", f"{BASE}:live"
ROWS: list[dict[str, Any]] = [ANNA, BERT, CARL]


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    """A user who may write all keys."""
    with redis_client.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def sink(redis_url: str) -> Sink:
    sink = sink_at(redis_url)
    fill(sink, target(), ROWS)
    sink.promote(target(), None)
    return sink


@pytest.fixture
def reader(redis_url: str, sink: Sink) -> Iterator[Reader]:
    settings = Settings(sinks={"cache": SinkSettings.model_validate({"kind": "redis", "url": redis_url})})
    opened = open_reader(settings, "acme", "customer_totals", RedisCache("cache"))
    yield opened
    opened.close()


def bucket_fence(client: Any, customer: int) -> str:
    return row_key(client, customer).partition("}")[0] + "}#fence"


def test_a_user_with_other_keys_reads_and_changes_nothing_of_a_projection(
    redis_url: str, client: Any, sink: Sink
) -> None:
    rules = ["on", ">word", "resetkeys", "~other:*", "+@all", "-@admin", "-@dangerous"]
    client.execute_command("ACL", "SETUSER", "hostile", "reset", *rules)
    row = row_key(client, 1)
    copy = "return redis.call('SET', KEYS[1], '9')"
    try:
        place = urlsplit(redis_url)
        with redis_client.Redis(
            place.hostname or "", place.port or 0, username="hostile", password="word"
        ) as hostile:
            hostile.set("other:mine", "1")
            for command in (
                ["HGETALL", row],
                ["HSET", row, "name", "forged"],
                ["SET", LIVE, "2"],
                ["UNLINK", row, FENCE],
                ["RENAME", "other:mine", LIVE],
                ["SORT", "other:mine", "STORE", LIVE],
                ["EVAL", copy, "1", LIVE],
                ["EVAL", copy.replace("KEYS[1]", f"'{LIVE}'"), "0"],
                ["FLUSHDB"],
                ["SWAPDB", "0", "1"],
            ):
                with pytest.raises((NoPermissionError, ResponseError), match=r"permission|can't access"):
                    hostile.execute_command(*command)
            hostile.delete("other:mine")
    finally:
        client.execute_command("ACL", "DELUSER", "hostile")
    assert rows_of(sink, target()) == ROWS and sink.live("acme", "customer_totals") == 1


@pytest.mark.parametrize(
    ("field", "value"), [("epoch_hash", "forged"), ("log_id", "another"), ("epoch", "9")]
)
def test_a_forged_fence_of_a_generation_is_refused(sink: Sink, client: Any, field: str, value: str) -> None:
    client.hset(FENCE, field, value)
    with pytest.raises(Fenced):
        apply(sink, target(), 10, 12, [ANNA])


@pytest.mark.parametrize(
    ("field", "value"), [("epoch", "11"), ("epoch", "999999"), ("epoch", "9"), ("log_id", "another")]
)
def test_a_forged_fence_of_a_bucket_never_makes_a_step_leave_its_rows_out(
    sink: Sink, client: Any, field: str, value: str
) -> None:
    client.hset(bucket_fence(client, 1), field, value)
    with pytest.raises(Fenced):
        apply(sink, target(), 10, 11, [{**ANNA, "name": "new"}])


@pytest.mark.parametrize("key", [META, LIVE, FENCE, "bucket"])
@pytest.mark.parametrize("garbage", ["", "{}", "[1]", "\xff", "9" * 5000, '{"store": 1}'], ids=len)
def test_what_cannot_be_read_is_named(
    sink: Sink, reader: Reader, client: Any, key: str, garbage: str
) -> None:
    if hashed := key in (FENCE, "bucket"):
        key = bucket_fence(client, 1) if key == "bucket" else key
        client.hset(key, "epoch", garbage)
    else:
        client.set(key, garbage)
    uses: list[Callable[[], object]] = (
        [lambda: reader.many([1])] if not hashed else [lambda: sink.fence(target())]
    )
    if key == META:
        uses += [lambda: rows_of(sink, target()), lambda: sink.owner(target())]
    for use in uses:
        with pytest.raises(IntegrityError, match="does not hold what Tailrace wrote") as caught:
            use()
        assert key in caught.value.message and caught.value.hint


@pytest.mark.parametrize("field", ["split", "partitions", "key", "format", "schema"])
def test_what_readers_need_to_know_is_compared_when_rows_are(sink: Sink, client: Any, field: str) -> None:
    """Readers would look elsewhere, and find nothing, though each row is there."""
    meta = json.loads(client.get(META))
    columns = schema_to_text(target().schema.set(1, pa.field("other", pa.string())))
    forged = {"split": 2, "partitions": 4, "key": ["name"], "format": "json", "schema": columns}
    meta[field] = forged[field]
    client.set(META, json.dumps(meta))
    with pytest.raises(IntegrityError, match=META):
        rows_of(sink, target())


def test_a_forged_row_is_found(sink: Sink, client: Any) -> None:
    client.hset(row_key(client, 1), "_epoch", "x")
    with pytest.raises(DifferenceFound):
        rows_of(sink, target())
    client.hset(row_key(client, 1), mapping={"_epoch": "10", "name": "forged"})
    assert rows_of(sink, target())[0]["name"] == "forged", "what verify compares with the log"


def test_a_pointer_to_a_generation_that_is_not_there_shows_nothing(reader: Reader, client: Any) -> None:
    assert reader.many([1]) == [ANNA]
    client.set(LIVE, "7")
    with pytest.raises(OperatorError, match="no generation"):
        reader.many([1])

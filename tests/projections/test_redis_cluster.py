"""A Redis sink on a cluster of three servers: buckets lie on all of them, each whole on one."""

from __future__ import annotations

from decimal import Decimal

import pytest
import redis as redis_client
from pydantic import SecretStr

from eventstore.errors import OperatorError, TransientError
from eventstore.settings import Settings, SinkSettings
from projections.readers import open_reader
from projections.sinks import Target, open_sink
from projections.specs import RedisCache
from tailrace.embedded import RedisServer
from tests.projections.sink_data import SCHEMA, apply, fence, fill, rows_of

ROWS = [{"customer_id": n, "name": f"n{n}", "total": Decimal(n)} for n in range(600)]
SPEC = RedisCache("cache")


def settings_of(url: str, *, cluster: bool = True) -> Settings:
    return Settings(sinks={"cache": SinkSettings(kind="redis", url=SecretStr(url), cluster=cluster)})


def target(generation: int) -> Target:
    return Target("acme", "customer_totals", generation, ("customer_id",), SCHEMA, partitions=4, split=4)


def keys_at(server: RedisServer) -> set[str]:
    with redis_client.Redis.from_url(server.url, decode_responses=True) as client:
        return set(client.keys("*"))


def test_generations_are_built_refreshed_read_and_dropped_on_all_servers_of_a_cluster(
    redis_cluster: list[RedisServer], redis_url: str
) -> None:
    url = redis_cluster[0].url
    settings = settings_of(url)
    sink = open_sink(SPEC, settings)
    sink.check(target(1))
    fill(sink, target(1), ROWS)
    sink.promote(target(1), None)
    assert all(any("}:" in key for key in keys_at(server)) for server in redis_cluster), "rows are everywhere"
    with open_reader(settings, "acme", "customer_totals", SPEC) as reader:
        assert reader.many([599, 7, 600]) == [ROWS[599], ROWS[7], None]

        changed = [row | {"name": "changed"} for row in ROWS[:250]]
        apply(sink, target(1), 10, 11, changed, [{"customer_id": n} for n in range(250, 500)])
        assert sink.fence(target(1)) == fence(target(1), 11)
        assert rows_of(sink, target(1)) == changed + ROWS[500:]
        assert not any(key.endswith("#gone") for server in redis_cluster for key in keys_at(server))

        fill(sink, target(2), ROWS)
        sink.promote(target(2), 1)
        assert reader.get(300) == ROWS[300]
        sink.drop(target(1))
        assert not any(":g1:" in key for server in redis_cluster for key in keys_at(server))

        redis_cluster[2].kill()
        with pytest.raises(TransientError):
            reader.many(range(600))
        with pytest.raises(TransientError):
            sink.fence(target(2))

    with pytest.raises(OperatorError, match=r"set cluster = true in \[sinks.cache\]"):
        open_sink(SPEC, settings_of(url, cluster=False)).check(target(3))
    with pytest.raises(OperatorError, match="is no cluster"):
        open_sink(SPEC, settings_of(redis_url)).check(target(3))

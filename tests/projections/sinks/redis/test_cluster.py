"""A Redis sink on a cluster of three servers: buckets lie on all of them, each whole on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import redis as redis_client
from pydantic import SecretStr

from tailrace.embedded import RedisServer
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.open import open_reader, open_sink
from tailrace.projections.sinks.specs import RedisCache
from tests.fixtures.servers import clustered
from tests.projections.sinks.sink_data import SCHEMA, apply, fence, fill, rows_of
from tests.projections.sinks.test_contract import ForkedContract

pytestmark = pytest.mark.valkey

ROWS = [{"customer_id": n, "name": f"n{n}", "total": Decimal(n)} for n in range(600)]
FORMATS: Any = ["hash", "json", "msgpack"]


def settings_of(url: str, *, cluster: bool = True) -> Settings:
    return Settings(sinks={"cache": SinkSettings(kind="redis", url=SecretStr(url), cluster=cluster)})


def target(generation: int) -> Target:
    return Target(
        "acme", "log-1", "customer_totals", generation, ("customer_id",), SCHEMA, partitions=4, split=4
    )


def keys_at(server: RedisServer) -> set[str]:
    with redis_client.Redis.from_url(server.url, decode_responses=True) as client:
        return set(client.keys("*"))


@pytest.mark.parametrize("format", FORMATS)
def test_generations_are_built_refreshed_read_and_dropped_on_all_servers_of_a_cluster(
    redis_cluster: list[RedisServer], redis_url: str, format: Any
) -> None:
    url = redis_cluster[0].url
    settings = settings_of(url)
    spec = RedisCache("cache", format=format)
    sink = open_sink(spec, settings)
    sink.check(target(1))
    fill(sink, target(1), ROWS)
    sink.promote(target(1), None)
    assert all(any("}:" in key for key in keys_at(server)) for server in redis_cluster), "rows are everywhere"
    with open_reader(settings, "acme", "customer_totals", spec) as reader:
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
        open_sink(spec, settings_of(url, cluster=False)).check(target(3))
    with pytest.raises(OperatorError, match="is no cluster"):
        open_sink(spec, settings_of(redis_url)).check(target(3))


@pytest.fixture(scope="module")
def lasting_cluster(redis_kind: type[RedisServer]) -> Iterator[list[RedisServer]]:
    """Nobody kills its servers, so that many tests can have it."""
    with ExitStack() as servers:
        yield clustered(lambda **arguments: servers.enter_context(redis_kind(**arguments)))


class TestRedisCluster(ForkedContract):
    """The formats differ in what one server does, so all but one are left to ``make test-servers``."""

    @pytest.fixture(
        autouse=True,
        params=["hash", *(pytest.param(each, marks=pytest.mark.servers) for each in FORMATS[1:])],
    )
    def _place(self, request: pytest.FixtureRequest, lasting_cluster: list[RedisServer]) -> None:
        for server in lasting_cluster:
            with redis_client.Redis.from_url(server.url) as client:
                client.flushall()
        spec = RedisCache("cache", format=request.param)
        self.opener = partial(open_sink, spec, settings_of(lasting_cluster[1].url))

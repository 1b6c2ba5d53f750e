"""The contract suite over the sinks, on real servers and folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.specs import FieldKind, ParquetFolder, PostgresTable, RedisCache, SearchIndex
from tailrace.testing.sink_contract import SinkContract
from tests.support.forking import Forked


class ForkedContract(SinkContract):
    process = Forked


class TestPostgresTable(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, database: str) -> None:
        spec = PostgresTable("mart", "customer totals", schema="mart", indexes=(("name", "day"),))
        sinks = {"mart": SinkSettings(kind="postgres", dsn=SecretStr(database))}
        self.opener = partial(open_sink, spec, Settings(sinks=sinks))


@pytest.mark.valkey
class TestRedisHashes(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> None:
        sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(redis_url))}
        self.opener = partial(open_sink, RedisCache("cache"), Settings(sinks=sinks))


@pytest.mark.valkey
class TestRedisJson(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> None:
        sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(redis_url))}
        self.opener = partial(open_sink, RedisCache("cache", "orders", "json"), Settings(sinks=sinks))


@pytest.mark.valkey
class TestRedisMsgpack(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> None:
        sinks = {"cache": SinkSettings(kind="redis", url=SecretStr(redis_url))}
        self.opener = partial(open_sink, RedisCache("cache", format="msgpack"), Settings(sinks=sinks))


class TestSearchIndex(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        fields: dict[str, FieldKind] = {
            "name": "text",
            "words": "string",
            "total": "f64",
            "count": "i64",
            "ok": "bool",
            "moment": "date",
            "day": "date",
        }
        spec = SearchIndex("search", fields)
        sinks = {"search": SinkSettings(kind="search", path=tmp_path / "indexes")}
        self.opener = partial(open_sink, spec, Settings(sinks=sinks))


class TestParquetFolder(ForkedContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        sinks = {"lake": SinkSettings(kind="parquet", path=tmp_path / "lake")}
        spec = ParquetFolder("lake", partition_by=("ok",), keep_seconds=0)
        self.opener = partial(open_sink, spec, Settings(sinks=sinks))

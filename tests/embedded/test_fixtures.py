"""A test gets a database of its own, and nothing of it holds WAL or names afterwards."""

from __future__ import annotations

import psycopg
import pytest
import redis as redis_client

from tailrace.embedded import PostgresServer, RedisServer
from tests.fixtures.servers import drop_database


def test_a_database_is_dropped_with_its_slots_and_sessions(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE doomed")
        with psycopg.connect(postgres.dsn("doomed"), autocommit=True) as session:
            session.execute("SELECT pg_create_logical_replication_slot('doomed_slot', 'pgoutput')")
            drop_database(postgres, "doomed")
        left = admin.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = 'doomed'"
            " UNION ALL SELECT datname::text FROM pg_database WHERE datname = 'doomed'"
        ).fetchall()
    assert left == []


@pytest.mark.versions
def test_a_database_is_empty_and_decodes_logically(database: str, pytestconfig: pytest.Config) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        version = connection.info.server_version // 10_000
        assert version == int(pytestconfig.getoption("--postgres") or 18)
        assert connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone() == (0,)
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        connection.execute("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")


def test_redis_is_empty_for_each_test(redis: RedisServer, redis_url: str) -> None:
    with redis_client.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

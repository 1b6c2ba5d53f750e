"""A test gets a database of its own, and nothing of it holds WAL or names afterwards."""

from __future__ import annotations

import psycopg
import pytest
import redis as redis_client

from tailrace.embedded import PostgresServer, RedisServer
from tests.fixtures.databases import Databases, drop_database


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


LEFT_AS_NEW = (
    "CREATE TABLE public.shops (id int PRIMARY KEY, name text)",
    "CREATE TABLE public.orders (id serial PRIMARY KEY, shop int REFERENCES public.shops)",
    "CREATE VIEW public.names AS SELECT name FROM public.shops",
    "CREATE SCHEMA more",
    "CREATE TYPE more.mood AS ENUM ('good', 'bad')",
    "CREATE DOMAIN more.short AS text CHECK (length(value) < 9)",
    "CREATE FUNCTION more.fires() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'",
    "CREATE PUBLICATION every FOR ALL TABLES",
    "CREATE TEMPORARY TABLE fleeting (id int)",
    "CREATE EVENT TRIGGER refuses ON ddl_command_start EXECUTE FUNCTION more.fires()",
)
LEAVES_MORE = (
    "GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_file(text) TO pg_monitor",
    "SELECT lo_create(0)",
    "CREATE CAST (bool AS numeric) WITH INOUT",
    "CREATE FOREIGN DATA WRAPPER nowhere",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
    "DO 'BEGIN EXECUTE format($$ALTER DATABASE %I SET work_mem = 1024$$, current_database()); END'",
    "DO 'BEGIN EXECUTE format($$ALTER DATABASE %I SET default_transaction_read_only = on$$, current_database()); END'",
    "DO 'BEGIN EXECUTE format($$ALTER DATABASE %I CONNECTION LIMIT 5$$, current_database()); END'",
    "DO 'BEGIN EXECUTE format($$GRANT CREATE ON DATABASE %I TO PUBLIC$$, current_database()); END'",
)


@pytest.mark.versions(since=15)  # before, public belonged to who made the database
def test_a_database_that_is_as_new_is_lent_again_under_another_name(postgres: PostgresServer) -> None:
    databases = Databases(postgres)
    with databases.lend() as first, psycopg.connect(first, autocommit=True) as session:
        for statement in LEFT_AS_NEW:
            session.execute(statement.encode())
        number = number_of(first)
    with databases.lend() as second:
        assert number_of(second) == number
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(first)
        with psycopg.connect(second) as session:
            assert session.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone() == (0,)


@pytest.mark.parametrize("statement", LEAVES_MORE)
def test_a_database_in_which_something_is_left_is_not_lent_again(
    postgres: PostgresServer, statement: str
) -> None:
    databases = Databases(postgres)
    with databases.lend() as first, psycopg.connect(first, autocommit=True) as session:
        number = number_of(first)
        session.execute(statement.encode())
    with databases.lend() as second:
        assert number_of(second) != number


def number_of(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


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

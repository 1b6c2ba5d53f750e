"""What a publication holds is read as the server itself tells it, without waiting for anybody's lock."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.publication import read_publication
from tests.support.capturing import (
    RunningCapture,
    Site,
    connected,
    execute,
    init_and_load,
    query,
    server_version,
)

pytestmark = pytest.mark.versions

TABLES = (
    "CREATE SCHEMA more",
    "CREATE TABLE plain (id int PRIMARY KEY, gone int, n int, made int GENERATED ALWAYS AS (id * 2) STORED)",
    "ALTER TABLE plain DROP COLUMN gone",
    "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
    "CREATE TABLE root (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE more.leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE middle PARTITION OF root FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id)",
    "CREATE TABLE more.deep PARTITION OF middle FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE more.child (PRIMARY KEY (id)) INHERITS (parent)",
    "CREATE VIEW more.seen AS SELECT 1 AS one",
)
VIA_ROOT = "WITH (publish_via_partition_root = true)"
SINCE_14 = (
    "FOR ALL TABLES",
    f"FOR ALL TABLES {VIA_ROOT}",
    "FOR TABLE plain, root, more.deep, parent",
    f"FOR TABLE plain, root, more.deep, ONLY parent {VIA_ROOT}",
    f"FOR TABLE middle, more.deep {VIA_ROOT}",
    "FOR TABLE middle",
    "",
)
SINCE_15 = (
    "FOR TABLES IN SCHEMA more",
    f"FOR TABLES IN SCHEMA more, TABLE root {VIA_ROOT}",
    f"FOR TABLES IN SCHEMA public {VIA_ROOT}",
    "FOR TABLES IN SCHEMA public",
    f"FOR TABLE plain (id), root (id) WHERE (id > 5) {VIA_ROOT}",
    "FOR TABLE plain (n, id)",
)
SINCE_18 = (
    "FOR TABLE plain, parent WITH (publish_generated_columns = stored)",
    "FOR TABLE plain (made, id)",
    "FOR ALL TABLES WITH (publish_generated_columns = stored)",
)


def test_it_holds_what_the_servers_view_of_it_says(database: str) -> None:
    version = server_version(database)
    definitions = [*SINCE_14, *(SINCE_15 if version >= 15 else ()), *(SINCE_18 if version >= 18 else ())]
    execute(database, *TABLES)
    address = Address.parse(database)
    for definition in definitions:
        execute(database, "DROP PUBLICATION IF EXISTS p", f"CREATE PUBLICATION p {definition}")
        with connect(address) as connection:
            found = read_publication(connection, "p", address)
        assert found is not None
        said = query(database, "SELECT DISTINCT schemaname, tablename FROM pg_publication_tables")
        assert sorted(entry.label for entry in found.entries.values()) == sorted(said), definition
        if (
            version >= 15
        ):  # up to 17 the view lists generated columns, which no server of these versions sends
            listed = query(
                database,
                "SELECT v.schemaname, v.tablename, ARRAY(SELECT a.attname::text FROM pg_attribute a"
                " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = v.schemaname AND c.relname = v.tablename AND a.attname = ANY (v.attnames)"
                " AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)"
                " ORDER BY a.attnum) FROM pg_publication_tables v",
            )
            ordinary = {
                (schema, name): columns
                for schema, name, columns in query(
                    database,
                    "SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a"
                    " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
                    " WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY 1, 2",
                )
            }
            columns = {
                entry.label: ordinary[entry.label] if entry.columns is None else list(entry.columns)
                for entry in found.entries.values()
            }
            assert columns == {(schema, name): names for schema, name, names in listed}, definition


def test_capture_begins_and_streams_while_somebody_alters_and_drops_tables(
    database: str, store_dir: Path
) -> None:
    """The server's view would wait for the end of these transactions, and fail when one has dropped its table."""
    execute(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "altered", "dropped")))
    site = Site.at(store_dir, database)
    init_and_load(site)
    with psycopg.connect(database) as altering, psycopg.connect(database) as dropping:
        altering.execute("ALTER TABLE altered ADD COLUMN n int")
        dropping.execute("DROP TABLE dropped")
        with RunningCapture(site) as capture:
            connected(capture, site)
            execute(database, "INSERT INTO t VALUES (1)")
            capture.catch_up()
            dropping.commit()
            altering.commit()
            execute(database, "INSERT INTO altered VALUES (1, 1)")
            capture.catch_up()

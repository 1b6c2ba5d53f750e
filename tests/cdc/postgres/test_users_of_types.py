"""Which tables hold values of a type: the trigger asks an index, and finds what a look at every column finds."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.ddl_trigger import install_trigger
from tests.support.capturing import execute, query

LOOK_AT_ALL = """
CREATE FUNCTION public.look_at_all(types oid[]) RETURNS oid[] LANGUAGE sql STABLE AS $body$
    WITH RECURSIVE part_of(part, whole) AS MATERIALIZED (
        SELECT t.typelem, t.oid FROM pg_type t WHERE t.typelem <> 0 AND t.typcategory = 'A'
        UNION ALL SELECT t.typbasetype, t.oid FROM pg_type t WHERE t.typbasetype <> 0
        UNION ALL SELECT a.atttypid, c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            WHERE c.reltype <> 0 AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
        UNION ALL SELECT r.rngsubtype, r.rngtypid FROM pg_range r
        UNION ALL SELECT r.rngtypid, r.rngmultitypid FROM pg_range r
    ), used(oid) AS (
        SELECT unnest(types) UNION SELECT p.whole FROM used u JOIN part_of p ON p.part = u.oid
    )
    SELECT array_agg(DISTINCT a.attrelid) FROM pg_attribute a JOIN used u ON u.oid = a.atttypid
    WHERE a.attnum > 0 AND NOT a.attisdropped
$body$
"""
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE TYPE unused AS ENUM ('x')",
    "CREATE DOMAIN feeling AS mood DEFAULT 'sad' CHECK (VALUE <> 'glad')",
    "CREATE DOMAIN feelings AS feeling[]",
    "CREATE DOMAIN said AS text DEFAULT 'sad'::mood::text",
    "CREATE TYPE pair AS (n int, f feeling)",
    "CREATE TYPE pairs AS (p pair[], one pair)",
    "CREATE TYPE span AS RANGE (subtype = mood)",
    "CREATE TYPE pair_span AS RANGE (subtype = pair)",
)
USES = (
    "CREATE TABLE plain (id int PRIMARY KEY, a text)",
    "CREATE TABLE direct (id int, m mood)",
    "CREATE TABLE list (id int, m mood[])",
    "CREATE TABLE domain (id int, m feeling)",
    "CREATE TABLE domain_of_list (id int, m feelings)",
    "CREATE TABLE composite (id int, p pair)",
    "CREATE TABLE deep (id int, p pairs[])",
    "CREATE TABLE spans (id int, s span, m span_multirange)",
    "CREATE TABLE pair_spans (id int, s pair_span_multirange[])",
    "CREATE TABLE rows_of_a_table (id int, d direct, l list[])",
    "CREATE TABLE typed OF pair",
    "CREATE TABLE child (more int) INHERITS (direct)",
    "CREATE TABLE root (id int, m mood) PARTITION BY RANGE (id)",
    "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)",
    "CREATE TABLE attached (id int, m mood)",
    "ALTER TABLE root ATTACH PARTITION attached FOR VALUES FROM (9) TO (20)",
    "CREATE TABLE generated (id int, m mood GENERATED ALWAYS AS (CASE id WHEN 1 THEN 'sad'::mood END) STORED)",
    "CREATE TABLE by_default (id int, a text DEFAULT 'sad'::mood::text, b said)",
    "CREATE TABLE by_check (id int, a text CHECK (a::text <> 'sad'::mood::text))",
    "CREATE TABLE generated_text (id int, a text GENERATED ALWAYS AS (CASE id WHEN 1 THEN 'a' END) STORED, p pair)",
    "CREATE TABLE by_index (id int, a text); CREATE INDEX ON by_index ((CASE a WHEN 'x' THEN 'sad'::mood END))",
    "CREATE TABLE dropped (id int, m mood); ALTER TABLE dropped DROP m",
    "CREATE TABLE taken_back (id int, m mood); ALTER TABLE taken_back ALTER m TYPE text USING 'x'",
    "CREATE TABLE altered (id int, m text); ALTER TABLE altered ALTER m TYPE pair USING NULL",
    "CREATE TABLE added (id int); ALTER TABLE added ADD m feeling DEFAULT 'sad'",
    "CREATE VIEW seen AS SELECT * FROM direct",
    "CREATE MATERIALIZED VIEW kept AS SELECT * FROM composite",
    "ALTER TYPE pair ADD ATTRIBUTE more unused CASCADE",
)
COMPARED = """
SELECT t.oid::regtype::text, asked.names, looked.names
FROM pg_type t,
    LATERAL (SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c
             WHERE c.oid = ANY (tailrace.ddl_users(ARRAY[t.oid])) AND c.relkind IN ('r', 'p')) asked(names),
    LATERAL (SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c
             WHERE c.oid = ANY (public.look_at_all(ARRAY[t.oid])) AND c.relkind IN ('r', 'p')) looked(names)
WHERE t.oid >= 16384
"""


@pytest.mark.versions
def test_the_trigger_finds_each_table_that_holds_values_of_a_type_and_no_other(database: str) -> None:
    address = Address.parse(database)
    with connect(address) as connection:
        install_trigger(connection, address)
    execute(database, *TYPES, *USES, LOOK_AT_ALL)
    found = query(database, COMPARED)
    asked = {name: names for name, names, _ in found}
    assert asked == {name: looked for name, _, looked in found}
    assert asked["unused"] == "altered composite deep generated_text pair_spans typed"
    assert "by_default" not in asked["mood"] and "taken_back" not in asked["mood"]
    assert len([names for names in asked.values() if names]) > 15


MANY = "CREATE TABLE many_{} (a int, b int, c int, d int, e int, f int, g int, h text)"


def pages_read(dsn: str) -> int:
    """Pages of catalogs that one question takes, by the one of several that takes least: the first fills the session's
    caches, and DDL of other databases may empty them again."""
    asked = "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT tailrace.ddl_users(ARRAY['mood'::regtype::oid])"
    found = []
    with psycopg.connect(dsn) as connection:
        for _ in range(40):
            explained = connection.execute(asked).fetchone()
            assert explained is not None
            plan = explained[0][0]["Plan"]
            found.append(int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]))
    return min(found)


def test_what_the_trigger_reads_for_a_type_does_not_grow_with_the_number_of_tables(database: str) -> None:
    address = Address.parse(database)
    with connect(address) as connection:
        install_trigger(connection, address)
    execute(database, *TYPES, "CREATE TABLE direct (id int, m mood)")
    few = pages_read(database)
    execute(database, *(MANY.format(number) for number in range(150)))
    assert 0 < pages_read(database) < few + 20
    execute(database, "ANALYZE")
    assert 0 < pages_read(database) < few + 20

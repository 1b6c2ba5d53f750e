"""A real server's pgoutput, read through SQL: the decoder agrees with it byte by byte and row by row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch
from tailrace.cdc.columnar.schema_change import ChangeKind
from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.columnar.values.test_postgres import SESSION
from tests.cdc.messages import HUGE, SOURCE, encode
from tests.fixtures.scale import Scale

_DESCRIBE = """
SELECT a.attnum::int, a.attname, a.atttypid::bigint, a.atttypmod,
       coalesce(a.attnum = ANY (SELECT unnest(i.indkey) FROM pg_index i WHERE i.indrelid = a.attrelid
                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END), false)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CHANGES = """
SELECT data FROM pg_logical_slot_get_binary_changes('wire', NULL, NULL,
  'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')
"""


@dataclass
class Source:
    """A database with a slot, and one decoder that has followed it from the beginning."""

    connection: psycopg.Connection[Any]

    def __post_init__(self) -> None:
        self.run(
            "CREATE PUBLICATION everything FOR ALL TABLES",
            "SELECT pg_create_logical_replication_slot('wire', 'pgoutput')",
        )
        self.decoder = BlockDecoder(SOURCE, {}, self.describe, Policies())

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def transaction(self, *statements: str) -> None:
        with self.connection.transaction():
            self.run(*statements)

    def describe(self, relation: pg.Relation) -> TopicSchema:
        rows = self.connection.execute(_DESCRIBE, (relation.relid,)).fetchall()
        columns = (Column(number, name, oid, typmod, key=key) for number, name, oid, typmod, key in rows)
        return TopicSchema(1, tuple(columns), relid=relation.relid)

    def frames(self) -> list[bytes]:
        return [bytes(data) for (data,) in self.connection.execute(_CHANGES).fetchall()]

    def decode(self) -> DecodedEpoch:
        assembler = Assembler(HUGE, HUGE, 0)
        for frame in self.frames():
            assembler.feed(frame)
        block = assembler.cut()
        assert block is not None
        return self.decoder.decode(block)

    def rows(self, table: str) -> list[dict[str, Any]]:
        topic = TopicId.table(SOURCE, "public", table)
        return [row for part in self.decode().rows if part.topic == topic for row in part.rows.to_pylist()]


@pytest.fixture
def source(database: str) -> Iterator[Source]:
    with psycopg.connect(database, autocommit=True, options=SESSION) as connection:
        yield Source(connection)


def test_every_byte_of_every_message_is_understood(source: Source) -> None:
    """What the reference decoder reads, written again by the documentation, is what the server sent."""
    source.run(
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        'CREATE TABLE "My täble" (id int PRIMARY KEY, "A ""b""" mood, n numeric(12,2), long text)',
        "CREATE TABLE plain (a int, b text); ALTER TABLE plain REPLICA IDENTITY FULL",
        'ALTER TABLE "My täble" ALTER long SET STORAGE EXTERNAL',
    )
    source.run(
        "SELECT pg_replication_origin_create('elsewhere')",
        "SELECT pg_replication_origin_session_setup('elsewhere')",
    )
    source.transaction(
        """INSERT INTO "My täble" VALUES (1, 'glad', 1.50, repeat('x', 9000)), (2, NULL, NULL, '')""",
        "SELECT pg_logical_emit_message(true, 'präfix', 'content')",
        "SELECT pg_logical_emit_message(false, 'other', '\\x00ff'::bytea)",
        """UPDATE "My täble" SET n = 2 WHERE id = 1""",
        """UPDATE "My täble" SET id = 3 WHERE id = 2""",
        """DELETE FROM "My täble" WHERE id = 3""",
    )
    source.run(
        "SELECT pg_replication_origin_session_reset()",
        "SELECT pg_replication_origin_drop('elsewhere')",  # it belongs to the whole server
    )
    source.transaction(
        "INSERT INTO plain VALUES (1, 'x'), (NULL, '')",
        "UPDATE plain SET b = 'y' WHERE a = 1",
        "DELETE FROM plain",
        'TRUNCATE plain, "My täble" RESTART IDENTITY CASCADE',
    )
    frames = source.frames()
    messages = [pg.decode(frame) for frame in frames]
    assert [encode(message) for message in messages] == frames
    seen = {type(message) for message in messages}
    assert seen == {
        pg.Begin, pg.Commit, pg.Origin, pg.Relation, pg.Type, pg.Insert, pg.Update, pg.Delete, pg.Truncate, pg.Message,
    }  # fmt: skip
    assembler = Assembler(HUGE, HUGE, 0)
    for frame in frames:
        assembler.feed(frame)
    assert assembler.dropped_messages == 1


def test_a_toasted_value_that_did_not_change_is_unknown_unless_the_old_row_has_it(source: Source) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, long text)",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
    )
    source.run("INSERT INTO t VALUES (1, 1, repeat('x', 9000))", "UPDATE t SET n = 2", "UPDATE t SET id = 5")
    source.run("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 3", "UPDATE t SET id = 6")
    created, updated, gone, moved, full, full_gone, full_moved = source.rows("t")
    assert created["_unchanged"] is None
    assert (updated["_op"], updated["after"]["long"], updated["_unchanged"]) == ("u", None, [3])
    assert (gone["_op"], gone["key"], gone["_before"]) == ("d", {"id": 1}, "key")
    assert (moved["_op"], moved["_moved_from"], moved["_unchanged"]) == ("c", {"id": 1}, [3])
    long = "x" * 9000
    assert (full["after"], full["_unchanged"]) == ({"id": 5, "n": 3, "long": long}, None)
    assert (full_gone["_op"], full_gone["before"]) == ("d", {"id": 5, "n": 3, "long": long})
    assert (full_moved["after"]["long"], full_moved["_moved_from"]) == (long, {"id": 5})


def test_a_toasted_key_is_found_in_the_old_key(source: Source) -> None:
    source.run("CREATE TABLE t (id text PRIMARY KEY, n int)", "ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    source.run("INSERT INTO t VALUES (repeat('k', 2500), 1)", "UPDATE t SET n = 2")
    created, updated = source.rows("t")
    assert (updated["_op"], updated["_before"]) == ("u", "key")
    assert updated["key"] == created["key"] == {"id": "k" * 2500}
    assert (updated["after"], updated["_unchanged"]) == ({"id": "k" * 2500, "n": 2}, None)
    assert updated["_hash"] == created["_hash"]


def test_columns_added_renamed_and_dropped_inside_a_transaction(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    source.transaction(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t ADD b int DEFAULT 7",
        "INSERT INTO t VALUES (2, 'y', 8)",
        "ALTER TABLE t RENAME a TO z",
        "UPDATE t SET b = 9 WHERE id = 1",
        "ALTER TABLE t DROP z",
        "INSERT INTO t VALUES (3, 10)",
    )
    decoded = source.decode()
    assert [part.rows["after"].to_pylist() for part in decoded.rows] == [
        [{"id": 1, "a": "x"}],
        [{"id": 2, "a": "y", "b": 8}],
        [{"id": 1, "z": "x", "b": 9}],
        [{"id": 3, "b": 10}],
    ]
    assert [[column.id for column in schema.columns] for _, schema in decoded.new_schemas] == [
        [1, 2], [1, 2, 3], [1, 2, 3], [1, 3],
    ]  # fmt: skip
    assert [change.kinds for change in decoded.changes] == [
        {ChangeKind.NEW}, {ChangeKind.ADDED}, {ChangeKind.RENAMED}, {ChangeKind.DROPPED},
    ]  # fmt: skip
    assert [part.rows["_ordinal"].to_pylist() for part in decoded.rows] == [[0], [1], [2], [3]]


def test_a_table_without_key_changes_row_by_row(source: Source) -> None:
    source.run("CREATE TABLE bag (a int, b text)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    source.run("INSERT INTO bag VALUES (1, NULL), (1, NULL)", "UPDATE bag SET b = 'x'", "DELETE FROM bag")
    rows = source.rows("bag")
    assert [row["_op"] for row in rows] == ["c", "c", "d", "c", "d", "c", "d", "d"]
    assert rows[0]["key"] == {"a": 1, "b": None}
    assert rows[0]["_hash"] == rows[1]["_hash"] == rows[2]["_hash"]


STATEMENTS = {
    "INSERT INTO {table} VALUES ({key}, {other}, {content}, {amount}, 'infinity') ON CONFLICT DO NOTHING": 4,
    "UPDATE {table} SET n = {other} WHERE id <= {key}": 2,
    "UPDATE {table} SET long = {content} WHERE id <= {key}": 2,
    "UPDATE {table} SET id = {new} WHERE id = {key} AND NOT EXISTS (SELECT FROM {table} WHERE id = {new})": 2,
    "DELETE FROM {table} WHERE id % 12 = {key}": 1,
    "TRUNCATE {table}": 0.2,
}


def random_statement(rng: random.Random) -> str:
    (template,) = rng.choices(list(STATEMENTS), list(STATEMENTS.values()))
    key = rng.randint(1, 12)
    return template.format(
        table=rng.choice(["keyed", "full_rows", '"by index"']),
        key=key,
        new=key + 100,
        other=rng.randint(0, 99),
        content=rng.choice(["NULL", "''", "'x'", f"repeat('ä', {rng.choice([10, 5000])})"]),
        amount=rng.choice(["NULL", "1.5", "-0.01", "'NaN'"]),
    )


def replay(rows: list[dict[str, Any]]) -> dict[Any, tuple[dict[str, Any], dict[int, bytes]]]:
    """The plainest possible state: last row per key, unknown cells from the row before, typed or as text."""
    state: dict[Any, tuple[dict[str, Any], dict[int, bytes]]] = {}
    gone: dict[Any, tuple[dict[str, Any], dict[int, bytes]]] = {}
    for row in rows:
        if row["_op"] == "t":
            state.clear()
            continue
        key = row["key"]["id"]
        if row["_op"] == "d":
            gone[key] = state.pop(key)
            continue
        after, raw = row["after"], {number: text for number, text in row["_raw"] or [] if number > 0}
        moved = row["_moved_from"]
        for number in row["_unchanged"] or []:
            before, before_raw = gone[moved["id"]] if moved else state[key]
            name = list(after)[number - 1]
            after[name] = before[name]
            if number in before_raw:
                raw[number] = before_raw[number]
        state[key] = (after, raw)
    return state


@pytest.mark.parametrize("seed", [1, 2])
def test_the_rows_of_a_random_workload_lead_to_the_tables_of_the_server(
    source: Source, scale: Scale, seed: int
) -> None:
    rng = random.Random(seed)
    columns = "(id int PRIMARY KEY, n int, long text, amount numeric(9,2), day date)"
    tables = ["keyed", "full_rows", "by index"]
    for table in tables:
        source.run(f'CREATE TABLE "{table}" {columns}')
        source.run(f'ALTER TABLE "{table}" ALTER long SET STORAGE EXTERNAL')
    source.run("ALTER TABLE full_rows REPLICA IDENTITY FULL")
    source.run(
        'CREATE UNIQUE INDEX other ON "by index" (id)',
        'ALTER TABLE "by index" REPLICA IDENTITY USING INDEX other',
    )
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
    for _ in range(scale.pick(smoke=10, full=300)):
        for _ in range(rng.randint(1, 6)):
            source.transaction(*(random_statement(rng) for _ in range(rng.randint(1, 8))))
        source.transaction("SELECT pg_logical_emit_message(true, 'end', '')")
        for part in source.decode().rows:
            part.rows.validate(full=True)
            if part.topic.parts[-1] in rows:
                rows[part.topic.parts[-1]] += part.rows.to_pylist()
    for table in tables:
        expected = loaded(source, table)
        assert replay(rows[table]) == expected
    assert sum(map(len, rows.values())) > 50


def loaded(source: Source, table: str) -> dict[Any, tuple[dict[str, Any], dict[int, bytes]]]:
    """The table as a first load would take it."""
    (relid,) = source.connection.execute("SELECT %s::regclass::oid::bigint", (f'"{table}"',)).fetchone() or (
        0,
    )
    schema = source.describe(pg.Relation(relid, "public", table, "d", ()))
    cursor = source.connection.execute(f'TABLE "{table}"'.encode())
    result = cursor.pgresult
    assert result is not None
    texts = [
        pa.array([result.get_value(row, at) for row in range(result.ntuples)], pa.binary())
        for at in range(result.nfields)
    ]
    rows = loaded_rows(texts, schema, Policies(), LoadStamp(lsn=1)).to_pylist()
    return {row["key"]["id"]: (row["after"], dict(row["_raw"] or [])) for row in rows}

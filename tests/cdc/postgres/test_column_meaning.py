"""What a column's values mean is known with the column: the type under a domain, the kind of a type, the collation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import state
from tests.support.capturing import RunningCapture, Site, execute, init_and_capture, table

TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN net_price AS price CHECK (value > 0)",
    "CREATE DOMAIN codes AS char(4)[]",
    """CREATE COLLATION loose (provider = libc, locale = 'C')""",
)
COLUMNS = 'feel mood, paid net_price, c codes, plain text, own text COLLATE loose, bytes text COLLATE "POSIX", n int'
EXPECTED = {
    "feel": (0, -1, "e", ""),
    "paid": (1700, (10 << 16 | 2) + 4, "b", ""),
    "c": (1014, 8, "b", "C"),
    "plain": (0, -1, "b", "C"),
    "own": (0, -1, "b", "C"),
    "bytes": (0, -1, "b", "C"),
    "n": (0, -1, "b", ""),
}


def meaning(column: Column) -> tuple[int, int, str, str]:
    return column.base_oid, column.base_typmod, column.type_kind, column.collation


def test_it_is_the_same_from_the_catalog_and_from_the_trigger(tmp_path: Path, database: str) -> None:
    site = Site.at(tmp_path, database)
    execute(
        site.dsn,
        *TYPES,
        f"CREATE TABLE before (id int PRIMARY KEY, {COLUMNS})",
        "CREATE TABLE after (id int PRIMARY KEY)",
        "INSERT INTO before VALUES (1, 'ok', 2.5, '{a,b}', 'p', 'o', 'b', 1)",
    )
    site.init(ddl=True)
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            *(f"ALTER TABLE after ADD COLUMN {column}" for column in COLUMNS.split(", ")),
            "INSERT INTO after VALUES (1, 'ok', 2.5, '{a,b}', 'p', 'o', 'b', 1)",
        )
        capture.catch_up()
        capture.wait_until_complete(table("after"))  # a domain with a constraint rewrites it
        for name in ("before", "after"):
            schema = capture.store.schemas(table(name))[-1]
            assert {each.name: meaning(each) for each in schema.columns if each.name != "id"} == EXPECTED, (
                name
            )
            (rows,) = [
                each for each in state(capture.store, table(name), capture.store.cut()) if each.num_rows
            ]
            assert rows.schema.field("paid").type == pa.decimal128(10, 2)
            assert [str(rows["paid"][0]), rows["c"][0].as_py()] == ["2.50", ["a   ", "b   "]]
        assert all(each.equal for each in site.verify())


def test_it_is_learnt_of_tables_that_a_version_captured_which_did_not_know_it(
    tmp_path: Path, database: str
) -> None:
    site = Site.at(tmp_path, database)
    execute(
        site.dsn,
        *TYPES,
        f"CREATE TABLE before (id int PRIMARY KEY, gone int, {COLUMNS})",
        "INSERT INTO before VALUES (1, 2, 'ok', 2.5, '{a,b}', 'p', 'o', 'b', 1)",
    )
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
    execute(site.dsn, "ALTER TABLE before DROP COLUMN gone")
    forget_meanings(site, table("before"))
    for _ in range(2):
        with RunningCapture(site) as capture:
            capture.catch_up()
            versions = capture.store.schemas(table("before"))
            assert len(versions) == 3, "a second start has nothing to learn that the server can tell"
            learned = {each.name: (each.type_kind, each.collation) for each in versions[-1].columns}
            assert learned.pop("id") == ("b", "") and learned.pop("gone") == ("", "")
            assert learned == {name: (kind, collation) for name, (*_, kind, collation) in EXPECTED.items()}
            assert all(each.equal for each in site.verify())


def forget_meanings(site: Site, topic: TopicId) -> None:
    """Another version of the topic, as it was written before columns had a kind and a collation."""
    with site.open() as store:
        writer = store.take_over(topic.source)
        latest = store.schemas(topic)[-1]
        columns = tuple(replace(each, type_kind="", collation="") for each in latest.columns)
        before = replace(latest, version=latest.version + 1, columns=columns)
        at = writer.state
        writer.append(
            EpochBatch(at.name, at.commit_lsn, at.end_lsn, at.through_lsn, new_schemas=[(topic, before)])
        )

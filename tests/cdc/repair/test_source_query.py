"""A query in the source reads what the log captures of it, and cannot do anything else than read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.cdc.repair.position import Patience
from tailrace.cdc.repair.source_query import QueryFailed, SourceAtLog, source_at_log
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.model.topic import TopicId
from tests.support.capturing import SOURCE, RunningCapture, Site, execute, query, table

TABLES = (
    "CREATE TABLE parent (id int PRIMARY KEY, v text)",
    "CREATE TABLE child () INHERITS (parent)",
    "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY LIST (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
    'CREATE TABLE "odd ""name""" (id int PRIMARY KEY, "V" text, made int GENERATED ALWAYS AS (id) STORED)',
    "INSERT INTO parent VALUES (1, 'a')",
    "INSERT INTO child VALUES (2, 'b')",
    "INSERT INTO parted VALUES (1, 'a')",
    'INSERT INTO "odd ""name""" VALUES (1, $$a$$)',
    "CREATE SEQUENCE numbers",
    "CREATE FUNCTION doubled(int) RETURNS int LANGUAGE sql AS 'SELECT 2 * $1'",
)

MAKE = "CREATE TABLE made (id int)"


@pytest.fixture
def capture(tmp_path: Path, database: str) -> Iterator[RunningCapture]:
    site = Site.at(tmp_path, database, tables=("public.*", "!public.child"))
    execute(database, *TABLES)
    site.init()
    with RunningCapture(site) as running:
        running.catch_up()
        yield running


@contextmanager
def asked(capture: RunningCapture, *topics: TopicId, time_zone: str = "UTC") -> Iterator[SourceAtLog]:
    site = capture.site
    with source_at_log(
        capture.store, SOURCE, site.settings, topics, "the query", Patience(120.0), time_zone
    ) as source:
        yield source


def answer(source: SourceAtLog, text: str, lists: Sequence[str] = ()) -> list[tuple[str | None, ...]]:
    batches = source.texts(text, source.columns(text), lists)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def whole(relation: str) -> str:
    return f"SELECT * FROM {relation} AS t"  # noqa: S608


def columns(capture: RunningCapture, topic: TopicId) -> list[Column]:
    return list(capture.store.schemas(topic)[-1].columns)


def test_a_table_stands_for_its_topic_with_the_rows_and_columns_that_are_captured(
    capture: RunningCapture,
) -> None:
    topics = [table("parent"), table("parted"), table('odd "name"')]
    described = {topic: columns(capture, topic) for topic in topics}
    execute(
        capture.site.dsn, "ALTER TABLE parent RENAME TO renamed", "ALTER TABLE renamed RENAME COLUMN v TO w"
    )
    with asked(capture, *topics) as source:
        found = {
            topic.parts[-1]: answer(source, whole(source.relation(topic, described[topic])))
            for topic in topics
        }
        assert found == {"parent": [("1", "a")], "parted": [("1", "a")], 'odd "name"': [("1", "a")]}
        renamed = whole(source.relation(topics[0], described[topics[0]]))
        assert source.columns(renamed).keys() == {"id", "v"}, "columns have the names that the log knows"
        dropped = [*described[topics[0]], Column(9, "gone", 25)]
        with pytest.raises(OperatorError, match=r"column gone of topic shop\.public\.parent was dropped"):
            source.relation(topics[0], dropped)
    execute(capture.site.dsn, "DROP TABLE parted")
    with asked(capture, topics[1]) as source, pytest.raises(OperatorError, match="has no table of topic"):
        source.relation(topics[1], described[topics[1]])


@pytest.mark.versions(since=15)
def test_rows_that_are_not_published_are_not_seen(tmp_path: Path, database: str) -> None:
    site = Site.at(tmp_path, database)
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE PUBLICATION acme_shop FOR TABLE t WHERE (id > 1)",
    )
    site.init()
    with RunningCapture(site) as running:
        running.catch_up()
        with asked(running, table("t")) as source:
            relation = source.relation(table("t"), columns(running, table("t")))
            assert answer(source, whole(relation)) == [("2", "b")]


def test_values_are_what_postgres_prints_in_a_session_of_the_users(capture: RunningCapture) -> None:
    texts = """
        SELECT true AS flag, 'a '::char(3) AS padded, '10.0.0.1'::inet AS address, ROW(NULL) AS r, NULL::int AS none,
        doubled(2) AS n, '{a ,NULL}'::char(2)[] AS list, '2026-07-01 00:00Z'::timestamptz AS at,
        '2026-07-01 00:00Z'::timestamptz::timestamp AS here, 'x' LIKE '%' AS "percent %s"
    """
    with asked(capture, time_zone="Europe/Berlin") as source:
        (row,) = answer(source, texts, ["list"])
    assert row == (
        "t", "a", "10.0.0.1", "()", None, "4", '["a",null]', "2026-07-01 00:00:00+00", "2026-07-01 02:00:00", "t",
    )  # fmt: skip


WRONG = {
    "SELECT nextval('numbers') AS v": "cannot execute nextval",
    f"SELECT 1 AS v) AS t; COMMIT; {MAKE}; SELECT * FROM (SELECT 1 AS v": "multiple commands",  # noqa: S608
    "SELECT 1 / 0 AS v": "division by zero",
    "SELECT 1 AS v, 2 AS v": "two columns v",
    "SELECT nothing AS v": "does not exist",
}


def test_a_query_that_is_no_query_is_refused_and_changes_nothing(capture: RunningCapture) -> None:
    for text, words in WRONG.items():
        with asked(capture) as source, pytest.raises(QueryFailed, match="the query") as failed:
            answer(source, text)
        assert words in failed.value.message
    assert query(capture.site.dsn, "SELECT to_regclass('made'), last_value::int FROM numbers") == [(None, 1)]

"""Every kind of table is captured as it is, or refused before its owner's own writes would fail."""
# ruff: noqa: S608 (statements are put together from names of our own)

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tailrace.cdc.postgres.publication import TablePublication
from tailrace.cdc.repair.verify import TopicComparison
from tailrace.cdc.setup.table_choice import Level
from tailrace.eventstore.state.state import state
from tests.fixtures.databases import Databases
from tests.support.capturing import (
    RunningCapture,
    Site,
    execute,
    init_and_capture,
    query,
    server_version,
    table,
)

# Incompressible, so that it is stored out of line and an UPDATE of another column does not send it.
LONG = "(SELECT string_agg(gen_random_uuid()::text, '') FROM generate_series(1, 120))"

TOASTED = (
    "a text, b varchar, c char(5000), d bytea, e jsonb, f json, g numeric, h int[], i text[], j varbit,"
    " k tsvector, l path"
)
TOASTS = f"""{LONG}, {LONG}, {LONG}, decode(replace({LONG}, '-', ''), 'hex'), to_jsonb({LONG}), to_json({LONG}),
 (SELECT string_agg((random() * 1e9)::int::text, '')::numeric FROM generate_series(1, 900)),
 ARRAY(SELECT (random() * 1e9)::int FROM generate_series(1, 900)), ARRAY[{LONG}, NULL],
 (SELECT string_agg((random() * 1e9)::int::bit(32)::text, '')::varbit FROM generate_series(1, 700)),
 (SELECT array_to_tsvector(array_agg(gen_random_uuid()::text)) FROM generate_series(1, 99)),
 (SELECT ('(' || string_agg(format('(%s,%s)', random(), random()), ',') || ')')::path FROM generate_series(1, 200))"""
IDENTITIES = {
    "default": (),
    "full": ("ALTER TABLE toast_full REPLICA IDENTITY FULL",),
    "index": (
        "CREATE UNIQUE INDEX toast_index_by ON toast_index (id, part)",
        "ALTER TABLE toast_index REPLICA IDENTITY USING INDEX toast_index_by",
    ),
}
TABLES = (
    "CREATE TABLE bag (a int, b text, c double precision, tags text[])",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO bag SELECT i % 3, CASE WHEN i % 3 > 0 THEN 'early' END, 'NaN', '{x,NULL}'"
    " FROM generate_series(1, 30) i",
    *(
        f"CREATE TABLE toast_{name} (id int {'NOT NULL' if name == 'index' else 'PRIMARY KEY'},"
        f" part int NOT NULL DEFAULT 0, n int, {TOASTED})"
        for name in IDENTITIES
    ),
    *(statement for statements in IDENTITIES.values() for statement in statements),
    *(f"INSERT INTO toast_{name} SELECT 1, 0, 0, {TOASTS}" for name in IDENTITIES),
    "CREATE TABLE parts (id int, day int, n int, body text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE parts_1 (gone int, body text, n int, day int NOT NULL, id int NOT NULL)",
    "ALTER TABLE parts_1 DROP COLUMN gone",
    "ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (10) TO (20)",
    f"INSERT INTO parts SELECT i, i, i, {LONG} FROM generate_series(0, 19) i",
    "CREATE TABLE parent (id int PRIMARY KEY, n int)",
    "CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent)",
    'CREATE TABLE named (key text PRIMARY KEY, after text, before json, "_op" int, "_before" text, "_txn" int,'
    ' "_unchanged" int[], "_moved_from" int, "_ordinal" int, "_commit_ts" date, "_partition" int, count int)',
    "INSERT INTO named (key, \"_partition\") VALUES ('k', 99)",
    "INSERT INTO parent VALUES (1, 1)",
    "INSERT INTO child VALUES (1, 2, 'x')",
)


@pytest.fixture(scope="module")
def running(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCapture]:
    """One capture for the whole module; each test has tables of its own."""
    with databases.lend() as dsn:
        site = Site.at(tmp_path_factory.mktemp("tables"), dsn, name="tables")  # slots are the server's
        execute(site.dsn, *TABLES)
        narrowed = "(id) WHERE (id > 5)" if server_version(site.dsn) >= 15 else ""
        execute(site.dsn, f"CREATE PUBLICATION somebody_elses FOR TABLE ONLY parent {narrowed}, child")
        with init_and_capture(site) as capture:
            yield capture


def compare(capture: RunningCapture, name: str) -> TopicComparison:
    (found,) = capture.site.verify(table(name))
    assert found.equal, found
    return found


def log_messages(capture: RunningCapture, name: str) -> list[tuple[object, ...]]:
    """The rows of the topic's state, without their places in the log."""
    topic = table(name)
    found = []
    for part in state(capture.store, topic, capture.store.cut(), on_unreadable="text"):
        columns = [column for column in part.column_names if not column.startswith("_")]
        found += [tuple(row[column] for column in columns) for row in part.to_pylist()]
    return sorted(found, key=repr)


@pytest.mark.versions
def test_a_table_without_a_key_is_a_bag_of_rows(running: RunningCapture) -> None:
    execute(
        running.site.dsn,
        "INSERT INTO bag VALUES (1, 'twice', 0.5, NULL), (1, 'twice', 0.5, NULL), (NULL, NULL, NULL, NULL),"
        " (NULL, NULL, NULL, NULL), (7, '', '-0', '{}')",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 0 LIMIT 4)",
        "UPDATE bag SET b = 'touched' WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 AND b = 'early' LIMIT 3)",
        "UPDATE bag SET b = b WHERE a = 2",
        f"INSERT INTO bag SELECT 9, {LONG}, 1, NULL",
        "INSERT INTO bag SELECT * FROM bag WHERE a = 9",
        "UPDATE bag SET a = 10 WHERE a = 9",
    )
    running.catch_up()
    assert compare(running, "bag").source_rows == 33
    counted = query(
        running.site.dsn, "SELECT a::text, left(b, 9), count(*) FROM bag GROUP BY 1, 2 ORDER BY 1, 2"
    )
    found = [(a, None if b is None else str(b)[:9]) for a, b, _, _ in log_messages(running, "bag")]
    assert sorted([(*row, found.count(row)) for row in set(found)], key=repr) == sorted(counted, key=repr)
    execute(running.site.dsn, "TRUNCATE bag", "INSERT INTO bag VALUES (1), (1)")
    running.catch_up()
    assert compare(running, "bag").source_rows == 2
    execute(running.site.dsn, "ALTER TABLE bag ADD COLUMN later int DEFAULT 5", "INSERT INTO bag VALUES (1)")
    running.catch_up()
    running.wait_until_complete(table("bag"))
    assert compare(running, "bag").source_rows == 3


@pytest.mark.versions
def test_a_table_without_identity_is_refused_with_the_statement_that_mends_it(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE keyless (a int)", "CREATE TABLE fine (id int PRIMARY KEY)")
    (finding,) = [found for found in site.init(dry_run=True).findings if found.level is Level.SKIPPED]
    assert finding.subject == "public.keyless"
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL' in finding.hint


@pytest.mark.versions
def test_columns_may_have_names_of_the_logs_own_but_for_those_of_a_state(
    site: Site, running: RunningCapture
) -> None:
    execute(site.dsn, 'CREATE TABLE clashing (id int PRIMARY KEY, "_raw" text, "_lsn" int)')
    (finding,) = [found for found in site.init(dry_run=True).findings if found.subject == "public.clashing"]
    assert finding.level is Level.SKIPPED
    assert "_raw has the name of one that the log adds" in finding.what and "RENAME COLUMN" in finding.hint
    execute(
        running.site.dsn,
        "UPDATE named SET \"_op\" = 2, after = 'z' WHERE key = 'k'",
        "UPDATE named SET key = 'l' WHERE key = 'k'",
        "INSERT INTO named (key, before) VALUES ('m', '{\"after\": 1}')",
    )
    running.catch_up()
    assert compare(running, "named").source_rows == 2


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.versions
def test_unchanged_toasted_values_of_every_type_survive_updates_and_chained_key_changes(
    running: RunningCapture, identity: str
) -> None:
    name = f"toast_{identity}"
    execute(
        running.site.dsn,
        f"UPDATE {name} SET n = 1",
        f"INSERT INTO {name} SELECT 2, 0, 0, {TOASTS}",
        f"UPDATE {name} SET id = 30 WHERE id = 2",
        f"UPDATE {name} SET n = 5 WHERE id = 30",
        f"BEGIN; UPDATE {name} SET id = id + 1; UPDATE {name} SET id = id + 1; UPDATE {name} SET n = n + 1; COMMIT",
        f"UPDATE {name} SET part = 7 WHERE id = 32",
    )
    running.catch_up()
    assert compare(running, name).source_rows == 2


@pytest.mark.versions
def test_rows_move_between_partitions_of_other_column_order(running: RunningCapture) -> None:
    execute(
        running.site.dsn,
        "UPDATE parts SET day = day + 10 WHERE id = 3",
        "UPDATE parts SET n = 0 WHERE id IN (3, 4, 14)",
        "BEGIN; UPDATE parts SET id = 100, day = 5 WHERE id = 15; UPDATE parts SET day = 19 WHERE id = 100;"
        " UPDATE parts SET day = 1, n = 7 WHERE id = 100; COMMIT",
        "DELETE FROM parts WHERE id = 16",
    )
    running.catch_up()
    assert compare(running, "parts").source_rows == 19


@pytest.mark.versions
def test_a_new_partition_is_part_of_its_table_and_nothing_is_read_again(running: RunningCapture) -> None:
    read = running.store.topic(table("parts")).complete_since
    execute(
        running.site.dsn,
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (20) TO (30)",
        "INSERT INTO parts VALUES (200, 20), (201, 21)",
    )
    running.wait_until(lambda: "parts_2" in leaves(running))
    running.catch_up()
    assert running.store.topic(table("parts")).complete_since == read
    compare(running, "parts")


def leaves(capture: RunningCapture) -> set[str]:
    """Names of the partitions that the log knows of."""
    known = TablePublication.from_json(capture.store.topic(table("parts")).published).leaves
    found = query(capture.site.dsn, "SELECT oid::bigint, relname FROM pg_class WHERE relname LIKE 'parts%'")
    return {name for oid, name in found if oid in known}


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            "CREATE TABLE parts_3 (LIKE parts INCLUDING ALL); INSERT INTO parts_3 VALUES (300, 30);"
            " ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (30) TO (40)",
            id="attached with rows",
        ),
        pytest.param(
            "ALTER TABLE parts DETACH PARTITION parts_0; UPDATE parts_0 SET n = -1;"
            " ALTER TABLE parts ATTACH PARTITION parts_0 FOR VALUES FROM (0) TO (10)",
            id="detached and attached again",
        ),
        pytest.param("TRUNCATE parts_1", id="truncated"),
        pytest.param("DROP TABLE parts_0", id="dropped"),
    ],
)
@pytest.mark.versions
def test_what_the_stream_does_not_say_of_partitions_has_their_table_read_again(
    running: RunningCapture, statements: str
) -> None:
    read = running.store.topic(table("parts")).complete_since
    execute(running.site.dsn, statements)
    running.wait_until(lambda: running.store.topic(table("parts")).complete_since not in (None, read))
    running.catch_up()
    compare(running, "parts")


@pytest.mark.versions
def test_tables_that_inherit_are_tables_of_their_own_and_other_publications_do_not_matter(
    running: RunningCapture,
) -> None:
    execute(
        running.site.dsn,
        "UPDATE parent SET n = 10",
        "INSERT INTO child VALUES (2, 3, 'y')",
        "UPDATE ONLY parent SET id = 5",
        "DELETE FROM parent WHERE n = 3",
    )
    running.catch_up()
    assert compare(running, "parent").source_rows == 1
    assert compare(running, "child").source_rows == 1


PUBLISHED = (
    "CREATE TABLE filtered (id int PRIMARY KEY, n int)",
    "CREATE TABLE listed (secret text, id int PRIMARY KEY, n int, body text)",
    "CREATE TABLE came_back (id int PRIMARY KEY, n int)",
    "CREATE TABLE untouched (id int PRIMARY KEY, n int)",
    "CREATE TABLE made (id int PRIMARY KEY, n int, stored int GENERATED ALWAYS AS (n + 1) STORED)",
    "CREATE TABLE leafy (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE leafy_0 PARTITION OF leafy FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE leafy_1 (n int, id int PRIMARY KEY)",
    "ALTER TABLE leafy ATTACH PARTITION leafy_1 FOR VALUES FROM (50) TO (100)",
    *(
        f"INSERT INTO {name} (id, n) SELECT i, i FROM generate_series(1, 99, 7) i"
        for name in ("filtered", "listed", "came_back", "untouched", "made", "leafy")
    ),
    "CREATE PUBLICATION acme_shop FOR TABLE filtered WHERE (id > 50), listed (id, n), came_back, untouched, made,"
    " leafy",
)
GENERATED_SINCE_18 = (
    "ALTER TABLE made ADD COLUMN virtual int GENERATED ALWAYS AS (n + 2) VIRTUAL",
    "ALTER PUBLICATION acme_shop SET (publish_generated_columns = stored)",
)


@pytest.mark.versions(since=15)
def test_a_publication_of_the_users_own_is_captured_as_it_publishes_and_read_again_when_it_changed(
    site: Site,
) -> None:
    generated = server_version(site.dsn) >= 18
    execute(site.dsn, *PUBLISHED, *(GENERATED_SINCE_18 if generated else ()))
    names = ("came_back", "filtered", "leafy_0", "leafy_1", "listed", "made", "untouched")
    assert site.init().new == tuple(table(name) for name in names)
    change = tuple(
        f"UPDATE {name} SET n = n + 1; INSERT INTO {name} (id, n) VALUES (60, 0); DELETE FROM {name} WHERE id = 8"
        for name in ("filtered", "listed", "came_back", "untouched", "made", "leafy")
    )
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            *change,
            "UPDATE filtered SET id = 49 WHERE id = 99",
            "UPDATE filtered SET id = 70 WHERE id = 1",
            "UPDATE leafy SET id = 2 WHERE id = 99",
        )
        capture.catch_up()
        rows_now = {each.topic.parts[2]: each.source_rows for each in all_equal(site)}
        assert rows_now["filtered"] == 8 and rows_now["leafy_1"] == 8
        assert columns(capture, "listed") == ["id", "n"]
        assert columns(capture, "made") == ["id", "n", *(["stored"] if generated else [])]
        read = {name: capture.store.topic(table(name)).complete_since for name in names}
    execute(
        site.dsn,
        "ALTER PUBLICATION acme_shop DROP TABLE came_back",
        "UPDATE came_back SET n = -1",
        "ALTER PUBLICATION acme_shop ADD TABLE came_back",
        "ALTER PUBLICATION acme_shop DROP TABLE filtered, listed",
        "ALTER PUBLICATION acme_shop ADD TABLE filtered WHERE (id > 20), listed (id, n, body)",
    )
    with RunningCapture(site) as capture:
        again = {"came_back", "filtered", "listed"}
        capture.wait_until(
            lambda: all(
                capture.store.topic(table(name)).complete_since not in (None, read[name]) for name in again
            )
        )
        execute(
            site.dsn,
            "UPDATE filtered SET n = 5",
            "UPDATE listed SET body = 'b'",
            "UPDATE came_back SET n = 5",
        )
        capture.catch_up()
        all_equal(site)
        reported = " ".join(capture.status.messages)
        for reason in (
            "it left the publication and came back",
            "its row filter changed",
            "its column list changed",
        ):
            assert reason in reported
        same = set(names) - again
        now = {name: capture.store.topic(table(name)).complete_since for name in same}
        assert now == {name: read[name] for name in same}


def all_equal(site: Site) -> list[TopicComparison]:
    found = site.verify()
    assert [each for each in found if not each.equal] == []
    return found


def columns(capture: RunningCapture, name: str) -> list[str]:
    return [column.name for column in capture.store.schemas(table(name))[-1].columns]


@pytest.mark.slow
@pytest.mark.versions
def test_a_publication_of_all_tables_is_captured_and_altering_it_has_everything_read_again(
    site: Site,
) -> None:
    execute(
        site.dsn,
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE keyless (id int)",
        "CREATE PUBLICATION acme_shop FOR ALL TABLES",
    )
    assert site.init().new == (table("t"),)
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(site.dsn, "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        capture.wait_until(lambda: capture.status.pending_tables == ("public.later",))
        assert any(
            "public.keyless" in message and "refuses UPDATE" in message for message in capture.status.messages
        )
        assert site.init().new == (table("later"),)
        capture.wait_until_complete(table("later"))
        execute(site.dsn, "ALTER PUBLICATION acme_shop SET (publish = 'insert')", "UPDATE t SET n = 2")
        capture.wait_until(lambda: not capture.is_complete(table("t")))
        assert "does not publish delete, truncate, update" in capture.store.topic(table("t")).reason
        execute(site.dsn, "ALTER PUBLICATION acme_shop SET (publish = 'insert, update, delete, truncate')")
        capture.wait_until(lambda: capture.is_complete(table("t")) and capture.is_complete(table("later")))
        all_equal(site)


@pytest.mark.versions(since=15)
def test_a_publication_that_makes_the_owners_updates_fail_is_said_before_they_do(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE unlisted (id int PRIMARY KEY, n int)",
        "CREATE TABLE loose (id int PRIMARY KEY, n int)",
        "CREATE TABLE whole (id int PRIMARY KEY, n int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE fine (id int PRIMARY KEY, n int)",
        "CREATE PUBLICATION acme_shop FOR TABLE unlisted (n), loose WHERE (n > 1), whole (id), fine",
    )
    found = {each.subject: each for each in site.init(dry_run=True).findings if each.level is Level.SKIPPED}
    refused = "the server refuses UPDATE and DELETE of it"
    assert {subject: finding.what for subject, finding in found.items()} == {
        "public.unlisted": f"its column list leaves out id of the replica identity: {refused}",
        "public.loose": f"its row filter looks at n, which the replica identity does not cover: {refused}",
        "public.whole": f"its column list does not go with REPLICA IDENTITY FULL: {refused}",
        "public.nothing": "REPLICA IDENTITY NOTHING, so changed rows cannot be identified",
    }
    assert 'ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT' in found["public.nothing"].hint
    execute(
        site.dsn,
        "INSERT INTO unlisted VALUES (1, 1)",
        "INSERT INTO loose VALUES (1, 1)",
        "INSERT INTO whole VALUES (1)",
    )
    for name in ("unlisted", "loose", "whole"):
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            execute(site.dsn, f"UPDATE {name} SET n = 2")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            execute(site.dsn, f"DELETE FROM {name}")

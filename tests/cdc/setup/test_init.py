"""init checks everything before it writes anything, never endangers the source's own writes, and can be run again."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address, connect, connect_replication
from tailrace.cdc.setup.prepare import prepare_source
from tailrace.cdc.setup.table_choice import Level
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import PostgresSourceSettings, SinkSettings, StoreSettings
from tailrace.eventstore.store import Store
from tailrace.projections.sinks.postgres.sink import PostgresSink
from tailrace.projections.sinks.specs import PostgresTable
from tests.projections.sinks.sink_data import fill, target
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    init_and_capture,
    query,
    rows,
    server_version,
    table,
)

WRITING = "options=-c%20default_transaction_read_only%3Doff"


def skipped_tables(site: Site) -> dict[str, str]:
    findings = site.init(dry_run=True).findings
    return {finding.subject: finding.what for finding in findings if finding.level is Level.SKIPPED}


def test_dry_run_says_the_sql_and_writes_nothing(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    preparation = site.init(dry_run=True)
    assert preparation.statements == (
        'CREATE PUBLICATION "acme_shop" FOR TABLE ONLY "public"."t"'
        " WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)",
    )
    assert preparation.new == (table("t"),)
    assert query(site.dsn, "SELECT count(*) FROM pg_publication")[0] == (0,)
    with site.open() as store:
        assert store.sources() == [] and store.topics() == []


@pytest.mark.versions
def test_a_second_run_changes_nothing_and_a_new_table_is_taken_up(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    site.init()
    assert site.init().statements == ()
    execute(site.dsn, 'CREATE TABLE "Neue ""Tabelle" (id int PRIMARY KEY)')
    again = site.init()
    assert again.statements == ('ALTER PUBLICATION "acme_shop" ADD TABLE ONLY "public"."Neue ""Tabelle"',)
    assert again.new == (table('Neue "Tabelle'),) and again.known == (table("t"),)


def test_tables_whose_rows_cannot_be_identified_are_never_published(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE fine (id int PRIMARY KEY)",
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE late_check (id int PRIMARY KEY DEFERRABLE)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    )
    assert skipped_tables(site) == {
        "public.keyless": "no primary key, so changed rows cannot be identified",
        "public.nothing": "REPLICA IDENTITY NOTHING, so changed rows cannot be identified",
        "public.late_check": "its primary key is deferrable, which cannot identify rows, so changed rows cannot be"
        " identified",
        "public.unlogged": "an unlogged table has no WAL",
    }
    site.init()
    execute(site.dsn, "INSERT INTO keyless VALUES (1)", "UPDATE keyless SET id = 2", "DELETE FROM keyless")
    assert query(site.dsn, "SELECT tablename FROM pg_publication_tables") == [("fine",)]


def test_patterns_choose_and_exclude(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE SCHEMA audit",
        'CREATE SCHEMA "a.b"',
        "CREATE TABLE t1 (id int PRIMARY KEY)",
        "CREATE TABLE t22 (id int PRIMARY KEY)",
        "CREATE TABLE audit.t1 (id int PRIMARY KEY)",
        'CREATE TABLE "a.b".t1 (id int PRIMARY KEY)',
    )
    chosen = site.with_settings(tables=("*.t?", "!audit.*", '"a.b".*')).init(dry_run=True)
    assert chosen.new == (TopicId.table(SOURCE, "a.b", "t1"), table("t1"))
    with pytest.raises(UsageError, match="not a table pattern"):
        site.with_settings(tables=("t1",)).init(dry_run=True)
    nothing = site.with_settings(tables=("nowhere.*",))
    with pytest.raises(OperatorError, match="no table"):
        nothing.init()


@pytest.mark.versions
def test_partitioned_tables_and_generated_columns_are_captured_as_reported(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE parts (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE parts_b PARTITION OF parts FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "CREATE TABLE twice (id int PRIMARY KEY, n int, double int GENERATED ALWAYS AS (n * 2) STORED)",
        "INSERT INTO parts VALUES (1, '2026-01-05'), (2, '2026-02-05')",
        "INSERT INTO twice VALUES (1, 4)",
    )
    preparation = site.init()
    assert preparation.new == (table("parts"), table("twice"))
    notes = [str(finding) for finding in preparation.findings if finding.level is Level.NOTE]
    assert any("public.parts: partitioned" in note for note in notes)
    assert any("generated columns are not captured: double" in note for note in notes)
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            "INSERT INTO parts VALUES (3, '2026-01-06')",
            "UPDATE parts SET day = '2026-02-06' WHERE id = 1",
        )
        execute(site.dsn, "UPDATE twice SET n = 5")
        capture.catch_up()
        assert len(rows(capture.store, table("parts"))) == 5
        (parts, twice) = site.verify()
        assert parts.equal and parts.source_rows == 3
        assert twice.equal and twice.only_in_source_columns == ()


def test_partitions_of_a_table_that_is_not_taken_are_tables_of_their_own(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_a1 PARTITION OF parts_a FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE other (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE other_a PARTITION OF other FOR VALUES FROM (0) TO (9)",
    )
    chosen = site.with_settings(tables=("public.*", "!public.other")).init(dry_run=True)
    assert chosen.new == (table("other_a"), table("parts"))
    chosen = site.with_settings(tables=("public.*", "!public.parts")).init(dry_run=True)
    assert chosen.new == (table("other"), table("parts_a"))


def test_a_table_that_took_the_name_of_a_renamed_one_is_said_to_need_its_topic(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with init_and_capture(site) as capture:
        execute(
            site.dsn,
            "ALTER TABLE t RENAME TO t_old",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "INSERT INTO t VALUES (2)",
        )
        assert skipped_tables(site) == {
            "public.t": "public.t_old had this name before, and still feeds its topic"
        }
        execute(site.dsn, 'ALTER PUBLICATION "acme_shop" DROP TABLE "public"."t_old"')
        capture.wait_until(lambda: not capture.is_complete(table("t")))
        site.with_settings(tables=("public.*", "!public.t_old")).init()
        capture.wait_until_complete(table("t"))
        (found,) = site.verify(table("t"))
        assert found.equal and found.source_rows == 1 and found.only_in_log == 0


def test_the_catalog_never_captures_itself(database: str, store_dir: Path) -> None:
    catalog = database.replace("postgresql://", "postgresql+psycopg://")
    site = Site.at(store_dir, database, catalog=catalog, tables=("*.*",))
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    assert site.init().new == (table("t"),)
    other = Site.at(store_dir / "other", database, name="other", tables=("*.*",))
    assert other.init(dry_run=True).new == (table("t"),)
    assert "acme_log" in skipped_tables(other)


def test_what_projections_write_is_never_captured(postgres: PostgresServer, site: Site) -> None:
    """Also when the source's user may not read the sink's own tables, and without a setting for each generation."""
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    sink = PostgresSink(PostgresTable("mart", "totals"), SinkSettings(kind="postgres", dsn=site.dsn))
    fill(sink, target(1), [])
    own = {"public.tailrace_fences", "public.tailrace_live", "public.totals__g1"}
    assert site.init().new == (table("t"),)
    assert set(skipped_tables(site)) == own
    with RunningCapture(site) as capture:
        fill(sink, target(2), [])
        execute(site.dsn, "CREATE TABLE later (id int PRIMARY KEY)")
        capture.wait_until(lambda: capture.status.pending_tables != ())
        assert capture.status.pending_tables == ("public.later",)
    role = site.dsn.rpartition("/")[2]
    execute(postgres.dsn(), f"CREATE ROLE {role} LOGIN")
    try:
        poor = Site.at(site.root, site.dsn.replace("postgres@", f"{role}@"))
        others = {"public.later"}  # it is not published, and the publication is not this role's
        assert set(skipped_tables(poor)) == own | others | {"public.totals__g2"}
    finally:
        execute(postgres.dsn(), f"DROP ROLE {role}")


def test_a_publication_that_loses_changes_is_refused(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION acme_shop FOR TABLE t WITH (publish = 'insert, update')",
    )
    with pytest.raises(OperatorError, match="does not publish delete, truncate") as refused:
        site.init()
    assert "ALTER PUBLICATION" in refused.value.hint


def test_missing_privileges_are_all_named_at_once_with_what_to_grant(
    postgres: PostgresServer, site: Site
) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    role = site.dsn.rpartition("/")[2]
    execute(postgres.dsn(), f"CREATE ROLE {role} LOGIN")
    try:
        poor = Site.at(site.root, site.dsn.replace("postgres@", f"{role}@"))
        with pytest.raises(OperatorError) as refused:
            poor.init()
        for hint in ("REPLICATION", "GRANT CREATE ON DATABASE", "GRANT SELECT ON", 'GRANT "postgres" TO'):
            assert hint in refused.value.hint, hint
        assert query(site.dsn, "SELECT count(*) FROM pg_publication")[0] == (0,)
    finally:
        execute(postgres.dsn(), f"DROP ROLE {role}")


def test_row_level_security_that_hides_rows_is_refused(postgres: PostgresServer, site: Site) -> None:
    role = site.dsn.rpartition("/")[2]
    execute(postgres.dsn(), f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        execute(
            site.dsn,
            "CREATE TABLE t (id int PRIMARY KEY)",
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            f"GRANT SELECT ON t TO {role}",
        )
        poor = Site.at(site.root, site.dsn.replace("postgres@", f"{role}@"))
        found = [finding.what for finding in poor.init(dry_run=True).blocking_findings]
        assert "row level security would hide rows from the first load" in found
    finally:
        execute(site.dsn, f"DROP OWNED BY {role}")
        execute(postgres.dsn(), f"DROP ROLE {role}")


def test_how_transactions_of_a_role_or_database_begin_by_default_does_not_matter(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    name = site.dsn.rpartition("/")[2]
    for setting in ("read_only = on", "isolation = 'serializable'", "deferrable = on"):
        execute(f"{site.dsn}?{WRITING}", f'ALTER DATABASE "{name}" SET default_transaction_{setting}')
    with init_and_capture(site) as capture:
        execute(
            f"{site.dsn}?{WRITING}", "INSERT INTO t VALUES (2)", "CREATE TABLE later (id int PRIMARY KEY)"
        )
        capture.catch_up()
        site.init()
        later = TopicId.table(SOURCE, "public", "later")
        capture.wait_until(  # a load by chunks writes its marks
            lambda: capture.is_complete(later)
        )
        assert_equals_source(site, [("public", "t"), ("public", "later")])


@pytest.mark.versions
def test_time_limits_of_a_role_or_database_end_nothing(site: Site) -> None:
    """No session of ours has one, of either kind: a load is long, and its snapshot's session is idle meanwhile."""
    known = [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
    ]
    if server_version(site.dsn) >= 17:
        known.append("transaction_timeout")
    of_role = f'ALTER ROLE CURRENT_USER IN DATABASE "{site.dsn.rpartition("/")[2]}"'
    execute(site.dsn, *(f"{of_role} SET {name} = '50s'" for name in known))
    assert query(site.dsn, "SHOW statement_timeout") == [("50s",)]
    address = Address.parse(site.dsn)
    with connect(address) as connection:
        pgconns = [connection.pgconn, connect_replication(address)]
        shown = [[each.exec_(f"SHOW {name}".encode()).get_value(0, 0) for name in known] for each in pgconns]
        pgconns[1].finish()
    assert shown == [[b"0"] * len(known)] * 2


def test_events_of_before_and_after_stand_in_the_log_in_order(site: Site) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    site.init(events=True)
    with psycopg.connect(site.dsn) as connection:
        connection.execute("SELECT 1")
        add_event(connection, "order", "7", 0)
        add_event(connection, "order", "7", 1)
    with RunningCapture(site) as capture:
        capture.catch_up()
        with psycopg.connect(site.dsn) as connection:
            connection.execute("INSERT INTO t VALUES (1)")
            add_event(connection, "order", "7", 2)
            add_event(connection, "invoice", "7", 0)
        capture.catch_up()
        found = rows(capture.store, TopicId.events(SOURCE, "order"))
        assert [(row["_op"], row["after"]["version"]) for row in found] == [("r", 1), ("r", 2), ("c", 3)]
        assert found[2]["_lsn"] == rows(capture.store, table("t"))[0]["_lsn"]
        assert len(rows(capture.store, TopicId.events(SOURCE, "invoice"))) == 1
        assert_equals_source(site)


def add_event(
    connection: psycopg.Connection[tuple[object, ...]], category: str, stream: str, version: int
) -> None:
    connection.execute(
        "SELECT tailrace.append_events(%s, %s, %s, jsonb_build_array(jsonb_build_object('type', 'happened',"
        " 'schema_version', 1, 'data', '{}'::jsonb, 'metadata', '{}'::jsonb, 'event_id', gen_random_uuid())))",
        [category, stream, version],
    )


def test_init_of_a_wrong_server_is_refused(site: Site, store_dir: Path) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    unknown = PostgresSourceSettings(dsn="postgresql://someone:s3cret@127.0.0.1:1/x")
    with Store.open(StoreSettings(name="acme"), create=True, root=store_dir) as store:
        with pytest.raises(Exception, match="nobody answers there") as refused:
            prepare_source(store, SOURCE, unknown)
        assert "s3cret" not in str(refused.value)

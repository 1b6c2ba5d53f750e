"""Two stores of one name over one source: neither drops, replaces or streams from what belongs to the other."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from tailrace.cdc.setup.prepare import prepare_source
from tailrace.cdc.setup.table_choice import Level
from tailrace.eventstore.errors import NotOwner, OperatorError
from tailrace.eventstore.store import Store
from tests.support.capturing import (
    SOURCE,
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    init_and_capture,
    query,
)

SLOT = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots"
MARK = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = 'acme_shop'"


@pytest.fixture
def copy(site: Site, tmp_path: Path) -> Site:
    """An empty store of the same name over the same source, as a developer makes one from the project's files."""
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    folder = tmp_path / "copy"
    folder.mkdir()
    return Site.at(folder, site.dsn)


def log_id(site: Site) -> str:
    with site.open() as store:
        return store.log_id


def unmark(site: Site) -> None:
    """As a version left it that marked nothing."""
    execute(site.dsn, "COMMENT ON PUBLICATION acme_shop IS NULL")


def leave_slot(site: Site) -> None:
    """What a first load leaves that is killed right after it made its slot."""
    execute(site.dsn, "SELECT pg_create_logical_replication_slot('acme_shop', 'pgoutput')")


def loaded(site: Site) -> None:
    with init_and_capture(site):
        pass


def test_an_empty_store_of_the_same_name_leaves_the_slot_and_no_change_is_lost(
    site: Site, copy: Site
) -> None:
    loaded(site)
    execute(site.dsn, "INSERT INTO t VALUES (2)")
    slot = query(site.dsn, SLOT)

    with pytest.raises(OperatorError) as refused:
        copy.init()

    assert log_id(site) in refused.value.message and log_id(copy) in refused.value.message
    assert "--take-over" in refused.value.hint and "[store] name" in refused.value.hint
    with copy.open() as store:
        assert store.sources() == [], "nothing was registered"
    assert query(site.dsn, SLOT) == slot
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert_equals_source(site)


@pytest.mark.slow
def test_a_store_that_was_prepared_before_the_other_captures_nothing_and_drops_nothing(
    site: Site, copy: Site
) -> None:
    copy.init()
    execute(site.dsn, "DROP PUBLICATION acme_shop")  # somebody cleans up, and sets up the other store
    loaded(site)
    slot = query(site.dsn, SLOT)

    refused = copy.capture_error()

    assert isinstance(refused, NotOwner) and log_id(site) in refused.message
    assert query(site.dsn, SLOT) == slot


def test_a_slot_that_nothing_marks_is_not_dropped_by_a_store_that_has_no_record_of_it(
    site: Site, copy: Site
) -> None:
    loaded(site)
    unmark(site)
    slot = query(site.dsn, SLOT)
    with pytest.raises(OperatorError, match="nothing says"):
        copy.init()
    assert query(site.dsn, SLOT) == slot and query(site.dsn, MARK) == [(None,)]


def test_what_a_killed_first_load_left_is_begun_again_by_the_store_whose_it_is(
    site: Site, copy: Site
) -> None:
    site.init()
    leave_slot(site)
    slot = query(site.dsn, SLOT)
    with pytest.raises(OperatorError, match="belongs to log"):
        copy.init()
    assert query(site.dsn, SLOT) == slot
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert_equals_source(site)


@pytest.mark.slow
def test_a_slot_without_a_publication_is_not_made_this_stores_by_init(site: Site, copy: Site) -> None:
    leave_slot(site)
    with pytest.raises(OperatorError, match="nothing says"):
        copy.init()
    assert query(site.dsn, "SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_source_of_before_is_marked_when_its_store_captures_and_what_somebody_wrote_there_stays(
    site: Site, copy: Site
) -> None:
    loaded(site)
    execute(site.dsn, "COMMENT ON PUBLICATION acme_shop IS 'ask Maria'")
    with RunningCapture(site) as capture:
        capture.catch_up()
    assert query(site.dsn, MARK) == [(f"ask Maria (tailrace log {log_id(site)})",)]
    with pytest.raises(OperatorError, match="belongs to log"):
        copy.init()


def test_a_publication_that_was_made_by_hand_is_marked_by_init(site: Site, copy: Site) -> None:
    execute(site.dsn, "CREATE PUBLICATION acme_shop FOR TABLE t")
    site.init()
    assert query(site.dsn, MARK) == [(f"tailrace log {log_id(site)}",)]


@pytest.mark.slow
def test_taking_a_source_over_is_said_and_the_store_of_before_is_refused_until_it_takes_it_back(
    site: Site, copy: Site
) -> None:
    loaded(site)
    done = copy.init(take_over=True)
    assert done.took_over == log_id(site)
    assert any(log_id(site) in each.what for each in done.findings if each.level is Level.NOTE)
    with RunningCapture(copy) as capture:
        capture.catch_up()
    slot = query(site.dsn, SLOT)

    refused = site.capture_error()
    assert isinstance(refused, NotOwner) and log_id(copy) in refused.message
    with pytest.raises(NotOwner):
        site.repair()
    assert query(site.dsn, SLOT) == slot

    assert site.init(take_over=True).took_over == log_id(copy)
    assert site.repair().topics
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert_equals_source(site)


@pytest.mark.slow
def test_a_repair_leaves_the_slot_of_another_database(site: Site) -> None:
    """Slots are the server's, publications a database's: another store's slot may have the name of ours."""
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    loaded(site)
    other = make_database(site.dsn)
    try:
        execute(site.dsn, "SELECT pg_drop_replication_slot('acme_shop')")
        execute(other, "SELECT pg_create_logical_replication_slot('acme_shop', 'pgoutput')")
        with site.open() as store:
            store.take_over(
                SOURCE
            ).begin_repair()  # a repair that was killed: nothing else is looked at first
        slot = query(other, SLOT)
        with pytest.raises(OperatorError, match="is not ours"):
            site.repair()
        assert query(other, SLOT) == slot
    finally:
        execute(other, "SELECT pg_drop_replication_slot('acme_shop')")
        drop_database(site.dsn, other)


def make_database(dsn: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE acme_elsewhere")
        return conninfo.make_conninfo(dsn, dbname="acme_elsewhere")


def drop_database(dsn: str, other: str) -> None:
    name = conninfo.conninfo_to_dict(other)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(str(name))))


@pytest.mark.slow
def test_the_ddl_trigger_stays_while_another_log_reads_the_database(site: Site, tmp_path: Path) -> None:
    execute(site.dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    site.init(ddl=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = Site.at(elsewhere, site.dsn, name="other")
    triggers = "SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'tailrace%'"
    with other.open() as store:
        done = prepare(store, other, ddl=False)
    assert log_id(site) in done and query(site.dsn, triggers) == [(4,)]
    execute(site.dsn, "DROP PUBLICATION acme_shop")
    with other.open() as store:
        assert prepare(store, other, ddl=False) == ""
    assert query(site.dsn, triggers) == [(0,)]


def prepare(store: Store, site: Site, *, ddl: bool) -> str:
    """What stands in the way of the trigger."""
    done = prepare_source(store, SOURCE, site.settings, ddl=ddl)
    return " ".join(each.what for each in done.findings if each.subject == "DDL trigger")

"""Where capture goes on: the source's row in the catalog is checked against the last epoch and the slot."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.model.position import parse_lsn
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_load,
    query,
    table,
)


@pytest.fixture
def behind(site: Site) -> Site:
    """A log that has not yet got a transaction of its source."""
    execute(site.dsn, "CREATE TABLE public.items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    init_and_load(site)
    execute(site.dsn, "INSERT INTO items VALUES (2)")
    return site


def set_position(site: Site, **position: int) -> None:
    with site.open() as store, store.catalog.write() as connection:
        connection.execute(update(tables.sources).values(position))


def assert_skips_nothing(site: Site, *columns: str) -> None:
    end = parse_lsn(query(site.dsn, "SELECT pg_current_wal_flush_lsn()::text")[0][0])
    set_position(site, **dict.fromkeys(columns, end))
    with RunningCapture(site) as capture:
        execute(site.dsn, "INSERT INTO items VALUES (3)")
        capture.catch_up()
        assert_equals_source(site)
        assert_sound(capture.store)


def assert_refused(site: Site, column: str) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
    set_position(site, **{column: 1})
    error = site.capture_error()
    assert isinstance(error, IntegrityError)
    assert "table sources" in error.message and "shop" in error.message


def test_a_position_that_is_too_high_skips_no_transaction(behind: Site) -> None:
    assert_skips_nothing(behind, "commit_lsn", "end_lsn", "through_lsn")


def test_a_position_that_is_too_low_is_refused(behind: Site) -> None:
    assert_refused(behind, "commit_lsn")


@pytest.mark.slow
@pytest.mark.parametrize("column", ["commit_lsn", "end_lsn"])
def test_each_part_of_a_position_is_checked(behind: Site, column: str) -> None:
    assert_skips_nothing(behind, column)
    assert_refused(behind, column)


def test_an_epoch_of_maintenance_chains_no_position_that_only_the_row_claims(behind: Site) -> None:
    end = parse_lsn(query(behind.dsn, "SELECT pg_current_wal_flush_lsn()::text")[0][0])
    set_position(behind, commit_lsn=end, end_lsn=end, through_lsn=end)
    with behind.open() as store:
        repartition(store, table("items"), 5)
    with RunningCapture(behind) as capture:
        execute(behind.dsn, "INSERT INTO items VALUES (3)")
        capture.catch_up()
        assert_equals_source(behind)
        assert_sound(capture.store)


def test_a_last_epoch_that_was_edited_is_refused(behind: Site) -> None:
    end = parse_lsn(query(behind.dsn, "SELECT pg_current_wal_flush_lsn()::text")[0][0])
    set_position(behind, commit_lsn=end, end_lsn=end, through_lsn=end)
    with behind.open() as store, store.catalog.write() as connection:
        connection.execute(update(tables.epochs).values(commit_lsn=end, end_lsn=end))
    error = behind.capture_error()
    assert isinstance(error, IntegrityError)
    assert "its hash" in error.message

"""A sink's connection is kept for a round, and no error of an earlier use is seen by a later one."""

from __future__ import annotations

import psycopg
import pytest

from tailrace.eventstore.errors import TailraceError
from tailrace.projections.sinks.kept import kept_connections
from tailrace.projections.sinks.postgres.connect import PostgresPlace
from tests.support.capturing import wait_until


def backend(place: PostgresPlace, **options: bool) -> int:
    with place.transaction(**options) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def place(database: str) -> PostgresPlace:
    return PostgresPlace("sink 'mart'", database)


def test_transactions_of_a_round_share_a_connection_which_ends_with_it(
    place: PostgresPlace, database: str
) -> None:
    with kept_connections():
        first = backend(place)
        with kept_connections():
            assert backend(place, read_only=True) == first
        assert backend(place, snapshot=True) == first
    with psycopg.connect(database, autocommit=True) as connection:
        found = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: connection.execute(found, (first,)).fetchone() is None)
    assert backend(place) != backend(place), "outside of a round each has its own"


def test_each_transaction_is_as_it_was_asked_for(place: PostgresPlace) -> None:
    shown = "SELECT current_setting('transaction_read_only'), current_setting('transaction_isolation')"
    with kept_connections():
        for options, expected in (
            ({"read_only": True}, ("on", "read committed")),
            ({"snapshot": True}, ("off", "repeatable read")),
            ({}, ("off", "read committed")),
        ):
            with place.transaction(**options) as connection:
                assert connection.execute(shown).fetchone() == expected


def test_one_inside_of_another_has_a_connection_of_its_own(place: PostgresPlace) -> None:
    with kept_connections():
        with place.transaction() as outer:
            outer.execute("CREATE TABLE made (id int)")
            other = backend(place)
        assert backend(place) == other, "one is kept"


def test_after_an_error_the_next_begins_anew(place: PostgresPlace) -> None:
    with kept_connections():
        first = backend(place)
        with pytest.raises(TailraceError, match="division by zero"), place.transaction() as connection:
            connection.execute("SELECT 1 / 0")
        assert backend(place) != first


def test_a_connection_that_the_server_ended_meanwhile_is_not_noticed(
    place: PostgresPlace, database: str
) -> None:
    with kept_connections():
        first = backend(place)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (first,))
        assert backend(place) != first

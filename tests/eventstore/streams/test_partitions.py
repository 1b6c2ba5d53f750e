"""The table of events in parts by time: everything is as before, for services and for capture."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from psycopg import sql

from tailrace.cdc.repair.verify import verify_source
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.streams import NO_STREAM, Appended, Conflict, Stream, append, load, load_all
from tailrace.eventstore.streams.database.connection import GRANTS
from tailrace.eventstore.streams.database.event_partitions import Period, _starts, partition_events
from tailrace.eventstore.streams.database.event_tables import downgrade, install, migrations, prune, upgrade
from tailrace.testing.plugin import SOURCE, FollowingLog
from tests.eventstore.streams.test_keepers import paid
from tests.eventstore.streams.test_prune import LATER, account, deposit, versions

Connection = psycopg.Connection[Any]
A, B = Stream("account", "a"), Stream("account", "b")


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def parted(connection: Connection, **how: Any) -> list[str]:
    with connection.transaction():
        return partition_events(connection, **how)


def parts(connection: Connection) -> dict[str, int]:
    found = connection.execute(
        "SELECT tableoid::regclass::text, count(*) FROM tailrace.events GROUP BY 1"
    ).fetchall()
    return {str(name).removeprefix("tailrace."): count for name, count in found}


def postpone(connection: Connection, moment: datetime) -> None:
    """As if the later events had been appended then: the time tells which part a row is in."""
    connection.execute("UPDATE tailrace.events SET recorded_at = %s WHERE version > 2", [moment])


def test_streams_are_appended_to_and_loaded_as_before(source: Connection) -> None:
    append(source, A, paid(1, 2))
    assert parted(source)[:2] == ["events_first", "events_rest"]
    assert parts(source) == {"events_first": 2}
    ids = [uuid4(), uuid4()]
    assert isinstance(append(source, A, paid(3, 4), 2, event_ids=ids), Appended)
    again = append(source, A, paid(3, 4), 2, event_ids=ids)
    assert isinstance(again, Appended) and again.repeated
    assert isinstance(append(source, A, paid(5), NO_STREAM), Conflict)
    assert [each.version for each in load(source, A)] == [1, 2, 3, 4]
    assert [each.version for each in load_all(source, "account")] == [1, 2, 3, 4]
    assert parted(source) == []  # there are enough


def test_later_events_are_in_later_parts_and_those_for_the_rest_are_taken_apart(source: Connection) -> None:
    append(source, A, paid(1, 2, 3, 4))
    parted(source, every="day", ahead=2)
    far = datetime.now(UTC) + timedelta(days=5)
    postpone(source, datetime.now(UTC) + timedelta(days=1, hours=1))
    assert len(parts(source)) == 2 and "events_rest" not in parts(source)
    source.execute("UPDATE tailrace.events SET recorded_at = %s WHERE version = 4", [far])
    assert parts(source)["events_rest"] == 1
    assert f"events_{far:%Y%m%d}" in parted(source, every="day", ahead=6)
    assert parts(source)[f"events_{far:%Y%m%d}"] == 1 and "events_rest" not in parts(source)
    assert [each.version for each in load(source, A)] == [1, 2, 3, 4]


def test_capture_goes_on_and_the_log_is_the_source(database: str, source: Connection, tmp_path: Path) -> None:
    append(source, A, paid(1, 2))
    log = FollowingLog(database, tmp_path)
    try:
        log.catch_up()
        parted(source)
        append(source, A, paid(3))
        deposit(source, "b", 12)
        log.catch_up()
        assert len(load(log.store.streams(SOURCE), A)) == 3
        settings = PostgresSourceSettings(dsn=database)
        (compared,) = [
            each
            for each in verify_source(log.store, SOURCE, settings)
            if each.topic.text == f"{SOURCE}.account"
        ]
        assert (compared.source_rows, compared.only_in_source, compared.different) == (15, 0, 0)
        assert prune(source, "account", LATER) == 10
        assert versions(source, B) == [11, 12]
        deposit(source, "b", 1)
        log.catch_up()
        assert len(load(log.store.streams(SOURCE), B)) == 13 and account.category == "account"
    finally:
        log.close()


def test_who_could_append_and_load_still_can(database: str, source: Connection) -> None:
    role = f"parts_{uuid4().hex[:8]}"
    source.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    try:
        for grant in GRANTS:
            source.execute(grant.format(role=role))
        parted(source)
        with psycopg.connect(database, user=role, autocommit=True) as service:
            append(service, A, paid(1))
            assert len(load(service, A)) == 1
    finally:
        source.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_the_schema_goes_down_and_up_around_it(source: Connection) -> None:
    append(source, A, paid(1, 2))
    parted(source)
    with source.transaction():
        downgrade(source, 2)
        upgrade(source)
    assert [each.version for each in load(source, A)] == [1, 2] and migrations()


def test_what_cannot_be_parted_is_refused_and_left_as_it_was(database: str, source: Connection) -> None:
    with pytest.raises(UsageError, match="cannot be parted by 'year'"):
        partition_events(source, every="year")
    source.execute("CREATE PUBLICATION plain FOR TABLE tailrace.events")
    with pytest.raises(OperatorError, match="publishes partitions by their own names"):
        parted(source)
    source.execute("DROP PUBLICATION plain; ALTER TABLE tailrace.events ENABLE ROW LEVEL SECURITY")
    with pytest.raises(OperatorError, match="row-level security"):
        parted(source)
    source.execute("ALTER TABLE tailrace.events DISABLE ROW LEVEL SECURITY")
    assert parted(source)
    source.execute("DROP SCHEMA tailrace CASCADE")
    with pytest.raises(OperatorError, match="no table of events"):
        parted(source)


@given_values(
    st.datetimes(timezones=st.just(UTC)).filter(lambda each: each.year < 9990),
    st.sampled_from(["day", "week", "month"]),
)
def test_periods_begin_behind_the_moment_one_after_the_other(after: datetime, every: Period) -> None:
    starts = _starts(after, every)
    found = [next(starts) for _ in range(15)]
    longest = timedelta(days={"day": 1, "week": 7, "month": 31}[every])
    for before, start in zip([after, *found], found, strict=False):
        assert before < start <= before + longest and (start.hour, start.minute, start.microsecond) == (
            0,
            0,
            0,
        )
        assert every != "month" or start.day == 1
        assert every != "week" or start.weekday() == 0

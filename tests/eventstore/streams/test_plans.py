"""What an append and a load read does not grow with the tables, whatever was known of them when the plans were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Annotated
from uuid import uuid4

import psycopg
import pytest
from pydantic import BaseModel

from tailrace.eventstore.streams import (
    NO_STREAM,
    STREAM_EXISTS,
    AppendTo,
    Every,
    Expected,
    Query,
    Stream,
    Tag,
    append,
    append_all,
    event,
    handle,
    load,
    load_all,
    load_boundary,
    state_of,
)
from tailrace.eventstore.streams.database.event_tables import install
from tests.eventstore.streams.bank import Deposit, account
from tests.fixtures.scale import Scale

Connection = psycopg.Connection[tuple[object, ...]]
EVENTS, STREAMS = 400, 100


@event("counted")
class Counted(BaseModel):
    amount: Decimal


@event("counted_by_tag")
class Tagged(BaseModel):
    group: Annotated[int, Tag()]
    person: Annotated[int, Tag()]


def new(connection: Connection, stream: int, expected: int | Expected) -> None:
    append(connection, Stream("counter", str(stream)), [Counted(amount=Decimal(1))], expected)


def several(connection: Connection, stream: int, expected: int | Expected) -> None:
    append(connection, Stream("counter", str(stream)), [Counted(amount=Decimal(1))] * 2, expected)


def repeatable(connection: Connection, stream: int, expected: int | Expected) -> None:
    append(
        connection, Stream("counter", str(stream)), [Counted(amount=Decimal(1))], expected, None, [uuid4()]
    )


def rows_read_by_scans(connection: Connection) -> int:
    """Of tables of domain events, by the transaction that the connection is in."""
    found = connection.execute(
        "SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_xact_user_tables"
        " WHERE schemaname = 'tailrace' AND relname IN ('events', 'snapshots', 'streams', 'tags', 'tagged_events')"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.versions(since=14)
@pytest.mark.parametrize("way", [new, several, repeatable])
def test_an_append_reads_no_table_whole(database: str, way: Callable[..., None]) -> None:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("events", "streams"):  # nobody analyses them meanwhile
            connection.execute(f"ALTER TABLE tailrace.{table} SET (autovacuum_enabled = off)".encode())
        for number in range(EVENTS):  # the plans are made, and kept, while the tables are small
            new_stream = number < STREAMS
            way(connection, number % STREAMS, NO_STREAM if new_stream else STREAM_EXISTS)
        with connection.transaction():
            version = 2 * EVENTS // STREAMS if way is several else EVENTS // STREAMS
            way(connection, 1, version)
            way(connection, 1, Expected.ANY)
            way(connection, STREAMS, NO_STREAM)
            way(connection, 1, version)  # a conflict
            way(connection, STREAMS + 1, STREAM_EXISTS)
            assert rows_read_by_scans(connection) == 0


@pytest.mark.versions(since=14)
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while small"])
def test_a_load_reads_no_table_whole(database: str, analysed: bool) -> None:
    install(database)
    decider = replace(account, snapshot=Every(events=3))
    with psycopg.connect(database, autocommit=True) as connection:

        def use() -> None:
            handle(connection, decider, "a", Deposit(1))
            state_of(connection, decider, "a")
            load(connection, Stream("account", "a"))
            next(load_all(connection, "account", page=2))
            append_all(
                connection, [AppendTo(Stream("account", id), [Counted(amount=Decimal(1))]) for id in "bc"]
            )

        for table in ("events", "snapshots", "streams"):
            connection.execute(f"ALTER TABLE tailrace.{table} SET (autovacuum_enabled = off)".encode())
        for number in range(
            20
        ):  # often enough that the driver prepares its statements, and the server keeps the plans
            use()
            if analysed and number == 9:
                connection.execute("ANALYZE")
        for number in range(EVENTS):
            append(connection, Stream("many", str(number)), [Counted(amount=Decimal(1))])
        with connection.transaction():
            use()
            assert rows_read_by_scans(connection) == 0


@pytest.mark.versions(since=14)
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while small"])
def test_a_boundary_reads_its_own_events_alone(database: str, analysed: bool) -> None:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:

        def use(number: int) -> int:
            query = Query(Tagged, group=number, person=number) | Query(Tagged, person=number)
            seen = load_boundary(connection, query)
            stream = Stream("group", str(number))
            append(connection, stream, [Tagged(group=number, person=number)], boundary=seen)
            append(connection, stream, [Tagged(group=number, person=number)], boundary=seen)  # a conflict
            return len(seen.events)

        for table in ("events", "streams", "tags", "tagged_events"):
            connection.execute(f"ALTER TABLE tailrace.{table} SET (autovacuum_enabled = off)".encode())
        for number in range(20):
            use(number % 3)
            if analysed and number == 9:
                connection.execute("ANALYZE")
        for number in range(EVENTS):
            append(connection, Stream("many", str(number)), [Tagged(group=number + 10, person=number + 10)])
        with connection.transaction():
            before = rows_read_by_indexes(connection)  # what the session has not reported yet
            found = use(1)
            assert rows_read_by_scans(connection) == 0
            assert rows_read_by_indexes(connection) - before < 20 * found


def rows_read_by_indexes(connection: Connection) -> int:
    found = connection.execute(
        "SELECT coalesce(sum(idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables WHERE schemaname = 'tailrace'"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))


def test_appends_to_a_schema_that_nobody_analysed_read_the_same_first_and_last(
    database: str, scale: Scale
) -> None:
    """Pages, which an index of so many events has a few more of on each way down."""
    appends, some = scale.pick(smoke=3_000, full=100_000), 200
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("events", "streams"):
            connection.execute(f"ALTER TABLE tailrace.{table} SET (autovacuum_enabled = false)")
        pages = []
        for number in range(appends):
            new(connection, number // 10, number % 10)
            if number % some == some - 1:
                pages.append(pages_read(connection))
        analysed = connection.execute(
            "SELECT sum(analyze_count + autoanalyze_count) FROM pg_stat_user_tables WHERE schemaname = 'tailrace'"
        ).fetchone()
    first, last = pages[1] - pages[0], pages[-1] - pages[-2]
    assert analysed == (0,)
    assert last < 1.5 * first, f"{first / some:.1f} pages an append, then {last / some:.1f}"


def pages_read(connection: Connection) -> int:
    """Of tables of domain events and their indexes, so far."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    found = connection.execute(
        "SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::bigint"
        " FROM pg_statio_user_tables WHERE schemaname = 'tailrace'"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))

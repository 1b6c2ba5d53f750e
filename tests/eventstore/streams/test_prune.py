"""What snapshots have made superfluous may go; nothing is decided otherwise, nor taken for complete that is not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from pydantic import BaseModel

from tailrace.cdc.repair.verify import verify_source
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.streams import (
    NO_STREAM,
    Conflict,
    Decider,
    Every,
    Personal,
    Stream,
    Tag,
    append,
    event,
    forget,
    handle,
    keep_snapshot,
    load,
    load_all,
    state_of,
)
from tailrace.eventstore.streams.database.event_tables import install, prune
from tailrace.testing.plugin import SOURCE, FollowingLog
from tests.eventstore.streams.bank import Account, Deposit, Deposited, decide, evolve

Connection = psycopg.Connection[Any]
LATER = datetime.now(UTC) + timedelta(days=1)
A, B = Stream("account", "a"), Stream("account", "b")


def of_code(version: int) -> Decider[Any, Account, Any]:
    return Decider("account", Account(), decide, evolve, snapshot=Every(events=10, version=version))


account = of_code(1)


@event("prune_noted")
class Noted(BaseModel, frozen=True):
    room: Annotated[str, Tag()]


@event("prune_told")
class Told(BaseModel, frozen=True):
    person: str
    text: Annotated[str, Personal(subject="person")]


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def deposit(connection: Connection, id: str, times: int) -> None:
    for _ in range(times):
        handle(connection, account, id, Deposit(1))


def versions(connection: Connection, stream: Stream) -> list[int]:
    found = connection.execute(
        "SELECT version FROM tailrace.events WHERE category = %s AND stream = %s ORDER BY 1",
        [stream.category, stream.id],
    ).fetchall()
    return [version for (version,) in found]


def test_what_is_below_the_snapshot_goes_and_decisions_stay_as_they_are(source: Connection) -> None:
    deposit(source, "a", 25)
    deposit(source, "b", 5)
    assert prune(source, "account", datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert prune(source, "account", LATER, at_most=8) == 8
    assert versions(source, A) == [*range(9, 26)]
    assert prune(source, "account", LATER) == 12 and prune(source, "account", LATER) == 0
    assert versions(source, A) == [21, 22, 23, 24, 25] and versions(source, B) == [1, 2, 3, 4, 5]
    done = handle(source, account, "a", Deposit(1))
    assert (done.state.balance, done.version) == (26, 26)
    assert [each.version for each in load(source, A, from_version=21)] == [21, 22, 23, 24, 25, 26]
    assert isinstance(append(source, A, [Deposited(amount=Decimal(1))], NO_STREAM), Conflict)


def test_the_last_event_of_a_stream_stays_and_so_its_id_is_never_new(source: Connection) -> None:
    deposit(source, "a", 10)
    assert prune(source, "account", LATER) == 9 and versions(source, A) == [10]
    assert isinstance(append(source, A, [Deposited(amount=Decimal(1))], NO_STREAM), Conflict)


def test_a_stream_is_not_read_as_if_it_were_whole(source: Connection) -> None:
    deposit(source, "a", 12)
    prune(source, "account", LATER)
    for read in (
        lambda: load(source, A),
        lambda: handle(source, of_code(2), "a", Deposit(1)),
        lambda: state_of(source, account, "a", version=11),
        lambda: keep_snapshot(source, of_code(2), "a"),
    ):
        with pytest.raises(OperatorError, match="events 1 to 10 of account/a were pruned"):
            read()
    assert [each.version for each in load_all(source, "account")] == [11, 12]  # those that are there


def test_tags_and_personal_values_stay_with_all_behind_them(source: Connection) -> None:
    for stream, about in ((A, Noted(room="r")), (B, Told(person="p", text="x"))):
        append(source, stream, [Deposited(amount=Decimal(1))] * 3)
        append(source, stream, [about])
        append(source, stream, [Deposited(amount=Decimal(1))] * 3)
        source.execute("SELECT tailrace.put_snapshot(%s, %s, 7, 'code', '{}')", [stream.category, stream.id])
    assert prune(source, "account", LATER) == 6
    assert versions(source, A) == versions(source, B) == [4, 5, 6, 7]


@pytest.mark.slow
def test_a_snapshot_of_the_logs_events_is_encrypted_as_these_are(
    database: str, source: Connection, tmp_path: Path
) -> None:
    telling: Decider[Told, str, Told] = Decider(
        "prune_telling",
        "",
        lambda told, state: [told],
        lambda state, told: told.text,
        snapshot=Every(events=99),
    )
    log = FollowingLog(database, tmp_path)
    try:
        handle(source, telling, "a", Told(person="p", text="a secret"))
        log.catch_up()
        streams = log.store.streams(SOURCE)
        assert load(streams, Stream("prune_telling", "a"))[0].data.text == "a secret"
        assert keep_snapshot(source, telling, "a", streams) == 1
        kept = source.execute("SELECT state::text FROM tailrace.snapshots").fetchone()
        assert kept is not None and "secret" not in kept[0]
        assert state_of(source, telling, "a").state == "a secret"
        forget(source, "p")
        assert load(streams, Stream("prune_telling", "a"))[0].data.text == ERASED
        with pytest.raises(UsageError, match="does not survive as JSON"):
            keep_snapshot(source, telling, "a", streams)
    finally:
        log.close()


def test_events_of_processes_stay(source: Connection) -> None:
    source.execute(
        "INSERT INTO tailrace.events VALUES ('p', 'x', 1, 'tailrace_reacted', 1, '{}', '{}', gen_random_uuid(), now())"
    )
    with pytest.raises(UsageError, match="a category of Tailrace's own"):
        prune(source, "p", LATER)


def test_the_log_has_what_was_pruned(database: str, source: Connection, tmp_path: Path) -> None:
    log = FollowingLog(database, tmp_path)
    try:
        log.catch_up()
        deposit(source, "a", 25)
        log.catch_up()
        prune(source, "account", LATER)
        log.catch_up()
        streams = log.store.streams(SOURCE)
        assert len(load(streams, A)) == 25
        assert state_of(streams, account, "a", version=7).state.balance == 7
        assert keep_snapshot(source, of_code(2), "a", streams) == 25
        assert handle(source, of_code(2), "a", Deposit(1)).state.balance == 26
        log.catch_up()
        (compared,) = [
            each
            for each in verify_source(log.store, SOURCE, PostgresSourceSettings(dsn=database))
            if each.topic.text == f"{SOURCE}.account"
        ]
        assert (compared.only_in_source, compared.only_in_log, compared.different) == (0, 0, 0)
    finally:
        log.close()

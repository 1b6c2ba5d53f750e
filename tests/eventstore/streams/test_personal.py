"""Values about somebody are encrypted before the database sees them, read as they were, and forgotten for good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import given as given_values
from hypothesis import strategies as st
from psycopg import sql
from pydantic import BaseModel

from tailrace.eventstore.errors import IntegrityError, OperatorError, UsageError
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.streams import (
    Appended,
    Decider,
    EventType,
    Every,
    FileKeys,
    Personal,
    ProcessManager,
    Query,
    Recorded,
    Stream,
    Tag,
    Timer,
    append,
    emit,
    event,
    forget,
    handle,
    inline,
    load,
    load_boundary,
    react,
    upcast,
    use_keys,
)
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.connection import FORGET_GRANT, GRANTS, PERSONAL_GRANT, ask_of
from tailrace.eventstore.streams.database.event_tables import downgrade, install
from tailrace.eventstore.streams.database.source import AnyConnection, SourceStreams, keeper_of
from tailrace.eventstore.streams.forget import FORGOTTEN, KeyForgotten, forget_keys
from tailrace.eventstore.streams.models.codec import Codec
from tailrace.testing import MemoryStreams

Connection = psycopg.Connection[tuple[Any, ...]]
Private = Personal(subject="person")


class Contact(BaseModel, frozen=True):
    owner: int
    number: Annotated[str, Personal(subject="owner", kind="contact")] | None = None


@event("personal_registered")
class Registered(BaseModel, frozen=True, strict=True):
    person: str
    name: Annotated[str, Private]
    email: Annotated[str, Private, Tag("mailbox")]
    born: Annotated[date | None, Private] = None
    paid: Annotated[Decimal, Private] = Decimal(0)
    nicknames: tuple[Annotated[str, Private], ...] = ()
    contacts: list[Contact] = []
    country: Annotated[str, Tag()] = "IE"


@event("personal_noted")
@dataclass(frozen=True)
class Noted:
    person: UUID
    text: Annotated[str | None, Private]


ADA = Registered(
    person="p1",
    name="Ada Lovelace",
    email="ada@example.com",
    born=date(1815, 12, 10),
    paid=Decimal("12.3400"),
    nicknames=("Enchantress", "Number"),
    contacts=[Contact(owner=7, number="555-0101"), Contact(owner=8, number="555-0102"), Contact(owner=9)],
)
BOB = Registered(person="p2", name="Robert Roe", email="bob@example.com")
SECRETS = ("Lovelace", "ada@", "1815-12", "12.34", "Enchantress", "555-0101")
A, B = Stream("personal", "a"), Stream("personal", "b")


@dataclass(frozen=True)
class Profile:
    name: str = ""
    changes: int = 0


def evolve(state: Profile, event: Registered | Noted) -> Profile:
    name = event.name if isinstance(event, Registered) else state.name
    return Profile(name, state.changes + 1)


profiles: Decider[Any, Profile, Any] = Decider(
    "personal", Profile(), lambda command, state: [command], evolve, snapshot=Every(events=2)
)


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    install(database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def stored(connection: Connection) -> str:
    """Everything that schema tailrace holds, as text."""
    names = connection.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tailrace'::regnamespace AND c.relkind = 'r'"
    ).fetchall()
    rows = [
        connection.execute(
            sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier("tailrace", name))
        ).fetchall()
        for (name,) in names
    ]
    return "\n".join(text for found in rows for (text,) in found)


def test_events_read_back_as_they_were_and_are_found_by_tags_that_are_personal(
    connection: AnyConnection,
) -> None:
    note = Noted(uuid4(), None)
    append(connection, A, [ADA, note])
    append(connection, B, [BOB])
    assert [each.data for each in load(connection, A)] == [ADA, note]
    assert [
        each.data for each in load_boundary(connection, Query(Registered, mailbox="ada@example.com")).events
    ] == [ADA]
    assert [each.data for each in load_boundary(connection, Query(mailbox="bob@example.com")).events] == [BOB]
    assert "ada" not in repr(Query(Registered, mailbox="ada@example.com", country="IE"))
    both = load_boundary(connection, Query(Registered, mailbox="ada@example.com", country="IE"))
    assert [each.data for each in both.events] == [ADA]


def test_a_boundary_of_a_personal_tag_refuses_a_second_one(connection: AnyConnection) -> None:
    query = Query(Registered, mailbox="ada@example.com")
    first, second = load_boundary(connection, query), load_boundary(connection, query)
    assert isinstance(append(connection, A, [ADA], boundary=first), Appended)
    assert not isinstance(append(connection, B, [ADA], boundary=second), Appended)


def test_what_was_forgotten_reads_as_erased_and_the_rest_as_it_was(connection: AnyConnection) -> None:
    append(connection, A, [ADA])
    append(connection, B, [BOB])
    keys = keeper_of(connection).keys
    finish(keys.forget([key.id for subject in ("p1", "contact:7") for key in finish(keys.keys_of(subject))]))
    if isinstance(connection, MemoryStreams):
        (found,) = load(connection, A)
        assert (found.data.name, found.data.born, found.data.nicknames) == (ERASED, ERASED, (ERASED, ERASED))
        assert [each.number for each in found.data.contacts] == [ERASED, "555-0102", None]
        assert found.data.person == "p1" and not found.data.name and str(found.data.name) == "Erased"
        append(connection, A, [found.data])  # it may be written again
        assert load(connection, A)[1].data == found.data
        assert load(connection, B)[0].data == BOB
    else:  # nobody forgot them: the table of keys lost them
        with pytest.raises(IntegrityError, match="is lost"):
            load(connection, A)


def test_the_database_never_sees_a_value(source: Connection) -> None:
    """Not in any table, nor in the files of the server: its heap, its indexes, its write-ahead log."""
    handle(source, profiles, "a", ADA)
    handle(source, profiles, "a", replace(Noted(uuid4(), "Countess"), person=UUID(int=1)))  # the snapshot
    assert source.execute("SELECT count(*) FROM tailrace.snapshots").fetchone() == (1,)
    text = stored(source)
    assert "p1" in text and "country:IE" in text
    for secret in (*SECRETS, "Countess"):
        assert secret not in text, secret
    source.execute("CHECKPOINT")
    folder = source.execute("SHOW data_directory").fetchone()
    assert folder is not None
    unique = [b"Ada Lovelace", b"ada@example.com", b"Enchantress", b"555-0101", b"Countess"]
    found = {
        (secret, file.name)
        for file in Path(folder[0]).rglob("*")
        if file.is_file() and ("base" in file.parts or "pg_wal" in file.parts)
        for secret in unique
        if secret in file.read_bytes()
    }
    assert not found


def test_forgetting_somebody_erases_all_that_was_made_of_the_values(source: Connection) -> None:
    handle(source, profiles, "a", ADA)
    handle(source, profiles, "a", Noted(UUID(int=1), "Countess"))
    handle(source, profiles, "b", BOB)
    receipt = forget(source, "p1")
    assert (receipt.streams, receipt.events, receipt.tags, receipt.snapshots) == ((A,), 1, 1, 1)
    (found, note) = load(source, A)
    assert (found.data.name, found.data.email, found.data.country) == (ERASED, ERASED, "IE")
    assert found.data.contacts[0].number == "555-0101" and note.data.text == "Countess"
    assert load(source, B)[0].data == BOB
    assert not load_boundary(source, Query(Registered, mailbox="ada@example.com")).events
    assert [each.data for each in load_boundary(source, Query(Registered, country="IE")).events] == [
        found.data,
        BOB,
    ]
    assert handle(source, profiles, "a", Noted(UUID(int=1), "later")).state == Profile(ERASED, 3)  # type: ignore[arg-type]
    assert handle(source, profiles, "a", Noted(UUID(int=1), "later")).version == 4  # no snapshot of it is due
    (fact,) = load(source, Stream(FORGOTTEN, receipt.keys[0]))
    assert fact.data.events == 1
    with pytest.raises(UsageError, match="no keys"):
        forget(source, "p1")


def test_the_tag_of_somebody_forgotten_may_be_taken_by_another(source: Connection) -> None:
    query = Query(Registered, mailbox="ada@example.com")
    append(source, A, [ADA])
    seen = load_boundary(source, query)
    forget(source, "p1")
    again = ADA.model_copy(update={"person": "p9"})
    assert isinstance(append(source, B, [again], boundary=load_boundary(source, query)), Appended)
    assert not isinstance(append(source, A, [ADA], boundary=seen), Appended)  # a boundary from before sees it
    assert [each.data.person for each in load_boundary(source, query).events] == ["p9"]


def test_who_comes_back_gets_a_key_of_their_own(source: Connection) -> None:
    append(source, A, [ADA])
    forget(source, "p1")
    append(source, A, [ADA])
    assert [each.data.name for each in load(source, A)] == [ERASED, "Ada Lovelace"]


def test_a_restored_table_of_keys_brings_nobody_back(source: Connection) -> None:
    append(source, A, [ADA])
    source.execute("CREATE TABLE backup AS SELECT * FROM tailrace.subject_keys")
    receipt = forget(source, "p1")
    source.execute("INSERT INTO tailrace.subject_keys SELECT * FROM backup WHERE subject = 'p1'")
    assert load(source, A)[0].data.name == ERASED
    assert forget_keys(source, receipt.keys).keys == receipt.keys  # applied again: the key goes
    assert source.execute("SELECT count(*) FROM tailrace.subject_keys WHERE subject = 'p1'").fetchone() == (
        0,
    )
    assert load(source, A)[0].data.name == ERASED


def test_a_lost_key_is_an_error_until_it_is_given_up(source: Connection) -> None:
    append(source, A, [ADA])
    source.execute("DELETE FROM tailrace.subject_keys WHERE subject = 'p1'")
    with pytest.raises(IntegrityError, match="is lost") as failed:
        load(source, A)
    lost = str(failed.value).partition("key ")[2].split()[0]
    assert failed.value.hint and f"--key {lost}" in failed.value.hint
    forget_keys(source, [lost])
    assert load(source, A)[0].data.name == ERASED


def test_a_rotated_key_goes_on_to_decrypt_and_is_forgotten_with_the_new_one(source: Connection) -> None:
    append(source, A, [ADA])
    keys = SourceStreams(ask_of(source)).keys
    new = finish(keys.rotate("p1"))
    assert new is not None and finish(keys.rotate("nobody")) is None
    append(source, B, [ADA])
    assert [each.keys >= {new.id} for each in finish(keeper_of(source).read(B, 1))] == [True]
    assert [load(source, each)[0].data for each in (A, B)] == [ADA, ADA]
    receipt = forget(source, "p1")
    assert len(receipt.keys) == 2 and receipt.streams == (A, B) and receipt.tags == 2
    assert [load(source, each)[0].data.name for each in (A, B)] == [ERASED, ERASED]


def test_rows_that_follow_events_are_written_again(source: Connection) -> None:
    source.execute("CREATE TABLE personal_rows (id text PRIMARY KEY, name text, changes bigint)")

    @inline("personal_rows", "personal_inline", Registered)
    def rows(change: Registered, row: Any) -> dict[str, Any]:
        return {"name": str(change.name), "changes": (row["changes"] if row else 0) + 1}

    append(source, Stream("personal_inline", "a"), [ADA, ADA])
    append(source, Stream("personal_inline", "b"), [BOB])
    assert forget(source, "p1").tables == ("public.personal_rows",)
    assert source.execute("SELECT * FROM personal_rows ORDER BY id").fetchall() == [
        ("a", "Erased", 2),
        ("b", "Robert Roe", 1),
    ]


def test_a_process_keeps_its_inputs_encrypted(source: Connection) -> None:
    manager: ProcessManager[Any, Profile] = ProcessManager(
        "personal_process",
        Profile(),
        lambda input, state: [Timer("later", datetime.now(UTC) + timedelta(days=1))],
        evolve=lambda state, input: evolve(state, input),
        key={Registered: "person"},
        snapshot=Every(events=1),
    )
    append(source, A, [ADA])
    (recorded,) = load(source, A)
    react(source, manager, recorded)
    source.execute("UPDATE tailrace.timers SET error = 'ValueError: Ada Lovelace'")
    assert "Lovelace" in stored(source)
    receipt = forget(source, "p1")
    assert receipt.streams == (A, Stream("personal_process", "p1")) and receipt.snapshots == 1
    for secret in SECRETS:
        assert secret not in stored(source)
    again = Recorded(A, 2, recorded.type, load(source, A)[0].data, {}, uuid4(), recorded.recorded_at)
    assert react(source, manager, again)
    assert "Lovelace" not in stored(source)


def test_an_event_about_somebody_is_written_before_they_are_forgotten_or_with_a_new_key(
    database: str, source: Connection
) -> None:
    """Whoever forgets waits for appends under way, and who appends meanwhile waits and gets another key."""
    append(source, A, [ADA])
    with psycopg.connect(database) as writer, ThreadPoolExecutor(2) as threads:
        append(writer, B, [ADA])
        forgetting = threads.submit(forget, source, "p1")
        with pytest.raises(TimeoutError):
            forgetting.result(timeout=0.3)
        writer.commit()
        assert forgetting.result(timeout=30).streams == (A, B)
    with psycopg.connect(database) as leaving, psycopg.connect(database, autocommit=True) as late:
        append(late, A, [ADA])
        with leaving.transaction(), ThreadPoolExecutor(1) as threads:
            forget(leaving, "p1")
            appending = threads.submit(append, late, B, [ADA])
            with pytest.raises(TimeoutError):
                appending.result(timeout=0.3)
            leaving.execute("COMMIT")
            appending.result(timeout=30)
    assert [each.data.name for each in load(source, A)] == [ERASED, ERASED]
    assert [each.data.name for each in load(source, B)] == [ERASED, "Ada Lovelace"]


def test_forgetting_that_is_rolled_back_has_forgotten_nothing(database: str, source: Connection) -> None:
    append(source, A, [ADA])
    with psycopg.connect(database) as other:
        forget(other, "p1")
        other.rollback()
    assert load(source, A)[0].data == ADA


def test_forgetting_needs_read_committed(database: str, source: Connection) -> None:
    append(source, A, [ADA])
    with psycopg.connect(database) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(UsageError, match="REPEATABLE READ"):
            forget(other, "p1")


def test_who_lacks_a_privilege_is_told_which(database: str, source: Connection) -> None:
    role = f"personal_{uuid4().hex[:8]}"
    source.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    try:
        for grant in GRANTS:
            source.execute(grant.format(role=role))
        with psycopg.connect(database, user=role, autocommit=True) as service:
            with pytest.raises(OperatorError) as failed:
                append(service, A, [ADA])
            assert PERSONAL_GRANT.format(role="APPLICATION") in str(failed.value.hint)
            source.execute(PERSONAL_GRANT.format(role=role))
            append(service, A, [ADA])
            assert load(service, A)[0].data == ADA
            with pytest.raises(OperatorError) as failed:
                forget(service, "p1")
            assert FORGET_GRANT.format(role="APPLICATION") in str(failed.value.hint)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                service.execute("SELECT * FROM tailrace.subject_keys")
            source.execute(FORGET_GRANT.format(role=role))
            assert forget(service, "p1").events == 1
    finally:
        source.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_nobody_says_that_a_key_was_forgotten_who_may_not_forget(source: Connection, database: str) -> None:
    append(source, A, [ADA])
    (key,) = finish(SourceStreams(ask_of(source)).keys.keys_of("p1"))
    forged = Stream(FORGOTTEN, key.id)
    for setting in ("", "0" * 64):
        source.execute("SELECT set_config('tailrace.forgetting', %s, false)", [setting])
        with pytest.raises(OperatorError) as failed:
            append(source, forged, [KeyForgotten(events=1)])
        assert FORGET_GRANT.format(role="APPLICATION") in str(failed.value.hint)
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            emit(source, forged, [KeyForgotten(events=1)])
    assert load(source, A)[0].data == ADA
    with pytest.raises(UsageError, match="no id of a key"):
        forget_keys(source, ["p1"])


def test_a_database_that_is_restored_whole_loses_tags_again(source: Connection) -> None:
    append(source, A, [ADA])
    (key,) = finish(SourceStreams(ask_of(source)).keys.keys_of("p1"))
    assert forget_keys(source, [key.id]).tags == 1  # what the log alone knew to be forgotten
    assert not load_boundary(source, Query(Registered, mailbox="ada@example.com")).events


def test_keys_in_a_file_are_apart_from_the_events(source: Connection, tmp_path: Path) -> None:
    keys = FileKeys(tmp_path / "keys.db")
    use_keys(keys)
    try:
        append(source, A, [ADA])
        append(source, B, [BOB])
        assert source.execute("SELECT count(*) FROM tailrace.subject_keys").fetchone() == (0,)
        assert load(source, A)[0].data == ADA
        (key,) = finish(keys.keys_of("p1"))
        assert finish(keys.rotate("p1")) is not None and finish(keys.rotate("nobody")) is None
        backup = keys.path.read_bytes()
        assert keys.path.stat().st_mode & 0o077 == 0 and key.secret in backup
        receipt = forget(source, "p1")
        assert len(receipt.keys) == 2 and load(source, A)[0].data.name == ERASED
        assert key.secret not in keys.path.read_bytes()
        keys.path.write_bytes(backup)  # restored: what the log says is applied again
        forget_keys(source, receipt.keys)
        assert load(source, A)[0].data.name == ERASED and load(source, B)[0].data == BOB
        keys.path.unlink()
        with pytest.raises(IntegrityError, match="is lost"):
            load(source, B)
    finally:
        use_keys(None)


def test_a_declared_upcaster_moves_values_that_nobody_reads(source: Connection) -> None:
    @event("personal_aged", version=1)
    class Before(BaseModel, frozen=True):
        person: str
        age: Annotated[str, Private]

    @event("personal_aged", version=2)
    class After(BaseModel, frozen=True):
        person: str
        years: Annotated[int, Private]

    append(source, A, [Before(person="p1", age="36")])
    upcast("personal_aged", 1, rename={"age": "years"}, cast={"years": "int"})
    assert load(source, A)[0].data == After(person="p1", years=36)
    forget(source, "p1")
    assert load(source, A)[0].data.years == ERASED


def test_tables_with_keys_are_not_taken_down(database: str, source: Connection) -> None:
    append(source, A, [ADA])
    with pytest.raises(psycopg.errors.RaiseException, match="has keys"):
        downgrade(source, 8)
    assert load(source, A)[0].data == ADA


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Noted(UUID(int=0), "x"), None),
        (lambda: Registered(person="", name="x", email="x"), "does not say whose"),
        (lambda: Registered(person="p" * 1001, name="x", email="x"), "too long for a subject"),
    ],
)
def test_an_event_needs_a_subject(make: Any, message: str | None) -> None:
    streams = MemoryStreams()
    if message is None:
        append(streams, A, [make()])
        return
    with pytest.raises(UsageError, match=message):
        append(streams, A, [make()])
    assert load(streams, A) == []


def test_declarations_that_cannot_be_are_refused() -> None:
    class Wrong(BaseModel):
        name: Annotated[str, Personal(subject="nobody")]

    with pytest.raises(UsageError, match="names no field beside it"):
        Codec(Wrong, EventType("personal_wrong", 1))

    @event("personal_forged")
    class Forged(BaseModel):
        data: dict[str, Any]

    forged = {"$personal": ["00000000-0000-0000-0000-000000000000", "AAAA"]}
    with pytest.raises(UsageError, match="kept for personal values"):
        append(MemoryStreams(), A, [Forged(data={"deep": [forged]})])
    append(MemoryStreams(), A, [Forged(data={"text": json.dumps(forged)})])  # inside a text it is a text


@given_values(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    paid=st.decimals(allow_nan=False, allow_infinity=False),
    nicknames=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
)
def test_every_value_reads_back_and_none_is_in_what_is_stored(
    name: str, paid: Decimal, nicknames: list[str]
) -> None:
    streams = MemoryStreams()
    made = Registered(person="p1", name=name, email="e", paid=paid, nicknames=tuple(nicknames))
    append(streams, A, [made])
    assert load(streams, A)[0].data == made
    kept = json.loads(streams._streams[A][0].data)
    assert all(set(kept[each]) == {"$personal"} for each in ("name", "email", "born", "paid"))

"""A role that may only connect emits messages with our prefixes: they are counted, and have no effect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.ddl_trigger import Trigger, install_trigger, read_trigger
from tailrace.cdc.recording.file import FRAME, Recording
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.wire import authentic, ddl_message
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.refused_messages import refused_messages
from tailrace.eventstore.streams.database import event_tables as events_schema
from tests.cdc.messages import KEYED, Stream, trigger_message
from tests.support.capturing import RunningCapture, Site, execute, query, rows, table

SECRET, WORD = bytes(range(32)), "nobody-may-read-this"
XID = 701  # of the first transaction of ``Stream``


@pytest.fixture
def hostile(database: str) -> Iterator[str]:
    """DSN of a role that may connect and nothing else."""
    role = f"hostile_{os.getpid()}"
    execute(database, f"CREATE ROLE {role} LOGIN")
    try:
        yield database.replace("postgres@", f"{role}@")
    finally:
        execute(database, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def emit(dsn: str, *messages: tuple[str, bytes], transactional: bool = True) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for message in messages:
            connection.execute("SELECT pg_logical_emit_message(%s, %s, %s::bytea)", [transactional, *message])


def forged(dsn: str, ids: list[int], fill: str | None = None) -> bytes:
    """A description of table ``people`` with other column ids."""
    ((relid,),) = query(dsn, "SELECT 'people'::regclass::oid::bigint")
    columns = [
        {
            "id": number,
            "name": name,
            "type_oid": oid,
            "typmod": -1,
            "type_name": kind,
            "generated": "",
            "fill": fill,
        }
        for number, name, oid, kind in zip(
            ids, ("id", "name", "email"), (23, 25, 25), ("integer", "text", "text"), strict=True
        )
    ]
    data = {"v": 2, "command": "ALTER TABLE", "changed": "", "relid": relid, "schema": "public", "name": "people",
            "identity": "d", "roots": [], "partial": False, "key": [1], "columns": columns}  # fmt: skip
    return json.dumps(data).encode()


@pytest.mark.parametrize("trigger", [False, True], ids=["without the trigger", "with the trigger"])
def test_forged_messages_neither_stop_the_stream_nor_change_values_nor_lift_a_policy(
    database: str, store_dir: Path, tmp_path: Path, hostile: str, trigger: bool
) -> None:
    execute(
        database,
        "CREATE TABLE people (id int PRIMARY KEY, name text, email text)",
        f"INSERT INTO people VALUES (1, 'Ann', '{WORD}')",  # noqa: S608
    )
    site = Site.at(store_dir, database, tables=("public.*",), columns={"public.people.email": "drop"})
    site.init(**({"ddl": True} if trigger else {}))
    recording = tmp_path / "recording"
    signed = authentic.sign(SECRET, ddl_message.PREFIX, 1, 1, forged(database, [1, 3, 2]))
    with RunningCapture(site, record=recording) as capture:
        capture.catch_up()
        emit(
            hostile,
            ("tailrace.ddl", b'{"v": 2, "changed": "", "command": "", "relid": 1e999}'),
            ("tailrace.ddl", forged(database, [1, 3, 2])),
            ("tailrace.ddl", signed),
            ("tailrace.ddl", forged(database, [1, 2, 7], "FORGED")),
            ("tailrace.ddl", forged(database, [1, 2, 3])),
            ("tailrace.chunk", bytes(16)),
            ("tailrace.load", b"x" * 100),
            ("tailrace.ordinal", b"9" * 50),
            ("note", b"anybody may write a message of the application's"),
        )
        emit(
            hostile,
            ("tailrace.ddl", forged(database, [1, 3, 2])),
            ("tailrace.ddl", signed),
            ("tailrace.chunk", bytes(16)),
            ("tailrace.load", bytes(16)),
            ("note", b"not captured, and counted elsewhere"),
            transactional=False,
        )
        execute(database, f"INSERT INTO people VALUES (2, 'Bob', '{WORD}')")  # noqa: S608
        capture.catch_up()
        stored = rows(capture.store, table("people"))
        assert [row["after"] for row in stored] == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
        assert len(capture.store.schemas(table("people"))) == 1
        assert dict(capture.status.refused) == {
            "DDL descriptions without a valid signature": 5,
            "marks of loads that are not this session's": 2,
            "messages with a prefix of Tailrace's": 1,
            "messages outside of transactions with a prefix of Tailrace's": 4,
        }
        assert dict(capture.status.ignored) == {"message outside of a transaction": 1}
        kept = refused_messages(capture.store.catalog, table("people").source)
        assert {each.kind: each.number for each in kept} == dict(capture.status.refused)
        assert sum("not believed" in message for message in capture.status.messages) == 3
        execute(database, "ALTER TABLE people RENAME email TO contact")
        execute(database, f"INSERT INTO people VALUES (3, 'Eve', '{WORD}')")  # noqa: S608
        capture.catch_up()
        stored = rows(capture.store, table("people"))
        assert WORD not in str(stored) and stored[-1]["after"] == {"id": 3, "name": "Eve"}
    frames = [record.data for record in Recording(recording).records() if record.kind == FRAME]
    ours = [frame for frame in frames if frame[:1] == b"M" and frame[10:].startswith(b"tailrace.")]
    assert len(ours) == int(trigger) and not any(WORD.encode() in frame for frame in frames)


def test_the_trigger_is_believed_from_the_transaction_on_that_installs_it(
    database: str, store_dir: Path
) -> None:
    """A running session learns the secret, and again when it was made anew."""
    execute(
        database,
        "CREATE TABLE people (id int PRIMARY KEY, name text)",
        "INSERT INTO people VALUES (1, 'Ann')",
    )
    site = Site.at(store_dir, database, tables=("public.*",))
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        site.init(ddl=True)
        execute(database, "ALTER TABLE people ADD a int DEFAULT 7")
        capture.catch_up()
        assert len(capture.store.schemas(table("people"))) == 2
        site.init(ddl=False)
        execute(database, "DROP TABLE tailrace.secret")
        site.init(ddl=True)
        execute(database, "ALTER TABLE people ADD b int DEFAULT 8")
        capture.catch_up()
        assert len(capture.store.schemas(table("people"))) == 3
        assert capture.status.refused == ()


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_trigger_is_believed_in_savepoints_and_late_parts_of_a_large_transaction(
    database: str, store_dir: Path, protocol: int
) -> None:
    execute(database, "CREATE TABLE people (id int PRIMARY KEY, name text)")
    small = f"{database}?options=-c%20logical_decoding_work_mem%3D64kB"
    site = Site.at(
        store_dir, small, tables=("public.*",), protocol=protocol, queue_bytes=1 << 18, epoch_bytes=1 << 18
    )
    site.init(ddl=True)
    insert = "INSERT INTO people (id, name) SELECT n, repeat('x', 200) FROM generate_series({}, {}) n"
    with RunningCapture(site) as capture, psycopg.connect(database) as writer:
        capture.catch_up()
        for number in range(3):
            writer.execute(sql.SQL(insert.format(5000 * number, 5000 * number + 4999)))
            with writer.transaction():
                writer.execute(sql.SQL(f"ALTER TABLE people ADD c{number} int DEFAULT {number}"))
        writer.commit()
        capture.catch_up()
        assert capture.status.refused == ()
        columns = capture.store.schemas(table("people"))[-1].columns
        assert [(column.name, column.fill) for column in columns[2:]] == [
            ("c0", "0"),
            ("c1", "1"),
            ("c2", "2"),
        ]


def test_a_schema_that_somebody_else_made_first_is_refused(
    database: str, store_dir: Path, hostile: str
) -> None:
    name, role = (str(each) for each in query(hostile, "SELECT current_database(), current_user")[0])
    execute(
        database, "CREATE TABLE people (id int PRIMARY KEY)", f"GRANT CREATE ON DATABASE {name} TO {role}"
    )
    execute(
        hostile,
        "CREATE SCHEMA tailrace",
        "CREATE TABLE tailrace.secret (one boolean PRIMARY KEY, secret bytea)",
        "INSERT INTO tailrace.secret VALUES (true, decode(repeat('00', 32), 'hex'))",
        "GRANT USAGE ON SCHEMA tailrace TO PUBLIC",
        "GRANT SELECT ON tailrace.secret TO PUBLIC",
    )
    address = Address.parse(database)
    with connect(address) as connection:
        with pytest.raises(OperatorError, match=f"schema tailrace belongs to {role}"):
            install_trigger(connection, address)
        assert read_trigger(connection, address) is Trigger.ABSENT
    with pytest.raises(OperatorError, match=f"schema tailrace belongs to {role}"):
        events_schema.install(database)
    site = Site.at(store_dir, database, tables=("public.*",))
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        with psycopg.connect(hostile) as forger:
            ((xid,),) = forger.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            content = authentic.sign(
                bytes(32), ddl_message.PREFIX, int(xid), 1, b'{"v": 2, "changed": "failed"}'
            )
            forger.execute("SELECT pg_logical_emit_message(true, 'tailrace.ddl', %s::bytea)", [content])
        execute(database, "INSERT INTO people VALUES (1)")
        capture.catch_up()
        assert dict(capture.status.refused) == {"DDL descriptions without a valid signature": 1}


def test_a_user_who_may_not_read_the_secret_is_told_the_grant(database: str, hostile: str) -> None:
    address = Address.parse(database)
    with connect(address) as connection:
        install_trigger(connection, address)
    theirs = Address.parse(hostile)
    with connect(theirs) as connection:
        assert read_trigger(connection, theirs) is Trigger.UNREADABLE
    execute(database, "GRANT SELECT ON tailrace.secret TO PUBLIC")
    with connect(address) as connection:
        assert read_trigger(connection, address) is Trigger.UNTRUSTED


def test_what_a_user_writes_into_a_setting_during_a_command_moves_no_partition(
    database: str, hostile: str
) -> None:
    """Code of a user runs between the triggers: an expression of ALTER TABLE on a temporary table is enough."""
    address = Address.parse(database)
    execute(database, "CREATE TABLE people (id int PRIMARY KEY)", "CREATE PUBLICATION p")
    execute(database, "SELECT pg_create_logical_replication_slot('forged', 'pgoutput')")
    try:
        with connect(address) as connection:
            install_trigger(connection, address)
        ((relid,),) = query(database, "SELECT 'people'::regclass::oid::bigint")
        execute(
            hostile,
            "CREATE TEMP TABLE mine (a int)",
            "INSERT INTO mine VALUES (1)",
            "CREATE FUNCTION pg_temp.f(int) RETURNS int LANGUAGE plpgsql AS $f$ BEGIN"
            f" PERFORM set_config('tailrace.partitions', '[{relid} {relid}]', true); RETURN 1; END $f$",
            "ALTER TABLE mine ALTER a TYPE bigint USING pg_temp.f(a)",
        )
        found = query(
            database,
            "SELECT data FROM pg_logical_slot_get_binary_changes('forged', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'p', 'messages', 'true') WHERE substr(data, 1, 1) = 'M'",
        )
        assert not any(b"repartitioned" in data for (data,) in found)
        assert any(b"was changed during the command" in data for (data,) in found)
    finally:
        execute(database, "SELECT pg_drop_replication_slot('forged')")


# without a server


def passes(*contents: tuple[int, bytes]) -> list[bytes]:
    """What becomes of descriptions at these LSNs, in one transaction."""
    stream = Stream()
    stream.transaction(*(pg.Message(True, lsn, ddl_message.PREFIX, content) for lsn, content in contents))
    block, _ = OwnMessages(
        lambda: ({ddl_message.PREFIX: SECRET}, "9000:9000:"), lambda content: False
    ).filter(stream.block())
    found, start = [], 0
    for end in block.ends:
        message = pg.decode(bytes(block.data[start:end]))
        found += [message.content] if isinstance(message, pg.Message) else []
        start = end
    return found


def test_only_what_was_signed_for_this_transaction_and_place_passes() -> None:
    good = authentic.sign(SECRET, ddl_message.PREFIX, XID, 0x100, b"{1}")
    later = authentic.sign(SECRET, ddl_message.PREFIX, 5 << 32 | XID, 0x200, b"{2}")
    assert passes((0x150, good), (0x250, later)) == [b"{1}", b"{2}"]
    assert passes((0x150, good), (0x250, good)) == [b"{1}"], "repeated"
    assert passes((0x250, later), (0x350, good)) == [b"{2}"], "an earlier one, repeated"
    assert passes((0x99, good)) == [], "before the place that it names"
    assert passes((0x150, authentic.sign(SECRET, ddl_message.PREFIX, XID + 1, 0x100, b"{1}"))) == [], (
        "another transaction's"
    )
    assert passes((0x150, authentic.sign(bytes(32), ddl_message.PREFIX, XID, 0x100, b"{1}"))) == [], (
        "another secret"
    )
    for at in range(len(good)):
        assert passes((0x150, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])) == []
        assert passes((0x150, good[:at])) == []


def test_a_block_without_what_was_refused_is_otherwise_the_same() -> None:
    row = pg.Insert(KEYED.relid, (b"1", b"x", pg.NULL))
    expected, stream = Stream(), Stream()
    expected.transaction(KEYED.relation, row, row)
    bad, note = pg.Message(True, 1, "tailrace.x", b"y" * 50), pg.Message(True, 1, "tailrac", b"")
    stream.transaction(bad, KEYED.relation, bad, row, bad, trigger_message(KEYED), row, bad)
    block, refused = OwnMessages(lambda: ({}, "9000:9000:"), lambda content: False).filter(stream.block())
    wanted = expected.block()
    assert (bytes(block.data), block.ends) == (bytes(wanted.data), wanted.ends)
    assert sum(refused.values()) == 5
    stream.transaction(note, row)
    block, refused = OwnMessages(lambda: ({}, ""), lambda content: False).filter(stream.block())
    assert not refused

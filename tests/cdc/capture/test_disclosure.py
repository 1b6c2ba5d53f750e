"""Diagnostics show values of rows only where somebody asked for it: what servers, drivers and our own readers say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from psycopg import pq
from pydantic import BaseModel, ConfigDict

from tailrace.cdc.postgres import errors
from tailrace.cdc.wire.ddl_message import parse
from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.streams import EventType, Stream, event
from tailrace.eventstore.streams.models.event_types import codec_of, event_type_of
from tailrace.eventstore.streams.models.upcasters import Place, read_events
from tailrace.projections.sinks.keys import key_name
from tailrace.projections.sinks.postgres import connect
from tests.support.capturing import RunningCapture, Site, execute

MARK = "Zq7mark"
NUMBER = "918273645546372819"  # a value that no quotation marks surround

# Statements whose error quotes a value of theirs: in its sentence, its DETAIL or its CONTEXT.
CASTS = (
    "int", "bigint", "real", "bool", "date", "time", "timestamp", "interval", "uuid", "inet", "cidr", "macaddr", "json",
    "jsonb", "int[]", "int4range", "point", "pg_lsn", "bit(3)", "mood", "pair", "money",
    "xid", "jsonpath", "positive",
)  # fmt: skip
STATEMENTS = (  # @mark and @number stand for the values
    "SELECT 'x@mark' || chr(0)",
    "SELECT ('@mark\n@mark\"' || 'x')::int",
    "SELECT to_date('@mark', 'YYYY')",
    "SELECT '@number'::int",
    "SELECT '@number00000000'::bigint",
    "INSERT INTO t VALUES ('@mark', 1); INSERT INTO t VALUES ('@mark', 1)",
    "INSERT INTO t VALUES ('@mark', -1)",
    "INSERT INTO t VALUES ('@mark', NULL)",
    "INSERT INTO child VALUES ('@mark')",
    "INSERT INTO rooms VALUES ('[1,3]', '@mark'), ('[2,4]', '@mark')",
    "INSERT INTO narrow VALUES ('@mark')",
    "DO $$BEGIN RAISE EXCEPTION 'no % here', '@mark'; END$$",
    "DO $$BEGIN RAISE EXCEPTION 'no @mark here' USING ERRCODE = '22000', DETAIL = '@mark'; END$$",
    "DO $$BEGIN PERFORM '@mark'::int; END$$",
    "SELECT convert_from('\\x@hexff', 'UTF8')",
    "SELECT decode('@mark', 'hex')",
    "SELECT '[1]'::jsonb #- ARRAY['@mark']",
    "SELECT set_config('work_mem', '@mark', false)",
)
SCHEMA = (
    "CREATE TYPE mood AS ENUM ('fine')",
    "CREATE TYPE pair AS (a int, b int)",
    "CREATE DOMAIN short AS varchar(3)",
    "CREATE DOMAIN positive AS text CHECK (value = 'y')",
    "CREATE TABLE t (id text PRIMARY KEY, n int NOT NULL CHECK (n > 0))",
    "CREATE TABLE child (id text REFERENCES t)",
    "CREATE TABLE rooms (during int4range, note text, EXCLUDE USING gist (during WITH &&))",
    "CREATE TABLE narrow (a varchar(3))",
)


@pytest.fixture(params=[False, True], ids=["hidden", "shown"])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.delenv(disclosure.VARIABLE, raising=False)
    with disclosure.show_values(request.param):
        yield request.param


def fill_in(statement: str) -> str:
    hex_text = MARK.encode().hex()
    return statement.replace("@mark", MARK).replace("@number", NUMBER).replace("@hex", hex_text)


def has_mark(text: str) -> bool:
    return MARK in text or NUMBER in text or MARK.encode().hex() in text.replace(" 0x", "")


def assert_reported(text: str, shown: bool, *, of: str) -> None:
    """The value stands in ``text`` exactly if values are shown, otherwise how long it is."""
    assert has_mark(text) == shown, f"{of}: {text}"
    assert ("<hidden: " in text) != shown, f"{of}: {text}"


def test_what_a_server_complains_about_quotes_values_only_when_they_are_shown(
    database: str, shown: bool
) -> None:
    """Through both ways to a server: psycopg's exceptions and libpq's results; as sources and as sinks tell them."""
    execute(database, *SCHEMA)
    wanted = [*(f"SELECT '@mark'::{kind}" for kind in CASTS), *STATEMENTS]
    quoted = 0
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in map(fill_in, wanted):
            with pytest.raises(psycopg.Error) as raised:
                connection.execute(statement.encode())
            result = connection.pgconn.exec_(statement.encode())
            assert result.status == pq.ExecStatus.FATAL_ERROR
            diag = raised.value.diag
            if not has_mark(f"{diag.message_primary} {diag.message_detail} {diag.context}"):
                continue
            quoted += 1
            for error in (
                errors.from_psycopg(raised.value, "reading", "shop"),
                errors.from_result(result, "reading", "shop"),
                connect.explain("sink", raised.value),
            ):
                assert has_mark(str(error)) == shown, f"{statement}: {error}"
    assert quoted > 30


def test_lines_of_a_copy_and_its_context_are_not_repeated(database: str, shown: bool) -> None:
    execute(database, "CREATE TABLE numbers (a int, n int)")
    with psycopg.connect(database) as connection, pytest.raises(psycopg.Error) as raised:  # noqa: SIM117
        with connection.cursor().copy("COPY numbers FROM STDIN") as copy:
            copy.write(f"1\t{MARK}\n".encode())
    said = str(connect.explain("sink", raised.value))
    assert_reported(said, shown, of="COPY")
    assert "column n" in said


def test_what_a_libpq_connection_says_has_no_values_and_is_reported_whole() -> None:
    error = errors.failure(None, "server closed the connection unexpectedly", "reading", "shop")
    assert "server closed the connection unexpectedly" in error.message


def test_names_of_the_schema_are_shown(database: str) -> None:
    """What is hidden is hidden by the kind of error, so the operator still learns which table it was."""
    with psycopg.connect(database, autocommit=True) as connection:
        for statement, name in (
            ("SELECT * FROM no_such_table", "no_such_table"),
            ("SELECT pg_drop_replication_slot('no_such_slot')", "no_such_slot"),
        ):
            with pytest.raises(psycopg.Error) as raised:
                connection.execute(statement.encode())
            assert name in errors.from_psycopg(raised.value, "reading", "shop").message


def test_a_first_load_that_fails_on_a_value_does_not_tell_it(
    database: str, store_dir: Path, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A row filter that cannot be computed for one row: the server quotes that row's value."""
    execute(
        database,
        "CREATE TABLE notes (id int PRIMARY KEY, path text[])",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
        fill_in("INSERT INTO notes VALUES (1, '{0}'), (2, '{@mark}')"),
        "CREATE PUBLICATION acme_shop FOR TABLE notes WHERE (('[1, 2]'::jsonb #- path) IS NOT NULL)",
    )
    site = Site.at(store_dir, database)
    site.init()
    with RunningCapture(site) as capture:
        error = capture.ended()
        capture.forgive()
    assert isinstance(error, TailraceError) and "reading table public.notes" in str(error)
    assert_reported(str(error), shown, of="first load")
    report = disclosure.traceback_of(error) + caplog.text + repr(capture.status)
    assert has_mark(report) == shown


class Ordered(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int
    notes: dict[str, int] = {}


@pytest.fixture(scope="module")
def ordered() -> type[BaseModel]:
    return event("disclosure-ordered")(Ordered)


def decode_stored(kind: EventType, text: str) -> object:
    return read_events(kind, text, Place(Stream("disclosed", "1"), 1, UUID(int=1)))


def test_errors_of_events_keys_and_messages_do_not_quote_them(ordered: type[BaseModel], shown: bool) -> None:
    nul = Ordered.model_construct(amount=1, notes={f"{MARK}\0": 1})
    actions: dict[str, Callable[[], object]] = {
        "a value": lambda: decode_stored(event_type_of(ordered), f'{{"amount": "{MARK}"}}'),
        "a key of a dictionary": lambda: decode_stored(
            event_type_of(ordered), f'{{"amount": 1, "notes": {{"{MARK}": "x"}}}}'
        ),
        "an unknown field": lambda: decode_stored(event_type_of(ordered), f'{{"amount": 1, "{MARK}": 2}}'),
        "a NUL": lambda: codec_of(type(nul)).encode(nul),
        "a key": lambda: key_name(MARK, ["id"], pa.schema([("id", pa.int64())]), "totals"),
    }
    for name, action in actions.items():
        with pytest.raises(TailraceError) as raised:
            action()
        assert has_mark(str(raised.value)) == shown, f"{name}: {raised.value}"
    failed = f'{{"v": 2, "changed": "failed", "command": "ALTER", "error": "invalid value \\"{MARK}\\""}}'
    for content in (failed, f'{{"v": 2, "changed": "{MARK}", "command": ""}}'):
        assert_reported(parse(content.encode()).error, shown, of=content)


def test_a_traceback_has_frames_and_no_text_of_a_foreign_exception(shown: bool) -> None:
    def convert() -> None:
        try:
            pa.array([MARK]).cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise KeyError(MARK) from error

    with pytest.raises(KeyError) as raised:
        convert()
    report = disclosure.traceback_of(raised.value)
    assert report.count("Traceback") == 2 and "in convert" in report and "pyarrow.lib.ArrowInvalid" in report
    assert_reported(report, shown, of="a traceback")

"""What holds for a Postgres sink beside the contract: the view, what is said before building, other people's tables."""

from __future__ import annotations

import random
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from tailrace.eventstore.errors import (
    DifferenceFound,
    Fenced,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections.sinks.contract import HeldByReaders, ResumableLoad, Sink
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.postgres import view
from tailrace.projections.sinks.postgres.check import published_by
from tailrace.projections.sinks.postgres.connect import begin, explain
from tailrace.projections.sinks.specs import PostgresTable
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.fixtures.servers import ServerFactory
from tests.projections.sinks.sink_data import SCHEMA, apply, fence, fill, rows_of, target

pytestmark = pytest.mark.usefixtures("values_shown")

ANNA = {"customer_id": 1, "name": "Anna", "total": Decimal("10.50")}
BERT = {"customer_id": 2, "name": "Bert", "total": None}
WITH_CITY = SCHEMA.append(pa.field("city", pa.string()))


def sink_at(dsn: str, table: str = "totals", schema: str = "public", **options: Any) -> Sink:
    sinks = {"mart": SinkSettings(kind="postgres", dsn=SecretStr(dsn))}
    return open_sink(PostgresTable("mart", table, schema, **options), Settings(sinks=sinks))


@pytest.fixture
def sink(database: str) -> Sink:
    return sink_at(database)


def query(dsn: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def problems(sink: Sink, *, schema: pa.Schema = SCHEMA, generation: int = 2) -> str:
    with pytest.raises(OperatorError) as caught:
        sink.check(target(generation, schema=schema))
    return str(caught.value)


def test_readers_see_the_view_with_the_types_of_the_output(sink: Sink, database: str) -> None:
    fill(sink, target(), [ANNA, BERT])
    sink.promote(target(), None)
    assert query(database, "SELECT * FROM totals ORDER BY 1") == [
        (1, "Anna", Decimal("10.50")),
        (2, "Bert", None),
    ]
    types = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'totals'::regclass ORDER BY attnum"
    )
    assert query(database, types) == [("bigint",), ("text",), ("numeric(12,2)",)]


def test_generation_tables_are_logged_and_keyed(database: str) -> None:
    sink = sink_at(database, indexes=(("name",), ("total", "name")))
    fill(sink, target(), [ANNA])
    assert query(database, "SELECT relpersistence FROM pg_class WHERE relname = 'totals__g1'") == [("p",)]
    found = query(
        database, "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'totals__g1'::regclass"
    )
    text = " ".join(str(row[0]) for row in found)
    assert all(columns in text for columns in ("(customer_id)", "(name)", "(total, name)"))


def test_promotion_keeps_owner_grants_options_and_dependents(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    query(
        database,
        "CREATE ROLE reader; GRANT SELECT ON totals TO reader;"
        "ALTER VIEW totals SET (security_barrier = true);"
        "CREATE VIEW report AS SELECT sum(total) AS total FROM totals",
    )
    look = "SELECT relowner, relacl::text, reloptions FROM pg_class WHERE relname = 'totals'"
    before = query(database, look)
    try:
        fill(sink, target(2, schema=WITH_CITY), [ANNA | {"total": Decimal(7), "city": "Ulm"}])
        sink.promote(target(2, schema=WITH_CITY), 1)
        assert query(database, look) == before
        assert query(database, "SELECT * FROM report") == [(Decimal("7.00"),)]
        assert query(database, "SELECT * FROM totals") == [(1, "Anna", Decimal("7.00"), "Ulm")]
    finally:
        query(database, "DROP OWNED BY reader; DROP ROLE reader")


def test_going_back_to_before_a_column_existed_shows_it_as_null(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    fill(sink, target(2, schema=WITH_CITY), [ANNA | {"city": "Ulm"}])
    sink.promote(target(1), None)
    sink.promote(target(2, schema=WITH_CITY), 1)
    sink.promote(target(1), 2)
    assert query(database, "SELECT * FROM totals") == [(1, "Anna", Decimal("10.50"), None)]
    assert sink.check(target(3)) == [], "readers have it as NULL already: the same can be built again"
    assert "'total' is gone" in problems(sink, schema=SCHEMA.remove(2), generation=3)
    sink.promote(target(2, schema=WITH_CITY), 1)
    assert query(database, "SELECT city FROM totals") == [("Ulm",)]


def test_columns_the_view_cannot_take_are_said_before_building(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    changed = SCHEMA.set(1, pa.field("name", pa.int32())).remove(2)
    said = problems(sink, schema=changed)
    assert "'name' changes from text to integer" in said
    assert "'total' is gone" in said
    assert "DROP VIEW" in said
    assert sink.check(target(2, schema=WITH_CITY)) == []
    reordered = pa.schema([SCHEMA.field(i) for i in (2, 0, 1)])
    assert sink.check(target(2, schema=reordered)) == []


def test_columns_in_another_order_do_not_disturb_readers(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    reordered = target(2, schema=pa.schema([SCHEMA.field(i) for i in (2, 0, 1)]))
    fill(sink, reordered, [ANNA])
    sink.promote(reordered, 1)
    assert query(database, "SELECT * FROM totals") == [(1, "Anna", Decimal("10.50"))]


def test_a_view_that_cannot_change_is_left_as_it_is(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    other = target(2, schema=SCHEMA.set(1, pa.field("name", pa.int32())))
    fill(sink, other, [ANNA | {"name": 5}])
    with pytest.raises(OperatorError, match="name is text, would be integer"):
        sink.promote(other, 1)
    assert sink.live("acme", "customer_totals") == 1
    assert query(database, "SELECT name FROM totals") == [("Anna",)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE totals (x int)", "is no view"),
        ("CREATE MATERIALIZED VIEW totals AS SELECT 1", "is no view"),
        ("CREATE VIEW totals AS SELECT 1 AS x", "Tailrace did not make"),
        ("CREATE TABLE totals__g2 (x int)", "is not ours"),
    ],
)
def test_what_stands_in_the_way_is_said_and_left_alone(
    sink: Sink, database: str, statement: str, said: str
) -> None:
    query(database, statement)
    relations = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
    before = query(database, relations)
    assert said in problems(sink)
    assert query(database, relations) == before


def test_a_table_that_is_not_ours_is_never_written(sink: Sink, database: str) -> None:
    query(database, "CREATE TABLE totals__g1 (customer_id bigint, name text, total numeric(12,2))")
    with pytest.raises(OperatorError, match="is not ours"):
        sink.create(target())
    sink.drop(target())
    assert query(database, "SELECT count(*) FROM totals__g1") == [(0,)]


def test_two_projections_cannot_share_a_view(sink: Sink) -> None:
    fill(sink, target(1), [ANNA])
    sink.promote(target(1), None)
    other = target(7, projection="other")
    with pytest.raises(OperatorError, match="shows projection 'customer_totals'"):
        sink.check(other)
    fill(sink, other, [BERT])
    with pytest.raises(OperatorError, match="another projection"):
        sink.promote(other, None)
    assert sink.live("acme", "customer_totals") == 1


def test_two_projections_cannot_share_a_generation_table_and_none_is_told_to_drop_the_others(
    sink: Sink,
) -> None:
    fill(sink, target(1), [ANNA])
    for other in (target(1, store="other"), target(1, projection="other")):
        for attempt in (sink.check, sink.create):
            with pytest.raises(OperatorError) as caught:
                attempt(other)
            said = str(caught.value)
            assert (
                "is generation 1 of projection 'customer_totals' of store 'acme': use another table" in said
            )
            assert "drop" not in said
    assert rows_of(sink, target(1)) == [ANNA]


LONG = "".join(
    random.Random(1).choices(string.ascii_letters, k=20_000)
)  # too little repeats to be compressed


def test_an_index_entry_too_long_for_postgres_is_said_to_be_that_and_not_to_be_tried_again(
    database: str,
) -> None:
    sink = sink_at(database, indexes=(("name",),))
    with pytest.raises(UsageError, match="index") as caught:
        fill(sink, target(), [ANNA, BERT | {"name": LONG}])
    assert "hash" in caught.value.hint
    assert "left out" in caught.value.hint
    assert sink.fence(target()) is None
    fill(sink, target(2), [ANNA])
    with pytest.raises(UsageError, match="index"):
        apply(sink, target(2), 10, 11, [BERT | {"name": LONG}])
    assert rows_of(sink, target(2)) == [ANNA], "a refresh leaves what there is"


def test_a_key_too_long_for_postgres_is_said_to_be_that_and_not_to_be_tried_again(sink: Sink) -> None:
    of = target(key=("name",))
    with pytest.raises(UsageError, match="index") as caught:
        fill(sink, of, [ANNA | {"name": LONG}])
    assert "hash" in caught.value.hint


@pytest.mark.parametrize(("columns", "said"), [(1_300, "row is too big"), (1_700, "1600 columns")])
def test_an_output_too_wide_for_postgres_is_said_to_be_that_and_not_to_be_tried_again(
    sink: Sink, columns: int, said: str
) -> None:
    names = ["customer_id", *(f"c{number}" for number in range(columns))]
    wide = target(schema=pa.schema([(name, pa.int64()) for name in names]))
    with pytest.raises(UsageError, match=said) as caught:
        fill(sink, wide, [dict.fromkeys(names, 1)])
    assert "fewer columns" in caught.value.hint


def test_a_statement_too_deep_for_the_server_is_for_its_operator(sink: Sink, database: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(psycopg.Error) as raised:
        connection.execute(("SELECT 1" + "+1" * 100_000).encode())
    assert raised.value.sqlstate == "54001"
    assert isinstance(explain("sink", raised.value), OperatorError)


def test_a_table_that_was_dropped_by_hand_still_is_its_projections(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    query(database, "DROP TABLE totals__g1")
    with pytest.raises(OperatorError, match="is generation 1 of projection 'customer_totals'"):
        sink.create(target(1, projection="other"))


def test_a_name_too_long_for_its_generations_is_said_before_building(database: str) -> None:
    longest = "ü" * 27  # 54 bytes
    fill(sink_at(database, longest), target(999_999), [ANNA])
    assert sink_at(database, longest).check(target(2)) == []
    assert "55 bytes" in problems(sink_at(database, longest + "x"))
    long_column = SCHEMA.append(pa.field("c" * 64, pa.int32()))
    assert "64 bytes" in problems(sink_at(database), schema=long_column)


def test_missing_privileges_are_named(database: str) -> None:
    query(database, "CREATE ROLE poor LOGIN; CREATE SCHEMA mart; CREATE SCHEMA closed")
    try:
        poor = make_conninfo(database, user="poor")
        assert 'GRANT USAGE, CREATE ON SCHEMA "mart" TO "poor"' in problems(sink_at(poor, schema="mart"))
        assert 'CREATE SCHEMA "absent" AUTHORIZATION "poor"' in problems(sink_at(poor, schema="absent"))
        with pytest.raises(OperatorError, match="permission denied"):
            sink_at(poor, schema="mart").create(target())
    finally:
        query(database, "DROP OWNED BY poor; DROP ROLE poor")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dbname": "absent"}, OperatorError),
        ({"user": "nobody_here"}, OperatorError),
        ({"port": "1"}, TransientError),
        ({"host": "no-such-host.invalid"}, TransientError),
    ],
)
def test_a_wrong_dsn_is_explained_without_its_password(
    database: str, change: dict[str, str], kind: type[TailraceError]
) -> None:
    sink = sink_at(make_conninfo(database, **{"password": "geheim", **change}))
    with pytest.raises(kind) as caught:
        sink.fence(target())
    assert caught.value.hint
    assert "sink 'mart'" in str(caught.value)
    assert "geheim" not in repr(caught.value) + str(caught.value)


@pytest.mark.parametrize("dsn", ["host=", "not a dsn geheim", "postgresql://u:geh@eim@/x@localhost/db"])
def test_a_dsn_that_is_none_is_a_usage_error(dsn: str) -> None:
    if dsn == "host=":
        assert sink_at(dsn)
        return
    with pytest.raises(UsageError) as caught:
        sink_at(dsn)
    assert "geh" not in str(caught.value)


def test_its_own_sources_publication_is_refused_and_others_are_remarked(sink: Sink, database: str) -> None:
    query(database, "CREATE PUBLICATION warehouse FOR ALL TABLES")
    assert ["warehouse" in remark for remark in sink.check(target())] == [True]
    query(database, "CREATE PUBLICATION acme_shop FOR TABLES IN SCHEMA public")
    assert "publication 'acme_shop' of its own source" in problems(sink)
    assert sink_at(database, schema="mart").check(target()) != []
    with psycopg.connect(database) as connection:
        assert published_by(connection, "public", "anything") == ["acme_shop", "warehouse"]
        assert published_by(connection, "mart", "anything") == ["warehouse"]


def test_a_publication_that_names_a_table_is_found(sink: Sink, database: str) -> None:
    sink.create(target())
    query(database, "CREATE PUBLICATION acme_shop FOR TABLE totals__g1")
    with psycopg.connect(database) as connection:
        assert published_by(connection, "public", "totals__g1") == ["acme_shop"]
        assert published_by(connection, "public", "totals__g2") == []


def test_values_postgres_cannot_hold_leave_nothing_behind(sink: Sink) -> None:
    fill(sink, target(), [ANNA])
    with pytest.raises(UsageError, match="0x00"):
        apply(sink, target(), 10, 11, [BERT | {"name": "zero \0 byte"}])
    assert rows_of(sink, target()) == [ANNA]
    assert sink.fence(target()) == fence(target(), 10)


def test_an_output_that_is_not_unique_by_its_key_is_refused(sink: Sink) -> None:
    with pytest.raises(UsageError, match=r"\(customer_id\)=\(1\)"):
        fill(sink, target(), [ANNA, ANNA])
    assert rows_of(sink, target()) == []
    assert sink.fence(target()) is None


def test_json_columns_are_checked_and_shown_as_jsonb(database: str) -> None:
    sink = sink_at(database, json=("name",))
    fill(sink, target(), [ANNA | {"name": '{"b":  1, "a": 2}'}])
    sink.promote(target(), None)
    assert rows_of(sink, target())[0]["name"] == '{"b":  1, "a": 2}'
    assert query(database, "SELECT name -> 'b' FROM totals") == [(1,)]
    with pytest.raises(UsageError, match="json"):
        apply(sink, target(), 10, 11, [ANNA | {"name": "{"}])


BEYOND_JSONB = [r'{"a": "\u0000"}', r'"\ud800"', "1e200000", "1e-20000"]
DOCUMENTS = pa.schema(
    [("id", pa.int64()), ("kept", pa.string()), ("name", pa.string()), ("doc", pa.string())]
)


@pytest.mark.versions
@pytest.mark.parametrize("text", BEYOND_JSONB)
def test_json_that_the_view_could_not_show_is_refused_with_its_column(database: str, text: str) -> None:
    """JSON in Postgres' eyes, so that the table would take it, and every reader of the view would fail."""
    sink = sink_at(database, json=("name", "doc"))
    of = target(schema=DOCUMENTS, key=("id",))
    sound = {"id": 1, "kept": text, "name": "null", "doc": None}
    bad = {"id": 2, "kept": text, "name": "{}", "doc": text}
    with pytest.raises(UsageError, match=r"sink 'mart'.* column doc is shown as jsonb") as caught:
        fill(sink, of, [sound, bad])
    assert "json=" in (caught.value.hint or "")
    assert (rows_of(sink, of), sink.fence(of)) == ([], None)
    fill(sink, of, [sound])
    sink.promote(of, None)
    with pytest.raises(UsageError, match="column doc is shown as jsonb"):
        apply(sink, of, 10, 11, [bad])
    assert query(database, "SELECT id, name, doc FROM totals") == [(1, None, None)]
    assert query(database, "SELECT name::text FROM totals") == [("null",)]
    assert sink.fence(of) == fence(of, 10)


def test_a_generation_from_before_json_was_guarded_goes_on_and_refuses_it_too(database: str) -> None:
    sink = sink_at(database, json=("name",))
    fill(sink, target(), [ANNA | {"name": "{}"}])
    ((guard,),) = query(
        database,
        "SELECT conname FROM pg_constraint WHERE conrelid = 'totals__g1'::regclass AND contype = 'c'",
    )
    query(database, f'ALTER TABLE totals__g1 DROP CONSTRAINT "{guard}"')
    apply(sink, target(), 10, 11, [ANNA | {"name": "[]"}])
    with pytest.raises(UsageError, match="column name is shown as jsonb"):
        apply(sink, target(), 11, 12, [ANNA | {"name": BEYOND_JSONB[0]}])
    assert rows_of(sink, target()) == [ANNA | {"name": "[]"}]


def test_a_second_writer_waits_and_is_refused(sink: Sink) -> None:
    fill(sink, target(), [ANNA])
    outcome: list[BaseException] = []

    def second() -> None:
        try:
            apply(sink, target(), 10, 12, [BERT | {"name": "late"}])
        except TailraceError as error:
            outcome.append(error)

    thread = threading.Thread(target=second)
    with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        load.commit()
    thread.join()
    assert [type(error) for error in outcome] == [Fenced]
    assert rows_of(sink, target()) == [ANNA]
    assert sink.fence(target()) == fence(target(), 11)


def test_a_view_held_by_a_reader_is_waited_for_and_nothing_changes(
    sink: Sink, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "LOCK_SECONDS", 0.05)
    fill(sink, target(1), [ANNA])
    fill(sink, target(2), [BERT])
    sink.promote(target(1), None)
    with psycopg.connect(database) as reader:
        reader.execute("SELECT * FROM totals")
        with pytest.raises(HeldByReaders, match="held by open transactions"):
            sink.promote(target(2), 1)
        assert sink.live("acme", "customer_totals") == 1
        monkeypatch.setattr(view, "LOCK_SECONDS", 60)
        timer = threading.Timer(0.1, reader.rollback)
        timer.start()
        sink.promote(target(2), 1)
        timer.join()
    assert query(database, "SELECT name FROM totals") == [("Bert",)]


def test_a_promotion_never_queues_behind_a_long_reader_where_everybody_else_would_wait_for_it(
    sink: Sink, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "LOCK_SECONDS", 3600)  # the wait that there is not
    monkeypatch.setattr(view, "LONG_SECONDS", 0)
    fill(sink, target(1), [ANNA])
    fill(sink, target(2), [BERT])
    sink.promote(target(1), None)
    with psycopg.connect(database, application_name="report") as reader:
        reader.execute("SELECT * FROM totals")
        who = rf"server process {reader.info.backend_pid} \(report, idle in transaction\) for \d+ s"
        with pytest.raises(HeldByReaders, match=who):
            sink.promote(target(2), 1)
    sink.promote(target(2), 1)
    assert query(database, "SELECT name FROM totals") == [("Bert",)]


def test_a_promotion_beside_another_one_says_so_and_blames_no_reader(
    sink: Sink, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "LOCK_SECONDS", 0.05)
    fill(sink, target(1), [ANNA])
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE tailrace_live IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(HeldByReaders, match="another promotion into schema public goes on"):
            sink.promote(target(1), None)
    sink.promote(target(1), None)
    assert query(database, "SELECT name FROM totals") == [("Anna",)]


def test_a_table_that_something_else_reads_is_not_dropped(sink: Sink, database: str) -> None:
    fill(sink, target(1), [ANNA])
    query(database, "CREATE VIEW mine AS SELECT * FROM totals__g1")
    with pytest.raises(OperatorError, match="mine"):
        sink.drop(target(1))
    assert rows_of(sink, target(1)) == [ANNA]
    assert sink.fence(target(1)) == fence(target(1), 10)


def test_readers_of_a_retired_table_hardly_wait_for_one_that_keeps_it_from_being_dropped(
    sink: Sink, database: str
) -> None:
    fill(sink, target(1), [ANNA])
    with psycopg.connect(database) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT * FROM totals__g1")
        dropped = pool.submit(sink.drop, target(1))
        while not somebody_waits_for_a_lock(database):
            assert not dropped.done()
        with psycopg.connect(database) as other:
            other.execute("SET lock_timeout = '5s'")
            assert other.execute("SELECT name FROM totals__g1").fetchall() == [("Anna",)]
        assert isinstance(dropped.exception(), TransientError)
    sink.drop(target(1))


def test_an_immediate_stop_after_a_commit_loses_nothing(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    sink = sink_at(server.dsn())
    fill(sink, target(), [ANNA, BERT])
    server.restart("immediate")
    assert rows_of(sink, target()) == [ANNA, BERT]
    assert sink.fence(target()) == fence(target(), 10)
    apply(sink, target(), 10, 11, [ANNA | {"name": "Anne"}], [{"customer_id": 2}])
    sink.promote(target(), None)
    server.restart("immediate")
    assert rows_of(sink, target()) == [ANNA | {"name": "Anne"}]
    assert sink.fence(target()) == fence(target(), 11)
    assert sink.live("acme", "customer_totals") == 1
    assert query(server.dsn(), "SELECT name FROM totals") == [("Anne",)]


def test_a_stop_in_the_middle_of_a_step_leaves_the_step_before(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    sink = sink_at(server.dsn())
    fill(sink, target(), [ANNA])

    def stopped_before_the_commit() -> None:
        with sink.load(target(), fence(target(), 10), fence(target(), 11)) as load:
            server.restart("immediate")
            load.commit()

    with pytest.raises(TransientError):
        stopped_before_the_commit()
    assert rows_of(sink, target()) == [ANNA]
    assert sink.fence(target()) == fence(target(), 10)


@pytest.mark.parametrize(
    "tampering",
    [
        "DROP VIEW totals",
        "CREATE OR REPLACE VIEW totals AS SELECT customer_id, name, total FROM totals__g1 WHERE total > 0",
        "CREATE TABLE other (LIKE totals__g1);"
        "CREATE OR REPLACE VIEW totals AS SELECT customer_id, name, total FROM other",
    ],
)
def test_a_view_that_somebody_else_made_shows_no_generation_until_it_is_promoted_again(
    sink: Sink, database: str, tampering: str
) -> None:
    fill(sink, target(), [ANNA, BERT])
    sink.promote(target(), None)
    assert sink.live("acme", "customer_totals") == 1
    query(database, tampering)
    assert sink.live("acme", "customer_totals") is None
    sink.promote(target(), None)
    assert sink.live("acme", "customer_totals") == 1
    assert query(database, "SELECT customer_id FROM totals ORDER BY 1") == [(1,), (2,)]


def test_a_live_table_dropped_by_hand_is_replaced_by_the_next_generation(sink: Sink, database: str) -> None:
    fill(sink, target(), [ANNA])
    sink.promote(target(), None)
    query(database, "DROP TABLE totals__g1 CASCADE")
    assert sink.fence(target()) is None
    assert sink.live("acme", "customer_totals") is None
    fill(sink, target(2), [ANNA, BERT])
    sink.promote(target(2), None)
    assert query(database, "SELECT count(*) FROM totals") == [(2,)]


def test_a_table_dropped_by_hand_is_filled_again_from_its_first_step(sink: Sink, database: str) -> None:
    fill(sink, target(), [ANNA])
    query(database, "DROP TABLE totals__g1")
    fill(sink, target(), [ANNA])
    apply(sink, target(), 10, 11, [BERT])
    assert rows_of(sink, target()) == [ANNA, BERT]


def test_columns_that_somebody_changed_are_a_difference(sink: Sink, database: str) -> None:
    fill(sink, target(), [ANNA])
    query(database, "ALTER TABLE totals__g1 ALTER total TYPE text; UPDATE totals__g1 SET total = 'much'")
    with pytest.raises(DifferenceFound, match=r"total is text, was numeric\(12,2\)"):
        rows_of(sink, target())
    with pytest.raises(DifferenceFound, match=r"total is text, was numeric\(12,2\)"):
        apply(sink, target(), 10, 11, [BERT])
    query(database, "ALTER TABLE totals__g1 RENAME total TO sum")
    with pytest.raises(DifferenceFound, match="total is gone"):
        rows_of(sink, target())


def test_of_two_that_load_a_generation_one_is_fenced_and_its_rows_are_there_once(
    sink: Sink, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other waits for the row's lock, and gets it as soon as a bucket is committed: whoever of two is woken first
    depends on the scheduler, so the first one waits for the other there."""
    of = target()
    sink.create(of)
    rows = [{"customer_id": number, "name": None, "total": None} for number in range(40)]
    step = SinkStep(fence(of, 10), tuple(rows))
    parts = list(pieces(of, step))

    def other() -> None:
        with sink.load(of, None, step.to) as load:
            assert isinstance(load, ResumableLoad)
            for part in parts:
                if part[0] not in load.done:
                    load.write(*part)
            load.commit()

    waiting = threading.Thread(target=other)

    def begin_after_the_other(connection: psycopg.Connection) -> None:
        if threading.current_thread() is not waiting:
            waiting.join()
        begin(connection)

    monkeypatch.setattr("tailrace.projections.sinks.postgres.load_progress.begin", begin_after_the_other)

    def mine() -> None:
        with sink.load(of, None, step.to) as load:
            assert isinstance(load, ResumableLoad)
            for part in parts:
                load.write(*part)
                if not waiting.ident:
                    waiting.start()
                    while not somebody_waits_for_a_lock(database):
                        assert waiting.is_alive()
                load.bucket_done(part[0])

    with pytest.raises(Fenced, match="another process loads it, too"):
        mine()
    assert sink.fence(of) == step.to
    assert [row["customer_id"] for row in rows_of(sink, of)] == list(range(40))


def somebody_waits_for_a_lock(dsn: str) -> bool:
    """A client of this database; autovacuum may, too."""
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND backend_type = 'client backend'"
    )
    return query(dsn, waiting) != []

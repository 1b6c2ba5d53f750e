"""What the event trigger tells of DDL, and what becomes of it: identity is exact, nothing is read again in vain."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tailrace.cdc.columnar.decode import BlockDecoder, DecodedEpoch
from tailrace.cdc.columnar.schema_change import ChangeKind
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire import ddl_message
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.settings import PostgresSourceSettings
from tests.cdc.messages import INT4, INT8, SOURCE, TEXT, Stream, Table, decoder, trigger_message

T = Table(500, "t", [("id", INT8, -1, True), ("a", TEXT, -1, False), ("b", TEXT, -1, False)])
OTHER = Table(501, "other", [("id", INT8, -1, True)])


def change_message(change: str, relid: int, **more: Any) -> pg.Message:
    data = {"v": 2, "command": "ALTER TABLE", "changed": change, "relid": relid} | more
    return pg.Message(True, 0, ddl_message.PREFIX, json.dumps(data).encode())


def change_kinds(decoded: DecodedEpoch) -> list[set[ChangeKind]]:
    return [set(change.kinds) for change in decoded.changes]


def no_catalog(*tables: Table) -> BlockDecoder:
    """A decoder whose catalog must not be asked."""

    def never(relation: pg.Relation) -> None:
        raise AssertionError("the catalog was asked")

    return BlockDecoder(SOURCE, {table.topic: table.topic_schema for table in tables}, never, Policies())


EXCHANGED = replace(T, columns=[T.columns[0], ("b", TEXT, -1, False), ("a", TEXT, -1, False)])
ANEW = replace(T, columns=[T.columns[0], ("b", TEXT, -1, False), ("a", TEXT, -1, False)])


def test_columns_that_exchange_their_names_keep_their_identity() -> None:
    stream = Stream()
    stream.transaction(trigger_message(EXCHANGED), EXCHANGED.relation, pg.Insert(500, (b"1", b"x", b"y")))
    decoded = no_catalog(T).decode(stream.block())
    ((_, schema),) = decoded.new_schemas
    assert [(column.id, column.name) for column in schema.columns] == [(1, "id"), (2, "b"), (3, "a")]
    assert change_kinds(decoded) == [{ChangeKind.RENAMED}]


def test_a_column_dropped_and_added_again_is_another_column() -> None:
    stream = Stream()
    stream.transaction(trigger_message(ANEW, [1, 3, 4]), ANEW.relation, pg.Insert(500, (b"1", b"x", b"y")))
    decoded = no_catalog(T).decode(stream.block())
    ((_, schema),) = decoded.new_schemas
    assert [(column.id, column.name) for column in schema.columns] == [(1, "id"), (3, "b"), (4, "a")]
    assert change_kinds(decoded) == [{ChangeKind.ADDED, ChangeKind.DROPPED}]


def test_a_version_begins_with_its_ddl_and_rows_of_one_transaction_are_split_there() -> None:
    stream = Stream()
    lsn = stream.transaction(
        T.relation, pg.Insert(500, (b"1", b"x", b"y")),
        trigger_message(EXCHANGED), EXCHANGED.relation, pg.Insert(500, (b"2", b"x", b"y")),
    )  # fmt: skip
    decoded = no_catalog(T).decode(stream.block())
    assert [(part.version, part.rows.num_rows) for part in decoded.rows] == [(1, 1), (2, 1)]
    assert decoded.changes[0].current.from_lsn == lsn
    stream.transaction(trigger_message(T))  # and without any row
    decoded = no_catalog(EXCHANGED).decode(stream.block())
    assert [schema.version for _, schema in decoded.new_schemas] == [2] and not decoded.rows


def test_a_description_that_says_nothing_new_is_no_version() -> None:
    stream = Stream()
    stream.transaction(trigger_message(T), trigger_message(OTHER))
    decoded = no_catalog(T).decode(stream.block())
    assert not decoded.changes and not decoded.new_schemas


def test_a_swap_by_rename_is_described_exactly() -> None:
    """If both are captured, each topic goes with its table. If the second is not, the name's new owner is reported."""
    stream = Stream()
    swap = (trigger_message(replace(T, name="old")), trigger_message(replace(OTHER, name="t")))
    stream.transaction(*swap)
    decoded = no_catalog(T, OTHER).decode(stream.block())
    assert [(change.topic, change.table[1], set(change.kinds)) for change in decoded.changes] == [
        (T.topic, "old", {ChangeKind.MOVED}),
        (T.topic, "t", {ChangeKind.TAKEN}),
        (OTHER.topic, "t", {ChangeKind.MOVED}),
    ]
    stream.transaction(*swap)
    assert change_kinds(no_catalog(T).decode(stream.block())) == [{ChangeKind.MOVED}, {ChangeKind.TAKEN}]


@pytest.mark.parametrize(
    ("change", "kind"),
    [("rewritten", ChangeKind.REWRITTEN), ("revalued", ChangeKind.REVALUED), ("dropped", ChangeKind.GONE)],
)
def test_what_the_stream_does_not_show_is_a_change_without_a_version(change: str, kind: ChangeKind) -> None:
    stream = Stream()
    lsn = stream.transaction(change_message(change, 500), change_message(change, 777))
    decoded = no_catalog(T).decode(stream.block())
    assert [(set(each.kinds), each.lsn, each.is_version) for each in decoded.changes] == [
        ({kind}, lsn, False)
    ]
    assert not decoded.new_schemas


def test_a_rewritten_partition_is_its_root() -> None:
    stream = Stream()
    stream.transaction(change_message("rewritten", 900, roots=[800, 500]))
    assert [change.topic for change in no_catalog(T).decode(stream.block()).changes] == [T.topic]


def test_with_a_column_list_the_trigger_gives_identity_and_the_stream_the_columns() -> None:
    listed = replace(T, columns=[T.columns[0], ("a", TEXT, -1, False)])
    stream = Stream()
    stream.transaction(trigger_message(T, [1, 7, 8], partial=True))
    one = no_catalog(replace(listed, columns=[T.columns[0]]))
    assert not one.decode(stream.block()).changes
    stream.transaction(listed.relation, pg.Insert(500, (b"1", b"x")))
    ((_, schema),) = one.decode(stream.block()).new_schemas
    assert [(column.id, column.name) for column in schema.columns] == [(1, "id"), (7, "a")]


def test_what_is_not_what_the_trigger_said_is_read_from_the_catalog() -> None:
    """A trigger that was disabled for a while."""
    added = replace(T, columns=[*T.columns, ("c", INT4, -1, False)])
    stream = Stream()
    stream.transaction(trigger_message(T), added.relation, pg.Insert(500, (b"1", b"x", b"y", b"5")))
    decoded = decoder(T, described=[added]).decode(stream.block())
    assert [(set(each.kinds), each.by_trigger) for each in decoded.changes] == [({ChangeKind.ADDED}, False)]


def test_a_difference_found_at_the_installation_is_in_doubt() -> None:
    stream = Stream()
    stream.transaction(trigger_message(EXCHANGED, command=""))
    assert ChangeKind.UNTOLD in change_kinds(no_catalog(T).decode(stream.block()))[0]


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        10**400,
        -1,
        2**32,
        2**31,
        1 << 15,
        float("inf"),
        float("nan"),
        "\ud800",
        "\0",
        True,
        None,
        [],
        {},
        "x" * 5000,
        [[]],
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    ODD | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def described(message: pg.Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.content)
    return found


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_message_is_understood_or_failed(content: bytes) -> None:
    """Everybody may emit a logical message: none stops the stream."""
    assert ddl_message.parse(content).change is ddl_message.DdlChange.FAILED


@given(
    st.sampled_from(
        ["v", "changed", "command", "relid", "schema", "name", "roots", "key", "columns", "partial"]
    ),
    JSON,
)
def test_a_description_with_any_field_replaced_has_numbers_in_range_or_failed(name: str, value: Any) -> None:
    check_ranges(ddl_message.parse(json.dumps(described(trigger_message(T)) | {name: value}).encode()))


@given(st.sampled_from(["id", "name", "type_oid", "typmod", "type_name", "generated", "fill"]), JSON)
def test_a_column_with_any_field_replaced_has_numbers_in_range_or_failed(name: str, value: Any) -> None:
    data = described(trigger_message(T))
    data["columns"][1][name] = value
    check_ranges(ddl_message.parse(json.dumps(data).encode()))


def check_ranges(message: ddl_message.DdlMessage) -> None:
    assert all(0 <= relid < 1 << 32 for relid in message.relids)
    for column in message.schema.columns if message.schema else ():
        assert (
            0 < column.id < 1 << 15
            and 0 <= column.type_oid < 1 << 32
            and -(1 << 31) <= column.typmod < 1 << 31
        )
        (column.name + column.type_name + (column.fill or "")).encode()


@pytest.mark.parametrize(
    "content",
    [b'{"v": 1e999}', b'{"v": 2, "changed": "", "command": "x", "relid": 1e999}', b"[" * 100_000, b"9" * 5000,
     b'{"v": 2, "changed": "", "command": "\\ud800", "relid": 1}', b'{"v": NaN}', b"\xff"],
    ids=["infinite version", "infinite oid", "deep", "long number", "surrogate", "nan", "no utf-8"],
)  # fmt: skip
def test_an_absurd_message_is_failed(content: bytes) -> None:
    assert ddl_message.parse(content).change is ddl_message.DdlChange.FAILED


@pytest.mark.parametrize(("ids", "key"), [([1, 2, 2], [1]), ([1, 2, 3], [9])], ids=["twice", "key of none"])
def test_columns_that_no_table_can_have_are_failed(ids: list[int], key: list[int]) -> None:
    assert ddl_message.parse(trigger_message(T, ids, key=key).content).change is ddl_message.DdlChange.FAILED


def test_a_message_that_is_not_the_triggers_changes_nothing() -> None:
    stream = Stream()
    stream.transaction(pg.Message(True, 0, ddl_message.PREFIX, b"{}"))
    assert not no_catalog(T).decode(stream.block()).changes


def test_a_message_of_a_later_version_says_so() -> None:
    assert "version 3" in ddl_message.parse(b'{"v": 3}').error


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [((1043, 14), (1043, 24), True), ((1043, 14), (TEXT, -1), True), ((1700, 655366), (1700, -1), True),
     ((INT4, -1), (26, -1), False), ((1114, -1), (1184, -1), False), ((INT4, -1), (INT8, -1), False)],
    ids=["longer", "varchar to text", "numeric", "int4 to oid", "timestamp to timestamptz", "int4 to int8"],
)  # fmt: skip
def test_which_changes_of_type_keep_stored_values(
    old: tuple[int, int], new: tuple[int, int], kept: bool
) -> None:
    assert ddl_message.keeps_values(Column(1, "c", *old), Column(1, "c", *new)) is kept


def test_what_is_left_out_stays_left_out_under_its_new_name() -> None:
    settings = PostgresSourceSettings.model_validate(
        {"dsn": "postgresql://nobody", "columns": {"public.t.a": "drop"}}
    )
    policies = Policies.of(settings)
    renamed = replace(T, columns=[T.columns[0], ("secret", TEXT, -1, False), T.columns[2]])
    stream = Stream()
    stream.transaction(trigger_message(renamed), renamed.relation, pg.Insert(500, (b"1", b"x", b"y")))
    schema = policies.schema(("public", "t"), T.topic_schema)
    decoded = BlockDecoder(SOURCE, {T.topic: schema}, lambda relation: None, policies).decode(stream.block())
    ((_, now),) = decoded.new_schemas
    assert [column.name for column in now.columns] == ["id", "b"]
    assert decoded.rows[0].rows["after"].to_pylist() == [{"id": 1, "b": "y"}]


def test_a_table_that_cannot_be_what_the_trigger_said_is_quarantined_alone() -> None:
    """Its new key is a column that is left out; without the trigger the next row would show the same."""
    policies = Policies.of(PostgresSourceSettings(dsn=SecretStr("dbname=x"), columns={"public.t.a": "drop"}))
    known = {
        T.topic: policies.schema(("public", "t"), T.topic_schema),
        OTHER.topic: OTHER.topic_schema,
    }
    decoding = BlockDecoder(SOURCE, known, lambda relation: None, policies)
    rekeyed = replace(T, columns=[("id", INT8, -1, False), ("a", TEXT, -1, True), ("b", TEXT, -1, False)])
    stream = Stream()
    stream.transaction(trigger_message(rekeyed), OTHER.relation, pg.Insert(501, (b"1",)))
    decoded = decoding.decode_or_quarantine(stream.block())
    (failure,) = decoded.undecodable
    assert failure.topic == T.topic and "part of the key" in str(failure) and failure.frame is None
    assert [rows.topic for rows in decoded.rows] == [OTHER.topic]


@pytest.mark.parametrize("tells", [False, True])
def test_a_column_named_like_one_of_a_state_puts_its_table_into_quarantine(tells: bool) -> None:
    clashing = replace(T, columns=[*T.columns, ("_raw", TEXT, -1, False)])
    stream = Stream()
    stream.transaction(
        *([trigger_message(clashing)] if tells else []), clashing.relation, pg.Insert(500, (b"1", b"x", b"y", b"z")),
        OTHER.relation, pg.Insert(501, (b"1",)),
    )  # fmt: skip
    known = {table.topic: table.topic_schema for table in (T, OTHER)}
    decoding = BlockDecoder(SOURCE, known, lambda relation: clashing.topic_schema, Policies())
    decoded = decoding.decode_or_quarantine(stream.block())
    (failure,) = decoded.undecodable
    assert failure.topic == T.topic and "column _raw of table public.t has the name" in str(failure)
    assert [rows.topic for rows in decoded.rows] == [OTHER.topic]


def test_a_partition_that_moves_concerns_its_topic_only_beside_a_captured_root() -> None:
    stream = Stream()
    stream.transaction(change_message("repartitioned", T.relid, roots=[900]))
    assert change_kinds(no_catalog(T, OTHER).decode(stream.block())) == []
    stream = Stream()
    stream.transaction(change_message("repartitioned", T.relid, roots=[900, OTHER.relid]))
    changes = no_catalog(T, OTHER).decode(stream.block()).changes
    assert {(change.topic, *change.kinds) for change in changes} == {
        (T.topic, ChangeKind.REPARTITIONED), (OTHER.topic, ChangeKind.REPARTITIONED),
    }  # fmt: skip

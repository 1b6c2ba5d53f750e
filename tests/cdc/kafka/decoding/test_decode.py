"""What is no ordinary record: damaged ones, wrong values, and columns of which nothing says what they mean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.fields import Field, field_of
from tailrace.cdc.kafka.decoding.records import told_fields
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.topics.declaration import BinaryMode, Declaration, Form, Modes, TimeMode
from tailrace.eventstore.errors import OperatorError, UsageError
from tests.cdc.kafka.decoding.golden.scenarios import CONFIGURATIONS
from tests.cdc.kafka.decoding.recorded import declaration_of, recorded, rows_of, schema_of, table_of, topic

ITEMS = {
    "id": "bigint",
    "price": "numeric(6,2)",
    "day": "date",
    "data": "bytea",
    "flags": "bit(3)",
    "words": "text[]",
}


def declared(columns: dict[str, str] | None = None, **settings: Any) -> Declaration:
    return Declaration(table=declared_table(columns or ITEMS, ["id"], "public.items"), **settings)


def envelope(op: str = "c", **parts: Any) -> bytes:
    source = {"schema": "public", "table": "items", "txId": 7, "lsn": 9, "ts_us": 1, "snapshot": "false"}
    return json.dumps({"op": op, "source": source, **parts}).encode()


def item(**cells: Any) -> dict[str, Any]:
    return {**dict.fromkeys(ITEMS), "id": 1, **cells}


def decode_items(*records: dict[str, Any], declaration: Declaration | None = None) -> Decoded:
    table = table_of([{"key": b'{"id":1}', **record} for record in records])
    return decode(table, topic("items"), declaration or declared(), None, Place(1))


def reasons(result: Decoded) -> list[str]:
    return [parked.reason for parked in result.parked]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"price": "!"}, "column 'price' is not"),
        ({"price": 1}, "column 'price' is not"),
        ({"day": "2024-01-01"}, "column 'day' is not"),
        ({"day": 1.5}, "column 'day' is not"),
        ({"data": "a"}, "column 'data' is not"),
        ({"flags": "CA=="}, "column 'flags' is not"),
        ({"words": [1]}, "column 'words' is not"),
        ({"words": "{}"}, "column 'words' is not"),
        ({"words": [["a"]]}, "column 'words' is not"),
        ({"id": 2}, "column 'id' of its row is not what its key says"),
        ({"more": 1}, "nothing says what its column 'more' is"),
    ],
)
def test_a_wrong_value_parks_its_record_alone(cells: dict[str, Any], reason: str) -> None:
    good = {"value": envelope(after=item(price="AN4=", day=19782, data="AA==", flags="Bw==", words=["a"]))}
    result = decode_items(good, {"value": envelope(after=item(**cells))}, good)
    assert [parked.offset for parked in result.parked] == [1]
    assert reasons(result)[0].startswith(reason)
    rows = rows_of(result)
    assert len(rows) == 2
    assert rows[0]["after"] == {
        "id": 1, "price": "2.22", "day": "2024-02-29", "data": "b'\\x00'", "flags": "111", "words": ["a"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"value": b"x"}, "its value: not a JSON object"),
        ({"value": envelope("x", after=item())}, "its operation is none of"),
        ({"value": envelope("m", after=item())}, "its operation is none of"),
        ({"value": b'{"ts_ms":1}'}, "its operation is none of"),
        ({"value": envelope(after={"id": 1})}, "it has no column 'price'"),
        ({"value": envelope(after=None)}, "it has no column 'id'"),
        ({"value": envelope(after=item()), "key": None}, "its key: there is no value"),
        ({"value": envelope(after=item()), "key": b"1"}, "its key: not a JSON object"),
        ({"value": envelope(after=item()), "key": b'{"no":1}'}, "its key has a column 'no'"),
        ({"value": envelope(after=item()), "key": b"{}"}, "its key has no column 'id'"),
        ({"value": envelope("d"), "key": b'{"id":"x"}'}, "column 'id' is not"),
        (
            {"value": envelope(after=item()), "headers": [{"name": b"__debezium.oldkey", "value": b"{"}]},
            "its header __debezium.oldkey: the JSON text ends",
        ),
        (
            {"value": envelope(after=item()).replace(b'"items"', b'"others"')},
            "it belongs to another table",
        ),
        ({"value": b'{"schema":{"type":"int32"},"payload":1}'}, "its schema is not one of Kafka Connect"),
    ],
)
def test_a_record_that_is_none_is_parked_with_the_reason(record: dict[str, Any], reason: str) -> None:
    result = decode_items(record, {"value": envelope("d", before=item())})
    assert [parked.offset for parked in result.parked] == [0]
    assert reasons(result)[0].startswith(reason)
    assert [row["_op"] for row in rows_of(result)] == ["d"]


def test_a_flattened_row_of_another_table_is_parked() -> None:
    declaration = declared({"id": "bigint"}, form=Form.FLATTENED)
    ours, other = ({"value": b'{"id":1,"__table":"%s"}' % name} for name in (b"items", b"others"))
    result = decode_items(ours, other, declaration=declaration)
    assert [(parked.offset, parked.reason) for parked in result.parked] == [
        (1, "it belongs to another table")
    ]


def test_nothing_to_do_is_nothing() -> None:
    for records in ([], [{"value": None}], [{"value": b"{"}]):
        result = decode_items(*records)
        assert result.rows == () and result.schemas == () and len(result.origins) == 0


@pytest.mark.parametrize(
    ("columns", "settings", "message", "hint"),
    [
        ({"id": "bigint", "x": "interval"}, {}, "public.items.x", 'declare the column as "bigint"'),
        ({"id": "bigint", "x": "bit varying(5)"}, {}, "public.items.x", 'declare the column as "bytea"'),
    ],
)
def test_what_the_connector_does_not_say_is_refused(
    columns: dict[str, str], settings: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        decode_items({"value": envelope("d")}, declaration=declared(columns, **settings))
    assert hint in caught.value.hint


def test_a_declaration_may_take_what_comes_as_it_is() -> None:
    declaration = declared({"id": "bigint", "x": "bigint"}, modes=Modes())
    result = decode_items({"value": envelope(after={"id": 1, "x": 36572706700000})}, declaration=declaration)
    assert rows_of(result)[0]["after"] == {"id": 1, "x": 36572706700000}


def test_records_without_a_schema_need_a_declaration() -> None:
    with pytest.raises(OperatorError, match="nothing says which columns") as caught:
        decode_items({"value": envelope(after=item())}, declaration=Declaration())
    assert "catalog_dsn" in caught.value.hint


def test_a_table_without_a_key_needs_whole_old_rows() -> None:
    declaration = replace(declared(), table=declared_table({"v": "integer"}, [], "public.items"))
    with pytest.raises(OperatorError, match="has no key"):
        decode_items({"value": envelope(after={"v": 1}), "key": None}, declaration=declaration)
    whole = replace(declaration, full_identity=True)
    result = decode_items({"value": envelope("u", after={"v": 1}), "key": None}, declaration=whole)
    assert reasons(result) == ["it has no old row, and its table no key"]


def test_bytea_as_text_needs_the_mode() -> None:
    told = {
        "schema": {
            "type": "struct",
            "fields": [
                {
                    "type": "struct",
                    "field": "after",
                    "fields": [{"type": "int64", "field": "id"}, {"type": "string", "field": "data"}],
                }
            ],
        },
        "payload": json.loads(envelope(after={"id": 1, "data": "ff"})),
    }
    record = {"value": json.dumps(told).encode()}
    with pytest.raises(OperatorError, match=r"public\.items\.data.*bytea"):
        decode_items(record, declaration=declared())
    result = decode_items(record, declaration=declared(modes=Modes(binary=BinaryMode.HEX)))
    assert rows_of(result)[0]["after"] == {"id": 1, "data": "b'\\xff'"}
    schema = result.schemas[0]
    assert [column.name for column in schema.left_out] == ["price", "day", "flags", "words"]


@pytest.mark.parametrize("told", [False, True])
def test_columns_that_are_left_out_are_ignored(told: bool) -> None:
    whole = declared_table({"id": "bigint", "twice": "bigint"}, ["id"], "public.items")
    table = replace(whole, columns=whole.columns[:1], left_out=whole.columns[1:])
    with_it, without = envelope("r", after={"id": 1, "twice": 2}), envelope(after={"id": 1})
    if told:
        with_it, without = (
            with_schema(each, names) for each, names in ((with_it, ["id", "twice"]), (without, ["id"]))
        )
    result = decode_items({"value": with_it}, {"value": without}, declaration=Declaration(table=table))
    assert result.parked == ()
    assert [schema.version for schema in result.schemas] == [1]
    assert [row["after"] for row in rows_of(result)] == [{"id": 1}, {"id": 1}]


def with_schema(value: bytes, columns: list[str]) -> bytes:
    after = {
        "type": "struct",
        "field": "after",
        "fields": [{"type": "int64", "field": name} for name in columns],
    }
    return json.dumps(
        {"schema": {"type": "struct", "fields": [after]}, "payload": json.loads(value)}
    ).encode()


STRINGS = CONFIGURATIONS["strings"].modes
HEX = Modes(binary=BinaryMode.HEX)


@pytest.mark.parametrize(
    ("type_name", "modes", "parks"),
    [  # as Debezium 3.6 was seen to write them
        *((name, Modes(), False) for name in ("text[]", "varchar(9)[]", "char(9)[]", "json[]", "jsonb[]", "uuid[]")),
        *((name, Modes(), False) for name in ("integer[]", "bigint[]", "bytea[]", "date[]", "bytea", "text", "jsonb")),
        *((name, Modes(), True) for name in ("smallint[]", "inet[]", "numeric[]", "boolean[]", "timestamptz[]")),
        *((name, STRINGS, True) for name in ("date[]", "numeric[]", "bytea[]", "bytea", "time[]")),
        ("bytea", HEX, False),
        ("bytea[]", HEX, True),
        ("date[]", Modes(time=TimeMode.CONNECT), True),
    ],
)  # fmt: skip
def test_a_null_that_may_be_a_value_which_was_not_sent_parks_an_update(
    type_name: str, modes: Modes, parks: bool
) -> None:
    declaration = declared({"id": "bigint", "x": type_name}, modes=modes)
    after = {"id": 1, "x": None}
    result = decode_items(
        {"value": envelope("c", after=after)}, {"value": envelope("u", after=after)}, declaration=declaration
    )
    assert [parked.offset for parked in result.parked] == ([1] if parks else [])
    whole = decode_items(
        {"value": envelope("u", after=after)}, declaration=replace(declaration, full_identity=True)
    )
    assert whole.parked == ()


def test_flattened_rows_cannot_have_columns_named_as_what_surrounds_them() -> None:
    declaration = declared({"id": "bigint", "payload": "text"}, form=Form.FLATTENED)
    with pytest.raises(OperatorError, match="payload"):
        decode_items({"value": b'{"id":1,"payload":"x"}'}, declaration=declaration)


@pytest.mark.parametrize("types", [["integer", "int", "int4"], ["time", "time without time zone"], ["varchar(3)",
    "character varying(3)"], ["numeric(5,-2)", "decimal(5, -2)"], ["timestamptz(3)", "timestamp(3) with time zone"],
    ["text[]"], ["bool", "boolean"]])  # fmt: skip
def test_names_of_a_type_mean_the_same(types: list[str]) -> None:
    columns = [declared_table({"c": each}, ["c"], "t").columns[0] for each in types]
    assert {(column.type_oid, column.typmod, column.arrow) for column in columns} == {
        (columns[0].type_oid, columns[0].typmod, columns[0].arrow)
    }


@pytest.mark.parametrize("table", ["every", "toasted", "whole", "pairs"])
def test_types_as_the_catalog_writes_them_are_the_same_columns(table: str) -> None:
    schema = schema_of(table)
    columns = {
        column.name: column.type_name
        for column in schema.columns
        if column.type_oid < 16384 or column.type_name.rpartition(".")[2] in ("hstore", "citext", "ltree")
    }
    found = {
        column.name: column
        for column in declared_table(
            {name: text.removeprefix("public.") for name, text in columns.items()}, ["id"], table
        ).columns
    }
    for column in schema.columns:
        if column.name in columns:
            assert found[column.name].arrow == column.arrow
            if column.type_oid < 16384:
                same = found[column.name]
                assert (same.type_oid, same.typmod) == (column.type_oid, column.typmod), column.type_name


@pytest.mark.parametrize("text", ["nummeric(1,2)", "mood", "", "text[][]", "time(3", "hstore[]"])
def test_a_type_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"public\.t\.c"):
        declared_table({"c": text}, [], "public.t")


@pytest.mark.parametrize("configuration", ["told", "doubles"])
def test_fields_are_those_that_the_connector_makes(configuration: str) -> None:
    modes = CONFIGURATIONS[configuration].modes
    for table in ("every", "toasted", "whole", "bag", "pairs"):
        record = recorded(configuration)[table]["value"][0].as_py()
        fields = told_fields(json.dumps(json.loads(record)["schema"]).encode(), ("after",))
        assert fields is not None
        for column in schema_of(table).columns:
            made = field_of(column, modes)
            assert made is not None
            assert essence(made) == essence(fields[column.name]), column


def essence(field: Field) -> tuple[object, ...]:
    """What decides how values are read."""
    name = field.name if field.name.rpartition(".")[2] not in ("Json", "Enum", "Ltree", "Tsvector") else ""
    inner = essence(field.items) if field.items else None
    return field.type, name, field.parameter("scale"), inner


DAMAGE = [b"", b'"', b"\\", b"{", b"}", b"[", b",", b":", b"0", b"-1", b"null", b"true", b'""', b"\xff", b"1e999",
          b"9" * 30, b'"__debezium_unavailable_value"', b"\\u0000"]  # fmt: skip


@given(
    table=st.sampled_from(["every", "toasted", "whole", "bag", "pairs"]),
    configuration=st.sampled_from(["defaults", "strings", "rewritten"]),
    data=st.data(),
)
def test_a_damaged_record_is_parked_or_read_and_the_others_do_not_notice(
    table: str, configuration: str, data: st.DataObject
) -> None:
    if table == "bag" and configuration == "rewritten":
        table = "pairs"
    records = recorded(configuration)[table].to_pylist()
    at = data.draw(st.integers(0, len(records) - 1))
    part = data.draw(st.sampled_from(["value", "key", "headers"]))
    new: Any
    if part == "headers":
        old_key = data.draw(st.sampled_from([b"", b"1", b"{}", b'{"id":[]}']))
        new = [{"name": b"__debezium.oldkey", "value": old_key}]
    else:
        new = damaged(records[at][part], data)
    changed = [*records]
    changed[at] = {**records[at], part: new}
    declaration = declaration_of(configuration, table)
    before = decode(pa.Table.from_pylist(records, schema=SCHEMA), topic(table), declaration, None, Place(1))
    after = decode(pa.Table.from_pylist(changed, schema=SCHEMA), topic(table), declaration, None, Place(1))
    parked = {each.offset for each in before.parked}
    assert {each.offset for each in after.parked} - parked <= {at, at + 1}
    near = (at, at + 1)  # a flattened delete is said twice: its echo is dropped only behind it
    assert by_offset(before, near) == by_offset(after, near)


SCHEMA = recorded("defaults")["every"].schema


def damaged(text: bytes | None, data: st.DataObject) -> bytes | None:
    if text is None:
        return data.draw(st.sampled_from([b"", b"{}", b"null", b'{"op":"c"}']))
    at = data.draw(st.integers(0, len(text)))
    end = at + data.draw(st.integers(0, 5))
    return text[:at] + data.draw(st.sampled_from(DAMAGE)) + text[end:]


def by_offset(result: Decoded, but: tuple[int, ...]) -> list[tuple[int, str]]:
    rows = [{**row, "_ordinal": 0} for batch in result.rows for row in batch.rows.to_pylist()]
    offsets = result.origins["offset"].to_pylist()
    return [(offset, repr(row)) for offset, row in zip(offsets, rows, strict=True) if offset not in but]

"""What Debezium wrote of changes gives the rows that native capture has of them.

Debezium itself leaves something out; what, is said here cell by cell, so that nothing else can be lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.topics.declaration import BinaryMode, Declaration, Form
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.kafka.decoding.golden.scenarios import CONFIGURATIONS
from tests.cdc.kafka.decoding.recorded import (
    FULL,
    cells_of,
    declaration_of,
    decoded,
    native_rows,
    recorded,
    rows_of,
    schema_of,
    topic,
)

ENVELOPES = [name for name, settings in CONFIGURATIONS.items() if settings.form is Form.ENVELOPE]
FLATTENED = [name for name in CONFIGURATIONS if name not in ENVELOPES]
IN_BASE64 = [
    name
    for name in ENVELOPES
    if CONFIGURATIONS[name].modes.binary in (BinaryMode.BASE64, BinaryMode.BASE64_URL_SAFE)
]
OF_TABLES = ("pairs", "whole", "bag", "toasted")

Lost = dict[str, dict[int, Any]]
ALWAYS: Lost = {
    "name": dict.fromkeys(range(6)),  # the stream has null for every value of type name
    "timetz": {1: "00:00:00+00"},  # 24:00:00
    "times": {0: ["00:00:00", "23:59:59.999000"]},  # arrays of times lose their microseconds
}
PRECISE: Lost = ALWAYS | {
    "numeric": {2: "0", 3: None, 4: None, 5: None, 11: "1.5"},  # zeros at the end, NaN, infinities
    "n_12_2": {3: None},
    "n_38_38": {0: None},
    "n_5_m2": {2: None},
}
OVERFLOWN: Lost = {"stamp": {7: "b'-9223372036853775810'"}}  # beyond 64 bits of µs: kept as it came
NO_INFINITY: Lost = {"interval": {8: "00:00:00", 9: "00:00:00"}}
LOST: dict[str, Lost] = {
    "defaults": PRECISE | OVERFLOWN,
    "told": PRECISE | OVERFLOWN | NO_INFINITY,
    "strings": ALWAYS | NO_INFINITY | {"time": {1: "00:00:00"}, "time_2": {0: "00:00:00"}},  # 24:00:00
    "doubles": ALWAYS
    | NO_INFINITY
    | {  # microseconds, and what a double does not hold
        "time": {2: "23:59:59.999000", 4: "00:00:00"},
        "stamp": {
            5: "9999-12-31 23:59:59.999000",
            7: "b'294276-12-31 23:59:59.999'",
            8: "1969-12-31 23:59:59.999000",
        },
        "stamps": {0: ["2024-02-29 12:34:56.789000", None]},
        "money": {1: "-$92,233,720,368,547,760.00", 2: "$92,233,720,368,547,760.00"},
        "n_38_38": {2: "b'-1.00000000000000000000000000000000000000'"},
        "numeric": {2: "0", 8: "1" + "0" * 38, 11: "1.5", 12: "12345678901234567000"},
    },
    "micros": PRECISE | OVERFLOWN,
    "nanos": PRECISE | {"stamp": dict.fromkeys(range(2, 8))},  # beyond 64 bits of ns
    "microseconds": PRECISE | OVERFLOWN,
    "rewritten": PRECISE | OVERFLOWN,
}
LOST |= {"avro": LOST["told"], "avro_strings": LOST["strings"], "avro_doubles": LOST["doubles"]}


@pytest.mark.parametrize("configuration", LOST)
def test_values_of_every_type_are_those_of_native_capture(configuration: str) -> None:
    schema = schema_of("every")
    result = decoded(configuration, "every")
    assert result.parked == ()
    found = {row["key"]["id"]: cells_of(row, schema) for row in rows_of(result)}
    expected = {row["key"]["id"]: cells_of(row, schema) for row in native_rows("every")}
    assert found.keys() == expected.keys()
    different: Lost = {}
    for number, cells in found.items():
        for name, cell in cells.items():
            if repr(cell) != repr(expected[number][name]):  # NaN is not equal to itself
                different.setdefault(name, {})[number] = cell
    assert different == LOST[configuration]
    left_out = {column.name for column in schema.columns} - found[0].keys()
    assert left_out <= {"interval"}


@pytest.mark.parametrize("table", OF_TABLES)
@pytest.mark.parametrize("configuration", ENVELOPES)
def test_rows_are_those_of_native_capture(configuration: str, table: str) -> None:
    result = decoded(configuration, table)
    expected = native_rows(table)
    if (
        table == "toasted" and configuration in IN_BASE64
    ):  # then Debezium sends null for bytea that did not change
        lost = [number for number, row in enumerate(expected) if 4 in (row["_unchanged"] or ())]
        assert [parked.reason.split(",")[0] for parked in result.parked] == [
            "its column 'data' is null"
        ] * len(lost)
        expected = [row for number, row in enumerate(expected) if number not in lost]
    else:
        assert result.parked == ()
    assert rows_of(result) == expected


@pytest.mark.parametrize("configuration", FLATTENED)
@pytest.mark.parametrize("table", ["pairs", "toasted"])
def test_flattened_rows_give_the_state_of_native_capture(configuration: str, table: str) -> None:
    result = decoded(configuration, table)
    assert result.parked == ()
    last = max((at for at, row in enumerate(native_rows(table)) if row["_op"] == "t"), default=-1)
    expected = native_rows(table)[:last] if last >= 0 else native_rows(table)  # a truncate is not sent
    found = rows_of(result)
    if last >= 0:
        found = [row for row in found if row["key"]["b"] != "after"]
    assert state(found) == state(expected)
    for one, other in zip(found, expected, strict=True):
        kept = ("key", "after", "_unchanged", "_moved_from", "_raw")
        assert {name: one[name] for name in kept} == {name: other[name] for name in kept}


def test_flattened_rows_with_a_schema_need_no_declaration() -> None:
    declaration = Declaration(Form.FLATTENED)
    records, expected = recorded("flattened")["pairs"], rows_of(decoded("flattened", "pairs"))
    result = decode(records, topic("pairs"), declaration, None, Place(5))
    assert result.parked == () and len(result.schemas) == 1
    assert [by_name(row) for row in rows_of(result)] == [by_name(row) for row in expected]
    deletes = [at for at, value in enumerate(records["value"]) if not value.is_valid]
    for at in deletes:  # none of the records has a schema then
        alone = decode(records[at : at + 1], topic("pairs"), declaration, result.schemas[0], Place(5))
        assert alone.schemas == ()
        assert [row["key"] for row in rows_of(alone)] == [rows_of(result)[at]["key"]]


def by_name(row: dict[str, Any]) -> str:
    """Without the order of columns."""
    return json.dumps(row, sort_keys=True)


@pytest.mark.parametrize("configuration", ["told", "doubles"])
def test_a_schema_that_changes_in_mid_topic_begins_a_version(configuration: str) -> None:
    declaration = Declaration(modes=CONFIGURATIONS[configuration].modes)
    result = decoded(configuration, "altered", declaration)
    columns = [[(column.id, column.name) for column in schema.columns] for schema in result.schemas]
    assert columns == [
        [(1, "id"), (2, "word")],
        [(1, "id"), (2, "word"), (3, "n")],
        [(1, "id"), (3, "n"), (4, "called")],
        [(1, "id"), (4, "called")],
    ]
    assert [batch.version for batch in result.rows] == [1, 2, 3, 4]
    ordinals = [batch.rows["_ordinal"].to_pylist() for batch in result.rows]
    assert ordinals == [[0], [1], [2], [3]]
    assert [row["after"] for row in rows_of(result)] == [
        {"id": 1, "word": "a"},
        {"id": 1, "word": "a", "n": 5},
        {"id": 1, "called": "a", "n": 6},
        {"id": 2, "called": "b"},
    ]


def test_a_column_that_nothing_tells_of_is_not_left_out_silently() -> None:
    result = decoded("defaults", "altered")
    assert [parked.reason for parked in result.parked] == [
        f"nothing says what its column {name!r} is: declare it, or leave it out there"
        for name in ("n", "called", "called")
    ]
    assert [row["after"] for row in rows_of(result)] == [{"id": 1, "word": "a"}]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["every", *OF_TABLES])
@pytest.mark.parametrize("configuration", ["defaults", "told"])
def test_it_does_not_matter_where_batches_end(configuration: str, table: str) -> None:
    records, declaration = recorded(configuration)[table], declaration_of(configuration, table)
    whole = decoded(configuration, table)
    for at in range(0, len(records), 3):
        first = decode(records[:at], topic(table), declaration, None, Place(5))
        latest = first.schemas[-1] if first.schemas else None
        ordinal = sum(len(batch.rows) for batch in first.rows)
        rest = decode(records[at:], topic(table), declaration, latest, Place(5, ordinal))
        assert join(first, rest) == join(whole)
        assert [*first.schemas, *rest.schemas] == [*whole.schemas]


@pytest.mark.parametrize("configuration", ["defaults", "doubles"])
def test_messages_are_those_of_native_capture(configuration: str) -> None:
    declaration = Declaration(Form.MESSAGES, MESSAGE_SCHEMA, CONFIGURATIONS[configuration].modes)
    records = recorded(configuration)["message"]
    result = decode(records, TopicId.messages("shop"), declaration, None, Place(5))
    assert result.parked == () and result.schemas == (MESSAGE_SCHEMA,)
    assert rows_of(result) == native_rows("messages", "pg_logical")
    assert [row["key"]["prefix"] for row in rows_of(result)] == ["mine", "mine", ""]
    assert result.ignored == len(records) - 3


def test_rows_say_where_they_come_from() -> None:
    result = decoded("told", "pairs")
    origins = result.origins.to_pylist()
    rows = [row for batch in result.rows for row in batch.rows.to_pylist()]
    assert len(origins) == len(rows)
    assert [origin["snapshot"] for origin in origins[:5]] == [
        "first_in_data_collection", "true", "true", "true", "last_in_data_collection"
    ]  # fmt: skip
    streamed = origins[5:]
    assert {origin["snapshot"] for origin in streamed} == {"false"}
    assert all(origin["transaction"].partition(":")[0] == str(origin["xid"]) for origin in streamed)
    assert [origin["lsn"] for origin in streamed] == sorted(origin["lsn"] for origin in streamed)
    assert all(origin["commit_lsn"] <= origin["lsn"] for origin in streamed[1:])
    for row, origin in zip(rows, origins, strict=True):
        assert row["_txn"] == (0 if row["_op"] == "r" else origin["xid"])
        assert row["_lsn"] == 5
    assert [row["_ordinal"] for row in rows] == list(range(len(rows)))
    times = [row["_commit_ts"] for row in rows[5:]]
    assert times == sorted(times)


def test_tombstones_say_nothing_new() -> None:
    result = decoded("defaults", "pairs")
    tombstones = recorded("defaults")["pairs"]["value"].null_count
    assert tombstones > 0
    assert result.ignored == tombstones


def test_tables_without_a_declared_identity_take_only_keys_of_old_rows() -> None:
    declaration = declaration_of("told", "whole")
    assert declaration.full_identity and "whole" in FULL
    rows = rows_of(
        decoded("told", "whole", Declaration(declaration.form, declaration.table, declaration.modes))
    )
    assert {row["_before"] for row in rows} == {"none", "key"}
    for row in rows:
        if row["_before"] == "key":
            assert {name for name, cell in row["before"].items() if cell is not None} == {"id"}


def join(*results: Decoded) -> tuple[str, list[Any], int]:
    rows = [row for result in results for batch in result.rows for row in batch.rows.to_pylist()]
    origins = [origin for result in results for origin in result.origins.to_pylist()]
    return repr(rows), origins, sum(result.ignored for result in results)  # NaN is not equal to itself


def state(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last image of each key; None when it was deleted."""
    return {json.dumps(row["key"], sort_keys=True): row["after"] for row in rows}

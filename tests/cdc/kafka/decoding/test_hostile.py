"""What records say of their own columns is bounded before it is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.topics.declaration import Declaration
from tailrace.eventstore.errors import OperatorError
from tests.cdc.kafka.decoding.recorded import rows_of, table_of, topic

ID = {"type": "int32", "field": "id"}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
NOT_READ = "column 'price' is not what its schema or declaration says"
NO_SCHEMA = "its schema is not one of Kafka Connect with this table's columns"
DECLARED = Declaration(table=declared_table({"id": "integer"}, ["id"], "public.items"))


def record(after: dict[str, Any], fields: list[dict[str, Any]] | None = None) -> dict[str, bytes]:
    source = {"txId": 7, "lsn": 1, "snapshot": "false", "ts_us": 1, "schema": "public", "table": "items"}
    envelope: Any = {"op": "c", "before": None, "after": after, "source": source}
    if fields is not None:
        row = {"field": "after", "type": "struct", "fields": fields}
        envelope = {"schema": {"type": "struct", "fields": [row]}, "payload": envelope}
    return {"key": json.dumps({"id": after["id"]}).encode(), "value": json.dumps(envelope).encode()}


def decoded(*some: dict[str, bytes], declaration: Declaration | None = None) -> Decoded:
    return decode(table_of(some), topic("items"), declaration or Declaration(), None, Place(5))


def with_scale(scale: str, value: str = "AQ==", **more: str) -> dict[str, bytes]:
    field = {"type": "bytes", "name": DECIMAL, "field": "price", "parameters": {"scale": scale, **more}}
    return record({"id": 1, "price": value}, [ID, field])


@pytest.mark.parametrize("scale", ["99999999999", "-99999999999", "16384", "-131073"])
def test_a_scale_that_no_number_of_postgres_has_fills_no_memory(scale: str) -> None:
    assert [each.reason for each in decoded(with_scale(scale)).parked] == [NOT_READ]
    variable = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "field": "price"}
    told = record({"id": 1, "price": {"scale": int(scale), "value": "AQ=="}}, [ID, variable])
    assert [each.reason for each in decoded(told).parked] == [NOT_READ]


@pytest.mark.parametrize(("scale", "size"), [("16383", 16_385), ("-131072", 131_073)])
def test_the_longest_that_one_has_are_read(scale: str, size: int) -> None:
    (row,) = rows_of(decoded(with_scale(scale)))
    assert len(row["after"]["price"]) == size


def test_a_precision_that_no_column_has_is_not_taken_for_one() -> None:
    for precision in ("1001", "99999999", "9" * 5000):
        found = decoded(with_scale("2", **{"connect.decimal.precision": precision}))
        assert [column.type_name for column in found.schemas[0].columns] == ["integer", "numeric"]
    with pytest.raises(OperatorError, match="it is not known how bytes"):
        decoded(with_scale("9" * 5000))


@pytest.mark.parametrize(
    "names", [[f"c{number}" for number in range(1601)], ["x" * 256], [""], ["ä" * 128]], ids=len
)
def test_columns_that_no_table_has_are_no_schema(names: list[str]) -> None:
    fields = [ID, *({"type": "string", "field": name} for name in names)]
    odd = record({"id": 1, **dict.fromkeys(names, "v")}, fields)
    found = decoded(odd, record({"id": 2}, [ID]))
    assert [(each.offset, each.reason) for each in found.parked] == [(0, NO_SCHEMA)]
    assert [row["key"] for row in rows_of(found)] == [{"id": 2}]


def test_a_schema_of_many_bytes_is_not_kept() -> None:
    odd = record({"id": 1}, [{**ID, "doc": "x" * (4 << 20)}])
    assert [each.reason for each in decoded(odd).parked] == [NO_SCHEMA]


def test_a_column_of_a_name_that_none_has_is_named_in_few_words() -> None:
    (parked,) = decoded(record({"id": 1, "x" * 100_000: "v"}), declaration=DECLARED).parked
    assert (
        parked.reason.startswith(f"nothing says what its column '{'x' * 60}…'") and len(parked.reason) < 200
    )


def test_a_format_that_changes_in_mid_topic_parks_what_is_of_another_one() -> None:
    """Envelopes with and without a schema are one format; rows alone, Avro of a registry, and text are others."""
    rows = [record({"id": number}) for number in range(4)]
    others = [b'{"id": 1}', b"\x00\x00\x00\x00\x07\x02", b"id=1", b"", b"[]", b'"op"']
    odd = [{"key": b'{"id": 1}', "value": value} for value in others]
    some = [rows[0], *odd[:3], record({"id": 1}, [ID]), *odd[3:], *rows[2:]]
    found = decoded(*some, declaration=DECLARED)
    assert [row["key"]["id"] for row in rows_of(found)] == [0, 1, 2, 3]
    assert [each.offset for each in found.parked] == [1, 2, 3, 5, 6, 7]

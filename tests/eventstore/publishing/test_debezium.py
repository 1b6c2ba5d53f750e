"""What is published as Debezium's JSON is read by the source of the kind kafka as the same rows: every type, each
operation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.topics.declaration import DecimalMode, Declaration, IntervalMode, Modes
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.publishing.formats.debezium import debezium_records
from tailrace.eventstore.publishing.kafka.partitions import partitions_of_keys
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.segment.segment import POSITION_FIELDS
from tests.cdc.kafka.decoding.recorded import FULL, decoded, rows_of, table_of, topic

MODES = Modes(decimal=DecimalMode.STRING, interval=IntervalMode.STRING)


def published(rows: TopicRows, schema: TopicSchema) -> pa.Table:
    """``RECORDS`` of rows that are appended as one epoch of one partition."""
    count = rows.rows.num_rows
    table = rows.rows
    for at, field in enumerate(POSITION_FIELDS):
        numbers = np.arange(count) if field.name == "_offset" else np.zeros(count, np.int64)
        table = table.add_column(at, field, pa.array(numbers, field.type))
    return debezium_records(EpochRows(rows.topic, schema.version, table), schema)


def read_again(records: pa.Table, schema: TopicSchema, table: str) -> Any:
    given = [
        {"key": each["key"], "value": each["value"], "headers": each["headers"]}
        for each in records.to_pylist()
    ]
    return decode(
        table_of(given),
        topic(table),
        Declaration(table=schema, modes=MODES, full_identity=table in FULL),
        None,
        Place(5),
    )


@pytest.mark.parametrize("table", ["every", "pairs", "whole", "bag", "toasted"])
def test_it_is_read_back_as_the_same_rows(table: str) -> None:
    first = decoded("nanos", table)
    (rows,), (schema,) = first.rows, first.schemas
    again = read_again(published(rows, schema), replace(schema, version=1), table)
    assert again.parked == ()
    assert [_without_move(each, schema) for each in rows_of(again)] == [
        _without_move(each, schema) for each in rows_of(first)
    ]


def _without_move(row: dict[str, Any], schema: TopicSchema) -> dict[str, Any]:
    """Nothing says of a row without a key that it was another one before."""
    return {**row, "_moved_from": None} if schema.bag else row


def test_partitions_are_those_that_javas_clients_choose() -> None:
    chosen = random.Random(7)
    keys = [chosen.randbytes(chosen.randrange(40)) for _ in range(2000)]
    found = partitions_of_keys(pa.array(keys, pa.large_binary()), pa.array([0] * len(keys)), 7)
    assert found.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]


def test_murmur2_is_that_of_kafkas_own_tests() -> None:
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    found = partitions_of_keys(pa.array([*known], pa.large_binary()), pa.array([0] * len(known)), 1 << 31)
    assert found.tolist() == [value & 0x7FFFFFFF for value in known.values()]


def test_a_record_without_a_key_goes_by_the_hash_of_its_row() -> None:
    keys = pa.array([None, b"x", None], pa.large_binary())
    found = partitions_of_keys(keys, pa.array([5, 0, -1]), 4)
    assert (found[0], found[2]) == (1, 3)

"""What ``publish`` writes of rows is read as the same rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.topics.declaration import DecimalMode, Declaration, Modes
from tailrace.eventstore.publishing.formats.debezium import debezium_records
from tailrace.eventstore.publishing.records import EpochRows
from tests.cdc.kafka.decoding.recorded import FULL, decoded, rows_of, schema_of, table_of, topic


@pytest.mark.parametrize("table", ["pairs", "whole"])
def test_rows_that_are_published_are_read_as_the_same_rows(table: str) -> None:
    first = decoded("strings", table)
    rows = pa.concat_tables([batch.rows for batch in first.rows])
    count = rows.num_rows
    stored = rows
    for name, kind in (("_partition", pa.int32()), ("_offset", pa.int64()), ("_epoch", pa.int64())):
        stored = stored.append_column(name, pa.array(range(count), kind))
    records = debezium_records(EpochRows(topic(table), 1, stored), first.schemas[-1])
    declaration = Declaration(
        table=schema_of(table), modes=Modes(decimal=DecimalMode.STRING), full_identity=table in FULL
    )
    again = decode(table_of(records.to_pylist()), topic(table), declaration, None, Place(5))
    assert again.parked == ()
    assert rows_of(again) == rows_of(first)

"""How columns lie in a segment file: texts by dictionary, numbers and times as differences; all come back unchanged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eventstore.model import PartitionRange, SegmentRef, TopicId
from eventstore.schema import Column, TopicSchema, change_schema
from eventstore.segment import read_segment, write_segment
from eventstore.storage import LocalStorage

TOPIC = TopicId.table("shop", "public", "orders")
INT8, TEXT, TEXTS, FLOAT = 20, 25, 1009, 701
# A column's name may be the Parquet path of another column's elements.
SCHEMA = TopicSchema(
    1,
    (
        Column(1, "id", INT8, key=True),
        Column(2, "status", TEXT),
        Column(3, "tags", TEXTS),
        Column(4, "tags.list.element", INT8),
        Column(5, "weight", FLOAT),
        Column(6, "tags.list", TEXT),
        Column(7, "note", TEXT),
    ),
)


def rows(count: int) -> pa.Table:
    target = change_schema(SCHEMA)
    after = [
        {
            "id": (-1) ** n * (1 << 62) + n,
            "status": f"s{n % 3}",
            "tags": [f"t{n % 5}", None],
            "tags.list.element": n,
            "weight": n / 7,
            "tags.list": None,
            "note": f"of {n} only" if n % 3 else None,
        }
        for n in range(count)
    ]
    columns = {
        "_hash": pa.array([(n * 0x9E3779B97F4A7C15 & (1 << 63) - 1) for n in range(count)]),
        "_op": pa.repeat("c", count),
        **{name: pa.array(range(count)) for name in ("_lsn", "_txn", "_ordinal")},
        "key": pa.array([{"id": row["id"]} for row in after], target.field("key").type),
        "after": pa.array(after, target.field("after").type),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in target]
    return pa.Table.from_arrays(arrays, schema=target)


def test_numbers_are_differences_and_texts_a_dictionary(tmp_path: Path) -> None:
    storage, written = LocalStorage(tmp_path), rows(1000)
    file = write_segment(storage, TOPIC, 1, written, 1, "segment")
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    chunks = [group.column(at) for at in range(group.num_columns)]
    packed = {chunk.path_in_schema for chunk in chunks if "DELTA_BINARY_PACKED" in chunk.encodings}
    by_dictionary = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    assert {"_lsn", "_txn", "_ordinal", "_commit_ts", "key.id", "after.id"} <= packed
    assert not {"_hash", "after.weight"} & (packed | by_dictionary)
    assert {"_op", "after.status"} <= by_dictionary
    assert "after.note" not in by_dictionary  # no two are the same
    ref = SegmentRef(
        TOPIC,
        1,
        1,
        1,
        1000,
        file.bytes,
        (PartitionRange(0, 0, 1000),),
        path=file.path,
        checksum=file.checksum,
    )
    read = read_segment(storage, ref, SCHEMA).drop_columns(["_partition", "_offset", "_epoch"])
    assert read.equals(written)

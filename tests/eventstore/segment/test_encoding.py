"""How columns lie in a segment file: texts by dictionary, numbers and times as differences; all come back unchanged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.encoding import coded_paths
from tailrace.eventstore.segment.merge import rewrite
from tailrace.eventstore.segment.segment import read_segment, write_segment
from tailrace.eventstore.storage import LocalStorage

TOPIC = TopicId.table("shop", "public", "orders")
ONE_PARTITION = TopicIncarnation(0, 0, 1)
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
    file = write_segment(storage, TOPIC, 1, written, ONE_PARTITION, "segment")
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


def test_what_is_merged_has_dictionaries_by_its_own_row_groups_whatever_the_small_files_had(
    tmp_path: Path,
) -> None:
    storage, refs = LocalStorage(tmp_path), []
    for epoch in range(1, 5):
        file = write_segment(
            storage, TOPIC, 1, rows(3), ONE_PARTITION, f"of-{epoch}"
        )  # three statuses, all different
        ranges = (PartitionRange(0, 3 * (epoch - 1), 3),)
        refs.append(
            SegmentRef(TOPIC, 1, epoch, epoch, 3, file.bytes, ranges, path=file.path, checksum=file.checksum)
        )
        assert "after.status" not in coded_paths(pq.read_metadata(tmp_path / file.path))
    written = rewrite(storage, refs, "merged.parquet", 1 << 20)
    merged = pq.ParquetFile(tmp_path / "merged.parquet")
    assert "after.status" in coded_paths(merged.metadata)
    assert "after.note" in coded_paths(merged.metadata), "two texts, each four times"
    assert merged.read().column("after").to_pylist() == 4 * rows(3).column("after").to_pylist()

    many = write_segment(storage, TOPIC, 1, rows(12), ONE_PARTITION, "many")
    ref = SegmentRef(
        TOPIC, 1, 1, 1, 12, many.bytes, (PartitionRange(0, 0, 12),), path=many.path, checksum=many.checksum
    )
    rewrite(storage, [ref], "again.parquet", 1 << 20)
    found = coded_paths(pq.read_metadata(tmp_path / "again.parquet"))
    assert "after.status" in found and "after.note" not in found, "as long as they are, and slower"
    assert sum(written.counts.values()) == 12

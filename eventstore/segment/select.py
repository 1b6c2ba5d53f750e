"""Some rows of files become files of their own, in the topic's order, a piece at a time.

A file that is written is sorted by (partition, offset) like any other, and holds what came next of all inputs together
until it was worth a file. So no more is decoded than one piece and the rows of the file under way.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import failpoints
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import encoding, file_reader, segment
from tailrace.eventstore.segment.content_hash import Content, content_of
from tailrace.eventstore.segment.merge import Keep, SourceRows
from tailrace.eventstore.storage import Storage

# Of the bytes that may be held: the rows of a file, as many while they are put in order and encoded, and a piece.
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A durable file that nothing names yet. ``ranges`` have the first offset and the number of rows per partition;
    between the offsets there may be gaps. ``lsns``: smallest and largest."""

    path: str
    version: int
    bytes: int
    checksum: str
    rows: int
    ranges: tuple[PartitionRange, ...]
    first_epoch: int
    last_epoch: int
    lsns: tuple[int, int]
    content: Content

    def ref(self, topic: TopicId) -> SegmentRef:
        return SegmentRef(
            topic=topic,
            version=self.version,
            first_epoch=self.first_epoch,
            last_epoch=self.last_epoch,
            rows=self.rows,
            bytes=self.bytes,
            ranges=self.ranges,
            path=self.path,
            sealed=True,
            checksum=self.checksum,
        )


def select_rows(
    storage: Storage,
    inputs: Sequence[SegmentRef],
    keep: Keep,
    name: Callable[[], str],
    memory_bytes: int,
    partitions: Collection[int] | None = None,
) -> Iterator[Part]:
    """Write the rows of ``inputs`` (in the topic's order; of some partitions, or all) for which ``keep`` gives true, as
    files whose paths ``name`` gives. Raises IntegrityError when an input is damaged."""
    pending = _Pending(storage, name)
    for ref in inputs:
        if pending.version not in (None, ref.version):
            yield from pending.flush()
        pending.version = ref.version
        file = SourceRows(storage, ref, memory_bytes // _PARTS)
        try:
            found = {piece.partition for piece in ref.ranges}
            for partition in sorted(found if partitions is None else found.intersection(partitions)):
                for table in file.partition_rows(partition):
                    pending.add(table.filter(keep(table)))
                    if pending.bytes >= memory_bytes // _PARTS:
                        yield from pending.flush()
                        pending.version = ref.version
        finally:
            file.close()
    yield from pending.flush()


@dataclass(slots=True)
class _Pending:
    storage: Storage
    name: Callable[[], str]
    version: int | None = None
    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0

    def add(self, table: pa.Table) -> None:
        if table.num_rows:
            # A copy of its own: a slice would keep the whole piece in memory.
            self.tables.append(table.combine_chunks())
            self.bytes += table.nbytes

    def flush(self) -> Iterator[Part]:
        if self.tables:
            assert self.version is not None
            yield _write(self.storage, self.name(), self.version, pa.concat_tables(self.tables))
        self.tables, self.bytes, self.version = [], 0, None


def _write(storage: Storage, path: str, version: int, rows: pa.Table) -> Part:
    order = np.argsort(rows["_partition"].to_numpy(), kind="stable")
    rows = rows.take(pa.array(order))
    partitions, starts, counts = np.unique(
        rows["_partition"].to_numpy(), return_index=True, return_counts=True
    )
    offsets = rows["_offset"].to_numpy()
    ranges = tuple(
        PartitionRange(int(partition), int(offsets[start]), int(count))
        for partition, start, count in zip(partitions, starts, counts, strict=True)
    )
    out = io.BytesIO()
    with encoding.parquet_writer(
        pa.PythonFile(out, mode="w"), rows.schema, encoding.distinct_texts(rows)
    ) as writer:
        at = 0
        for length in segment.group_lengths([(piece.partition, piece.rows) for piece in ranges]):
            writer.write_table(rows.slice(at, length), row_group_size=segment.ROWS_PER_GROUP)
            at += length
    data = pa.py_buffer(out.getbuffer())
    storage.write(path, data)
    failpoints.hit("segment_written")
    epochs, lsns = (pc.min_max(rows[name]).as_py() for name in ("_epoch", "_lsn"))
    return Part(
        path=path,
        version=version,
        bytes=data.size,
        checksum=file_reader.checksum(data),
        rows=rows.num_rows,
        ranges=ranges,
        first_epoch=epochs["min"],
        last_epoch=epochs["max"],
        lsns=(lsns["min"], lsns["max"]),
        content=content_of(rows),
    )

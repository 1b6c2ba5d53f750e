"""Several files of one topic and version become one, partition by partition, a few thousand rows at a time.

Every input is sorted by (partition, offset), and what is later in the topic's order has the larger offsets: so the
output is, for each partition, the inputs' rows of it one after another. No more is decoded than one piece of one input
and the row group under way. Cells are not interpreted; fresh inputs get the position columns that a sealed file has.

What replaces others is read back first: it must hold the content of its inputs, or nothing is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from sqlalchemy import Row

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.segment import encoding, file_reader, segment
from tailrace.eventstore.segment.content_hash import Content, content_of
from tailrace.eventstore.storage import Storage

# Of the bytes that a rewrite may hold: one part for the row group under way, as much for its encoded columns, the rest
# for the piece being decoded and what Arrow keeps beside.
_PARTS = 6
_PROBE_ROWS = (
    64  # whose size tells how many rows a piece may have; what a file says of itself is before decoding
)


Keep = Callable[[pa.Table], pa.Array | pa.ChunkedArray]
# Gives the very table when nothing of it changes; rows stay in their order.
Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class MergedFile:
    """``counts`` and ``kept``: of the rows that were written, their number by partition and their content."""

    bytes: int
    checksum: str
    contents: tuple[Content, ...]  # of each input
    counts: Mapping[int, int]
    kept: Content


def rewrite(
    storage: Storage,
    inputs: Sequence[SegmentRef],
    path: str,
    memory_bytes: int,
    change: Change | None = None,
) -> MergedFile:
    """Write the rows of ``inputs`` (in the topic's order) as the durable file ``path``, as they are or what ``change``
    makes of them, piece by piece. Raises IntegrityError when an input is damaged or has other columns than the
    first."""
    files = [SourceRows(storage, ref, memory_bytes // _PARTS) for ref in inputs]
    contents = [Content()] * len(files)
    counts: dict[int, int] = {}
    kept = Content()
    try:
        schema = files[0].schema
        for each in files:
            if not each.schema.equals(schema, check_metadata=False):
                raise IntegrityError(
                    f"{each.ref.path} has other columns than {files[0].ref.path} of the same version"
                )
        with storage.create(path) as raw:
            sink = _CheckedRows(raw)
            with (
                pa.PythonFile(sink, mode="w") as out,
                _Groups(out, schema, memory_bytes // _PARTS) as groups,
            ):
                for partition in sorted({piece.partition for ref in inputs for piece in ref.ranges}):
                    for at, each in enumerate(files):
                        for batch in each.partition_rows(partition):
                            content = content_of(batch)
                            contents[at] += content
                            chosen = batch if change is None else change(batch)
                            kept += content if chosen is batch else content_of(chosen)
                            counts[partition] = counts.get(partition, 0) + chosen.num_rows
                            groups.add(chosen)
                    groups.end_partition()
        failpoints.hit("segment_written")
        return MergedFile(sink.bytes, sink.hash.hexdigest(), tuple(contents), counts, kept)
    finally:
        for each in files:
            each.close()


def require_recorded(row: Row[*tuple[Any, ...]], content: Content) -> None:
    """Raises IntegrityError when a file that was read does not hold what its row of ``segments`` says, if that does."""
    if row.content and row.content != content.text:
        raise IntegrityError(
            f"{row.path} does not hold the content that the catalog has of it; nothing was changed",
            hint="`tailrace log verify` says what else is wrong; restore the store from a backup",
        )


def require_content(storage: Storage, written: SegmentRef, expected: Content, memory_bytes: int) -> None:
    """Read a file that is about to replace others. Raises IntegrityError when it does not hold what they hold."""
    rows = SourceRows(storage, written, memory_bytes // _PARTS)
    try:
        found = sum((content_of(piece) for piece in rows.all_rows()), Content())
    finally:
        rows.close()
    if found != expected:
        raise IntegrityError(
            f"{storage.place(str(written.path))} does not hold the rows that it was made of; nothing was replaced",
            hint="report this; the log is as it was",
        )


class SourceRows:
    """The rows of one file with their positions, a bounded piece at a time."""

    def __init__(self, storage: Storage, ref: SegmentRef, piece_bytes: int) -> None:
        self.ref = ref
        self._file = file_reader.open_file(storage, ref)
        self._piece_rows = self._rows_within(piece_bytes)
        metadata = self._file.metadata
        lengths = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self._bounds = np.cumsum([0, *lengths]).tolist()
        stored = self._file.schema_arrow
        self.schema = (
            stored if ref.sealed else pa.schema([*segment.POSITION_FIELDS, *stored], stored.metadata)
        )

    def close(self) -> None:
        self._file.close()

    def _rows_within(self, piece_bytes: int) -> int:
        """How many rows of this file take so many bytes, judged by the first rows of each row group."""
        largest = 1.0
        for group in range(self._file.num_row_groups):
            probe = next(self._file.iter_batches(_PROBE_ROWS, row_groups=[group]), None)
            if probe is not None:
                largest = max(largest, probe.nbytes / probe.num_rows)
        return max(1, int(piece_bytes / largest))

    def all_rows(self) -> Iterator[pa.Table]:
        """All that the file holds, in its order."""
        return self._rows_between(0, self._bounds[-1])

    def partition_rows(self, partition: int) -> Iterator[pa.Table]:
        start = 0
        for piece in self.ref.ranges:
            if piece.partition == partition:
                yield from self._rows_between(start, start + piece.rows)
            start += piece.rows

    def _rows_between(self, first: int, end: int) -> Iterator[pa.Table]:
        for group, (low, high) in enumerate(zip(self._bounds, self._bounds[1:], strict=False)):
            if low >= end or high <= first:
                continue
            at = low
            for batch in self._file.iter_batches(self._piece_rows, row_groups=[group]):
                inside = range(max(first, at), min(end, at + batch.num_rows))
                if inside:
                    table = pa.Table.from_batches([batch]).slice(inside.start - at, len(inside))
                    yield self._add_positions(table, inside.start)
                at += batch.num_rows
                if at >= end:
                    break

    def _add_positions(self, table: pa.Table, first: int) -> pa.Table:
        if not self.ref.sealed:
            ranges = segment.ranges_within(self.ref.ranges, [(first, first + table.num_rows)])
            table = segment.with_positions(table, ranges, self.ref.first_epoch)
        return table.cast(self.schema)


@dataclass(slots=True)
class _Groups:
    """Pieces gathered to row groups: a large partition's own, small neighbours together, each bounded in bytes. The
    first one tells which texts get a dictionary: small inputs could not."""

    out: pa.NativeFile
    schema: pa.Schema
    group_bytes: int
    writer: pq.ParquetWriter | None = None
    pieces: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, piece: pa.Table) -> None:
        self.pieces.append(piece)
        self.rows += piece.num_rows
        self.bytes += piece.nbytes
        if self.rows >= segment.ROWS_PER_GROUP or self.bytes >= self.group_bytes:
            self.flush()

    def end_partition(self) -> None:
        if self.rows >= segment.ROWS_PER_OWN_GROUP:
            self.flush()

    def flush(self) -> None:
        if self.pieces:
            group = pa.concat_tables(self.pieces)
            self._writer(group).write_table(group, row_group_size=self.rows)
        self.pieces, self.rows, self.bytes = [], 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()
            self._writer(self.schema.empty_table()).close()
        elif self.writer is not None:
            self.writer.close()

    def _writer(self, group: pa.Table) -> pq.ParquetWriter:
        if self.writer is None:
            self.writer = encoding.parquet_writer(
                self.out, self.schema, encoding.mostly_distinct_texts(group)
            )
        return self.writer


class _CheckedRows:
    """A file that knows the checksum of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = xxhash.xxh3_128()
        self.bytes = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        self.hash.update(data)
        self._file.write(data)
        self.bytes += len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:  # the storage closes the file, when it has made it durable
        self.closed = True


def joined_ranges(ranges: Sequence[PartitionRange], place: str) -> tuple[PartitionRange, ...]:
    """One range per partition. Raises IntegrityError when offsets are not dense, which upkeep must not hide."""
    joined: dict[int, PartitionRange] = {}
    for following in ranges:
        so_far = joined.get(following.partition)
        if so_far is None:
            joined[following.partition] = following
            continue
        if so_far.first_offset + so_far.rows != following.first_offset:
            raise IntegrityError(
                f"offsets of partition {following.partition} of {place} are not dense at offset "
                f"{following.first_offset}",
                hint="the catalog was changed from outside; restore it from a backup",
            )
        joined[following.partition] = PartitionRange(
            so_far.partition, so_far.first_offset, so_far.rows + following.rows
        )
    return tuple(joined[partition] for partition in sorted(joined))

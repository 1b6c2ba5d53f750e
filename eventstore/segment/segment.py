"""Rows of one topic as immutable bytes: Parquet files, or parts of an epoch's blob. Written once, checked on reading.

Rows are sorted by (partition, commit order), so the partition and the dense offset of a fresh segment's rows follow
from ``SegmentRef.ranges`` and their epoch from the reference; readers add them. Sealed files span epochs and carry
them as columns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.schema import TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import PartitionRange, PreparedSegment, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import encoding
from tailrace.eventstore.segment.file_reader import checksum, damage_error, open_parts
from tailrace.eventstore.segment.row_order import ArrangedRows, arrange, sort_by_commit
from tailrace.eventstore.storage import LocalStorage, Storage

POSITION_FIELDS = (
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_epoch", pa.int64(), nullable=False),
)

# A partition's rows start a new row group once partitions are this large, so that a task reads only its own.
ROWS_PER_OWN_GROUP = 8192
ROWS_PER_GROUP = 131_072
# Parquet cannot hold a struct without fields (the key of a keyless topic): its validity is stored under its name.
_FIELDLESS = b"tailrace:fieldless"
_ZSTD = pa.Codec("zstd", compression_level=encoding.ZSTD_LEVEL)


def folder_of(topic: TopicId, topic_id: int) -> str:
    """Where a topic's files lie."""
    return f"log/{topic.source}/{topic_id}"


def write_segment(
    storage: Storage, topic: TopicId, version: int, rows: pa.Table, incarnation: TopicIncarnation, name: str
) -> PreparedSegment:
    """Write rows (``change_schema``, commit order) as the durable file ``name``.parquet, arranged over the partitions
    of the ``incarnation``.

    Nothing refers to it yet: it becomes visible by the epoch that registers it. Raises IntegrityError when the name
    is taken, OperatorError when the disk refuses.
    """
    return write_arranged(storage, topic, version, arrange(rows, incarnation), name)


def read_prepared(storage: Storage, file: PreparedSegment, schema: TopicSchema) -> pa.Table:
    """The rows of a file that no epoch names, in ``change_schema`` and commit order."""
    ref = SegmentRef(
        topic=file.topic,
        version=file.version,
        first_epoch=0,
        last_epoch=0,
        rows=file.rows,
        bytes=file.bytes,
        ranges=[PartitionRange(partition, 0, rows) for partition, rows in file.counts],
        path=file.path,
        checksum=file.checksum,
    )
    return sort_by_commit(read_segment(storage, ref, schema, change_schema(schema).names))


def write_arranged(
    storage: Storage, topic: TopicId, version: int, arranged: ArrangedRows, name: str
) -> PreparedSegment:
    """``write_segment`` of rows that are in storage order already."""
    path = f"{name}.parquet"
    data = _to_parquet(arranged)
    storage.write(path, data)
    failpoints.hit("segment_written")
    return PreparedSegment(
        topic=topic,
        version=version,
        path=path,
        bytes=data.size,
        rows=arranged.count,
        checksum=checksum(data),
        counts=arranged.counts,
        lsns=arranged.lsns,
        commit_times=arranged.commit_times,
    )


def _to_parquet(arranged: ArrangedRows) -> pa.Buffer:
    table, order = arranged.rows, arranged.order
    fieldless = [field.name for field in table.schema if _is_fieldless(field.type)]
    for name in fieldless:
        table = table.set_column(table.schema.get_field_index(name), name, pc.is_valid(table[name]))
    table = table.replace_schema_metadata({_FIELDLESS: json.dumps(fieldless).encode()} if fieldless else None)
    sink = pa.BufferOutputStream()
    same = _null_columns(table)
    unlike, row_bytes = encoding.distinct_texts(table), table.nbytes // max(table.num_rows, 1)
    with encoding.parquet_writer(sink, table.schema, unlike, row_bytes=row_bytes) as writer:
        start = 0
        for length in group_lengths(arranged.counts):
            part = (
                table.slice(start, length)
                if order is None
                else _take(table, order.slice(start, length), same)
            )
            writer.write_table(part, row_group_size=ROWS_PER_GROUP)
            start += length
    return sink.getvalue()


def _null_columns(table: pa.Table) -> frozenset[str]:
    """Columns that hold nothing but nulls: most rows have no old image, and nothing raw."""
    return frozenset(name for name in table.column_names if table[name].null_count == table.num_rows)


def _take(table: pa.Table, order: pa.Array, same: Collection[str]) -> pa.Table:
    """``table.take(order)``, where the cells of the columns ``same`` are alike."""
    if len(order) > table.num_rows:  # truncates, repeated in each partition
        return table.take(order)
    columns = [
        table[name].slice(0, len(order)) if name in same else table[name].take(order)
        for name in table.column_names
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _is_fieldless(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and kind.num_fields == 0


def group_lengths(counts: Sequence[tuple[int, int]]) -> list[int]:
    """Rows per write, each a whole number of partitions: large partitions alone, small neighbours together."""
    lengths: list[int] = []
    pending = 0
    for _, rows in counts:
        pending += rows
        if pending >= ROWS_PER_OWN_GROUP:
            lengths.append(pending)
            pending = 0
    return [*lengths, pending] if pending or not lengths else lengths


@dataclass(frozen=True, slots=True)
class DecodeHints:
    """What a reader can do without. A column that is a key of ``silent`` may be left out where no row has a value of
    the column it is mapped to. Texts of ``coded`` columns may come as dictionaries."""

    silent: Mapping[str, str] = field(default_factory=dict)
    coded: Collection[str] = ()


_NO_HINTS = DecodeHints()


def read_segment(
    storage: Storage | Path,
    ref: SegmentRef,
    schema: TopicSchema | None = None,
    columns: Collection[str] | None = None,
    partitions: Collection[int] | None = None,
    hints: DecodeHints = _NO_HINTS,
    of: TopicSchema | None = None,
) -> pa.Table:
    """The rows a reference stands for, with ``_partition`` int32, ``_offset`` int64 and ``_epoch`` int64 in front.

    Needs no catalog, so Spark tasks call it. ``columns`` are names of ``change_schema`` or the three above, given back
    in that order (``after.NAME`` decodes only that field of a file's struct; then leave ``schema`` out);
    ``partitions`` restricts the rows and, for files, what is decoded. ``schema`` restores the field metadata (column
    ids, Postgres types) exactly; without it they are those of the file. Rows are in (partition, offset) order. Raises
    IntegrityError, naming the file, when bytes are missing or damaged, and when it has other columns than its version:
    ``of``, or ``schema``.
    """
    wanted = {name.partition(".")[0] for name in columns} if columns is not None else None
    # _op always: a table of no stored column at all would forget how many rows there are.
    needed = None if columns is None else {*columns, "_op", *(("_lsn",) if ref.below_lsn is not None else ())}
    if ref.sealed and needed is not None:
        needed |= {"_epoch"}
    if ref.path is None:
        table, ranges = _read_inline(ref, needed), list(ref.ranges)
    else:
        held = LocalStorage(storage) if isinstance(storage, Path) else storage
        table, ranges = _read_file(held, ref, needed, partitions, hints, of or schema)
    if not ref.sealed:
        table = with_positions(table, ranges, ref.first_epoch)
    if partitions is not None:
        table = _select_partitions(table, ranges, partitions)
    return _shape(_trim(table, ref), schema, wanted)


def encode_part(table: pa.Table) -> pa.Buffer:
    """Rows in storage order as one part of an epoch's blob: a self-contained Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def pack_blob(parts: Sequence[pa.Buffer]) -> tuple[bytes, int]:
    """The parts end to end, compressed as one (the stream headers of small parts repeat), and their plain size."""
    plain = b"".join(part.to_pybytes() for part in parts)
    return _ZSTD.compress(plain, asbytes=True), len(plain)


def unpack_blob(data: bytes, plain_bytes: int, expected: str, place: str) -> bytes:
    """The parts of a blob end to end. Raises IntegrityError (naming ``place``) when the bytes are not those written."""
    if checksum(data) != expected or plain_bytes < 0:
        raise damage_error(place)
    try:
        return bytes(_ZSTD.decompress(data, plain_bytes, asbytes=True))
    except (pa.ArrowException, OSError):  # it has another size
        raise damage_error(place) from None


def _read_inline(ref: SegmentRef, needed: set[str] | None) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(ref.inline or b"")) as reader:
        table = reader.read_all()
    if needed is None:
        return table
    tops = {name.partition(".")[0] for name in needed}
    return table.select([name for name in table.column_names if name in tops])


def _read_file(
    storage: Storage,
    ref: SegmentRef,
    needed: set[str] | None,
    partitions: Collection[int] | None,
    hints: DecodeHints,
    version: TopicSchema | None,
) -> tuple[pa.Table, list[PartitionRange]]:
    whole = needed is None and partitions is None
    with open_parts(storage, ref, whole=whole, coded=hints.coded) as file:
        if version is not None and not has_columns(file.schema_arrow, version):
            text = f"{ref.path}: its columns are not those of version {version.version} of {ref.topic}"
            raise IntegrityError(text, hint="`tailrace log verify` says what else is wrong")
        groups, ranges = _groups_of(file, ref, partitions)
        held = {name: at for at, name in enumerate(file.schema_arrow.names)}
        names = None
        if needed is not None:  # in the file's order: a set has another one in every process
            silent = _silent_columns(file.metadata, groups, hints.silent)
            names = sorted(
                (name for name in needed - silent if name.partition(".")[0] in held),
                key=lambda name: (held[name.partition(".")[0]], name),
            )
        if hints.coded and groups:
            # Each row group has dictionaries of its own, and Arrow reads no struct with several.
            table = pa.concat_tables(file.read_row_group(group, columns=names) for group in groups)
        else:
            table = file.read_row_groups(groups, columns=names)
        metadata = file.schema_arrow.metadata or {}
    for name in json.loads(metadata.get(_FIELDLESS, b"[]")):
        at = table.schema.get_field_index(name)
        if at >= 0:
            valid = table[name].combine_chunks()
            empty = pa.StructArray.from_buffers(pa.struct([]), len(valid), [pa.array(valid).buffers()[1]])
            table = table.set_column(at, pa.field(name, pa.struct([])), empty)
    return table.replace_schema_metadata(None), ranges


def has_columns(held: pa.Schema, version: TopicSchema) -> bool:
    """Whether a file, of which texts may be read as dictionaries, has the columns of its version. Parquet has no struct
    without any, so it may be none."""
    found = held.field("after").type
    if not pa.types.is_struct(found):
        return True
    return [field.name for field in found] == [column.name for column in version.columns] and all(
        pa.types.is_dictionary(field.type) or field.type.equals(column.arrow)
        for field, column in zip(found, version.columns, strict=True)
    )


def _silent_columns(metadata: pq.FileMetaData, groups: Sequence[int], silent: Mapping[str, str]) -> set[str]:
    """The keys of ``silent`` that are mapped to columns without a value in the row groups, as statistics say."""
    with_values = set()
    for group in groups:
        row_group = metadata.row_group(group)
        for at in range(row_group.num_columns):
            chunk = row_group.column(at)
            name = chunk.path_in_schema.partition(".")[0]
            if name in silent.values():
                known = chunk.statistics
                if known is None or not known.has_null_count or known.null_count < chunk.num_values:
                    with_values.add(name)
    return {name for name, said in silent.items() if said not in with_values}


def _groups_of(
    file: pq.ParquetFile, ref: SegmentRef, partitions: Collection[int] | None
) -> tuple[list[int], list[PartitionRange]]:
    """Row groups that hold rows of the wanted partitions, and the ranges of exactly the rows in them."""
    bounds = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
    if partitions is None:
        return list(range(file.num_row_groups)), list(ref.ranges)
    groups: set[int] = set()
    start = 0
    for piece in ref.ranges:
        if piece.partition in partitions:
            first = int(np.searchsorted(bounds, start, side="right")) - 1
            last = int(np.searchsorted(bounds, start + piece.rows, side="left"))
            groups.update(range(first, last))
        start += piece.rows
    chosen = sorted(groups)
    return chosen, ranges_within(ref.ranges, [(int(bounds[g]), int(bounds[g + 1])) for g in chosen])


def ranges_within(ranges: Sequence[PartitionRange], spans: Sequence[tuple[int, int]]) -> list[PartitionRange]:
    """The parts of ``ranges`` (laid end to end) that lie in the row spans."""
    inside: list[PartitionRange] = []
    for low, high in spans:
        start = 0
        for piece in ranges:
            first, last = max(low, start), min(high, start + piece.rows)
            if first < last:
                inside.append(
                    PartitionRange(piece.partition, piece.first_offset + first - start, last - first)
                )
            start += piece.rows
    return inside


def with_positions(table: pa.Table, ranges: Sequence[PartitionRange], epoch: int) -> pa.Table:
    """Rows of one epoch with the columns that a fresh segment does not store. ``ranges`` are those of these rows."""
    rows = sum(piece.rows for piece in ranges)
    if rows != table.num_rows:
        raise IntegrityError(
            f"a segment of epoch {epoch} has {table.num_rows} rows where the catalog says {rows}",
            hint="the catalog and the segments folder do not belong together; restore both from one backup",
        )
    values = (*positions_of(ranges), np.full(rows, epoch, np.int64))
    for at, (column, array) in enumerate(zip(POSITION_FIELDS, values, strict=True)):
        table = table.add_column(at, column, pa.array(array, column.type))
    return table


def positions_of(
    ranges: Sequence[PartitionRange],
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Partition and offset of every row of ranges laid end to end."""
    partition = np.repeat(
        np.array([piece.partition for piece in ranges], np.int32), [piece.rows for piece in ranges]
    )
    pieces = [np.arange(piece.first_offset, piece.first_offset + piece.rows) for piece in ranges]
    offset = np.concatenate(pieces) if pieces else np.zeros(0)
    return partition, offset.astype(np.int64)


def _select_partitions(
    table: pa.Table, ranges: Sequence[PartitionRange], partitions: Collection[int]
) -> pa.Table:
    """The rows of some partitions of those in ``ranges``, laid end to end."""
    if all(piece.partition in partitions for piece in ranges):
        return table
    starts = np.cumsum([0, *(piece.rows for piece in ranges)]).tolist()
    chosen = [
        table.slice(start, piece.rows)
        for piece, start in zip(ranges, starts, strict=False)
        if piece.partition in partitions
    ]
    return pa.concat_tables(chosen) if chosen else table.slice(0, 0)


def _trim(table: pa.Table, ref: SegmentRef) -> pa.Table:
    """The rows of the epochs, and below the LSN, that the reference is limited to."""
    keep = None
    if ref.sealed and table.num_rows:
        epoch = table["_epoch"]
        span = pc.min_max(epoch).as_py()
        if span["min"] < ref.first_epoch or span["max"] > ref.last_epoch:
            keep = pc.and_(pc.greater_equal(epoch, ref.first_epoch), pc.less_equal(epoch, ref.last_epoch))
    if ref.below_lsn is not None:
        below = pc.less(table["_lsn"], ref.below_lsn)
        if ref.sealed:  # LSNs say nothing of the epochs before: they may be of another incarnation
            below = pc.or_(below, pc.less(table["_epoch"], ref.last_epoch))
        if not pc.all(below, min_count=0).as_py():
            keep = below if keep is None else pc.and_(keep, below)
    return table if keep is None else table.filter(keep)


def stored_schema(schema: TopicSchema) -> pa.Schema:
    """``change_schema`` with the position columns in front: the schema of what readers give."""
    return pa.schema([*POSITION_FIELDS, *change_schema(schema)])


def _shape(table: pa.Table, schema: TopicSchema | None, wanted: set[str] | None) -> pa.Table:
    if schema is None:
        return table if wanted is None else table.select([n for n in table.column_names if n in wanted])
    fields = [field for field in stored_schema(schema) if wanted is None or field.name in wanted]
    return pa.Table.from_arrays([table[field.name] for field in fields], schema=pa.schema(fields))

"""The bytes of one file of a result: an Arrow file whose rows are found by the hashes of their keys.

A step looks up few rows in a large file, and many files for a row or two. So a file of this machine is an Arrow file
(the IPC format of the Arrow specification) of few record batches, each sorted by hash, and not compressed: it is mapped
into memory, and nothing is read but the pages that a binary search and the rows themselves are on.

Where whole files come over a network, or hashes are in no order, batches are groups of few rows, compressed with LZ4.
The lowest and highest hash of each is in the schema's metadata.

Arrow keeps what lies under a NULL, for example a value that somebody wanted forgotten. So rows are copied before they
are written, which leaves that behind; under the NULL of a struct it does not, and results with structs are written as
Parquet. So are rows that are too large for an array of texts. So did earlier releases write all, and so does what keeps
the rows of a sink for a comparison.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.projections.generations.difference import HASH, RowNumbers
from tailrace.projections.generations.key_set import Hashes
from tailrace.projections.generations.key_subset import KeySubset

_PIECE_ROWS = 1 << 20
_PIECE_BYTES = 256 << 20
_FALLS_MOST = 16
"""Hashes that are lower than those before. With more of them, rows are in no order."""
_GROUP_ROWS = 1024
_BOUNDS = b"hashes"
"""The lowest hashes of all groups, then the highest ones: 64-bit integers, little-endian."""
_BOUND = np.dtype("<i8")
_PARQUET = b"PAR1"
_BATCH_BYTES_MOST = 1 << 30
"""An array of texts has two gigabytes at most."""


def encode(table: pa.Table, *, mapped: bool) -> pa.Buffer:
    """The bytes of a file with these rows (``_hash`` among the columns). They depend on the rows alone. ``mapped``:
    its readers map it into memory."""
    sink = pa.BufferOutputStream()
    if any(_has_structs(field.type) for field in table.schema):
        return _in_parquet(table, sink)
    hashes = table[HASH].combine_chunks().to_numpy()
    pieces = _ordered_pieces(table, hashes) if mapped else None
    starts = np.arange(0, table.num_rows, _GROUP_ROWS) if pieces is None else pieces
    if pieces is None and _has_large_batch(table, starts):
        return _in_parquet(table, sink)
    metadata = {_BOUNDS: _bounds_of(hashes, starts)} if pieces is None else None
    schema = pa.schema([field.remove_metadata() for field in table.schema], metadata)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if pieces is None else None)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=False):
            writer.write_batch(_copied(table.slice(start, end - start), schema))
    return sink.getvalue()


def _ordered_pieces(table: pa.Table, hashes: Hashes) -> RowNumbers | None:
    """Where pieces of ordered rows begin; None when the rows are in no order, or too different in size."""
    falls = np.flatnonzero(hashes[1:] < hashes[:-1]) + 1
    if len(falls) > _FALLS_MOST:
        return None
    rows = _PIECE_ROWS
    while rows > 1 and rows * table.nbytes > _PIECE_BYTES * table.num_rows:
        rows //= 2
    starts = np.union1d(np.arange(0, len(hashes), rows), falls)
    return None if _has_large_batch(table, starts) else starts


def _bounds_of(hashes: Hashes, starts: RowNumbers) -> bytes:
    if not len(starts):
        return b""
    bounds = np.minimum.reduceat(hashes, starts), np.maximum.reduceat(hashes, starts)
    return np.concatenate(bounds).astype(_BOUND).tobytes()


def _copied(group: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    (batch,) = group.combine_chunks().to_batches()
    return batch.take(pa.array(np.arange(batch.num_rows))).replace_schema_metadata(schema.metadata)


def _has_structs(kind: pa.DataType) -> bool:
    """Whether values have fields of their own; a map's entries do."""
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    return any(_has_structs(kind.field(at).type) for at in range(kind.num_fields))


def _has_large_batch(table: pa.Table, starts: RowNumbers) -> bool:
    parts = zip(starts.tolist(), [*starts[1:].tolist(), table.num_rows], strict=False)
    return table.nbytes > _BATCH_BYTES_MOST and any(
        table.slice(start, end - start).nbytes > _BATCH_BYTES_MOST for start, end in parts
    )


def _in_parquet(table: pa.Table, sink: pa.BufferOutputStream) -> pa.Buffer:
    """In such small groups dictionaries cost more room and time than they save."""
    pq.write_table(
        table.replace_schema_metadata(None),
        sink,
        compression="lz4",
        row_group_size=_GROUP_ROWS,
        use_dictionary=False,
        write_statistics=[HASH],
    )
    return sink.getvalue()


def decode(data: pa.Buffer, some: KeySubset | None = None) -> pa.Table:
    """The rows of a file; with ``some`` at least those of these keys."""
    if bytes(data[: len(_PARQUET)]) == _PARQUET:
        return _decode_parquet(data, some)
    # A thread for each column of a small group takes longer to begin than to decompress it.
    reader = pa.ipc.open_file(pa.BufferReader(data), options=pa.ipc.IpcReadOptions(use_threads=some is None))
    bounds = (reader.schema.metadata or {}).get(_BOUNDS)
    if some is None or (bounds is None and some.hashes is None):
        return reader.read_all().replace_schema_metadata(None)
    if bounds is None:
        pieces = map(reader.get_batch, range(reader.num_record_batches))
        placed = [(piece, some.places(piece[HASH].to_numpy())) for piece in pieces]
        batches = [piece.take(pa.array(places)) for piece, places in placed if len(places)]
    else:
        batches = [reader.get_batch(at) for at in some.groups(*np.frombuffer(bounds, _BOUND).reshape(2, -1))]
    return pa.Table.from_batches(batches, reader.schema).replace_schema_metadata(None)


def _decode_parquet(data: pa.Buffer, some: KeySubset | None) -> pa.Table:
    # Without a buffer in front, which is for files that are far away: the data is here.
    reader = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    if some is None:
        return reader.read(use_threads=False)
    return reader.read_row_groups(some.groups(*_bounds(reader)), use_threads=False)


def _bounds(reader: pq.ParquetFile) -> tuple[Hashes, Hashes]:
    metadata = reader.metadata
    place = reader.schema_arrow.get_field_index(HASH)
    found = [metadata.row_group(at).column(place).statistics for at in range(metadata.num_row_groups)]
    return np.array([each.min for each in found], np.int64), np.array([each.max for each in found], np.int64)

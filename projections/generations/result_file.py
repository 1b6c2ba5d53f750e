"""The bytes of one file of a result: an Arrow file whose rows are found by the hashes of their keys.

A step looks up few rows in a large file, and many files for a row or two. In an Arrow file (the IPC format of the Arrow
specification) a group of rows is opened without reading what describes all others, which in Parquet takes as long as
thousands of rows. Groups are record batches, compressed with LZ4. The lowest and highest hash of each is in the
schema's metadata.

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

_GROUP_ROWS = 1024
_BOUNDS = b"hashes"
"""The lowest hashes of all groups, then the highest ones: 64-bit integers, little-endian."""
_BOUND = np.dtype("<i8")
_PARQUET = b"PAR1"
_GROUP_BYTES_MOST = 1 << 30
"""An array of texts has two gigabytes at most."""


def encode(table: pa.Table) -> pa.Buffer:
    """The bytes of a file with these rows (``_hash`` among the columns). They depend on the rows alone."""
    sink = pa.BufferOutputStream()
    starts = np.arange(0, table.num_rows, _GROUP_ROWS)
    if any(_has_structs(field.type) for field in table.schema) or _has_large_groups(table, starts):
        _write_parquet(table.replace_schema_metadata(None), sink)
        return sink.getvalue()
    hashes = table[HASH].combine_chunks().to_numpy()
    bounds = [np.minimum.reduceat(hashes, starts), np.maximum.reduceat(hashes, starts)] if len(starts) else []
    packed = np.concatenate(bounds).astype(_BOUND).tobytes() if bounds else b""
    schema = pa.schema([field.remove_metadata() for field in table.schema], {_BOUNDS: packed})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for start in starts.tolist():
            writer.write_batch(_copied(table.slice(start, _GROUP_ROWS), schema))
    return sink.getvalue()


def _copied(group: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    (batch,) = group.combine_chunks().to_batches()
    return batch.take(pa.array(np.arange(batch.num_rows))).replace_schema_metadata(schema.metadata)


def _has_structs(kind: pa.DataType) -> bool:
    """Whether values have fields of their own; a map's entries do."""
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    return any(_has_structs(kind.field(at).type) for at in range(kind.num_fields))


def _has_large_groups(table: pa.Table, starts: RowNumbers) -> bool:
    return table.nbytes > _GROUP_BYTES_MOST and any(
        table.slice(start, _GROUP_ROWS).nbytes > _GROUP_BYTES_MOST for start in starts.tolist()
    )


def _write_parquet(table: pa.Table, sink: pa.NativeFile) -> None:
    """In such small groups dictionaries cost more room and time than they save."""
    pq.write_table(
        table,
        sink,
        compression="lz4",
        row_group_size=_GROUP_ROWS,
        use_dictionary=False,
        write_statistics=[HASH],
    )


def decode(data: pa.Buffer, some: KeySubset | None = None) -> pa.Table:
    """The rows of a file; with ``some`` at least those of these keys."""
    if bytes(data[: len(_PARQUET)]) == _PARQUET:
        return _decode_parquet(data, some)
    # A thread for each column of a small group takes longer to begin than to decompress it.
    reader = pa.ipc.open_file(pa.BufferReader(data), options=pa.ipc.IpcReadOptions(use_threads=some is None))
    if some is None:
        return reader.read_all().replace_schema_metadata(None)
    lowest, highest = np.frombuffer(reader.schema.metadata[_BOUNDS], _BOUND).reshape(2, -1)
    batches = [reader.get_batch(at) for at in some.groups(lowest, highest)]
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

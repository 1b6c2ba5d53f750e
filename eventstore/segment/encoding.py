"""How the columns of the log's Parquet files are encoded, by what the cells of changes are like; and which format they
have. (Blobs are rows of the catalog and have its format.)"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.eventstore.errors import OperatorError

# What readers have to know to read a file as it was meant: raised when those of before would misread it. A file of each
# stays readable (tests/eventstore/golden).
FORMAT = 1
_FORMAT = b"tailrace:format"
# Level 1: on change rows the higher levels cost more time than the bytes they save are worth on a local disk.
ZSTD_LEVEL = 1
# Texts are looked at to see whether they repeat: so many at most, and fewer when they are large.
_SAMPLE_ROWS, _SAMPLE_ROWS_MIN, _SAMPLE_BYTES = 2000, 100, 2 << 20
_DISTINCT_MAX = 0.95  # of 2,000: some 20,000 different ones, equally frequent
_DISTINCT_IN_GROUP_MAX = 0.5
_BATCH_ROWS_MAX = 1024  # given to a page at once: Arrow's default
_BATCH_BYTES = 1 << 20


def parquet_writer(
    sink: pa.NativeFile, schema: pa.Schema, unlike: Collection[str] = (), *, row_bytes: int = 0
) -> pq.ParquetWriter:
    """A writer of files of the log: their encodings and compression. ``schema`` is that of the file; ``unlike`` are
    paths of columns whose texts do not repeat; ``row_bytes`` is the size of a row in memory, as far as it is known."""
    leaves = list(_leaves(schema))
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        # Numbers of changes hardly repeat but lie close to each other: against dictionaries for all, files are smaller
        # by 40 % and written in half the time. Texts (states, names) often repeat.
        use_dictionary=[path for path, kind in leaves if _is_text(kind) and path not in unlike],
        column_encoding={path: "DELTA_BINARY_PACKED" for path, kind in leaves if _is_near(path, kind)},
        write_page_checksum=True,  # for who reads a part of the file, and so cannot check the whole
        store_decimal_as_integer=True,  # up to 18 digits; these read more than twice as fast
        # A page ends only between two batches: those of large values are not larger than a megabyte or two.
        write_batch_size=max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // max(row_bytes, 1))),
    )
    mark(writer)
    return writer


def mark(writer: pq.ParquetWriter) -> None:
    """Say in the file which format it has."""
    writer.add_key_value_metadata({_FORMAT: str(FORMAT)})


def require_known(metadata: pq.FileMetaData, place: str) -> None:
    """Raises OperatorError, naming the file's ``place``, when it has a format that this code does not know."""
    found = int((metadata.metadata or {}).get(_FORMAT, b"1"))
    if found > FORMAT:
        raise OperatorError(
            f"{place} has format {found}; this version of Tailrace reads formats up to {FORMAT}",
            hint="install the version that wrote it, or a later one",
        )


def distinct_texts(table: pa.Table) -> list[str]:
    """Paths of columns whose texts do not repeat, by a sample."""
    texts = [path for path, kind in _leaves(table.schema) if _is_text(kind)]
    return [path for path in texts if not _repeats(_leaf(table, path))]


def mostly_distinct_texts(group: pa.Table) -> set[str]:
    """Paths of columns in which more than half of a row group's texts differ: their dictionary would take as much
    room as they do, and a third more time to read."""
    texts = [path for path, kind in _leaves(group.schema) if _is_text(kind)]
    return {path for path in texts if _share_different(_leaf(group, path)) > _DISTINCT_IN_GROUP_MAX}


def coded_paths(metadata: pq.FileMetaData) -> set[str]:
    """Paths of columns that have a dictionary in every row group of a file."""
    found: dict[str, bool] = {}
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for chunk in (group.column(each) for each in range(group.num_columns)):
            path = chunk.path_in_schema
            found[path] = found.get(path, True) and chunk.has_dictionary_page
    return {path for path, coded in found.items() if coded}


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet's path and the Arrow type of the plain columns, also of those in structs. Lists are left out, and names
    with a dot: their path could be another column's."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from (
                (f"{field.name}.{cell.name}", cell.type) for cell in field.type if "." not in cell.name
            )
        else:
            yield field.name, field.type


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _leaf(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The column at a path that ``_leaves`` gives."""
    if path in table.column_names:
        return table[path]
    name, _, cell = path.partition(".")
    return pa.chunked_array([chunk.field(cell) for chunk in table[name].chunks])


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether some of the texts are the same, as far as a sample from all over shows. Where all differ, a dictionary
    costs three times the time of writing them as they are, and the file is larger."""
    rows = len(column)
    each = max(1, column.nbytes // max(rows, 1))
    size = max(_SAMPLE_ROWS_MIN, min(_SAMPLE_ROWS, _SAMPLE_BYTES // each))
    sample = (
        column if rows <= size else column.take(pa.array(np.linspace(0, rows - 1, size).astype(np.int64)))
    )
    return _share_different(sample) <= _DISTINCT_MAX


def _share_different(column: pa.ChunkedArray) -> float:
    """The share of different texts among those that are not NULL; 0 where all are."""
    valid = len(column) - column.null_count
    different: int = pc.count_distinct(column, mode="only_valid").as_py()
    return different / valid if valid else 0.0


def _is_near(path: str, kind: pa.DataType) -> bool:
    """Whole numbers and times, apart from the hash, which is as good as random."""
    return path != "_hash" and bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))

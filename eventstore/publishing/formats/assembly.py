"""Records of rows: keys, values and headers side by side, and the tombstones behind deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.eventstore.model.topic import Op
from tailrace.eventstore.publishing.formats.cells import Cells, Mask
from tailrace.eventstore.publishing.records import HEADERS, RECORDS

BINARY = pa.large_binary()
ERASED = b"tailrace-erased"  # names of erased cells, as a JSON array
Header = tuple[bytes, bytes]


def one_each(cells: Cells, keys: pa.Array, values: pa.Array, headers: pa.Array) -> pa.Table:
    """``RECORDS`` with one for each row."""
    rows = cells.rows
    to_all = pc.equal(rows["_op"], Op.TRUNCATE.value)
    columns = [keys.cast(BINARY), values.cast(BINARY), headers]
    return pa.table(
        [*columns, rows["_partition"], rows["_offset"], rows["_hash"], to_all], schema=RECORDS
    ).combine_chunks()


def with_tombstones(records: pa.Table, deletes: Mask) -> pa.Table:
    """The same with a record without a value behind each delete of a key."""
    tombstones = deletes & records["key"].is_valid().to_numpy()
    counts = 1 + tombstones.astype(np.int64)
    order: NDArray[np.int64] = np.repeat(np.arange(len(tombstones), dtype=np.int64), counts)
    repeated: Mask = np.zeros(len(order), np.bool_)
    repeated[np.cumsum(counts)[tombstones] - 1] = True
    found, again = records.take(pa.array(order)), pa.array(repeated)
    for name, nothing in (("value", pa.scalar(None, BINARY)), ("headers", pa.scalar([], HEADERS))):
        at = RECORDS.get_field_index(name)
        found = found.set_column(at, RECORDS.field(at), pc.if_else(again, nothing, found[name]))
    return found


def deletes_in(cells: Cells) -> Mask:
    found: Mask = pc.equal(cells.column("_op"), Op.DELETE.value).to_numpy(zero_copy_only=False)
    return found


def header_column(count: int, headers: Mapping[int, Sequence[Header]]) -> pa.Array:
    """Headers of so many rows, given by row."""
    found = [[{"name": name, "value": value} for name, value in headers.get(row, ())] for row in range(count)]
    return pa.array(found if headers else [[]] * count, HEADERS)


def same_headers(columns: Sequence[tuple[bytes, pa.Array]], count: int) -> pa.Array:
    """Headers that each of so many rows has, with values that no row lacks."""
    names = pa.array([name for name, _ in columns] * count, BINARY)
    values = pa.concat_arrays([values.cast(BINARY) for _, values in columns])
    by_row = np.arange(len(columns) * count).reshape(len(columns), count).T.ravel()
    items = pa.StructArray.from_arrays(
        [names, values.take(pa.array(by_row))], fields=list(HEADERS.value_type)
    )
    ends = pa.array(np.arange(count + 1, dtype=np.int32) * len(columns), pa.int32())
    return pa.ListArray.from_arrays(ends, items, type=HEADERS)

"""Rows of a result as records: key and row in JSON, as caches have them, and a tombstone for a key that is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.publishing.records import HEADERS, RECORDS
from tailrace.projections.generations.difference import HASH
from tailrace.projections.sinks.rows import json_objects

_PIECE_BYTES = 64 << 20
"""Of rows that become JSON at once: Arrow's arrays of texts hold 2 GiB."""


def upsert_records(rows: pa.Table, key: Sequence[str], bucket: int) -> pa.Table:
    """``RECORDS`` of rows with ``_hash``, in their order."""
    step = max(rows.num_rows * _PIECE_BYTES // max(rows.nbytes, 1), 1)
    pieces = [rows.slice(first, step) for first in range(0, rows.num_rows, step)]
    return _together(
        [_records(each, key, json_objects(each.drop_columns([HASH])), bucket) for each in pieces]
    )


def tombstones(rows: pa.Table, key: Sequence[str], bucket: int) -> pa.Table:
    """``RECORDS`` without values, of rows of which ``_hash`` and the key are looked at."""
    return _together([_records(rows, key, pa.nulls(rows.num_rows), bucket)] if rows.num_rows else [])


def without_values(records: pa.Table) -> pa.Table:
    """The tombstones of the same keys."""
    at = RECORDS.get_field_index("value")
    return records.set_column(at, RECORDS.field(at), pa.nulls(records.num_rows, pa.large_binary()))


def changed_records(old: pa.Table, new: pa.Table) -> pa.Table:
    """What makes the ``old`` records of a bucket the ``new`` ones: records whose key is new or has another value, then
    tombstones. Both have each key once."""
    place = pc.index_in(new["key"], value_set=old["key"].combine_chunks())
    same = pc.equal(new["value"], old["value"].take(place))  # null for a new key
    gone = pc.invert(pc.is_in(old["key"], value_set=new["key"].combine_chunks()))
    return pa.concat_tables(
        [new.filter(pc.invert(pc.fill_null(same, False))), without_values(old.filter(gone))]
    )


def _records(rows: pa.Table, key: Sequence[str], values: pa.Array, bucket: int) -> pa.Table:
    count = rows.num_rows
    keys = json_objects(rows.select(list(key)))
    columns = [
        keys.cast(pa.large_binary()),
        values.cast(pa.large_binary()),
        pa.array([[]] * count, HEADERS),
        pa.array([bucket] * count, pa.int32()),
        pa.array([0] * count, pa.int64()),
        rows[HASH],
        pa.array([False] * count, pa.bool_()),
    ]
    return pa.table(columns, schema=RECORDS)


def _together(pieces: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([RECORDS.empty_table(), *pieces]).combine_chunks()

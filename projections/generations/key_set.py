"""Sets of keys, and the rows that have one of them: what an incremental refresh is restricted to. Pure.

Values are compared in one type for each family, so that an ``int`` of one table and a ``bigint`` of another are the
same key. Values of two families are never equal, even where they print alike; nor are decimals of two scales, which
Spark calls equal although their texts differ. Floating-point columns are no keys: NaN and -0 have several forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model import keys

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Hashes = np.ndarray[Any, np.dtype[np.int64]]

_DIGITS = 38


def family(kind: pa.DataType) -> pa.DataType | None:
    """The type in which values of a type are compared as keys; None for a type that cannot be a key."""
    kinds = pa.types
    if kinds.is_integer(kind):
        return pa.int64()
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return pa.large_string()
    if kinds.is_decimal(kind):
        return pa.decimal128(_DIGITS, kind.scale)
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if kinds.is_time(kind):
        return pa.time64("us")
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return pa.large_binary()
    return kind if kinds.is_boolean(kind) or kinds.is_date32(kind) else None


@dataclass(frozen=True)
class KeySet:
    """Distinct keys without NULL: one column for each part of the key, in the type of its family. ``nulls``: there were
    rows with a NULL, which have no key."""

    table: pa.Table
    nulls: bool = False

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray | pa.Array]) -> KeySet:
        """The keys of rows. A row with a NULL has none."""
        typed = [_to_family(column) for column in columns]
        table = pa.table(typed, names=[str(at) for at in range(len(typed))])
        return cls(_distinct(table), any(column.null_count for column in table.columns))

    @classmethod
    def union(cls, sets: Sequence[KeySet]) -> KeySet:
        """All keys of at least one set."""
        if len(sets) == 1:
            return sets[0]
        table = _distinct(pa.concat_tables([each.table for each in sets]))
        return cls(table, any(each.nulls for each in sets))

    def take(self, rows: Sequence[int]) -> KeySet:
        """The keys at these places."""
        return KeySet(self.table.take(pa.array(rows, pa.int64())))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    @cached_property
    def hashes(self) -> Hashes:
        """The hash of each key (``tailrace.eventstore.model.keys``). If these are whole keys of a result, its column
        ``_hash`` has the same."""
        return _hashes(self.table)

    @cached_property
    def _values(self) -> list[pa.Array]:
        return [pc.unique(column) for column in self.table.columns]

    @cached_property
    def _by_hash(self) -> tuple[Hashes, Hashes]:
        """The places of the keys in the order of their hashes, and the hashes in that order."""
        order = np.argsort(self.hashes, kind="stable")
        return order, self.hashes[order]

    def matches(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> Mask:
        """Which rows have one of the keys."""
        typed = [_to_family(column) for column in columns]
        mask = np.ones(len(typed[0]), np.bool_)
        for column, values in zip(typed, self._values, strict=True):
            mask &= _numpy(pc.is_in(column, value_set=values))
        if len(typed) == 1 or not mask.any():
            return mask
        rows = np.flatnonzero(mask)
        picks = pa.array(rows)
        candidates = [_one(column.take(picks)) for column in typed]
        found = keys.hash_columns([keys.column_texts(column) for column in candidates]).to_numpy()
        mask[rows] = self._confirm(found, candidates)
        return mask

    def _confirm(self, hashes: Hashes, columns: Sequence[pa.Array]) -> Mask:
        """Which rows with these hashes and columns have one of the keys, and not only the hash of one."""
        order, ours = self._by_hash
        at = np.minimum(np.searchsorted(ours, hashes), len(ours) - 1)
        known = ours[at] == hashes
        same: Mask = known.copy()
        there = self.table.take(pa.array(order[at]))
        for column, theirs in zip(columns, there.columns, strict=True):
            same &= _numpy(pc.equal(column, _one(theirs)))
        if (ours[1:] == ours[:-1]).any():  # two keys of one hash, or more: only the first was compared
            every = set(zip(*(column.to_pylist() for column in self.table.columns), strict=True))
            for row in np.flatnonzero(known & ~same).tolist():
                same[row] = tuple(column[row].as_py() for column in columns) in every
        return same


def _to_family(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    kind = family(column.type)
    if kind is None:
        raise TypeError(f"a column of {column.type} is no key")
    return column if column.type == kind else column.cast(kind)


def hashes_of(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Hashes:
    """The hashes of the keys of rows, without NULL, as ``KeySet.hashes`` has them."""
    return _hashes(
        pa.table([_to_family(column) for column in columns], [str(at) for at in range(len(columns))])
    )


def _hashes(table: pa.Table) -> Hashes:
    texts = [keys.column_texts(column.combine_chunks()) for column in table.columns]
    hashes: Hashes = keys.hash_columns(texts).to_numpy()
    return hashes


def _distinct(table: pa.Table) -> pa.Table:
    return table.drop_null().group_by(table.column_names).aggregate([]).combine_chunks()


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numpy(column: pa.ChunkedArray | pa.Array) -> Mask:
    mask: Mask = _one(column).to_numpy(zero_copy_only=False)
    return mask

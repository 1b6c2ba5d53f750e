"""The difference of two keyed tables: what has to be written and deleted so that one becomes the other. Pure Arrow.

Tables hold ``_hash`` (the key's hash, ``tailrace.eventstore.model.keys``) and the columns of the output, sorted by hash
and key. NaN equals NaN, −0 equals 0, and a floating-point column may have a tolerance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HASH = "_hash"
Row = dict[str, Any]
RowNumbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class TableDifference:
    """``upserts`` are rows of the new table that are new (``is_new``) or different, ``deletes`` rows of the old one
    whose key is gone. Of ``rows``, those of both tables, ``standing`` are the ``result``."""

    upserts: pa.Table
    is_new: Mask
    deletes: pa.Table
    rows: pa.Table
    standing: RowNumbers

    @property
    def result(self) -> pa.Table:
        """The old table with upserts and deletes applied: rows within the tolerance stay as the old table has them, so
        that it is exactly what a sink holds."""
        return self.rows.take(pa.array(self.standing)).combine_chunks()

    @property
    def added(self) -> pa.Table:
        return self.upserts.filter(pa.array(self.is_new))

    @property
    def changed(self) -> pa.Table:
        return self.upserts.filter(pa.array(~self.is_new))

    def part(self, upserts: Mask, deletes: Mask) -> TableDifference:
        """That of some keys: these upserts and deletes. Its result is without the rows that did not change."""
        some = self.upserts.filter(pa.array(upserts))
        gone = self.deletes.filter(pa.array(deletes))
        return TableDifference(some, self.is_new[upserts], gone, some, np.arange(some.num_rows))

    @property
    def is_empty(self) -> bool:
        return not (self.upserts.num_rows or self.deletes.num_rows)


def versions(
    difference: TableDifference, old: pa.Table, key: Sequence[str], limit: int
) -> list[tuple[Row | None, Row | None]]:
    """Rows that differ, as the ``old`` and the new table have them (None: it has no such row). At most ``limit`` with
    other values, then as many deleted ones, then as many new ones."""
    changed = difference.changed.slice(0, limit)
    before = old.take(pa.array(matches(old, changed, key)))
    pairs: list[tuple[Row | None, Row | None]] = [
        (was, now) for was, now in zip(_rows(before), _rows(changed), strict=True)
    ]
    pairs += [(row, None) for row in _rows(difference.deletes.slice(0, limit))]
    pairs += [(None, row) for row in _rows(difference.added.slice(0, limit))]
    return pairs


def _rows(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.drop_columns([HASH]).to_pylist()
    return rows


def sort_rows(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sorted by hash, then key."""
    by = [(HASH, "ascending"), *((name, "ascending") for name in key)]
    return table.sort_by(by).combine_chunks()


def repeated_keys(table: pa.Table, key: Sequence[str]) -> RowNumbers:
    """The rows of an ordered table that have the key of the row before."""
    if table.num_rows < 2:
        return np.zeros(0, np.int64)
    same = _numpy(pc.equal(table[HASH].slice(1), table[HASH].slice(0, table.num_rows - 1)))
    candidates = np.flatnonzero(same) + 1
    if not len(candidates):
        return candidates
    later, earlier = table.take(pa.array(candidates)), table.take(pa.array(candidates - 1))
    return candidates[_equal_keys(earlier, later, key)]


def null_keys(table: pa.Table, key: Sequence[str]) -> RowNumbers:
    """The rows with a NULL in a key column."""
    mask = np.zeros(table.num_rows, np.bool_)
    for name in key:
        mask |= _numpy(pc.is_null(table[name]))
    return np.flatnonzero(mask)


def difference(
    old: pa.Table, new: pa.Table, key: Sequence[str], tolerance: Mapping[str, float] | None = None
) -> TableDifference:
    """Compare two ordered tables of one schema. Keys of ``new`` are unique; a second row of a key in ``old`` is one to
    be deleted."""
    match = matches(old, new, key)
    paired = np.flatnonzero(match >= 0)
    different = np.ones(new.num_rows, np.bool_)
    if len(paired):
        before, after = _rows_at(old, match[paired]), _rows_at(new, paired)
        different[paired] = ~_equal_rows(before, after, key, tolerance or {})
    gone = np.ones(old.num_rows, np.bool_)
    gone[match[paired]] = False
    source = np.where(different, old.num_rows + np.arange(new.num_rows), match)
    return TableDifference(
        upserts=new.filter(pa.array(different)),
        is_new=match[different] < 0,
        deletes=old.filter(pa.array(gone)),
        rows=pa.concat_tables([old, new]),
        standing=source,
    )


def _rows_at(table: pa.Table, places: RowNumbers) -> pa.Table:
    """The rows at these places: often all, in their order."""
    if len(places) == table.num_rows and (places == np.arange(len(places))).all():
        return table
    return table.take(pa.array(places))


def matches(old: pa.Table, new: pa.Table, key: Sequence[str]) -> RowNumbers:
    """For each row of ``new`` the row of ``old`` with its key, or -1.

    Both are ordered. Hashes find the pairs, keys confirm them. Rows whose hash is not unique are matched key by key:
    two keys of one hash are rare (64 bits), but possible."""
    match = np.full(new.num_rows, -1, np.int64)
    if not old.num_rows or not new.num_rows:
        return match
    old_hash, new_hash = _numpy(old[HASH]), _numpy(new[HASH])
    at = np.minimum(np.searchsorted(old_hash, new_hash), old.num_rows - 1)
    found = np.flatnonzero(old_hash[at] == new_hash)
    if not len(found):
        return match
    confirmed = _equal_keys(_rows_at(old, at[found]), _rows_at(new, found), key)
    match[found[confirmed]] = at[found[confirmed]]
    shared = np.union1d(_repeated_hashes(old_hash), _repeated_hashes(new_hash))
    unsettled = np.union1d(shared, new_hash[found[~confirmed]])
    if len(unsettled):
        _match_by_key(old, new, key, unsettled, match)
    return match


def _repeated_hashes(hashes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _match_by_key(
    old: pa.Table, new: pa.Table, key: Sequence[str], hashes: np.ndarray[Any, Any], match: RowNumbers
) -> None:
    rows_of: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, values in _keys_at(old, key, hashes):
        rows_of[values].append(row)
    for row, values in _keys_at(new, key, hashes):
        rows = rows_of.get(values)
        match[row] = rows.pop(0) if rows else -1


def _keys_at(
    table: pa.Table, key: Sequence[str], hashes: np.ndarray[Any, Any]
) -> list[tuple[int, tuple[Any, ...]]]:
    rows = np.flatnonzero(np.isin(_numpy(table[HASH]), hashes))
    taken = table.select(list(key)).take(pa.array(rows))
    columns = [column.to_pylist() for column in taken.columns]
    return list(zip(rows.tolist(), zip(*columns, strict=True), strict=True))


def _equal_keys(left: pa.Table, right: pa.Table, key: Sequence[str]) -> Mask:
    mask = np.ones(left.num_rows, np.bool_)
    for name in key:
        mask &= equal(left[name], right[name])
    return mask


def _equal_rows(left: pa.Table, right: pa.Table, key: Sequence[str], tolerance: Mapping[str, float]) -> Mask:
    mask = np.ones(left.num_rows, np.bool_)
    for name in left.column_names:
        if name != HASH and name not in key:
            mask &= equal(left[name], right[name], tolerance.get(name, 0.0))
    return mask


def equal(left: pa.ChunkedArray, right: pa.ChunkedArray, tolerance: float = 0.0) -> Mask:
    """Where two columns of one type are equal. NULL equals NULL alone."""
    kind = left.type
    if pa.types.is_nested(kind):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.fromiter((_is_same_value(a, b, tolerance) for a, b in pairs), np.bool_, len(left))
    same = pc.equal(left, right)
    if pa.types.is_floating(kind):
        same = pc.or_kleene(same, pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))
        if tolerance:
            near = pc.less_equal(pc.abs(pc.subtract(left, right)), pa.scalar(tolerance, pa.float64()))
            same = pc.or_kleene(same, near)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return _numpy(pc.or_(pc.fill_null(same, False), both_null))


def _is_same_value(left: Any, right: Any, tolerance: float) -> bool:
    match left, right:
        case float(), float():
            return (
                left == right
                or (math.isnan(left) and math.isnan(right))
                or (tolerance > 0 and abs(left - right) <= tolerance)
            )
        case list() | tuple(), list() | tuple():
            return len(left) == len(right) and all(
                _is_same_value(a, b, tolerance) for a, b in zip(left, right, strict=True)
            )
        case dict(), dict():
            return left.keys() == right.keys() and all(
                _is_same_value(left[k], right[k], tolerance) for k in left
            )
        case _:
            return bool(left == right)


def _numpy(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values

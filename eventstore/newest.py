"""Which rows of a bucket make its state: key codes, the last row of each, and where unsent cells come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eventstore.bag import surviving_rows
from eventstore.conform import CREATE, DELETE, READ, TRUNCATE, Codes, Ints, Layout, Mask, Rows, concat_marks


@dataclass(frozen=True, slots=True)
class Newest:
    """Row numbers over all parts. ``rows``: the last row of each living key (of a bag: as many as there are of it),
    ascending. ``sources``: per column id, for the rows whose cell was not sent, the row where the walk back stopped:
    >= 0 knows the value, -1 nobody does; ``bases`` likewise the create half of a key change behind which the value
    lies, or -1."""

    rows: Ints
    sources: Mapping[int, tuple[Ints, Ints, Ints]]  # column id -> (rows, source, base)

    def needed(self) -> Ints:
        """All rows that must be kept to know the state, and what later changes may leave unsaid; ascending."""
        referred = [part[part >= 0] for _, source, base in self.sources.values() for part in (source, base)]
        return np.unique(np.concatenate([self.rows, *referred])) if referred else self.rows

    def renumbered(self, kept: Ints) -> Newest:
        """The same rows, as numbers within ``kept``."""

        def within(rows: Ints) -> Ints:
            return np.where(rows >= 0, np.searchsorted(kept, rows), -1)

        sources = {c: (within(r), within(s), within(b)) for c, (r, s, b) in self.sources.items()}
        return Newest(within(self.rows), sources)


def newest_rows(parts: Sequence[Rows], layout: Layout, *, later: bool = False) -> Newest:
    """Which rows make the state: steps 1 to 3 of the module's account. ``later``: there are rows before these, so the
    last truncate and the deletes of keys that ended deleted are among ``rows``."""
    ops: Codes = np.concatenate([part.ops for part in parts])
    truncates = np.flatnonzero(ops == TRUNCATE)
    start = int(truncates[-1]) + 1 if len(truncates) else 0
    truncated = np.arange(start - 1 if later and start else start, start)
    if start == len(ops):
        return Newest(truncated, {})
    codes, count = key_codes(parts, layout, start)
    if layout.target.bag:
        return Newest(surviving_rows(codes, ops[start:]) + start, {})
    last = np.empty(count, np.int64)
    last[codes] = np.arange(len(codes))  # of equal indices numpy keeps the last assignment
    last = np.sort(last) + start
    alive = last[ops[last] != DELETE]
    unchanged = concat_marks([(part.unchanged, len(part)) for part in parts])
    sources: dict[int, tuple[Ints, Ints, Ints]] = {}
    if not unchanged.empty:
        moved = np.concatenate([part.moved for part in parts])
        for column in layout.columns[layout.keys :]:
            unsent = np.zeros(len(ops), np.bool_)
            unsent[unchanged.rows[unchanged.ids == column.id]] = True
            rows = alive[unsent[alive]]
            if len(rows):
                source, base = _walk_back(rows - start, codes, ops[start:], unsent[start:], moved[start:])
                sources[column.id] = (rows, _counted_from(start, source), _counted_from(start, base))
    return Newest(np.concatenate([truncated, last]) if later else alive, sources)


def _counted_from(start: int, rows: Ints) -> Ints:
    return np.where(rows >= 0, rows + start, -1)


def _walk_back(rows: Ints, codes: Ints, ops: Codes, unsent: Mask, moved: Mask) -> tuple[Ints, Ints]:
    """For each row whose cell was not sent: the newest row of its key that knows it, and the key change it hides
    behind (both -1 when there is none)."""
    chosen = np.zeros(int(codes.max()) + 1, np.bool_)
    chosen[codes[rows]] = True
    members = np.flatnonzero(chosen[codes])
    members = members[np.argsort(codes[members], kind="stable")]  # by key, in offset order within
    ends = (ops[members] == CREATE) | (ops[members] == READ) | (ops[members] == DELETE)
    knows = ~unsent[members] & (ops[members] != DELETE)
    places = np.arange(len(members))
    stops = np.maximum.accumulate(np.where(knows | ends, places, -1))
    place_of = np.empty(len(codes), np.int64)
    place_of[members] = places
    stop = stops[place_of[rows]]
    row_of_stop = members[np.maximum(stop, 0)]
    same_key = (stop >= 0) & (codes[row_of_stop] == codes[rows])
    known = same_key & knows[np.maximum(stop, 0)]
    behind = same_key & ~known & (ops[row_of_stop] == CREATE) & moved[row_of_stop]
    return np.where(known, row_of_stop, -1), np.where(behind, row_of_stop, -1)


def key_codes(parts: Sequence[Rows], layout: Layout, start: int = 0) -> tuple[Ints, int]:
    """A code per row from ``start`` on, equal exactly for equal keys, and an upper bound of the codes."""
    hashes: Ints = np.concatenate([part.hashes for part in parts])[start:]
    codes = pa.array(hashes).dictionary_encode().indices.to_numpy().astype(np.int64)
    count = int(codes.max()) + 1
    last = np.empty(count, np.int64)
    last[codes] = np.arange(len(codes))
    representative = last[codes]
    doubtful = np.zeros(len(codes), np.bool_)
    raw = any(not part.raw.empty for part in parts)
    for at in range(layout.keys):
        cells = _key_cells(parts, at).slice(start)
        doubtful |= ~_equal(cells, representative, nulls_are_equal=not raw)
    if not doubtful.any():
        return codes, count
    return _exact_codes(parts, layout, start, codes, count, doubtful)


def _key_cells(parts: Sequence[Rows], at: int) -> pa.Array:
    cells = [part.cells[at] for part in parts]
    if pa.types.is_string(cells[0].type):
        cells = [cell.cast(pa.large_string()) for cell in cells]  # keys of many rows may pass 2 GiB
    return cells[0] if len(cells) == 1 else pa.concat_arrays(cells)


def _equal(cells: pa.Array, representative: Ints, *, nulls_are_equal: bool) -> Mask:
    """Whether each row's key cell certainly equals that of its representative. A NULL that may stand for a raw text,
    a NaN and a list are not certain."""
    if pa.types.is_integer(cells.type) and not cells.null_count:
        values = cells.to_numpy()
        same: Mask = values == values[representative]
        return same
    if pa.types.is_nested(cells.type):
        return np.zeros(len(cells), np.bool_)
    others = cells.take(pa.array(representative))
    equal = pc.fill_null(pc.equal(cells, others), False)
    if nulls_are_equal and cells.null_count:
        equal = pc.or_(equal, pc.and_(cells.is_null(), others.is_null()))
    mask: Mask = equal.to_numpy(zero_copy_only=False)
    return mask


def _exact_codes(
    parts: Sequence[Rows], layout: Layout, start: int, codes: Ints, count: int, doubtful: Mask
) -> tuple[Ints, int]:
    """Codes of the doubtful hashes from the keys themselves: the hash collided, or a key cell is only in ``_raw``."""
    suspected = np.zeros(count, np.bool_)
    suspected[codes[doubtful]] = True
    rows = np.flatnonzero(suspected[codes])
    keys = exact_keys(parts, layout, rows + start)
    numbers: dict[tuple[int, tuple[object, ...]], int] = {}
    exact = codes.copy()
    for row, key in zip(rows.tolist(), keys, strict=True):
        exact[row] = count + numbers.setdefault((int(codes[row]), key), len(numbers))
    # Codes are made dense again: a code without a row would have no last row.
    dense = np.unique(exact, return_inverse=True)[1].astype(np.int64)
    return dense, int(dense.max()) + 1


def exact_keys(parts: Sequence[Rows], layout: Layout, rows: Ints) -> list[tuple[object, ...]]:
    """Keys of some rows as comparable Python values; a cell that the type cannot hold is its raw text."""
    picks = pa.array(rows)
    columns = [_key_cells(parts, at).take(picks).to_pylist() for at in range(layout.keys)]
    raw = concat_marks([(part.raw, len(part)) for part in parts])
    texts: dict[tuple[int, int], bytes] = {}
    if raw.texts is not None:
        texts = dict(
            zip(zip(raw.rows.tolist(), raw.ids.tolist(), strict=True), raw.texts.to_pylist(), strict=True)
        )
    ids = [column.id for column in layout.columns[: layout.keys]]
    return [
        tuple(
            texts.get((row, ids[at])) if value is None else _comparable(value)
            for at, value in enumerate(values)
        )
        for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True)
    ]


def _comparable(value: Any) -> object:
    return (
        repr(value) if isinstance(value, (float, list)) else value
    )  # NaN equals itself as a key; lists hash

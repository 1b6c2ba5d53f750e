"""Which rows of a bucket make its state: those of each key, the last of them, and where unsent cells come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.state.row_layout import (
    CREATE,
    DELETE,
    READ,
    TRUNCATE,
    Codes,
    Ints,
    Layout,
    Mask,
    StateRows,
    concat_marks,
)


@dataclass(frozen=True, slots=True)
class LatestRows:
    """Row numbers over all parts. ``rows``: the last row of each living key (of a bag: as many as there are of it),
    ascending. ``sources``: per column id, for the rows whose cell was not sent, the row where the walk back stopped:
    >= 0 knows the value, -1 nobody does; ``bases`` likewise the create half of a key change behind which the value
    lies, or -1."""

    rows: Ints
    sources: Mapping[int, tuple[Ints, Ints, Ints]]  # column id -> (rows, source, base)

    def required_rows(self) -> Ints:
        """All rows that must be kept to know the state, and what later changes may leave unsaid; ascending."""
        referred = [part[part >= 0] for _, source, base in self.sources.values() for part in (source, base)]
        return np.unique(np.concatenate([self.rows, *referred])) if referred else self.rows

    def renumber(self, kept: Ints) -> LatestRows:
        """The same rows, as numbers within ``kept``."""

        def within(rows: Ints) -> Ints:
            return np.where(rows >= 0, np.searchsorted(kept, rows), -1)

        sources = {c: (within(r), within(s), within(b)) for c, (r, s, b) in self.sources.items()}
        return LatestRows(within(self.rows), sources)


def latest_rows(parts: Sequence[StateRows], layout: Layout, *, later: bool = False) -> LatestRows:
    """Which rows make the state: steps 1 to 3 of the module's account. ``later``: there are rows before these, so the
    last truncate and the deletes of keys that ended deleted are among ``rows``."""
    ops: Codes = np.concatenate([part.ops for part in parts])
    truncates = np.flatnonzero(ops == TRUNCATE)
    start = int(truncates[-1]) + 1 if len(truncates) else 0
    truncated = np.arange(start - 1 if later and start else start, start)
    if start == len(ops):
        return LatestRows(truncated, {})
    found = group_by_key(parts, layout, start)
    if layout.target.bag:
        return LatestRows(surviving_rows(found.codes, ops[start:]) + start, {})
    last = found.last + start
    alive = last[ops[last] != DELETE]
    unchanged = concat_marks([(part.unchanged, len(part)) for part in parts])
    sources: dict[int, tuple[Ints, Ints, Ints]] = {}
    if not unchanged.empty:
        codes = found.codes
        moved = np.concatenate([part.moved for part in parts])
        for column in layout.columns[layout.keys :]:
            unsent = np.zeros(len(ops), np.bool_)
            unsent[unchanged.rows[unchanged.ids == column.id]] = True
            rows = alive[unsent[alive]]
            if len(rows):
                source, base = _walk_back(rows - start, codes, ops[start:], unsent[start:], moved[start:])
                sources[column.id] = (rows, _renumber(start, source), _renumber(start, base))
    return LatestRows(np.concatenate([truncated, last]) if later else alive, sources)


def _renumber(start: int, rows: Ints) -> Ints:
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


@dataclass(frozen=True, slots=True)
class ByKey:
    """Row numbers, those of one key side by side and ascending; ``first`` says where the next key begins."""

    rows: Ints
    first: Mask

    @property
    def last(self) -> Ints:
        """The last row of each key, ascending."""
        return np.sort(self.rows[np.append(self.first[1:], True)])

    @property
    def codes(self) -> Ints:
        """A number per row, equal exactly for equal keys."""
        codes = np.empty(len(self.rows), np.int64)
        codes[self.rows] = np.cumsum(self.first) - 1
        return codes


def group_by_key(parts: Sequence[StateRows], layout: Layout, start: int = 0) -> ByKey:
    """The rows from ``start`` on (at least one), counted from there, by their keys."""
    hashes: Ints = np.concatenate([part.hashes for part in parts])[start:]
    # The number of a row takes the place of the hash's lowest bits. So plain integers are sorted, which processors do
    # several at once, and not one array by another; and equal hashes come in the order of their rows.
    low = np.int64((1 << len(hashes).bit_length()) - 1)
    packed = (hashes & ~low) | np.arange(len(hashes))
    packed.sort()
    rows, heads = packed & low, packed & ~low
    first = np.append(True, heads[1:] != heads[:-1])
    sorted_hashes = hashes[rows]
    same: Mask = sorted_hashes[1:] == sorted_hashes[:-1]
    raw = any(not part.raw.empty for part in parts)
    for at in range(layout.keys):
        same &= _same_as_next(_key_cells(parts, at).slice(start), rows, nulls_are_equal=not raw)
    uncertain = np.append(False, ~first[1:] & ~same)
    if not uncertain.any():
        return ByKey(rows, first)
    return _group_exactly(parts, layout, start, ByKey(rows, first), uncertain, sorted_hashes)


def _key_cells(parts: Sequence[StateRows], at: int) -> pa.Array:
    cells = [part.cells[at] for part in parts]
    if pa.types.is_string(cells[0].type):
        cells = [cell.cast(pa.large_string()) for cell in cells]  # keys of many rows may pass 2 GiB
    return cells[0] if len(cells) == 1 else pa.concat_arrays(cells)


def _same_as_next(cells: pa.Array, rows: Ints, *, nulls_are_equal: bool) -> Mask:
    """Whether the key cells of two neighbours among ``rows`` are certainly equal: one fewer than rows. A NULL that may
    stand for a raw text, a NaN and a list are not certain."""
    if pa.types.is_integer(cells.type) and not cells.null_count:
        values = cells.to_numpy()[rows]
        same: Mask = values[1:] == values[:-1]
        return same
    if pa.types.is_nested(cells.type):
        return np.zeros(len(rows) - 1, np.bool_)
    taken = cells.take(pa.array(rows))
    ours, others = taken[1:], taken[:-1]
    equal = pc.fill_null(pc.equal(ours, others), False)
    if nulls_are_equal and cells.null_count:
        equal = pc.or_(equal, pc.and_(ours.is_null(), others.is_null()))
    mask: Mask = equal.to_numpy(zero_copy_only=False)
    return mask


def _group_exactly(
    parts: Sequence[StateRows], layout: Layout, start: int, found: ByKey, uncertain: Mask, sorted_hashes: Ints
) -> ByKey:
    """The same, where the keys themselves decide in groups that hold a doubtful row: hashes agree in the bits that were
    sorted, or altogether, or a key cell is only in ``_raw``."""
    group = np.cumsum(found.first) - 1
    suspected = np.zeros(int(group[-1]) + 1, np.bool_)
    suspected[group[uncertain]] = True
    places = np.flatnonzero(suspected[group])
    members = found.rows[places]
    keys = exact_keys(parts, layout, members + start)
    numbers: dict[tuple[int, int, tuple[object, ...]], int] = {}
    exact = np.array(
        [
            numbers.setdefault(each, len(numbers))
            for each in zip(group[places].tolist(), sorted_hashes[places].tolist(), keys, strict=True)
        ]
    )
    # Groups come one after another, so their keys' numbers do: each key's rows stay within its group's places.
    order = np.argsort(exact, kind="stable")
    rows, first = found.rows.copy(), found.first.copy()
    rows[places] = members[order]
    first[places] = np.append(True, exact[order][1:] != exact[order][:-1])
    return ByKey(rows, first)


def exact_keys(parts: Sequence[StateRows], layout: Layout, rows: Ints) -> list[tuple[object, ...]]:
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
            texts.get((row, ids[at])) if value is None else _to_comparable(value)
            for at, value in enumerate(values)
        )
        for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True)
    ]


def _to_comparable(value: Any) -> object:
    return (
        repr(value) if isinstance(value, (float, list)) else value
    )  # NaN equals itself as a key; lists hash


def surviving_rows(codes: Ints, ops: Codes) -> Ints:
    """Rows of a table without a key that are left, by their numbers (ascending): of each code as many as were not
    deleted, the newest ones. Equal rows are told apart by their number only, so it does not matter which of them a
    delete meant. An update that changed nothing counts nothing; any other came as a delete and a create.

    ``codes`` are equal exactly for equal rows. Raises IntegrityError when more were deleted than there were.
    """
    created = (ops == CREATE) | (ops == READ)
    left = np.bincount(codes[created], minlength=int(codes.max()) + 1)
    left -= np.bincount(codes[ops == DELETE], minlength=len(left))
    if (left < 0).any():
        raise IntegrityError(
            "a table without a key lost more rows of one content than it had",
            hint="read the topic again from its source: `tailrace verify --source` shows how it differs",
        )
    rows = np.flatnonzero(created)[::-1]  # newest first
    rows = rows[np.argsort(codes[rows], kind="stable")]
    sorted_codes = codes[rows]
    starts = np.searchsorted(sorted_codes, sorted_codes)  # where the rows of each code begin
    rank = np.arange(len(rows)) - starts
    return np.sort(rows[rank < left[sorted_codes]])

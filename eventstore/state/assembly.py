"""The state table, put together from the kept rows, and marks for what no typed cell can say.

Rows stay where they are. Only where some cells were not sent, columns are gathered from several rows of their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.state.latest_rows import LatestRows
from tailrace.eventstore.state.row_layout import Ints, Layout, Marks, StateRows, concat_marks

# Arrow's string and list offsets are 32 bits wide; pieces of the result stay well below.
_PIECE_BYTES = 512 << 20

STATE_FIELDS = (
    pa.field("_hash", pa.int64(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_epoch", pa.int64(), nullable=False),
)
RAW = pa.field("_raw", pa.map_(pa.int32(), pa.binary()))
UNKNOWN = pa.field("_unknown", pa.list_(pa.int32()))
# Of a state that is read: names of the columns whose cells a redaction erased.
ERASED = pa.field("_erased", pa.list_(pa.string()))
STATE_NAMES = frozenset(field.name for field in (*STATE_FIELDS, RAW, UNKNOWN, ERASED))
"""A table's columns stand beside these in a state, so none of them may have such a name."""


def state_schema(layout: Layout) -> pa.Schema:
    """Columns of a state: the position of the row's last change, its cells, and which of them ``_raw`` holds the
    source text of (the typed column cannot) or are ``_unknown``."""
    return pa.schema([*STATE_FIELDS, *(column.field for column in layout.columns), RAW, UNKNOWN])


@dataclass(frozen=True, slots=True)
class CellMove:
    """A cell that only the history of another key knows.

    The create half of a key change at (epoch, lsn, ordinal) did not carry ``column``; its value is that of the old
    key just below.
    """

    epoch: int
    lsn: int
    ordinal: int
    column: Column


@dataclass(frozen=True, slots=True)
class MovedCell:
    """The value of a moved cell: one cell of the column's type, and its entry in ``_raw`` when that is ``marked``: the
    text that the type cannot hold, or None when it was erased."""

    cell: pa.Array
    raw: bytes | None = None
    marked: bool = False


def hidden_cells(
    parts: Sequence[StateRows], latest: LatestRows, layout: Layout
) -> dict[tuple[int, int], CellMove]:
    """Cells hidden behind a key change: (column id, row) -> where."""
    epochs, lsns, ordinals = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("epochs", "lsns", "ordinals")
    )
    columns = {column.id: column for column in layout.columns}
    moves: dict[tuple[int, int], CellMove] = {}
    for column_id, (rows, _, bases) in latest.sources.items():
        for at in np.flatnonzero(bases >= 0).tolist():
            base = int(bases[at])
            moves[column_id, int(rows[at])] = CellMove(
                int(epochs[base]), int(lsns[base]), int(ordinals[base]), columns[column_id]
            )
    return moves


@dataclass(frozen=True, slots=True)
class _Gather:
    """Where the cells of one column come from, per row of the result: a row of all parts, -1 = unknown, and beyond
    the last row the cells that were found behind key changes."""

    column: Column
    rows: Ints
    total: int
    found: tuple[MovedCell, ...] = ()


def as_table(part: StateRows, layout: Layout) -> pa.Table:
    """Rows of the state that have all of their cells, as a part of the state table."""
    every = np.arange(len(part))
    gathers = [_Gather(column, every, len(part)) for column in layout.columns]
    positions = [pa.array(getattr(part, name)) for name in _STATE_NARROW]
    marks = [_raw_column(gathers, part.raw, slice(0, len(part))), pa.nulls(len(part), UNKNOWN.type)]
    return pa.Table.from_arrays([*positions, *part.cells, *marks], schema=state_schema(layout))


def assemble(
    parts: Sequence[StateRows],
    layout: Layout,
    latest: LatestRows,
    moves: Mapping[tuple[int, int], CellMove],
    moved: Mapping[CellMove, MovedCell],
) -> pa.Table:
    """The state table of ``parts`` that have the rows which ``latest`` requires: some cells of it are elsewhere."""
    rows = latest.rows
    total = sum(map(len, parts))
    gathers = []
    for column in layout.columns:
        chosen = rows
        extra: list[MovedCell] = []
        if column.id in latest.sources:
            owners, sources, _ = latest.sources[column.id]
            replaced = np.arange(total)
            replaced[owners] = sources
            for owner in owners[sources < 0].tolist():
                move = moves.get((column.id, owner))
                if move is not None and move in moved:
                    replaced[owner] = total + len(extra)
                    extra.append(moved[move])
            chosen = replaced[rows]
        gathers.append(_Gather(column, chosen, total, tuple(extra)))
    narrow = {name: np.concatenate([getattr(p, name) for p in parts])[rows] for name in _STATE_NARROW}
    raw = concat_marks([(part.raw, len(part)) for part in parts])
    pieces = -(-sum(part.nbytes for part in parts) // _PIECE_BYTES)
    bounds = np.linspace(0, len(rows), pieces + 1).astype(int)
    tables = [
        _piece(parts, layout, narrow, gathers, raw, (int(low), int(high))) for low, high in pairwise(bounds)
    ]
    return pa.concat_tables(tables)


_STATE_NARROW = ("hashes", "lsns", "offsets", "epochs")  # STATE_FIELDS, in their order


def _piece(
    parts: Sequence[StateRows],
    layout: Layout,
    narrow: Mapping[str, Ints],
    gathers: Sequence[_Gather],
    raw: Marks,
    span: tuple[int, int],
) -> pa.Table:
    """Rows ``span`` of the result; halved when a column of them would pass Arrow's 2 GiB."""
    low, high = span
    wanted = slice(low, high)
    try:
        cells = [
            _cells([part.cells[at] for part in parts], gather, gather.rows[wanted])
            for at, gather in enumerate(gathers)
        ]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if high - low < 2:
            raise
        middle = (low + high) // 2
        halves = ((low, middle), (middle, high))
        return pa.concat_tables([_piece(parts, layout, narrow, gathers, raw, half) for half in halves])
    positions = [pa.array(narrow[name][wanted]) for name in _STATE_NARROW]
    marks = [_raw_column(gathers, raw, wanted), _unknown_column(gathers, wanted)]
    return pa.Table.from_arrays([*positions, *cells, *marks], schema=state_schema(layout))


def _cells(columns: Sequence[pa.Array], gather: _Gather, rows: Ints) -> pa.Array:
    if gather.found:
        columns = [*columns, pa.concat_arrays([found.cell for found in gather.found])]
    if len(columns) > 1:
        # Only what this piece needs is laid together; the parts may not fit into one array.
        wanted = np.unique(rows[rows >= 0])
        starts = np.cumsum([0, *map(len, columns)])
        cuts = np.searchsorted(wanted, starts)
        columns = [
            column.take(pa.array(wanted[low:high] - start))
            for column, start, low, high in zip(columns, starts, cuts, cuts[1:], strict=False)
            if low < high
        ] or [columns[0].slice(0, 0)]
        rows = np.where(rows >= 0, np.searchsorted(wanted, rows), -1)
    source = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
    unknown = rows < 0
    return source.take(pa.array(rows, mask=unknown) if unknown.any() else pa.array(rows))


def _raw_column(gathers: Sequence[_Gather], raw: Marks, wanted: slice) -> pa.Array:
    """Source texts of the cells that the typed columns cannot hold (null: erased), wherever the cell came from."""
    size = wanted.stop - wanted.start
    entries: list[tuple[int, int, bytes | None]] = []
    for gather in gathers:
        hits = np.flatnonzero(raw.ids == gather.column.id)
        texts: dict[int, bytes | None] = {}
        if raw.texts is not None and len(hits):
            texts = dict(
                zip(raw.rows[hits].tolist(), raw.texts.take(pa.array(hits)).to_pylist(), strict=True)
            )
        texts.update({gather.total + at: f.raw for at, f in enumerate(gather.found) if f.marked})
        if texts:
            rows = gather.rows[wanted]
            at_rows = np.flatnonzero(np.isin(rows, np.fromiter(texts, np.int64, len(texts))))
            entries += [
                (at, gather.column.id, texts[row])
                for at, row in zip(at_rows.tolist(), rows[at_rows].tolist(), strict=True)
            ]
    if not entries:
        return pa.nulls(size, RAW.type)
    entries.sort(key=lambda entry: entry[:2])
    offsets, empty = _offsets(np.array([at for at, _, _ in entries]), size)
    ids = pa.array([column_id for _, column_id, _ in entries], pa.int32())
    return pa.MapArray.from_arrays(
        offsets, ids, pa.array([text for _, _, text in entries], pa.binary()), mask=empty
    )


def _unknown_column(gathers: Sequence[_Gather], wanted: slice) -> pa.Array:
    size = wanted.stop - wanted.start
    unknown = [(np.flatnonzero(gather.rows[wanted] < 0), gather.column.id) for gather in gathers]
    rows = np.concatenate([rows for rows, _ in unknown])
    if not len(rows):
        return pa.nulls(size, UNKNOWN.type)
    ids = np.concatenate([np.full(len(rows), column_id, np.int32) for rows, column_id in unknown])
    order = np.argsort(rows, kind="stable")
    offsets, empty = _offsets(rows[order], size)
    return pa.ListArray.from_arrays(offsets, pa.array(ids[order]), mask=empty)


def _offsets(rows: Ints, size: int) -> tuple[pa.Array, pa.Array]:
    """List offsets for entries that belong to ascending ``rows`` of ``size``, and which rows have none."""
    counts = np.bincount(rows, minlength=size)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), pa.array(counts == 0)

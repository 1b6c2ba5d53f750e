"""The compaction kernel: from the changes of one bucket, in offset order, to the newest row of each key.

Pure Arrow and numpy: no files, no clock, no Spark. Only hashes and row numbers are computed on; the payload is moved
by one monotonic ``take`` per piece of input. It is never sorted, never shuffled:

  1. the rows of each key: row numbers sorted along with the 64-bit key hashes, then a check that neighbours' keys
     really are equal, so that a hash collision costs time, not truth;
  2. the last row of every key stays;
  3. cells whose TOASTed value was not sent take the newest known value of their key: one forward scan finds, for each,
     the row where a walk back would stop (a row that knows it; a delete or create behind which nothing counts);
  4. what an ordinary walk cannot know because the row came from another key (``_moved_from``) is asked of the caller,
     who alone can read other buckets; what nobody knows stays in ``_unknown``, never NULL.

Input is folded in as it comes: rows that can no longer matter are dropped whenever the pending ones outgrow the kept
ones, so memory follows the state of the bucket, not its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.state.assembly import (
    CellMove,
    MovedCell,
    as_table,
    assemble,
    hidden_cells,
    state_schema,
)
from tailrace.eventstore.state.latest_rows import latest_rows
from tailrace.eventstore.state.row_layout import Ints, Layout, Mask, StateRows, concat_rows, conform

# Fold when this much is pending: large enough that vector operations pay, small enough for a task's memory.
FOLD_ROWS = 1 << 20
FOLD_BYTES = 128 << 20
JOINED_BYTES = 8 << 20
"""Parts below are joined: many small ones would cost more than their rows."""

ResolveMoved = Callable[[Sequence[CellMove]], Mapping[CellMove, MovedCell]]


def compact(
    tables: Iterable[tuple[TopicSchema, pa.Table]],
    layout: Layout,
    *,
    resolve_moved: ResolveMoved | None = None,
    fold_rows: int = FOLD_ROWS,
) -> pa.Table:
    """State of one bucket: one row per living key, in ``state_schema`` and in the order of their last changes.

    ``tables`` are all changes of the bucket from the log's start, in offset order, each with the schema version it
    was written under and at least the columns ``layout.needs(version)``, ``_offset`` and ``_epoch``. Without
    ``resolve_moved`` moved cells stay unknown. Raises UsageError when the topic has no key.
    """
    compactor = Compactor(layout, fold_rows=fold_rows)
    for version, table in tables:
        for rows in conform(table, version, layout):
            compactor.add(rows)
    return compactor.finish(resolve_moved)


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Which rows: of which keys and epochs, with which offsets, in their order."""

    hashes: Ints
    epochs: Ints
    offsets: Ints


class Compactor:
    """Folds rows of one bucket; see the module. ``add`` in offset order, then ``finish`` once."""

    def __init__(
        self,
        layout: Layout,
        *,
        fold_rows: int = FOLD_ROWS,
        fold_bytes: int = FOLD_BYTES,
        later: bool = False,
    ) -> None:
        """``later``: the rows are not the first ones of the bucket, so what they end is kept, too; then ``finish`` has
        no meaning."""
        if not layout.keys:
            raise UsageError(
                "a topic without a key has no state",
                hint="give the table a primary key or a replica identity index",
            )
        self._layout = layout
        self._fold_rows = fold_rows
        self._fold_bytes = fold_bytes
        self._later = later
        self._parts: list[StateRows] = []
        self._kept = (0, 0)  # rows and bytes that survived the last fold
        self._pending = (0, 0)  # rows and bytes since

    def add(self, rows: StateRows) -> None:
        self._parts.append(rows)
        self._pending = (self._pending[0] + len(rows), self._pending[1] + rows.nbytes)
        if self._pending[0] > max(self._fold_rows, self._kept[0]) or self._pending[1] > max(
            self._fold_bytes, self._kept[1]
        ):
            self._fold()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the rows that survived the last fold."""
        return self._kept[1]

    def retain(self, wanted: Callable[[StateRows], Mask]) -> None:
        """Only rows that are ``wanted`` stay. They are all rows of their keys, so nobody misses the others."""
        parts = [part.take(np.flatnonzero(wanted(part))) for part in self._parts]
        self._parts = [part for part in parts if len(part)]
        self._measure()

    def _fold(self) -> None:
        self._keep(latest_rows(self._parts, self._layout, later=self._later).required_rows())
        self._measure()

    def _measure(self) -> None:
        self._kept = (sum(map(len, self._parts)), sum(part.nbytes for part in self._parts))
        self._pending = (0, 0)

    def _keep(self, wanted: Ints) -> None:
        """Only the rows ``wanted`` (ascending over all parts) stay. Small remains are joined, so parts stay few."""
        starts = np.cumsum([0, *map(len, self._parts)])
        cuts = np.searchsorted(wanted, starts)
        parts = [
            part.take(wanted[low:high] - start)
            for part, start, low, high in zip(self._parts, starts, cuts, cuts[1:], strict=False)
            if low < high
        ]
        self._parts = _join_small(parts, JOINED_BYTES)

    def required_rows(self) -> tuple[KeptRows, list[CellMove]]:
        """Instead of ``finish``: the rows that must be kept to know the state, now and under whatever comes later, and
        the cells that only rows of other keys know."""
        if not self._parts:
            return KeptRows(_NONE, _NONE, _NONE), []
        latest = latest_rows(self._parts, self._layout, later=self._later)
        moves = hidden_cells(self._parts, latest, self._layout)
        needed = latest.required_rows()
        kept = KeptRows(
            np.concatenate([part.hashes for part in self._parts])[needed],
            np.concatenate([part.epochs for part in self._parts])[needed],
            np.concatenate([part.offsets for part in self._parts])[needed],
        )
        return kept, sorted(set(moves.values()), key=_position)

    def finish(self, resolve_moved: ResolveMoved | None = None) -> pa.Table:
        """The state. Nothing may be added afterwards."""
        if not self._parts:
            return state_schema(self._layout).empty_table()
        latest = latest_rows(self._parts, self._layout)
        needed = latest.required_rows()
        if not len(needed):
            return state_schema(self._layout).empty_table()
        self._keep(needed)
        parts, self._parts = self._parts, []  # who still holds this object holds no rows
        if not latest.sources:
            return pa.concat_tables(as_table(part, self._layout) for part in parts)
        latest = latest.renumber(needed)
        moves = hidden_cells(parts, latest, self._layout)
        found = resolve_moved(sorted(set(moves.values()), key=_position)) if moves and resolve_moved else {}
        return assemble(parts, self._layout, latest, moves, found)


def _position(move: CellMove) -> tuple[int, int, int, int]:
    return (move.epoch, move.lsn, move.ordinal, move.column.id)


def _join_small(parts: Sequence[StateRows], limit: int) -> list[StateRows]:
    """Neighbours made one while they stay below ``limit`` bytes."""
    joined: list[StateRows] = []
    run: list[StateRows] = []
    size = 0
    for part in parts:
        if run and size + part.nbytes > limit:
            joined.append(concat_rows(run))
            run, size = [], 0
        run.append(part)
        size += part.nbytes
    return [*joined, concat_rows(run)] if run else joined

"""The second, narrow pass: cells that came with a row from another key, whose history lies in another partition.

``UPDATE t SET id = id + 1`` of a row with an unchanged TOASTed value is delete(old) + create(new) without that value.
The delete comes right before the create (its ordinal is one less); its hash leads to the old key's history, which is
read from the log with only the columns asked for. When that history begins with a key change too, the chain goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.state.assembly import CellMove, MovedCell
from tailrace.eventstore.state.latest_rows import exact_keys
from tailrace.eventstore.state.row_layout import (
    CREATE,
    DELETE,
    READ,
    TRUNCATE,
    Ints,
    Layout,
    StateRows,
    concat_rows,
    conform,
)

Place = tuple[int, int, int]  # (epoch, lsn, ordinal) of a row
Tables = Iterable[tuple[TopicSchema, pa.Table]]
Seen = Callable[[int, int, int], None]  # key hash, epoch and offset of a row
# Reads all partitions of the given epochs (None = all epochs up to the cut), only the named columns, in offset order
# within each partition.
ReadAll = Callable[[Sequence[int] | None, Callable[[TopicSchema], Sequence[str]]], Tables]


def _ignore(key_hash: int, epoch: int, offset: int) -> None:
    """Nobody asks which rows an answer rests on."""


_NARROW = ("_hash", "_op", "_lsn", "_ordinal", "_epoch")


@dataclass(frozen=True, slots=True)
class MovedCells:
    """Finds moved cells; ``resolve`` is what ``compact`` takes as ``resolve_moved``."""

    target: TopicSchema
    read: ReadAll

    def resolve(self, moves: Sequence[CellMove], seen: Seen = _ignore) -> Mapping[CellMove, MovedCell]:
        """The cells that are known. Each round goes one key change further back, so there is an end. ``seen`` gets
        key hash, epoch and offset of every row that an answer rests on, apart from the creates themselves."""
        found: dict[CellMove, MovedCell] = {}
        waiting = {move: (move.epoch, move.lsn, move.ordinal) for move in moves}
        while waiting:
            hashes = self._old_hashes(set(waiting.values()))
            columns = {move.column.id: move.column for move in waiting}
            history = self._history(hashes, tuple(columns.values()))
            further: dict[CellMove, Place] = {}
            for move, place in waiting.items():
                answer = None if history is None else history.cell_before(place, move.column, seen)
                if isinstance(answer, MovedCell):
                    found[move] = answer
                elif answer is not None:
                    further[move] = answer
            waiting = further
        return found

    def _old_hashes(self, places: set[Place]) -> Ints:
        """Hashes of the keys deleted right before the creates at ``places``."""
        lsns = pa.array(sorted({lsn for _, lsn, _ in places}), pa.int64())
        hashes: set[int] = set()
        for _, table in self.read(sorted({epoch for epoch, _, _ in places}), lambda _: _NARROW):
            chosen = table.filter(
                pc.and_(pc.equal(table["_op"], "d"), pc.is_in(table["_lsn"], value_set=lsns))
            )
            rows = zip(
                *(chosen[name].to_pylist() for name in ("_hash", "_epoch", "_lsn", "_ordinal")), strict=True
            )
            hashes.update(key for key, epoch, lsn, ordinal in rows if (epoch, lsn, ordinal + 1) in places)
        return np.array(sorted(hashes), np.int64)

    def _history(self, hashes: Ints, columns: tuple[Column, ...]) -> _History | None:
        if not len(hashes):
            return None
        layout = Layout(self.target, (*self.target.key, *columns), len(self.target.key))
        parts = list(self._rows_of(hashes, layout))
        return _History(parts, layout) if parts else None

    def _rows_of(self, hashes: Ints, layout: Layout) -> Iterator[StateRows]:
        wanted = pa.array(hashes)
        for version, table in self.read(None, lambda v: [*layout.required_columns(v), "_epoch", "_offset"]):
            mask = pc.or_(pc.is_in(table["_hash"], value_set=wanted), pc.equal(table["_op"], "t"))
            chosen = table.filter(mask)
            if chosen.num_rows:
                yield from conform(chosen, version, layout)


class _History:
    """The rows of some hashes, in the order of their partitions."""

    def __init__(self, parts: Sequence[StateRows], layout: Layout) -> None:
        self._rows = rows = concat_rows(parts)
        self._cells = {column.id: cell for column, cell in zip(layout.columns, rows.cells, strict=True)}
        self._keys = exact_keys([rows], layout, np.arange(len(rows)))
        self._places: list[Place] = list(
            zip(rows.epochs.tolist(), rows.lsns.tolist(), rows.ordinals.tolist(), strict=True)
        )
        self._unsent = set(zip(rows.unchanged.rows.tolist(), rows.unchanged.ids.tolist(), strict=True))
        texts = [] if rows.raw.texts is None else rows.raw.texts.to_pylist()
        self._raw = dict(
            zip(zip(rows.raw.rows.tolist(), rows.raw.ids.tolist(), strict=True), texts, strict=False)
        )
        self._by_hash: dict[int, list[int]] = {}
        self._deletes: dict[Place, int] = {}
        self._truncates: set[Place] = set()
        for at, (key_hash, op) in enumerate(zip(rows.hashes.tolist(), rows.ops.tolist(), strict=True)):
            if op == TRUNCATE:
                self._truncates.add(self._places[at])
                continue
            if op == DELETE:
                self._deletes[self._places[at]] = at
            self._by_hash.setdefault(key_hash, []).append(at)

    def cell_before(self, create: Place, column: Column, seen: Seen) -> MovedCell | Place | None:
        """The cell as it was below the key change whose create half is at ``create``: the value, the place of the
        key change to look behind next, or None when nobody knows."""
        epoch, lsn, ordinal = create
        deleted = self._deletes.get((epoch, lsn, ordinal - 1))
        if deleted is None:
            return None
        self._report(seen, deleted)
        floor = max((place for place in self._truncates if place < create), default=(-1, -1, -1))
        same_hash = self._by_hash[int(self._rows.hashes[deleted])]
        for row in reversed(same_hash):
            if row >= deleted or self._keys[row] != self._keys[deleted]:
                continue
            if self._places[row] < floor or self._rows.ops[row] == DELETE:
                return None
            known = (row, column.id) not in self._unsent
            if known or self._rows.ops[row] in (CREATE, READ):
                self._report(seen, row)
            if known:
                return self._moved_cell(row, column)
            if self._rows.ops[row] in (CREATE, READ):
                return self._places[row] if self._rows.moved[row] else None
        return None

    def _report(self, seen: Seen, row: int) -> None:
        seen(int(self._rows.hashes[row]), int(self._rows.epochs[row]), int(self._rows.offsets[row]))

    def _moved_cell(self, row: int, column: Column) -> MovedCell:
        place = (row, column.id)
        return MovedCell(self._cells[column.id].slice(row, 1), self._raw.get(place), place in self._raw)

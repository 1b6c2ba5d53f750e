"""Rows of one topic version, gathered cell by cell and turned into one Arrow table of ``change_schema``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.columnar.values import raw_column, require_key, struct_of, type_columns
from cdc.policy import Policies
from cdc.wire.buffer import HINT
from cdc.wire.replication import UNIX_EPOCH_MICROS
from eventstore import keys
from eventstore.errors import ProtocolError
from eventstore.model import Op, TopicId, TopicRows
from eventstore.schema import TopicSchema, change_schema

Cells = list[bytes | None]
Raw = dict[int, list[tuple[int, bytes]]]

OPS = (Op.READ, Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.MESSAGE)
CREATE, UPDATE, DELETE, TRUNCATE, MESSAGE = 1, 2, 3, 4, 5  # numbers in OPS

# A row's stamp is its transaction's number in the block and its ordinal in one integer.
STAMP_SHIFT = 40
_ORDINAL_MASK = (1 << STAMP_SHIFT) - 1

_OP_NAMES = pa.array([op.value for op in OPS], pa.string())
_BEFORE_NAMES = pa.array(["none", "key", "full"], pa.string())
BEFORE_KEY, BEFORE_FULL = 1, 2


@dataclass(slots=True)
class Transactions:
    """The transactions of one block by their number: commit LSN, xid, commit time (µs since 2000-01-01)."""

    lsn: list[int] = field(default_factory=list)
    xid: list[int] = field(default_factory=list)
    commit_ts: list[int] = field(default_factory=list)

    def add(self, lsn: int, xid: int, commit_ts: int) -> int:
        """Returns the first stamp of the transaction."""
        self.lsn.append(lsn)
        self.xid.append(xid)
        self.commit_ts.append(commit_ts)
        return (len(self.lsn) - 1) << STAMP_SHIFT


class RowBuilder:
    """Rows of one topic version in commit order.

    ``cells`` is flat, ``width`` cells a row as the server sends them, also of columns left out: column i of all
    rows is ``cells[i::width]``. A row without an after image has its key cells there and None elsewhere. What few rows
    have (an old row, an old key, unchanged cells) is kept beside it by row number.
    """

    __slots__ = (
        "_absent",
        "_before_cells",
        "_before_kinds",
        "_before_rows",
        "_moved_cells",
        "_moved_rows",
        "_truncated",
        "append",
        "cells",
        "key_at",
        "ops",
        "policies",
        "positions",
        "schema",
        "stamps",
        "topic",
        "unchanged",
        "width",
    )

    def __init__(self, topic: TopicId, schema: TopicSchema, policies: Policies) -> None:
        require_key(schema, topic.text)
        self.topic = topic
        self.schema = schema
        self.policies = policies
        self.width = len(schema.sent)
        self.positions = range(self.width)
        self.key_at = tuple(at for at, column in enumerate(schema.sent) if column.key)
        self.cells: Cells = []
        self.append = self.cells.append
        self.stamps: list[int] = []
        self.ops = bytearray()
        self.unchanged: list[int] = []  # numbers of cells (in ``cells``) whose value was not sent
        self._absent: list[int] = []  # rows without after
        self._truncated: list[int] = []  # rows without key
        self._before_rows: list[int] = []
        self._before_cells: Cells = []
        self._before_kinds: list[int] = []
        self._moved_rows: list[int] = []
        self._moved_cells: Cells = []

    def __len__(self) -> int:
        return len(self.stamps)

    def key_of(self, cells: Sequence[bytes | None]) -> Cells:
        return [cells[at] for at in self.key_at]

    def add(self, op: int, stamp: int, cells: Cells) -> None:
        """A row with an after image."""
        self.cells += cells
        self.ops.append(op)
        self.stamps.append(stamp)

    def add_deleted(self, stamp: int, old: Cells, kind: int) -> None:
        """A row that is gone: its key and, as far as sent, its old image."""
        self._absent.append(len(self.stamps))
        self.add_before(old, kind)
        cells: Cells = [None] * self.width
        for at in self.key_at:
            cells[at] = old[at]
        self.add(DELETE, stamp, cells)

    def add_truncated(self, stamp: int) -> None:
        self._absent.append(len(self.stamps))
        self._truncated.append(len(self.stamps))
        self.add(TRUNCATE, stamp, [None] * self.width)

    def add_before(self, old: Cells, kind: int) -> None:
        """The old image of the row that is added next. With BEFORE_KEY only key cells are taken: the server fills
        the others with NULL, which means unknown there."""
        self._before_rows.append(len(self.stamps))
        self._before_kinds.append(kind)
        if kind == BEFORE_FULL:
            self._before_cells += old
        else:
            self._before_cells += [old[at] if at in self.key_at else None for at in self.positions]

    def add_moved(self, old_key: Cells) -> None:
        """The old key of the row that is added next."""
        self._moved_rows.append(len(self.stamps))
        self._moved_cells += old_key

    def finish(self, transactions: Transactions) -> TopicRows:
        """All rows as one table. Raises ProtocolError when a key cell was left out by the server."""
        rows, target = len(self.stamps), change_schema(self.schema)
        raw: Raw = {}
        unchanged = self._unchanged()
        texts = [pa.array(self.cells[at :: self.width], pa.binary()) for at in self.schema.places]
        texts = self.policies.texts(self.schema.columns, texts)
        typed = type_columns(texts, self.schema.columns, raw)
        keys_at = [at for at, column in enumerate(self.schema.columns) if column.key]
        columns = self._stamped(transactions)
        columns["_hash"] = self._hashes([texts[at] for at in keys_at])
        columns["_op"] = _OP_NAMES.take(pa.array(np.frombuffer(self.ops, np.uint8)))
        columns["key"] = struct_of(
            [typed[at] for at in keys_at], target.field("key").type, _mask(rows, self._truncated)
        )
        columns["after"] = self._after(typed, keys_at, target.field("after").type)
        columns["before"], columns["_before"] = self._before(target.field("before").type, raw)
        columns["_unchanged"] = _sparse(unchanged, rows, target.field("_unchanged").type)
        columns["_moved_from"] = self._moved(target.field("_moved_from").type, raw)
        columns["_raw"] = raw_column(rows, raw, target.field("_raw").type)
        return TopicRows(self.topic, self.schema.version, pa.table(columns, schema=target))

    def _stamped(self, transactions: Transactions) -> dict[str, pa.Array]:
        stamps = np.array(self.stamps, np.int64)
        number = stamps >> STAMP_SHIFT
        commit_ts = np.array(transactions.commit_ts, np.int64)[number] + UNIX_EPOCH_MICROS
        return {
            "_lsn": pa.array(np.array(transactions.lsn, np.int64)[number]),
            "_txn": pa.array(np.array(transactions.xid, np.int64)[number]),
            "_ordinal": pa.array(stamps & _ORDINAL_MASK),
            "_commit_ts": pa.array(commit_ts).cast(pa.timestamp("us", "UTC")),
        }

    def _hashes(self, key: Sequence[pa.Array]) -> pa.Array:
        hashes = keys.hash_columns(key)
        if not self._truncated:
            return hashes
        return pc.if_else(_mask(len(self), self._truncated), pa.scalar(0, pa.int64()), hashes)

    def _after(self, typed: Sequence[pa.Array], keys_at: Sequence[int], kind: pa.StructType) -> pa.Array:
        mask = _mask(len(self), self._absent)
        columns = list(typed)
        if mask is not None:  # the key cells of deleted rows are no after image, also not underneath the null
            for at in keys_at:
                columns[at] = pc.if_else(mask, pa.scalar(None, columns[at].type), columns[at])
        return struct_of(columns, kind, mask)

    def _before(self, kind: pa.StructType, raw: Raw) -> tuple[pa.Array, pa.Array]:
        rows = len(self)
        if not self._before_rows:
            return pa.nulls(rows, kind), pa.repeat(_BEFORE_NAMES[0], rows)
        images = self._images(self._before_cells, self._before_rows, self.positions, kind, raw)
        kinds = np.zeros(rows, np.uint8)
        kinds[self._before_rows] = self._before_kinds
        return images, _BEFORE_NAMES.take(pa.array(kinds))

    def _moved(self, kind: pa.StructType, raw: Raw) -> pa.Array:
        if not self._moved_rows:
            return pa.nulls(len(self), kind)
        return self._images(self._moved_cells, self._moved_rows, self.key_at, kind, raw)

    def _images(
        self, cells: Cells, at_rows: list[int], at: Sequence[int], kind: pa.StructType, raw: Raw
    ) -> pa.Array:
        """Old images of a few rows, spread over all rows. Cells that do not fit go to ``raw`` under -column id: an
        old image and an old key never meet on one row."""
        places = {number: place for place, number in enumerate(at)}
        kept = [number for number in self.schema.places if number in places]
        columns = [self.schema.sent[number] for number in kept]
        texts = [pa.array(cells[places[number] :: len(at)], pa.binary()) for number in kept]
        own: Raw = {}
        typed = type_columns(self.policies.texts(columns, texts), columns, own, sign=-1)
        for image, entries in own.items():
            raw.setdefault(at_rows[image], []).extend(entries)
        where = np.full(len(self), -1, np.int64)
        where[at_rows] = np.arange(len(at_rows))
        return struct_of(typed, kind).take(pa.array(where, mask=where < 0))

    def _unchanged(self) -> dict[int, list[int]]:
        ids: dict[int, list[int]] = {}
        for number in self.unchanged:
            row, at = divmod(number, self.width)
            if at in self.key_at:
                raise ProtocolError(
                    f"{self.topic}: the server left out key column {self.schema.sent[at].name!r}",
                    hint=HINT,
                )
            if at in self.schema.places:
                ids.setdefault(row, []).append(self.schema.sent[at].id)
        return ids


def _mask(rows: int, where: list[int]) -> pa.Array | None:
    if not where:
        return None
    mask: np.ndarray[Any, np.dtype[np.bool_]] = np.zeros(rows, np.bool_)
    mask[where] = True
    return pa.array(mask)


def _sparse(values: dict[int, list[int]], rows: int, kind: pa.DataType) -> pa.Array:
    if not values:
        return pa.nulls(rows, kind)
    return pa.array([values.get(row) for row in range(rows)], kind)

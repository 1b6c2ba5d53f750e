"""Merge a chunk into the stream: which of its rows are still current at its mark. Pure.

A chunk is read in one REPEATABLE READ transaction, which also says which transactions it sees
(``pg_current_snapshot()``) and ends by committing a mark into the WAL. Transactions reach the stream in the order of
their commit records, and a commit record is in the WAL before the transaction becomes visible: long before, when
``commit_delay`` or a synchronous standby that does not answer holds it back. Of the transactions that touch a row

    seen by the snapshot            are in the chunk's row, and their commits stand before the mark;
    not seen, commit before mark    are in the stream already, so the chunk's row is older and is dropped;
    not seen, commit behind mark    follow in the stream, behind the chunk's row.

So chunk rows are appended at the mark, without the keys of the second kind, *wherever* their commits stand: also before
the chunk was begun, where marks on both sides of it (a window) would not look. So the keys of every transaction that
was delivered and may not be seen must be known. A load therefore waits, before its first chunk, until each transaction
that ran when it (or this session of it) began has ended and is visible; everything later is noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.topic import Op

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_XID_SPACE = 1 << 32


@dataclass(frozen=True, slots=True)
class PgSnapshot:
    """What ``pg_current_snapshot()`` says: transactions below ``xmin`` have ended, from ``xmax`` on have not begun,
    those in ``running`` were running. Ids are 64 bits wide."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """``'10:20:10,14'``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(each) for each in running.split(",") if each))

    def sees(self, xids: Ints) -> Mask:
        """Whether each transaction, which has committed, is seen. ``xids`` have 32 bits, as the stream sends them:
        those of one moment lie within 2³¹ of each other."""
        full = self.widen(xids)
        running = np.isin(full, np.fromiter(self.running, np.int64, len(self.running)))
        return (full < self.xmax) & ~running

    def widen(self, xids: Ints) -> Ints:
        distance = (xids - self.xmax) % _XID_SPACE
        return self.xmax + np.where(distance < _XID_SPACE // 2, distance, distance - _XID_SPACE)


@dataclass(slots=True)
class TouchedKeys:
    """Keys of one topic (as hashes) that the stream's transactions touched, as long as a snapshot may not see them."""

    _xids: list[Ints] = field(default_factory=list)
    _hashes: list[Ints] = field(default_factory=list)
    _truncates: list[int] = field(default_factory=list)

    def observe(self, rows: TopicRows) -> None:
        """Note rows that the stream brought, also of a transaction of which only a part has come."""
        table = rows.rows
        truncates = np.flatnonzero(table["_op"].to_numpy() == Op.TRUNCATE.value)
        xids = table["_txn"].to_numpy()
        self._truncates += {int(xid) for xid in xids[truncates]}
        self._xids.append(xids)
        self._hashes.append(table["_hash"].to_numpy())

    def unseen_keys(self, snapshot: PgSnapshot) -> Ints | None:
        """Hashes of the keys that transactions touched which the snapshot does not see. None: one of them truncated the
        table, so no row of the snapshot is current."""
        if self._truncates and not snapshot.sees(np.array(self._truncates, np.int64)).all():
            return None
        xids, hashes = self._all_keys()
        return np.unique(hashes[~snapshot.sees(xids)])

    def forget(self, snapshots: Sequence[PgSnapshot]) -> None:
        """Drop what every snapshot that may still come sees: each comes after one of ``snapshots``, and sees what that
        sees. A transaction that stays open for hours, which any role may have, keeps nothing but itself."""
        xids, hashes = self._all_keys()
        kept = ~_seen_by_all(snapshots, xids)
        self._xids, self._hashes = [xids[kept]], [hashes[kept]]
        truncates = np.array(self._truncates, np.int64)
        self._truncates = truncates[~_seen_by_all(snapshots, truncates)].tolist()

    def __len__(self) -> int:
        return sum(map(len, self._xids))

    def _all_keys(self) -> tuple[Ints, Ints]:
        empty = np.empty(0, np.int64)
        return np.concatenate([empty, *self._xids]), np.concatenate([empty, *self._hashes])


def _seen_by_all(snapshots: Sequence[PgSnapshot], xids: Ints) -> Mask:
    seen = np.ones(len(xids), np.bool_)
    for snapshot in snapshots:
        seen &= snapshot.sees(xids)
    return seen


def current_rows(rows: pa.Table, snapshot: PgSnapshot, touched: TouchedKeys) -> pa.Table | None:
    """The rows of a chunk (``change_schema``) that are still current at its mark, when ``touched`` knows all that the
    stream brought before it. None: read the chunk again."""
    unseen = touched.unseen_keys(snapshot)
    if unseen is None:
        return None
    if not len(unseen):
        return rows
    return rows.filter(pa.array(~np.isin(rows["_hash"].to_numpy(), unseen)))

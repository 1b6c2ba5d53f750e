"""Reading one partition onwards: what comes next, in batches, and what a filter or a slow consumer leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from eventstore import keys
from eventstore.model import Op
from eventstore.subscriptions.assignment import Slot
from eventstore.subscriptions.batch import Batch
from eventstore.subscriptions.membership import Start
from eventstore.times import to_micros

if TYPE_CHECKING:
    from eventstore.log import Store

BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows are given: all, or those with one of these operations, of one of these keys, and committed at
    ``since`` or later. A key is the texts of its columns, in order. A truncate concerns every key."""

    ops: frozenset[Op] | None = None
    key_hashes: tuple[int, ...] | None = None
    since: datetime | None = None

    @classmethod
    def of(
        cls,
        ops: Collection[Op | str] | None,
        keys_: Collection[tuple[str, ...] | str] | None,
        since: datetime | None,
    ) -> Filter:
        chosen = None if ops is None else frozenset(Op(op) for op in ops)
        hashes = None
        if keys_ is not None:
            parts = [(key,) if isinstance(key, str) else key for key in keys_]
            hashes = tuple(keys.hash_texts(key) for key in parts)
        return cls(chosen, hashes, since)

    def apply(self, rows: pa.Table) -> pa.Table:
        if self.ops is not None:
            rows = rows.filter(pc.is_in(rows["_op"], pa.array(sorted(op.value for op in self.ops))))
        if self.key_hashes is not None:
            named = pc.is_in(rows["_hash"], pa.array(self.key_hashes, pa.int64()))
            rows = rows.filter(pc.or_(named, pc.equal(rows["_op"], Op.TRUNCATE.value)))
        if self.since is not None:
            rows = rows.filter(pc.greater_equal(rows["_commit_ts"].cast(pa.int64()), to_micros(self.since)))
        return rows


class Cursor:
    """Where one partition is being read. ``batch_rows`` bounds a batch; with ``drop_beyond`` at most that many rows
    wait: of a longer backlog the oldest are left out, and counted."""

    def __init__(
        self,
        store: Store,
        slot: Slot,
        start: Start,
        chosen: Filter,
        *,
        batch_rows: int = BATCH_ROWS,
        drop_beyond: int | None = None,
    ) -> None:
        self.slot = slot
        self.position = start
        self._store = store
        self._filter = chosen
        self._batch_rows = batch_rows
        self._drop_beyond = drop_beyond
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.Table | None = None

    def move(self, start: Start) -> None:
        """Go on somewhere else."""
        self.position = start
        self._rows = self._rest = None

    def next(self, end: int) -> Batch | None:
        """The next rows below offset ``end`` (the partition's next one); None when there are none.

        A batch may be empty when a filter left out all of its rows: its offsets are passed all the same."""
        dropped = 0
        if self._drop_beyond is not None and end - self.position.next_offset > self._drop_beyond:
            dropped = end - self.position.next_offset - self._drop_beyond
            self.move(Start(end - self._drop_beyond, self.position.epoch))
        rows = self._take(end)
        if rows is None:
            return None
        first, last = rows["_offset"][0].as_py(), rows["_offset"][-1].as_py()
        epoch = rows["_epoch"][-1].as_py()
        self.position = Start(last + 1, epoch)
        return Batch(
            topic=self.slot.topic,
            partition=self.slot.partition,
            first_offset=first,
            end_offset=last + 1,
            last_epoch=epoch,
            rows=self._filter.apply(rows),
            dropped=dropped,
        )

    def _take(self, end: int) -> pa.Table | None:
        if self._rest is None:
            self._rest = self._more(end)
        if self._rest is None:
            return None
        taken = self._rest.slice(0, self._batch_rows)
        left = self._rest.slice(self._batch_rows)
        self._rest = left if left.num_rows else None
        return taken

    def _more(self, end: int) -> pa.Table | None:
        for _ in range(2):  # what is left of an earlier look at the log, then a new look
            if self._rows is None and self.position.next_offset < end:
                wanted = {self.slot.partition: (self.position.next_offset, end)}
                self._rows = self._store.read(
                    self.slot.topic, after_epoch=max(self.position.epoch - 1, 0), offsets=wanted
                )
            for batch in self._rows or ():
                if batch.num_rows:
                    return pa.Table.from_batches([batch])
            self._rows = None
        return None

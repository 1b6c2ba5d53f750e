"""Reading one partition onwards: what comes next, in batches, and what a filter or a slow consumer leaves out."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.log.personal_values import opened
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.filter import Filter
from tailrace.eventstore.subscriptions.membership import StartPosition
from tailrace.eventstore.subscriptions.offsets import end_of, offsets_at

BATCH_ROWS = 10_000


class Cursor:
    """Where one partition is being read. ``batch_rows`` bounds a batch; with ``drop_beyond`` at most that many rows
    wait: of a longer backlog the oldest are left out, and counted."""

    def __init__(
        self,
        log: Log,
        slot: Slot,
        start: StartPosition,
        row_filter: Filter,
        *,
        batch_rows: int = BATCH_ROWS,
        drop_beyond: int | None = None,
    ) -> None:
        self.slot = slot
        self.position = start
        self._log = log
        self._filter = row_filter
        self._batch_rows = batch_rows
        self._drop_beyond = drop_beyond
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.Table | None = None
        self._can_hold_keys = True
        self._reached_since = row_filter.since is None
        if row_filter.key_hashes is not None:
            wanted = row_filter.partitions(log.topic(slot.topic).partitioning)
            self._can_hold_keys = slot.partition in (wanted or ())

    def move(self, start: StartPosition) -> None:
        """Go on somewhere else."""
        self.close()
        self.position = start

    def close(self) -> None:
        """Let go of what was read and not given."""
        self._rows = self._rest = None

    def next(self, end: int) -> Batch | None:
        """The next rows below offset ``end`` (the partition's next one); None when there are none.

        A batch may be empty when a filter left out all of its rows: its offsets are passed all the same, unread when
        no row there can be of the keys or new enough."""
        if self.position.next_offset < end and (beyond := self._unread()) is not None:
            passed = Batch(
                topic=self.slot.topic,
                partition=self.slot.partition,
                first_offset=self.position.next_offset,
                end_offset=beyond.next_offset,
                last_epoch=beyond.epoch,
                rows=pa.table({}),
            )
            self.move(beyond)
            return passed
        dropped = 0
        if self._drop_beyond is not None and end - self.position.next_offset > self._drop_beyond:
            dropped = end - self.position.next_offset - self._drop_beyond
            self.move(StartPosition(end - self._drop_beyond, self.position.epoch))
        rows = self._take(end)
        if rows is None:
            return None
        first, last = rows["_offset"][0].as_py(), rows["_offset"][-1].as_py()
        epoch = rows["_epoch"][-1].as_py()
        self.position = StartPosition(last + 1, epoch)
        return Batch(
            topic=self.slot.topic,
            partition=self.slot.partition,
            first_offset=first,
            end_offset=last + 1,
            last_epoch=epoch,
            rows=self._filter.apply(self.slot.topic, rows),
            wanted=self._filter.events,
            dropped=dropped,
        )

    def _unread(self) -> StartPosition | None:
        """Where to go on without reading what lies before; None when the next rows have to be looked at."""
        if self._can_hold_keys and self._reached_since:
            return None
        topic, partition = self.slot.topic, self.slot.partition
        head, offsets = end_of(self._log, topic)  # before the look at times: what comes later may be new
        beyond = StartPosition(offsets[partition], head)
        if self._can_hold_keys:
            first = self._filter.first_epoch(self._log, topic)
            if first is not None:
                self._reached_since = True
                beyond = StartPosition(offsets_at(self._log, topic, Cut(first - 1))[partition], first)
        return beyond if beyond.next_offset > self.position.next_offset else None

    def _take(self, end: int) -> pa.Table | None:
        if self._rest is None:
            self._rest = self._more(end)
        if self._rest is None:
            return None
        taken = self._rest.slice(0, self._batch_rows)
        left = self._rest.slice(self._batch_rows)
        self._rest = left if left.num_rows else None
        return taken

    def _opened(self, rows: pa.Table) -> pa.Table:
        topic = self.slot.topic
        return opened(rows, self._log.keys_of(topic.source)) if topic.is_events else rows

    def _more(self, end: int) -> pa.Table | None:
        for _ in range(2):  # what is left of an earlier look at the log, then a new look
            if self._rows is None and self.position.next_offset < end:
                wanted = {self.slot.partition: (self.position.next_offset, end)}
                self._rows = self._log.read(
                    self.slot.topic, after_epoch=max(self.position.epoch - 1, 0), offsets=wanted
                )
            for batch in self._rows or ():
                if batch.num_rows:
                    return self._opened(pa.Table.from_batches([batch]))
            self._rows = None
        return None

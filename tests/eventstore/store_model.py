"""What a store of two topics holds, as plain Python: rows, where each topic begins, and what its policy lets go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.eventstore.model.keys import hash_texts, partition_of
from tailrace.eventstore.settings import TopicSettings

PARTITIONS = 3


@dataclass(frozen=True)
class Row:
    epoch: int
    lsn: int
    ordinal: int
    seconds: int  # of its commit
    op: str
    key: int
    partition: int
    offset: int

    @property
    def place(self) -> tuple[int, int, int]:
        return self.partition, self.offset, self.epoch

    @property
    def note(self) -> str | None:
        """Keys that 7 divides have a text that the column cannot hold: it is read as NULL."""
        return None if self.key % 7 == 0 else f"{self.lsn}.{self.ordinal}"


@dataclass
class TopicModel:
    """All rows that ever were, and what is left of them. ``first``: where readers begin, by partition. ``spreads``: of
    the topic's incarnations the epoch behind which each began, its first partition, and how many it has."""

    policy: TopicSettings
    rows: list[Row] = field(default_factory=list)
    start: int = 0
    run: list[Row] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    spreads: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, PARTITIONS)])

    def repartition(self, count: int, epoch: int) -> None:
        """Later rows go to partitions of their own, from offset 0 on."""
        self.spreads.append((epoch, len(self.ends), count))
        self.first = [*self.first, *[0] * count]
        self.ends += [0] * count

    def spread_of(self, partition: int) -> tuple[int, int, int]:
        return max(spread for spread in self.spreads if spread[1] <= partition)

    def append(self, epoch: int, changes: Iterable[tuple[int, int, int, str, int]]) -> None:
        """Changes (LSN, ordinal, seconds, operation, key). A truncate is stored in every partition."""
        for lsn, ordinal, seconds, op, key in changes:
            _, start, count = self.spreads[-1]
            one = start + partition_of(hash_texts([str(key)]), count)
            for partition in range(start, start + count) if op == "t" else [one]:
                at = self.ends[partition]
                self.rows.append(Row(epoch, lsn, ordinal, seconds, op, key, partition, at))
                self.ends[partition] += 1

    def after(self, epoch: int) -> list[Row]:
        """In the order of the log."""
        return sorted(
            (row for row in self.rows if row.epoch > epoch), key=lambda r: (r.epoch, r.partition, r.offset)
        )

    def readable(self) -> list[Row]:
        """What readers from the beginning get, in order."""
        left = [row for row in self.run if row.offset >= self.first[row.partition]]
        return [*sorted(left, key=lambda r: (r.partition, r.offset)), *self.after(self.start)]

    def of_partition(self, partition: int, offset: int) -> list[Row]:
        """What a consumer at an offset still gets."""
        found = (r for r in self.readable() if r.partition == partition and r.offset >= offset)
        return sorted(found, key=lambda row: row.offset)

    def offsets_at(self, epoch: int) -> list[int]:
        """The next offset of every partition behind an epoch."""
        done = [row for row in self.rows if row.epoch <= epoch]
        return [sum(row.partition == partition for row in done) for partition in range(len(self.ends))]

    def older_than(self, seconds: float, now: int, latest: Mapping[int, int], head: int) -> int:
        """The last epoch before the first one of the topic that has a commit younger than so many seconds."""
        young = (row.epoch for row in self.rows if latest[row.epoch] > now - seconds)
        return min(young, default=head + 1) - 1

    def begin_behind(self, cut: int, readable_after: int, tombstones_after: int | None) -> None:
        """Retention removed what came up to ``cut``."""
        inputs = [*self.run, *(row for row in self.rows if self.start < row.epoch <= cut)]
        kept = {row.place for row in last_rows(inputs).values()}
        if tombstones_after is not None:
            kept |= {row.place for row in inputs if row.op in "dt" and row.epoch > tombstones_after}
        self.run = [row for row in inputs if row.place in kept]
        whole = self.offsets_at(cut)
        first = whole
        if readable_after < cut and readable_after:
            shown = [row for row in self.run if row.epoch > readable_after]
            first = [
                min((row.offset for row in shown if row.partition == partition), default=whole[partition])
                for partition in range(len(self.ends))
            ]
        elif readable_after < cut:
            first = self.first
        self.start, self.first = cut, [max(pair) for pair in zip(first, self.first, strict=True)]


def last_rows(rows: Sequence[Row]) -> dict[int, Row]:
    """The row of every living key."""
    living: dict[int, Row] = {}
    for row in sorted(rows, key=lambda r: (r.lsn, r.ordinal)):
        if row.op == "t":
            living.clear()
        elif row.op == "d":
            living.pop(row.key, None)
        else:
            living[row.key] = row
    return living

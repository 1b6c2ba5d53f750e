"""The log behind a position, a portion at a time: what one transaction of the destination takes.

A portion ends with an epoch, so with a transaction of the source: with the one that makes it large enough, or that is
read when its time is over. Only an epoch that alone is larger than a portion (a load, a transaction of millions of
rows) is cut inside, between rows of one partition. What is read is cut to pieces of a portion's bytes at most, but for
a row that alone is larger, so memory stays bounded. A truncate stands before rows of other partitions that are read
later: what is read of its topic from then on stays together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.publishing.parked import ParkedKey
from tailrace.eventstore.publishing.position import Inside, Position
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.subscriptions.filter import Filter
from tailrace.eventstore.subscriptions.tail import FollowedRows, TailStart, merge_topics

_ALL = Filter()


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows behind the position before. With them all up to ``epoch`` is published, with ``inside`` only a part of it
    (``Position``)."""

    rows: Sequence[EpochRows]
    epoch: int
    inside: Inside


@dataclass(frozen=True, slots=True)
class PortionLimits:
    """A portion ends with the epoch that makes it larger than ``bytes_max``, or that is read ``seconds_max`` after its
    first rows. ``clock``: seconds, from anywhere."""

    bytes_max: int
    seconds_max: float = float("inf")
    clock: Callable[[], float] = time.monotonic


def portions(
    log: Log, topics: Sequence[TopicInfo], position: Position, head: int, limits: PortionLimits
) -> Iterator[Portion]:
    """What there is of the topics behind a position up to ``head``. The last portion ends at ``head``, and may be
    empty."""
    after = position.whole_epoch
    begin = TailStart(Cut(after)) if after else TailStart()
    held = _Held(position.inside, limits)
    partial = position.epoch if position.inside else 0
    for each in merge_topics(log, topics, begin, Cut(head), _ALL):
        rows = _behind(each, position.inside)
        for piece in _pieces(rows, limits.bytes_max):
            if held.may_end_before(each):
                yield _told(log, held.portion(each), partial)
                partial = held.inside_of
            held.add(each, piece)
    yield _told(log, Portion(held.rows(), head, {}), partial)


def _pieces(rows: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """Of so many bytes at most, as far as rows are of one size."""
    step = max(rows.num_rows * bytes_max // max(rows.nbytes, 1), 1)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _told(log: Log, portion: Portion, partial: int) -> Portion:
    """With the ordinals of an epoch of which a part is in another portion: that of the number ``partial`` (0: none),
    and the one that is cut behind this one."""
    cut = {partial, portion.epoch if portion.inside else 0} - {0}
    if not cut:
        return portion
    rows = [
        replace(each, ordinals=log.epochs(epoch - 1, 1)[0].rows) if epoch in cut else each
        for each, epoch in zip(portion.rows, (_epoch_of(each) for each in portion.rows), strict=True)
    ]
    return replace(portion, rows=rows)


def _epoch_of(found: EpochRows) -> int:
    return int(found.rows["_epoch"][0].as_py())


def key_portions(
    log: Log, topic: TopicInfo, parked: ParkedKey, end: int, bytes_max: int
) -> Iterator[list[EpochRows]]:
    """Rows of a parked key, and the last truncate before them, up to an epoch; a portion ends with the epoch that makes
    it so large. What a truncate removed is not read again: it may be much."""
    key = Filter(key_hashes=(parked.hash,))
    begin = parked.after_epoch
    for piece in _behind_epoch(log, topic, begin, end, replace(key, ops=frozenset({Op.TRUNCATE}))):
        begin = piece.epoch - 1
    held: list[FollowedRows] = []
    size = 0
    for piece in _behind_epoch(log, topic, begin, end, key):
        if held and held[-1].epoch != piece.epoch and size >= bytes_max:
            yield _by_epoch((each, each.rows) for each in held)
            held, size = [], 0
        held.append(piece)
        size += piece.rows.nbytes
    if held:
        yield _by_epoch((each, each.rows) for each in held)


def _behind_epoch(log: Log, topic: TopicInfo, begin: int, end: int, wanted: Filter) -> Iterator[FollowedRows]:
    """Rows that are wanted; a piece is never empty."""
    start = TailStart(Cut(begin)) if begin else TailStart()
    return (each for each in merge_topics(log, [topic], start, Cut(end), wanted) if each.rows.num_rows)


def _by_epoch(pieces: Iterable[tuple[FollowedRows, pa.Table]]) -> list[EpochRows]:
    """Pieces of one topic, epoch and version put together."""
    groups: dict[tuple[int, TopicId, int], list[pa.Table]] = {}
    for piece, rows in pieces:
        groups.setdefault((piece.epoch, piece.topic, piece.version), []).append(rows)
    return [
        EpochRows(topic, version, pa.concat_tables(tables)) for (_, topic, version), tables in groups.items()
    ]


def _behind(found: FollowedRows, inside: Inside) -> pa.Table:
    """Without rows that were published with the first part of their epoch."""
    offsets = inside.get(found.topic.text)
    if offsets is None:
        return found.rows
    rows = found.rows.combine_chunks()
    partitions = rows["_partition"].to_numpy()
    first = np.array([offsets.get(str(number), 0) for number in range(int(partitions.max()) + 1)], np.int64)
    return rows.filter(pa.array(rows["_offset"].to_numpy() >= first[partitions]))


@dataclass(slots=True)
class _Held:
    """Pieces of a portion; ``inside`` is how far the epoch of the last one is, also by earlier portions."""

    inside: Inside
    limits: PortionLimits
    size: int = 0
    began: float = 0.0
    epoch_size: int = 0  # of the last piece's epoch
    pieces: list[tuple[FollowedRows, pa.Table]] = field(default_factory=list)
    inside_of: int = 0  # the epoch that ``inside`` is of
    truncated: bool = False  # the last piece, or one before it of its topic and epoch

    def add(self, piece: FollowedRows, rows: pa.Table) -> None:
        if self.pieces and _place(self.pieces[-1][0]) != _place(piece):
            self.truncated = False
        if self.pieces and self.pieces[-1][0].epoch != piece.epoch:
            self.epoch_size = 0
        if not self.pieces:
            self.began = self.limits.clock()
        self.truncated |= bool(pc.any(pc.equal(rows["_op"], Op.TRUNCATE.value), min_count=0).as_py())
        self.pieces.append((piece, rows))
        self.size += rows.nbytes
        self.epoch_size += rows.nbytes

    def may_end_before(self, following: FollowedRows) -> bool:
        if not self.pieces:
            return False
        last = self.pieces[-1][0]
        large = self.size >= self.limits.bytes_max
        if last.epoch != following.epoch:
            return large or self.limits.clock() - self.began >= self.limits.seconds_max
        cut = large and self.epoch_size >= self.limits.bytes_max
        return cut and not (self.truncated and last.topic == following.topic)

    def portion(self, following: FollowedRows) -> Portion:
        """What is held, and hold nothing."""
        epoch = self.pieces[-1][0].epoch
        inside = self._inside(epoch) if following.epoch == epoch else {}
        found = Portion(self.rows(), epoch, inside)
        self.inside, self.inside_of = inside, epoch if inside else 0
        self.size, self.epoch_size, self.pieces, self.truncated = 0, 0, [], False
        return found

    def rows(self) -> list[EpochRows]:
        return _by_epoch(self.pieces)

    def _inside(self, epoch: int) -> Inside:
        same = self.pieces[0][0].epoch == epoch  # else the epoch began with this portion
        found = {topic: dict(offsets) for topic, offsets in self.inside.items()} if same else {}
        for piece, rows in self.pieces:
            if piece.epoch == epoch:
                ends = rows.group_by("_partition").aggregate([("_offset", "max")]).to_pylist()
                known = found.setdefault(piece.topic.text, {})
                known |= {str(each["_partition"]): each["_offset_max"] + 1 for each in ends}
        return found


def _place(piece: FollowedRows) -> tuple[int, TopicId]:
    return piece.epoch, piece.topic

"""State runs: which rows of some epochs make a topic's state, now and under whatever comes later; written as files.

A state run holds rows of the log as they are, with their offsets, a subsequence in the topic's order. So whatever reads
the state folds runs and later rows alike, under the schema versions they were written in, with their raw texts, and
comes to what it came to before. Kept are

- the last row of every living key (of a bag: as many creates as there are rows), and for cells that it did not carry
  (unchanged TOASTed values) the row that did;
- where the value came with a key change: the rows of the old key on which it rests, and the delete that leads there;
- of compacted topics, deletes and truncates younger than ``tombstones_after``, for readers that may not know of them;
- when there are rows before those of the run: the last truncate, and the deletes of keys that ended deleted.

The work is cut into shares of some partitions each. They need no catalog: workers of a cluster may do them. With rows
from before and after a repartition a share has all the partitions that its keys are in: from 4 to 8 of them there are
four shares, from 4 to 7 one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import segment_index
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import DecodeHints, read_segment
from tailrace.eventstore.segment.select import Part, select_rows
from tailrace.eventstore.state.assembly import CellMove
from tailrace.eventstore.state.bucket_passes import bucket_passes
from tailrace.eventstore.state.input import StateInput, plan_known_state
from tailrace.eventstore.state.moved_cells import MovedCells
from tailrace.eventstore.state.row_layout import SILENT, Ints
from tailrace.eventstore.state.state import partition_reader, reader_of
from tailrace.eventstore.storage import Storage


@dataclass(frozen=True, slots=True)
class RunSpan:
    """The epochs of a run: those behind ``after`` and up to ``epoch``. ``tombstones_after``: deletes of later epochs
    stay in it (None: none)."""

    after: int
    epoch: int
    tombstones_after: int | None = None

    def mask(self, table: pa.Table, surviving: pa.Array) -> pa.Array:
        """The rows that the run has, of those it spans: the surviving ones and its tombstones."""
        mask = surviving
        if self.tombstones_after is not None:
            young = pc.greater(table["_epoch"], self.tombstones_after)
            mask = pc.or_(mask, pc.and_(pc.is_in(table["_op"], pa.array(["d", "t"])), young))
        inside = pc.and_(pc.greater(table["_epoch"], self.after), pc.less_equal(table["_epoch"], self.epoch))
        return pc.and_(mask, inside)


@dataclass(frozen=True, slots=True)
class Share:
    """What is to be done for some partitions of a run. ``wanted`` refers to rows of the run's epochs, ``before`` to
    those before them that they may lean on. ``more``: offsets, by partition, that other shares need of this one."""

    storage: Storage
    wanted: StateInput
    before: tuple[SegmentRef, ...]
    partitions: tuple[int, ...]
    span: RunSpan
    name: Callable[[], str]
    memory_bytes: int
    more: Mapping[int, Ints] = field(default_factory=dict)

    def write(self) -> WrittenShare:
        """Its files; nothing names them yet."""
        refs = self.wanted.refs
        unsent = unsent_columns(self.storage, refs, self.partitions)
        names = tuple(column.name for column in self.wanted.target.columns if column.id in unsent)
        surviving = survivors(
            self.storage, replace(self.wanted, columns=names), self.partitions, self.before, self.span.after
        )
        mine = {
            partition: _union(surviving.get(partition), self.more.get(partition))
            for partition in self.partitions
        }

        def keep(table: pa.Table) -> pa.Array:
            return self.span.mask(table, survival_mask(table, mine))

        parts = select_rows(self.storage, refs, keep, self.name, self.memory_bytes, self.partitions)
        elsewhere = {at: offsets for at, offsets in surviving.items() if at not in self.partitions}
        return WrittenShare(tuple(parts), elsewhere)


@dataclass(frozen=True, slots=True)
class WrittenShare:
    """``elsewhere``: offsets of rows in other partitions that cells of these ones rest on (keys that changed)."""

    parts: tuple[Part, ...]
    elsewhere: Mapping[int, Ints]


class Workers(Protocol):
    """Who does the shares, and into how many the work is cut for them."""

    @property
    def shares(self) -> int: ...

    def write(self, shares: Sequence[Share]) -> Sequence[WrittenShare]: ...


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """This process, one share after another."""

    shares: int = 1

    def write(self, shares: Sequence[Share]) -> Sequence[WrittenShare]:
        return [share.write() for share in shares]


def write_run(
    log: Log,
    topic: TopicId,
    span: RunSpan,
    name: Callable[[], str],
    workers: Workers | None = None,
) -> list[Part]:
    """The files of a state run, by partition or in the topic's order; nothing names them yet."""
    # Runs that stand beside the log have lost the deletes that readers are to get.
    wanted = plan_known_state(
        log, topic, Cut(span.epoch), columns=[], every_row=span.tombstones_after is not None
    )
    if wanted.target.bag:  # it counts deletes against creates: one alone would take away another row
        span = replace(span, tombstones_after=None)
    before = tuple(
        replace(ref, last_epoch=min(ref.last_epoch, span.after))
        for ref in wanted.refs
        if ref.first_epoch <= span.after
    )
    inside = _restrict_to_new(wanted, span.after)
    assert not (span.after and inside.partitioning.mixed)  # ``due``: such a run begins with the log
    workers = workers or LocalWorkers()
    count = max(1, min(workers.shares, inside.partitioning.classes))
    shares = [
        Share(
            storage=log.storage,
            wanted=inside,
            before=before,
            partitions=inside.partitioning.partitions_of_class(number, count),
            span=span,
            name=name,
            memory_bytes=log.settings.upkeep.memory_bytes,
        )
        for number in range(count)
    ]
    written = list(workers.write(shares))
    incomplete = [at for at, share in enumerate(shares) if _requested_offsets(share, written)]
    if incomplete:  # keys changed from one share's partitions to another's: those are done once more
        again = [replace(shares[at], more=_requested_offsets(shares[at], written)) for at in incomplete]
        for at, found in zip(incomplete, workers.write(again), strict=True):
            discard(log.storage, written[at].parts)
            written[at] = found
    return [part for each in written for part in each.parts]


def _restrict_to_new(wanted: StateInput, after: int) -> StateInput:
    """The rows of epochs behind ``after``. A file of some may hold others, too, of an incarnation that ended before."""
    inside = wanted.restricted_to(
        replace(ref, first_epoch=max(ref.first_epoch, after + 1))
        for ref in wanted.refs
        if ref.last_epoch > after
    )
    return replace(inside, partitioning=inside.partitioning.restrict_after(after))


def _requested_offsets(share: Share, written: Sequence[WrittenShare]) -> dict[int, Ints]:
    requested: dict[int, Ints] = {}
    for each in written:
        for partition, offsets in each.elsewhere.items():
            if partition in share.partitions:
                requested[partition] = _union(requested.get(partition), offsets)
    return requested


def discard(storage: Storage, parts: Sequence[Part]) -> None:
    """Remove files that will not be named."""
    for part in parts:
        storage.delete(part.path)


def run_values(topic_id: int, after: int, epoch: int, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Rows of ``state_runs``."""
    return [
        {
            "topic_id": topic_id,
            "after_epoch": after,
            "epoch": epoch,
            "number": number,
            "path": part.path,
            "version": part.version,
            "first_epoch": part.first_epoch,
            "last_epoch": part.last_epoch,
            "rows": part.rows,
            "bytes": part.bytes,
            "checksum": part.checksum,
            "ranges": segment_index.ranges_to_json(part.ranges),
        }
        for number, part in enumerate(parts)
    ]


def unsent_columns(
    storage: Storage, refs: Sequence[SegmentRef], partitions: Collection[int] | None = None
) -> set[int]:
    """Ids of columns with cells that were not sent: of the others no cell has to be read."""
    found: set[int] = set()
    for ref in refs:
        table = read_segment(
            storage, ref, columns=["_unchanged", "_offset"], partitions=partitions, hints=DecodeHints(SILENT)
        )
        if "_unchanged" in table.column_names:
            found.update(pc.unique(pc.list_flatten(table["_unchanged"])).to_pylist())
    return found


def survivors(
    storage: Storage,
    wanted: StateInput,
    partitions: Collection[int],
    before: Sequence[SegmentRef] = (),
    after: int = 0,
) -> Mapping[int, Ints]:
    """By partition, the offsets (ascending) of the rows to keep: of these partitions, and of others those that cells of
    these rest on. ``before``: rows up to the epoch ``after``, where those of ``wanted`` begin behind it."""
    layout, current = wanted.layout, wanted.partitioning.current
    found: dict[int, list[Ints]] = {partition: [] for partition in partitions}
    moves: list[CellMove] = []
    read, spread = partition_reader(storage, wanted, layout), wanted.bucket_layout
    for at, partition in enumerate(current.numbers):
        if partition not in found:
            continue
        for compactor in bucket_passes(read, layout, spread, spread.buckets_of(at), later=after > 0):
            kept, hidden = compactor.required_rows()
            if wanted.partitioning.mixed:
                numbers = wanted.partitioning.partitions_of_rows(kept.hashes, kept.epochs)
                for number in np.unique(numbers).tolist():
                    found[number].append(kept.offsets[numbers == number])
            else:  # a truncate is of no key
                found[partition].append(kept.offsets)
            moves += hidden

    def seen(key_hash: int, epoch: int, offset: int) -> None:
        if epoch > after:
            number = wanted.partitioning.partition_of_row(key_hash, epoch)
            found.setdefault(number, []).append(np.array([offset], np.int64))

    if moves:
        whole = replace(wanted, refs=(*before, *wanted.refs))
        MovedCells(wanted.target, reader_of(storage, whole)).resolve(moves, seen)
    return {partition: _union(*parts) for partition, parts in found.items()}


def _union(*parts: Ints | None) -> Ints:
    held = [part for part in parts if part is not None]
    return np.unique(np.concatenate(held)) if held else np.empty(0, np.int64)


def survival_mask(table: pa.Table, surviving: Mapping[int, Ints]) -> pa.Array:
    """Rows (all of one partition) whose offsets survive."""
    if not table.num_rows:
        return pa.array([], pa.bool_())
    wanted = surviving[table["_partition"][0].as_py()]
    offsets = table["_offset"].to_numpy()
    at = np.minimum(np.searchsorted(wanted, offsets), max(len(wanted) - 1, 0))
    return pa.array(wanted[at] == offsets if len(wanted) else np.zeros(len(offsets), np.bool_))

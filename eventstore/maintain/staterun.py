"""State runs: which rows of a topic's prefix make its state, now and under whatever comes later; written as files.

A state run holds rows of the log as they are, with their offsets, a subsequence in the topic's order. So whatever reads
the state folds run and later rows alike, under the schema versions they were written in, with their raw texts, and
comes to what it came to before. Kept are

- the last row of every living key (of a bag: as many creates as there are rows), and for cells that it did not carry
  (unchanged TOASTed values) the row that did;
- where the value came with a key change: the rows of the old key on which it rests, and the delete that leads there;
- of compacted topics, deletes and truncates younger than ``tombstones_after``, for readers that may not know of them.

Incremental on the run before, which is the beginning of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eventstore import keys
from eventstore.assembly import Move
from eventstore.compaction import Compactor
from eventstore.conform import Ints, conform
from eventstore.maintain.filtering import Part, filtered
from eventstore.model import SegmentRef, TopicId
from eventstore.moves import MovedCells
from eventstore.position import Cut
from eventstore.segment import read_segment
from eventstore.state import StateInput, changes_of, plan_state, reader_of
from eventstore.storage import Storage

if TYPE_CHECKING:
    from eventstore.log import Store


def write_run(
    store: Store, topic: TopicId, epoch: int, name: Callable[[], str], tombstones_after: int | None
) -> Iterator[Part]:
    """The files of the state run at ``epoch``; nothing names them yet. ``tombstones_after``: deletes of later epochs
    stay (None: none)."""
    wanted = plan_state(store, topic, Cut(epoch), columns=[], incomplete=True)
    unsent = unsent_columns(store.storage, wanted.refs)
    names = [column.name for column in wanted.target.columns if column.id in unsent]
    if names:
        wanted = plan_state(store, topic, Cut(epoch), columns=names, incomplete=True)
    surviving = survivors(store.storage, wanted)
    if wanted.target.bag:
        tombstones_after = None  # a bag counts deletes against creates: one alone would take away another row

    def keep(table: pa.Table) -> pa.Array:
        mask = among(table, surviving)
        if tombstones_after is not None:
            inside = pc.and_(
                pc.greater(table["_epoch"], tombstones_after), pc.less_equal(table["_epoch"], epoch)
            )
            mask = pc.or_(mask, pc.and_(pc.is_in(table["_op"], pa.array(["d", "t"])), inside))
        return mask

    yield from filtered(store.storage, wanted.refs, keep, name, store.settings.upkeep.memory_bytes)


def unsent_columns(storage: Storage, refs: Sequence[SegmentRef]) -> set[int]:
    """Ids of columns with cells that were not sent: of the others no cell has to be read."""
    found: set[int] = set()
    for ref in refs:
        marks = read_segment(storage, ref, columns=["_unchanged"])["_unchanged"]
        if marks.null_count < len(marks):
            found.update(pc.unique(pc.list_flatten(marks)).to_pylist())
    return found


def survivors(storage: Storage, wanted: StateInput) -> Mapping[int, Ints]:
    """By partition, the offsets (ascending) of the rows to keep."""
    layout = wanted.layout
    found: dict[int, list[Ints]] = {partition: [] for partition in range(wanted.partitions)}
    moves: list[Move] = []
    for bucket in range(wanted.buckets):
        compactor = Compactor(layout)
        for version, table in changes_of(storage, wanted, bucket, layout):
            for rows in conform(table, version, layout):
                compactor.add(rows)
        offsets, hidden = compactor.kept()
        found[bucket // wanted.split].append(offsets)
        moves += hidden

    def seen(key_hash: int, offset: int) -> None:
        partition = keys.partition_of(key_hash, wanted.partitions)
        found[partition].append(np.array([offset], np.int64))

    if moves:
        MovedCells(wanted.target, reader_of(storage, wanted)).resolve(moves, seen)
    return {
        partition: np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        for partition, parts in found.items()
    }


def among(table: pa.Table, surviving: Mapping[int, Ints]) -> pa.Array:
    """Rows (all of one partition) whose offsets survive."""
    if not table.num_rows:
        return pa.array([], pa.bool_())
    wanted = surviving[table["_partition"][0].as_py()]
    offsets = table["_offset"].to_numpy()
    at = np.minimum(np.searchsorted(wanted, offsets), max(len(wanted) - 1, 0))
    return pa.array(wanted[at] == offsets if len(wanted) else np.zeros(len(offsets), np.bool_))

"""The order in which rows of one topic are stored: by partition, and in commit order within."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model import keys
from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.topic import Op


@dataclass(frozen=True, slots=True)
class ArrangedRows:
    """Rows, their storage order (None: the one they have), and what the catalog wants to know about them.

    They are put in order part by part, as they are written: all at once would be a second copy of them."""

    rows: pa.Table
    order: pa.Array | None
    counts: tuple[tuple[int, int], ...]
    lsns: tuple[int, int] | None
    commit_times: tuple[int, int] | None

    @property
    def table(self) -> pa.Table:
        """All rows in storage order."""
        return self.rows if self.order is None else self.rows.take(self.order)

    @property
    def count(self) -> int:
        """How many rows are stored."""
        return self.rows.num_rows if self.order is None else len(self.order)


def arrange(rows: pa.Table, incarnation: TopicIncarnation) -> ArrangedRows:
    """Sort by partition, keeping the order within. A truncate belongs to every partition, so it is repeated in each."""
    if not rows.num_rows:
        return ArrangedRows(rows, None, (), None, None)
    rows = rows.combine_chunks()
    partitions = incarnation.count
    parts = keys.partitions_of(_combine(rows["_hash"]), partitions)
    truncates = _combine(pc.equal(rows["_op"], Op.TRUNCATE.value)).to_numpy(zero_copy_only=False)
    if truncates.any():
        order = np.concatenate([np.flatnonzero((parts == p) | truncates) for p in range(partitions)])
        lengths = [int(np.count_nonzero((parts == p) | truncates)) for p in range(partitions)]
    else:
        order = np.argsort(parts.astype(np.int16), kind="stable")  # 16 bits: numpy sorts these by radix
        lengths = np.bincount(parts, minlength=partitions).tolist()
    counts = tuple((p, n) for p, n in enumerate(lengths, start=incarnation.first) if n)
    as_is = len(counts) == 1 and len(order) == rows.num_rows
    return ArrangedRows(
        rows,
        None if as_is else pa.array(order),
        counts,
        _span(rows["_lsn"]),
        _span(rows["_commit_ts"].cast(pa.int64())),
    )


def sort_by_commit(rows: pa.Table) -> pa.Table:
    """What was given to ``arrange``, from rows of one epoch in storage order: a truncate, which each partition has, is
    there once, and before the rows of its transaction that count from it on."""
    lsns, ordinals = rows["_lsn"].to_numpy(), rows["_ordinal"].to_numpy()
    truncates = pc.equal(rows["_op"], Op.TRUNCATE.value).to_numpy(zero_copy_only=False)
    order = np.lexsort((~truncates, ordinals, lsns))
    lsns, ordinals, truncates = lsns[order], ordinals[order], truncates[order]
    again = np.zeros(len(order), np.bool_)
    again[1:] = truncates[1:] & truncates[:-1] & (np.diff(lsns) == 0) & (np.diff(ordinals) == 0)
    return rows.take(pa.array(order[~again]))


def _combine(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _span(column: pa.ChunkedArray) -> tuple[int, int] | None:
    span = pc.min_max(column).as_py()
    return None if span["min"] is None else (span["min"], span["max"])

"""Folding a partition's rows in as few passes as its state has room for.

Buckets bound memory, but folding one decodes all of its partition. How large a state is shows only while it is
folded: so a pass takes all buckets of a partition that it is asked for, and when what it keeps becomes too large, it
leaves the upper half of them to the next pass. Most histories are far larger than their state, and are decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.eventstore.model import keys
from tailrace.eventstore.state.compaction import FOLD_ROWS, Compactor
from tailrace.eventstore.state.row_layout import TRUNCATE, Layout, Mask, StateRows

ReadPartition = Callable[[int], Iterator[StateRows]]
"""All rows of a partition in offset order, in the layout."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """How a topic's keys are spread: partitions, and into how many buckets each is split (``keys.bucket_of``)."""

    partitions: int
    split: int

    @property
    def count(self) -> int:
        return self.partitions * self.split

    def buckets_of(self, partition: int) -> range:
        return range(partition * self.split, (partition + 1) * self.split)

    def mask(self, rows: StateRows, chosen: range) -> Mask:
        """Rows of the chosen buckets, of all that a partition has; a truncate belongs to every one."""
        mine = keys.buckets_of(pa.array(rows.hashes), self.partitions, self.split)
        mask: Mask = ((mine >= chosen.start) & (mine < chosen.stop)) | (rows.ops == TRUNCATE)
        return mask


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """How much a pass collects before it folds, and how much it keeps. It holds as much again that is not folded yet,
    and a copy of a part while it folds."""

    fold_rows: int = FOLD_ROWS
    kept_bytes: int = 128 << 20


_LIMITS = FoldLimits()


def bucket_passes(
    read: ReadPartition,
    layout: Layout,
    buckets: Buckets,
    chosen: range,
    *,
    later: bool = False,
    limits: FoldLimits = _LIMITS,
) -> Iterator[Compactor]:
    """Compactors that have all rows of one or more buckets, in the order of ``chosen``, each of one partition.
    ``later`` as ``Compactor`` has it."""
    while chosen:
        end = min(chosen.stop, (chosen.start // buckets.split + 1) * buckets.split)
        compactor = Compactor(layout, fold_rows=limits.fold_rows, later=later)
        mine = _fold(compactor, read, buckets, range(chosen.start, end), limits.kept_bytes)
        yield compactor
        chosen = range(mine.stop, chosen.stop)


def _fold(compactor: Compactor, read: ReadPartition, buckets: Buckets, mine: range, kept_bytes: int) -> range:
    """Adds the rows of ``mine``, or of as many of its first buckets as there is room for: those it gives back."""
    for rows in read(mine.start // buckets.split):
        if len(mine) < buckets.split:
            rows = rows.take(np.flatnonzero(buckets.mask(rows, mine)))
        if len(rows):
            compactor.add(rows)
        while compactor.kept_bytes > kept_bytes and len(mine) > 1:
            mine = mine[: len(mine) // 2]
            chosen = mine
            compactor.retain(lambda part: buckets.mask(part, chosen))  # noqa: B023 - called at once
    return mine

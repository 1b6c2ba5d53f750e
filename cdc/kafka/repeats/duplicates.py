"""Which rows came before? Debezium sends rows again after a restart.

The position of a streamed row is (``sequence[0]``, LSN of the row): it grows in a partition, and rows of one COPY or
INSERT share it. A row at or below the highest position so far is dropped only when the same row (transaction, LSN,
operation, key) is here already. One below it that is not means that LSNs went back: the database was restored, or the
connector has another slot. By position alone rows would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.eventstore.model.kafka import PartitionProgress

RowIdentity = tuple[int, int, str, int]  # transaction, LSN, operation, hash of the key
RowPosition = tuple[int, int]  # the commit before it, its LSN
Held = Callable[[Collection[RowIdentity], RowPosition], Collection[RowIdentity]]
"""Which of these rows the log has; none of them stands in front of the position."""
_STREAMED = pa.array(["false", ""])


@dataclass(frozen=True, slots=True)
class Sifted:
    """``keep``: which rows are new. ``commit_lsn`` and ``row_lsn``: the highest position with them. ``gone_back``: the
    first row whose position went back although nobody has it."""

    keep: NDArray[np.bool_]
    commit_lsn: int
    row_lsn: int
    gone_back: int | None = None

    @property
    def dropped(self) -> int:
        return int(np.count_nonzero(~self.keep))


def sift(rows: pa.Table, origins: pa.Table, progress: PartitionProgress, held: Held) -> Sifted:
    """``rows`` with ``_hash``, ``_op`` and ``_txn``, ``origins`` by row (``decoded.ORIGINS``)."""
    keep = np.ones(rows.num_rows, bool)
    of_stream = pc.or_kleene(pc.is_null(origins["snapshot"]), pc.is_in(origins["snapshot"], _STREAMED))
    streamed = np.flatnonzero(pc.and_(of_stream, pc.is_valid(origins["lsn"])).to_numpy())
    if not len(streamed):
        return Sifted(keep, progress.commit_lsn, progress.row_lsn)
    commits = pc.fill_null(origins["commit_lsn"], 0).to_numpy()[streamed]
    lsns = pc.fill_null(origins["lsn"], 0).to_numpy()[streamed]
    high = (progress.commit_lsn, progress.row_lsn)
    positions = np.append(high[0], commits), np.append(high[1], lsns)
    ranks = _ranks(*positions)
    highest = np.maximum.accumulate(ranks)
    suspects = ranks[1:] <= highest[:-1]
    top = [int(each[np.argmax(ranks)]) for each in positions]
    if not suspects.any():
        return Sifted(keep, top[0], top[1])
    chosen = rows.select(["_txn", "_op", "_hash"]).take(pa.array(streamed))
    again = suspects & _seen_before(ranks[1:], chosen)
    open_ones = np.flatnonzero(suspects & ~again)
    old = open_ones[ranks[1:][open_ones] <= ranks[0]]  # what the log may have
    found = chosen.take(pa.array(old)).to_pydict()
    names: list[RowIdentity] = list(
        zip(found["_txn"], lsns[old].tolist(), found["_op"], found["_hash"], strict=True)
    )
    lowest = min(((int(commits[at]), int(lsns[at])) for at in old), default=high)
    known = frozenset(held(frozenset(names), lowest)) if names else frozenset()
    again[old] = [name in known for name in names]
    keep[streamed[again]] = False
    below = ranks[1:] < highest[:-1]
    lost = np.flatnonzero(below & ~again)
    return Sifted(keep, top[0], top[1], int(streamed[lost[0]]) if len(lost) else None)


def _ranks(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """By row its place among the different ones, the first key counting most. Rows in order need no sorting."""
    step = _steps(keys)
    if (step >= 0).all():
        return np.append(0, np.cumsum(step))
    order = np.lexsort(keys[::-1])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.append(0, np.cumsum(_steps([key[order] for key in keys])))
    return ranks


def _steps(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Whether each row but the first is above (1), equal to (0) or below (-1) the one before."""
    step = np.zeros(len(keys[0]) - 1, np.int64)
    for key in keys[::-1]:
        step = np.where(key[1:] == key[:-1], step, np.where(key[1:] > key[:-1], 1, -1))
    return step


def _seen_before(ranks: NDArray[np.int64], rows: pa.Table) -> NDArray[np.bool_]:
    """Which rows are there before, at the same position."""
    operations = rows["_op"].combine_chunks().dictionary_encode().indices.to_numpy()
    names = _ranks(ranks, rows["_txn"].to_numpy(), operations.astype(np.int64), rows["_hash"].to_numpy())
    _, first = np.unique(names, return_index=True)
    seen = np.ones(len(names), bool)
    seen[first] = False
    return seen

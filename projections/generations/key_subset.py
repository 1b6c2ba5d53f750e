"""Some keys of a result: which groups of rows may have them, and which rows do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.generations.difference import HASH, Mask, RowNumbers
from tailrace.projections.generations.key_set import Hashes, KeySet


@dataclass(frozen=True, slots=True)
class KeySubset:
    """Some keys of a result. ``has``: the rows of a table (with ``_hash`` and the key columns) that have one of them.
    ``hashes``: all hashes that they can have, sorted, where these are known."""

    has: Callable[[pa.Table], Mask]
    hashes: Hashes | None = None

    @classmethod
    def of(cls, keys: KeySet, key: Sequence[str], *, whole: bool = True) -> KeySubset:
        """The keys that a result has in these columns, which are its ``whole`` key or a part of it."""
        hashes = np.unique(keys.hashes) if whole else None
        return cls(lambda table: keys.matches([table[name] for name in key]), hashes)

    def filter(self, table: pa.Table) -> pa.Table:
        if self.hashes is not None:
            table = table.filter(pc.is_in(table[HASH], value_set=pa.array(self.hashes)))
        return table.filter(pa.array(self.has(table)))

    def places(self, column: Hashes) -> RowNumbers:
        """The rows of a sorted column that have one of the hashes, which are known, in order."""
        assert self.hashes is not None
        first = np.searchsorted(column, self.hashes)
        found = first < len(column)
        found[found] = column[first[found]] == self.hashes[found]
        first = first[found]
        again = first + 1 < len(column)
        again[again] = column[first[again] + 1] == column[first[again]]
        if not again.any():
            return first
        counts = np.searchsorted(column, self.hashes[found], side="right") - first
        before = np.cumsum(counts) - counts
        return np.repeat(first - before, counts) + np.arange(counts.sum())

    def groups(self, lowest: Hashes, highest: Hashes) -> list[int]:
        """The groups of rows, given by their lowest and highest hashes, that may have one of the keys."""
        if self.hashes is None:
            return list(range(len(lowest)))
        up_to = np.searchsorted(self.hashes, highest, side="right")
        groups: list[int] = np.flatnonzero(np.searchsorted(self.hashes, lowest) < up_to).tolist()
        return groups

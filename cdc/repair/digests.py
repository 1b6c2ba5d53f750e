"""Rows as two hashes each, so that a table of any size is compared in 16 bytes a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.eventstore.model import keys

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Digests:
    """For each row the hashes of its key's texts and of all its cells' texts, sorted by both."""

    key: Ints
    row: Ints

    def __len__(self) -> int:
        return len(self.key)


class DigestBuilder:
    """Collects ``Digests``. ``key_at``: which of the columns are the key."""

    def __init__(self, key_at: Sequence[int]) -> None:
        self._key_at = key_at
        self._keys: list[Ints] = []
        self._rows: list[Ints] = []

    def add(self, texts: Sequence[pa.Array]) -> None:
        key, row = digest(texts, self._key_at)
        self._keys.append(key)
        self._rows.append(row)

    def finish(self) -> Digests:
        empty = np.empty(0, np.int64)
        key, row = np.concatenate([empty, *self._keys]), np.concatenate([empty, *self._rows])
        order = np.lexsort((row, key))
        return Digests(key[order], row[order])


def digest(texts: Sequence[pa.Array], key_at: Sequence[int]) -> tuple[Ints, Ints]:
    cells = [column.cast(pa.large_binary()).to_pylist() for column in texts]
    key = keys.hash_cells([cells[at] for at in key_at]).to_numpy()
    return key, keys.hash_cells(cells).to_numpy()


@dataclass(frozen=True, slots=True)
class DigestDifference:
    """Hashes of keys: only on the left, only on the right, on both with different rows."""

    left: Ints
    right: Ints
    different: Ints


def compare(left: Digests, right: Digests) -> DigestDifference:
    """Rows are compared as multisets of (key, cells), so equal hashes of different keys do not hide anything."""
    pairs = np.concatenate([_pairs(left), _pairs(right)])
    side = np.concatenate([np.ones(len(left), np.int64), -np.ones(len(right), np.int64)])
    found, inverse = np.unique(pairs, return_inverse=True)
    balance = np.zeros(len(found), np.int64)
    np.add.at(balance, inverse, side)
    more_left = np.unique(found["key"][balance > 0])
    more_right = np.unique(found["key"][balance < 0])
    different = np.intersect1d(more_left, more_right)
    return DigestDifference(
        np.setdiff1d(more_left, different), np.setdiff1d(more_right, different), different
    )


def _pairs(digests: Digests) -> np.ndarray[Any, Any]:
    pairs = np.empty(len(digests), [("key", np.int64), ("row", np.int64)])
    pairs["key"], pairs["row"] = digests.key, digests.row
    return pairs


def keys_of(
    texts: Sequence[pa.Array], key_at: Sequence[int], wanted: Collection[int]
) -> dict[int, tuple[str | None, ...]]:
    """Key texts of the rows whose key hash is wanted; bytes that are not UTF-8 get replacement characters."""
    columns = [texts[at] for at in key_at]
    cells = [column.cast(pa.large_binary()).to_pylist() for column in columns]
    hashes = keys.hash_cells(cells).to_numpy()
    rows = np.flatnonzero(np.isin(hashes, list(wanted)))
    return {int(hashes[row]): tuple(_as_text(column[row]) for column in cells) for row in rows}


def _as_text(cell: bytes | None) -> str | None:
    return None if cell is None else cell.decode(errors="replace")

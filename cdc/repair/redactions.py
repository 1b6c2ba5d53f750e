"""Cells that a redaction erased, when a topic is held against its table: neither compared nor brought back.

Rows are known by the hash of their key's texts, as in ``digests``. Without redactions there are none, at no cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.maintenance.redaction.erase_cells import erase_cells
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.schema import Column, TopicSchema

Texts = Sequence[pa.Array]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class ErasedCells:
    """Which cells of which rows are erased in the log. ``columns`` are those of the texts that are compared, ``key_at``
    the places of the key among them."""

    def __init__(self, columns: Sequence[Column], key_at: Sequence[int]) -> None:
        self._at = {column.id: at for at, column in enumerate(columns)}
        self._key_at = key_at
        self._ids: dict[int, frozenset[int]] = {}
        self.held = 0
        """Rows of the source, of those that ``hide`` was given, with a value in such a cell."""

    def __len__(self) -> int:
        """Rows with such cells."""
        return len(self._ids)

    def add(self, key_hash: int, ids: Collection[int]) -> None:
        """The columns ``ids`` of a row are erased."""
        self._ids[key_hash] = self._ids.get(key_hash, frozenset()).union(ids)

    def learn(self, key: Texts, names: pa.Array, ids: Mapping[str, int]) -> None:
        """From rows of the log: the texts of their keys' columns, and for each the names of its erased columns (null:
        none)."""
        if names.null_count == len(names):
            return
        rows = pc.indices_nonzero(names.is_valid())
        hashes = keys.hash_columns([cells.take(rows) for cells in key]).to_pylist()
        for key_hash, gone in zip(hashes, names.take(rows).to_pylist(), strict=True):
            self.add(key_hash, [ids[name] for name in gone])

    def hide(self, texts: Texts) -> Texts:
        """Rows of the source with NULL in such cells."""
        if not self._ids or not len(texts[0]):
            return texts
        hashes = keys.hash_columns([texts[at] for at in self._key_at]).to_numpy()
        hidden: dict[int, Mask] = {}
        for ids, mask in self._groups(hashes).items():
            places = [self._at[number] for number in ids if number in self._at]
            valid = [pc.is_valid(texts[at]).to_numpy(zero_copy_only=False) for at in places]
            self.held += int((np.logical_or.reduce(valid) & mask).sum()) if valid else 0
            for at in places:
                hidden[at] = hidden.get(at, np.zeros(len(hashes), np.bool_)) | mask
        return [
            pc.if_else(pa.array(hidden[at]), pa.scalar(None, cells.type), cells) if at in hidden else cells
            for at, cells in enumerate(texts)
        ]

    def erase(self, rows: pa.Table, schema: TopicSchema) -> pa.Table:
        """Rows for the log (``change_schema``) in which such cells are erased."""
        if self._ids and rows.num_rows:
            for ids, mask in self._groups(rows["_hash"].to_numpy()).items():
                rows = erase_cells(rows, schema, ids - {column.id for column in schema.key}, mask)
        return rows

    def _groups(self, hashes: np.ndarray[Any, Any]) -> dict[frozenset[int], Mask]:
        """Which rows have which columns erased."""
        groups: dict[frozenset[int], Mask] = {}
        for at in np.flatnonzero(np.isin(hashes, np.fromiter(self._ids, np.int64, len(self._ids)))).tolist():
            mask = groups.setdefault(self._ids[int(hashes[at])], np.zeros(len(hashes), np.bool_))
            mask[at] = True
        return groups

"""The cells of a row as JSON texts: typed ones, and those that stand beside their column.

A cell that its typed column cannot hold is Postgres' text, as a string, but for dates and times; an erased one is null;
one that the source did not send is unknown, and each format says what it puts there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.publishing.formats import json_cells
from tailrace.eventstore.publishing.formats.far_times import far_time

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Member:
    """One column of all rows: JSON texts, null for NULL and for what is not known; ``unknown`` says in which rows the
    source did not send it (None: in none)."""

    column: Column
    texts: pa.Array
    unknown: Mask | None = None


class Cells:
    """Rows of one topic (``stored_schema``) in one version of its columns."""

    def __init__(self, rows: pa.Table, schema: TopicSchema) -> None:
        self.rows = rows.combine_chunks()
        self.schema = schema
        self.count = rows.num_rows
        self._beside: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        self._unknown: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero(_lengths(self.rows["_raw"]) > 0).tolist():
            for number, found in self.rows["_raw"][row].as_py():
                self._beside[number].append((row, found))
        for row in np.flatnonzero(_lengths(self.rows["_unchanged"]) > 0).tolist():
            for number in self.rows["_unchanged"][row].as_py():
                self._unknown[number].append(row)

    def column(self, name: str) -> pa.Array:
        return combined(self.rows[name])

    def has(self, name: str) -> Mask:
        """In which rows there is such a part: key, after, before, _moved_from."""
        found: Mask = self.rows[name].is_valid().to_numpy()
        return found

    def members(self, part: str) -> list[Member]:
        """The columns of ``key``, ``after``, ``before`` or ``_moved_from``."""
        old = part in ("before", "_moved_from")
        columns = self.schema.key if part in ("key", "_moved_from") else self.schema.columns
        found = []
        for column, cells in zip(columns, self.column(part).flatten(), strict=True):
            texts = json_cells.json_column(column, cells)
            beside = self._beside.get(-column.id if old else column.id)
            if beside:
                texts = _replaced(texts, column, beside)
            unknown = None if old or part == "key" else self._mask(column.id)
            found.append(Member(column, texts, unknown))
        return found

    def erased(self) -> dict[int, list[str]]:
        """By row the names of cells of ``after`` that were erased."""
        found: dict[int, list[str]] = defaultdict(list)
        for column in self.schema.columns:
            for row, text in self._beside.get(column.id, ()):
                if text is None:
                    found[row].append(column.name)
        return found

    def objects(self, part: str) -> pa.Array:
        """A part of each row as a JSON object; null where there is none, or no columns."""
        members = self.members(part)
        if not members:
            return pa.nulls(self.count, json_cells.TEXT)
        found = json_cells.objects([(each.column.name, each.texts, None) for each in members], self.count)
        return pc.if_else(pa.array(self.has(part)), found, pa.scalar(None, json_cells.TEXT))

    def _mask(self, number: int) -> Mask | None:
        if number not in self._unknown:
            return None
        found: Mask = np.zeros(self.count, np.bool_)
        found[self._unknown[number]] = True
        return found


def combined(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _replaced(texts: pa.Array, column: Column, beside: Sequence[tuple[int, bytes | None]]) -> pa.Array:
    mask = np.zeros(len(texts), np.bool_)
    mask[[row for row, _ in beside]] = True
    told = [
        None if found is None else _told(column, found.decode(errors="replace"))
        for _, found in sorted(beside)
    ]
    return pc.replace_with_mask(texts, pa.array(mask), pa.array(told, json_cells.TEXT))


def _told(column: Column, text: str) -> str:
    return far_time(column, text) or json.dumps(text, ensure_ascii=False)


def _lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Of lists or maps; 0 for null."""
    found = combined(column)
    sizes: NDArray[np.int64] = np.diff(found.offsets.to_numpy()) * found.is_valid().to_numpy(
        zero_copy_only=False
    )
    return sizes

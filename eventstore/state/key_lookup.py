"""Some rows of a topic: those that changed, those of chosen keys, those with chosen values.

The kernel is exact on any rows that are all rows of their keys, or all since one that says the whole row. So rows are
dropped by their stored key hash as they are decoded, and only what was chosen is held. Nothing is indexed: hashes, and
the columns that are looked at, are decoded in full; but of keys that are known by more than their hash the newest files
are read first, and none is that lies before what says all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment.inline_parts import read_inline
from tailrace.eventstore.segment.segment import DecodeHints, read_segment
from tailrace.eventstore.state.bucket_passes import bucket_passes
from tailrace.eventstore.state.compaction import Compactor
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.moved_cells import MovedCells
from tailrace.eventstore.state.readable import to_readable
from tailrace.eventstore.state.row_layout import (
    DELETE,
    SILENT,
    TRUNCATE,
    Ints,
    Layout,
    Mask,
    StateRows,
    conform,
)
from tailrace.eventstore.state.state import partition_reader, reader_of
from tailrace.eventstore.storage import Storage

_T = TypeVar("_T")
Matches = Callable[[Sequence[pa.Array]], Mask]
"""Which of some rows, given as columns, have one of the chosen values."""

_FIRST_ROWS = 1024
_ROWS_PER_UNIT = 131_072  # larger files are read by partitions, several at once
_UNIT_BYTES = 1 << 20
_ROWS_WORTH_A_TASK = 8192
"""Of a file. Threads that decode smaller ones wait for each other more than they work."""


class TooLarge(TailraceError):
    """What was chosen is more than the caller wants to hold."""


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The keys that changes are of. ``cells``: of each change the columns of the topic's key, None when one of them has
    no value of its type. ``truncated``: a truncate is among the changes, which is of all keys there were."""

    hashes: Ints
    cells: Mapping[str, pa.ChunkedArray] | None
    truncated: bool

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(int(each.nbytes) for each in (self.hashes, *(self.cells or {}).values()))


def changed_keys(
    storage: Storage, refs: Sequence[SegmentRef], versions: Mapping[int, TopicSchema], target: TopicSchema
) -> ChangedKeys:
    """The keys that the rows of ``refs`` are of, also those that they end."""
    layout = Layout(target, target.key, len(target.key))
    parts = [
        rows for unit in _decode_units(storage, refs, versions, layout, lambda rows: rows) for rows in unit
    ]
    if _has_truncate(parts):
        return ChangedKeys(np.empty(0, np.int64), None, truncated=True)
    hashes = np.unique(np.concatenate([part.hashes for part in parts])) if parts else np.empty(0, np.int64)
    if any(not part.raw.empty for part in parts):
        return ChangedKeys(hashes, None, truncated=False)
    cells = {
        column.name: pa.chunked_array([part.cells[at] for part in parts], column.arrow)
        for at, column in enumerate(layout.columns)
    }
    return ChangedKeys(hashes, cells, truncated=False)


def find_keys(storage: Storage, wanted: StateInput, names: Sequence[str], matches: Matches) -> Ints:
    """Hashes of the keys that ever had a row with a chosen value in the columns ``names``, or may have had one: a
    cell was not sent, or is no value of its type. The state's rows with such a value are therefore rows of these
    keys."""
    columns = tuple(column for name in names if (column := wanted.target.column(name)) is not None)
    layout = Layout(wanted.target, columns, 0)
    ids = np.array([column.id for column in columns])

    def candidates(rows: StateRows) -> Ints:
        mask = matches(rows.cells)
        for marks in (rows.unchanged, rows.raw):
            if not marks.empty:
                mask[marks.rows[np.isin(marks.ids, ids)]] = True
        hashes: Ints = rows.hashes[mask]
        return hashes

    units = _decode_units(storage, wanted.refs, wanted.versions, layout, candidates)
    found = [hashes for unit in units for hashes in unit]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def state_of_keys(
    storage: Storage, wanted: StateInput, hashes: Ints, limit_bytes: int, keys: Matches | None = None
) -> pa.Table:
    """``readable_states`` of the keys with these hashes, as one table (``wanted.schema``) in no order.

    ``keys`` says which rows, given by the columns of the topic's key, have one of the keys, for each of which there is
    a hash: then only those are meant, not others of the same hashes, and what lies before a key's last whole row is not
    read.

    Raises TooLarge when their rows take more than ``limit_bytes``; UnknownCell and UnreadableCell for these keys only.
    """
    if not len(hashes):
        return wanted.schema.empty_table()
    layout = wanted.layout

    def mine(rows: StateRows, chosen: pa.Array) -> StateRows:
        kept = pc.is_in(pa.array(rows.hashes), value_set=chosen).to_numpy(zero_copy_only=False)
        rows = rows.take(np.flatnonzero(kept | (rows.ops == TRUNCATE)))
        if keys is None or not len(rows):
            return rows
        return rows.take(np.flatnonzero(keys(rows.cells[: layout.keys]) | (rows.ops == TRUNCATE)))

    def read(refs: Sequence[SegmentRef], chosen: Ints) -> Iterator[list[StateRows]]:
        values = pa.array(chosen)
        return _decode_units(
            storage, refs, wanted.versions, layout, lambda rows: mine(rows, values), coded=True
        )

    parts = None
    if keys is not None and len(np.unique(hashes)) == len(hashes):  # a hash means one key
        parts = _newest_first(read, wanted.refs, hashes, limit_bytes)
    if parts is None:
        parts = _collect_within(read(wanted.refs, hashes), limit_bytes)
    resolve = MovedCells(wanted.target, reader_of(storage, wanted)).resolve
    if _has_truncate(parts):
        # Each partition has one, and only there does its place say what it ends.
        whole, chosen = partition_reader(storage, wanted, layout), pa.array(hashes)

        def read_partition(partition: int) -> Iterator[StateRows]:
            return (rows for each in whole(partition) if len(rows := mine(each, chosen)))

        folded = bucket_passes(read_partition, layout, wanted.bucket_layout, range(wanted.buckets))
        tables = [compactor.finish(resolve) for compactor in folded]
    else:
        compactor = Compactor(layout)
        for rows in parts:
            compactor.add(rows)
        tables = [compactor.finish(resolve)]
    return pa.concat_tables([to_readable(table, wanted) for table in tables])


def _newest_first(
    read: Callable[[Sequence[SegmentRef], Ints], Iterator[list[StateRows]]],
    refs: Sequence[SegmentRef],
    hashes: Ints,
    limit_bytes: int,
) -> list[StateRows] | None:
    """The rows of each key, at least since its last whole one; None when a truncate is among those that were read."""
    parts: list[StateRows] = []
    for some in _units_backwards(refs, len(hashes)):
        found = _collect_within(read(some, hashes), limit_bytes, sum(rows.nbytes for rows in parts))
        if _has_truncate(found):
            return None
        parts = found + parts
        if found:
            told = pa.array(np.concatenate([_complete_keys(rows) for rows in found]))
            hashes = hashes[~pc.is_in(pa.array(hashes), value_set=told).to_numpy(zero_copy_only=False)]
        if not len(hashes):
            break
    return parts


def _complete_keys(rows: StateRows) -> Ints:
    """Hashes of the keys whose last row among these says everything: no cell of it was not sent, or has no value."""
    unique, last = np.unique(rows.hashes[::-1], return_index=True)
    last = len(rows) - 1 - last
    marked = np.concatenate([rows.unchanged.rows, rows.raw.rows])
    whole: Ints = unique[(rows.ops[last] == DELETE) | ~np.isin(last, marked)]
    return whole


def _has_truncate(parts: Iterable[StateRows]) -> bool:
    return any((rows.ops == TRUNCATE).any() for rows in parts)


def _units_backwards(refs: Sequence[SegmentRef], keys: int) -> Iterator[list[SegmentRef]]:
    """From the last to the first, some at a time, these in their order: at first about as many rows as may tell so many
    keys, whose last changes are mostly new, then ever more, until they are worth several threads."""
    end, rows, wanted = len(refs), 0, max(_FIRST_ROWS, 2 * keys)
    for at in reversed(range(len(refs))):
        rows += refs[at].rows
        if rows >= min(wanted, _ROWS_PER_UNIT) or not at:
            yield list(refs[at:end])
            end, rows, wanted = at, 0, 4 * wanted


def _collect_within(units: Iterable[Sequence[StateRows]], limit_bytes: int, held: int = 0) -> list[StateRows]:
    """All of them, when with the bytes already ``held`` they are not too many."""
    parts: list[StateRows] = []
    for unit in units:
        for rows in unit:
            if len(rows):
                parts.append(rows)
                held += rows.nbytes
        if held > limit_bytes:
            raise TooLarge(f"the rows of the keys take more than {limit_bytes >> 20:,} MiB")
    return parts


def _decode_units(
    storage: Storage,
    refs: Sequence[SegmentRef],
    versions: Mapping[int, TopicSchema],
    layout: Layout,
    take: Callable[[StateRows], _T],
    *,
    coded: bool = False,
) -> Iterator[list[_T]]:
    """What ``take`` makes of the rows of each unit. Rows of one key come in their order; several units are decoded at
    once, so a consumer that stops early has had little more than it took."""

    def decode(unit: _Unit) -> list[_T]:
        version = versions[unit.refs[0].version]
        hints = DecodeHints(SILENT, layout.coded_columns(version) if coded else ())
        columns = [*layout.required_columns(version), "_offset", "_epoch"]
        if all(ref.path is None and ref.below_lsn is None for ref in unit.refs):
            table = read_inline(unit.refs, columns)
        else:
            tables = [
                read_segment(
                    storage, ref, columns=columns, partitions=unit.partitions, hints=hints, of=version
                )
                for ref in unit.refs
            ]
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
        return [take(rows) for rows in conform(table, version, layout)]

    units = list(_units(refs))
    if len(units) < 2 or sum(ref.rows for ref in refs if ref.path) < _ROWS_WORTH_A_TASK * len(units):
        yield from map(decode, units)
        return
    with ThreadPoolExecutor(os.cpu_count(), "tailrace-decode") as pool:
        yield from pool.map(decode, units)  # what it has not begun when its consumer stops, it leaves


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is decoded at once: parts of the log of one version, and of these some partitions (None: all)."""

    refs: Sequence[SegmentRef]
    partitions: tuple[int, ...] | None = None


def _units(refs: Sequence[SegmentRef]) -> Iterator[_Unit]:
    """Whole small files, large ones by partition: a key's later rows are in its later partition. Those in the catalog
    that follow each other are one, up to ``_UNIT_BYTES``: each has few rows."""
    held: list[SegmentRef] = []
    size = 0
    for ref in refs:
        size += ref.bytes
        if held and (ref.path is not None or ref.version != held[0].version or size > _UNIT_BYTES):
            yield _Unit(held)
            held, size = [], ref.bytes
        if ref.path is None:
            held.append(ref)
        elif ref.rows <= _ROWS_PER_UNIT:
            yield _Unit([ref])
        else:
            pieces = sorted(ref.ranges, key=lambda piece: piece.partition)
            yield from (_Unit([ref], (piece.partition,)) for piece in pieces)
    if held:
        yield _Unit(held)

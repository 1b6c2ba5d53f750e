"""What rows are, whatever file they are in: a sum of hashes of rows, each with its partition, offset and epoch.

Sums know no order and no boundaries, so the content of a file equals the sum of the contents of those it was made from,
however rows were cut, sorted, encoded or compressed on the way. A row's hash adds up its cells', each under the name of
its column: ``_lsn`` for the log's own, the column's identity (Parquet ``field_id``) inside ``key``, ``after`` and the
like. NULL adds nothing, so a column that a file does not have and one that is all NULL are the same.

64 bits per row, which notice what went wrong; somebody who can write to the catalog, too, can make them fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_MASK = (1 << 64) - 1
_PIECE_ROWS = 16_384  # hashed at once: some columns of 8 bytes each stay in the processor's cache
# Longer texts are hashed one by one: for them the call costs less than the bytes.
_SHORT = 64
_PRESENT = 0x9FB21C651E98DF25  # added to every value: that of 0 is not NULL
_MIX = 0x9E3779B97F4A7C15
_SECOND = 0xC2B2AE3D27D4EB4F
_BASE = 0xD6E8FEB86659FD93  # of the polynomial over the bytes of a text and the elements of a list; odd
_NULL_ELEMENT = 0x165667B19E3779F9


@dataclass(frozen=True, slots=True)
class Content:
    """Two sums modulo 2^64 over rows; no rows: zeros."""

    first: int = 0
    second: int = 0

    def __add__(self, other: Content) -> Content:
        return Content((self.first + other.first) & _MASK, (self.second + other.second) & _MASK)

    def __sub__(self, other: Content) -> Content:
        return Content((self.first - other.first) & _MASK, (self.second - other.second) & _MASK)

    @property
    def text(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.first:016x}{self.second:016x}"

    @classmethod
    def parse(cls, text: str) -> Content:
        return cls(int(text[:16], 16), int(text[16:], 16))


def content_of(table: pa.Table) -> Content:
    """The content of rows with ``_partition``, ``_offset`` and ``_epoch``, as files or ``segment.read_segment`` give
    them."""
    total = Content()
    for start in range(0, table.num_rows, _PIECE_ROWS):
        rows = row_hashes(table.slice(start, _PIECE_ROWS))
        second = _mix(rows.copy(), _SECOND)
        total += Content(int(rows.sum(dtype=np.uint64)), int(second.sum(dtype=np.uint64)))
    return total


def row_hashes(table: pa.Table) -> Hashes:
    """One hash for each row."""
    hashes = np.zeros(table.num_rows, np.uint64)
    for field, column in zip(table.schema, table.columns, strict=True):
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        cells = _presence(array) if pa.types.is_boolean(field.type) else _cells(array, field.name)
        if cells is not None:
            hashes += cells if not pa.types.is_boolean(field.type) else cells * _key(field.name)
    return _mix(hashes, _MIX)


def _presence(array: pa.Array) -> Hashes:
    """For a struct without fields: files hold only whether there is one. The log has no other columns of truth."""
    values: Hashes = pc.fill_null(array, False).cast(pa.uint8()).to_numpy().astype(np.uint64)
    return values


def _cells(array: pa.Array, path: str) -> Hashes | None:
    """What each cell adds to its row, 0 for NULL; None when all are."""
    if array.null_count == len(array):
        return None
    kind = array.type
    if pa.types.is_struct(kind):
        cells = np.full(len(array), _key(path), np.uint64)
        for at, field in enumerate(kind):
            inner = _cells(array.field(at), f"{path}/{_identity(field)}")
            if inner is not None:
                cells += inner
    else:
        cells = _values(array)
        cells += np.uint64(_PRESENT)
        cells *= _key(path)
        cells = _mix(cells, _MIX)
    return _without_nulls(cells, array)


def _without_nulls(cells: Hashes, array: pa.Array) -> Hashes:
    if array.null_count:
        cells[pc.is_null(array).to_numpy(zero_copy_only=False)] = 0
    return cells


def _identity(field: pa.Field) -> str:
    found = (field.metadata or {}).get(b"PARQUET:field_id")
    return str(field.name) if found is None else str(found.decode())


@lru_cache(maxsize=65_536)
def _key(path: str) -> np.uint64:
    return np.uint64(xxhash.xxh3_64_intdigest(path.encode()) | 1)


def _mix(values: Hashes, factor: int) -> Hashes:
    """In place: every bit of the input reaches the upper half, and from there all of them."""
    values ^= values >> np.uint64(32)
    values *= np.uint64(factor)
    values ^= values >> np.uint64(29)
    return values


def _values(array: pa.Array) -> Hashes:
    """A number for each value, whatever for NULL. Equal values, equal numbers: numbers as they are, bits of floats."""
    kind = array.type
    if pa.types.is_boolean(kind):
        values: Hashes = array.cast(pa.uint8()).fill_null(0).to_numpy().astype(np.uint64)
        return values
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(array, np.int32)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _texts(array, np.int64)
    width = kind.bit_width // 8
    data = array.buffers()[1]
    if width == 16:  # decimal128: two words
        words = np.frombuffer(data, np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        return words[0::2] * np.uint64(_SECOND) ^ words[1::2]
    signed = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}[width]
    numbers = np.frombuffer(data, signed)[array.offset : array.offset + len(array)]
    return numbers.astype(np.int64).view(np.uint64)


def _texts(array: pa.Array, offset_type: type) -> Hashes:
    """Short ones by a polynomial over their bytes, all at once; long ones by XXH3."""
    array = pc.fill_null(array, "" if pa.types.is_string(array.type) else b"") if array.null_count else array
    lengths = np.diff(_offsets(array, offset_type))
    long = np.flatnonzero(lengths > _SHORT)
    if not len(long):
        return _short_texts(array, offset_type)
    hashes = np.zeros(len(array), np.uint64)
    for at in long.tolist():
        hashes[at] = xxhash.xxh3_64_intdigest(array[at].as_buffer())
    short = np.flatnonzero(lengths <= _SHORT)
    if len(short):
        hashes[short] = _short_texts(array.take(pa.array(short)), offset_type)
    return hashes


def _short_texts(array: pa.Array, offset_type: type) -> Hashes:
    offsets = _offsets(array, offset_type)
    data = array.buffers()[2]
    count = int(offsets[-1] - offsets[0])
    if not count:
        return np.zeros(len(array), np.uint64)
    octets = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return _polynomials(octets.astype(np.uint64), offsets - offsets[0])


def _lists(array: pa.Array) -> Hashes:
    offsets = _offsets(array, np.int64 if pa.types.is_large_list(array.type) else np.int32)
    inner = array.keys if pa.types.is_map(array.type) else array.values
    hashes = _elements(inner.slice(int(offsets[0]), int(offsets[-1] - offsets[0])), "element")
    if pa.types.is_map(array.type):
        items = array.items.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        hashes = hashes + _elements(items, "item")
    return _polynomials(hashes, (offsets - offsets[0]).astype(np.int64))


def _elements(array: pa.Array, path: str) -> Hashes:
    cells = _cells(array, path)
    if cells is None:
        return np.full(len(array), _NULL_ELEMENT, np.uint64)
    if array.null_count:
        cells[pc.is_null(array).to_numpy(zero_copy_only=False)] = _NULL_ELEMENT
    return cells


def _offsets(array: pa.Array, offset_type: type) -> np.ndarray[Any, Any]:
    return np.frombuffer(array.buffers()[1], offset_type)[array.offset : array.offset + len(array) + 1]


def _polynomials(terms: Hashes, offsets: np.ndarray[Any, Any]) -> Hashes:
    """For each slice of ``terms`` between two offsets: the sum of term i * base^i, i from 0, and its length.

    One running sum over all; where a slice begins at s, the difference is divided by base^s."""
    powers, inverses = _powers(1 << max(16, len(terms).bit_length()))
    sums = np.zeros(len(terms) + 1, np.uint64)
    np.cumsum(terms * powers[: len(terms)], out=sums[1:])
    begins, ends = offsets[:-1], offsets[1:]
    found: Hashes = (sums[ends] - sums[begins]) * inverses[begins]
    found += (ends - begins).astype(np.uint64) * np.uint64(_SECOND)
    return found


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    def of(base: int) -> Hashes:
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        return np.multiply.accumulate(factors)

    return of(_BASE), of(pow(_BASE, -1, 1 << 64))

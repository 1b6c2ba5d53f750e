"""Keys: their text, their 64-bit hash, and the partition and bucket that follow from it.

The hash is XXH64 (seed 0, Yann Collet's xxHash specification) over, for each key column in declared order, the UTF-8
byte length as 4 bytes big-endian and the UTF-8 bytes of the value's text; a NULL is the length 0xFFFFFFFF and no bytes.
Source topics hash the text Postgres sends (int4 5 and int8 5 are the same key); derived topics hash ``texts`` of the
typed column. It is stored as a signed int64 in column ``_hash``, so nobody downstream computes it again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_LENGTH = struct.Struct(">I")
_NULL = b"\xff\xff\xff\xff"
_MASK = (1 << 64) - 1


def hash_texts(values: Sequence[str | bytes | None]) -> int:
    """Signed 64-bit hash of one key given as its columns' texts (bytes are taken as UTF-8)."""
    packed = b"".join(_pack(value) for value in values)
    unsigned = xxhash.xxh64_intdigest(packed)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def hash_columns(columns: Sequence[pa.Array]) -> pa.Int64Array:
    """``hash_texts`` of every row. Columns are string or binary arrays of one length."""
    if not columns:
        raise ValueError("a key has at least one column")
    return hash_cells([column.cast(pa.large_binary()).to_pylist() for column in columns])


def hash_cells(columns: Sequence[Sequence[bytes | None]]) -> pa.Int64Array:
    """``hash_texts`` of every row, of columns as plain lists of UTF-8 bytes of one length."""
    digest, pack = xxhash.xxh64_intdigest, _LENGTH.pack
    packed = [[_NULL if cell is None else pack(len(cell)) + cell for cell in column] for column in columns]
    if len(packed) == 1:
        digests = [digest(data) for data in packed[0]]
    else:
        digests = [digest(b"".join(row)) for row in zip(*packed, strict=True)]
    return pa.array(np.array(digests, np.uint64).view(np.int64))


def _pack(value: str | bytes | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode() if isinstance(value, str) else value
    return _LENGTH.pack(len(data)) + data


def partition_of(key_hash: int, partitions: int) -> int:
    """The partition of a (signed) key hash."""
    return (key_hash & _MASK) % partitions


def bucket_of(key_hash: int, partitions: int, split: int) -> int:
    """The bucket: the partition split in ``split`` (a power of two) by further bits of the same hash."""
    unsigned = key_hash & _MASK
    return (unsigned % partitions) * split + (unsigned // partitions) % split


def partitions_of(hashes: pa.Int64Array, partitions: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """``partition_of`` of every row."""
    return (_to_unsigned(hashes) % np.uint64(partitions)).astype(np.int32)


def buckets_of(hashes: pa.Int64Array, partitions: int, split: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """``bucket_of`` of every row."""
    unsigned = _to_unsigned(hashes)
    count = np.uint64(partitions)
    buckets = (unsigned % count) * np.uint64(split) + (unsigned // count) % np.uint64(split)
    return buckets.astype(np.int32)


def _to_unsigned(hashes: pa.Int64Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    values: np.ndarray[Any, np.dtype[np.int64]] = hashes.to_numpy(zero_copy_only=False)
    return values.view(np.uint64)


def column_texts(column: pa.Array) -> pa.Array:
    """The key text of a typed column: what ``text`` gives for each of its values, as a string array."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return pc.cast(column, pa.string())
    return pa.array([text(value) for value in column.to_pylist()], pa.string())


def text(value: object) -> str | None:
    """The key text of one Python value. Raises TypeError for a type that cannot be a key of a derived topic."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case float():
            return repr(value + 0.0)  # -0.0 is the key 0.0: every server takes them for one
        case bytes():
            return "\\x" + value.hex()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value // timedelta(microseconds=1))
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be part of a key")

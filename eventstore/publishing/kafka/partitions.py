"""Which partition of a Kafka topic a record goes to: that of its key, as Java's clients choose it.

Source: Kafka's ``Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.eventstore.compiled.compiler import kernel

_SEED, _M = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)


def partitions_of_keys(keys: pa.LargeBinaryArray, hashes: pa.Int64Array, count: int) -> NDArray[np.int64]:
    """The partition of each record; one without a key goes by the hash of its row's key."""
    ends = np.frombuffer(keys.buffers()[1], np.int64, len(keys) + 1, keys.offset * 8)
    whole = keys.buffers()[2]
    data = np.frombuffer(whole, np.uint8) if whole is not None and whole.size else np.zeros(1, np.uint8)
    found = np.empty(len(keys), np.uint32)
    _murmur2(data, ends, found)
    by_key = (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    if keys.null_count:
        by_row = hashes.to_numpy().view(np.uint64) % np.uint64(count)
        by_key = np.where(keys.is_valid().to_numpy(zero_copy_only=False), by_key, by_row.astype(np.int64))
    return by_key


@kernel
def _murmur2(data: NDArray[np.uint8], ends: NDArray[np.int64], out: NDArray[np.uint32]) -> None:
    for key in range(len(out)):
        at, end = ends[key], ends[key + 1]
        h = _SEED ^ np.uint32(end - at)
        while end - at >= 4:
            k = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            k = np.uint32(k * _M)
            k ^= k >> np.uint32(24)
            h = np.uint32(np.uint32(h * _M) ^ np.uint32(k * _M))
            at += 4
        if end - at >= 3:
            h ^= np.uint32(data[at + 2]) << np.uint32(16)
        if end - at >= 2:
            h ^= np.uint32(data[at + 1]) << np.uint32(8)
        if end - at >= 1:
            h = np.uint32(np.uint32(h ^ np.uint32(data[at])) * _M)
        h ^= h >> np.uint32(13)
        h = np.uint32(h * _M)
        h ^= h >> np.uint32(15)
        out[key] = h

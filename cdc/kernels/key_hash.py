"""The key hash of rows: XXH64 over packed key texts, as ``tailrace.eventstore.model.keys.hash_texts`` defines it."""

from __future__ import annotations

import numpy as np

from tailrace.cdc.kernels.rows import Bytes, Cells, Ints, Ints32
from tailrace.eventstore.compiled.compiler import kernel, part

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@part
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@part
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@part
def _word(data: Bytes, at: int, size: int) -> np.uint64:
    """``size`` bytes, little end first."""
    value = np.uint64(0)
    for byte in range(size):
        value |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return value


@part
def _xxh64(data: Bytes, size: int) -> np.uint64:
    """XXH64 with seed 0 (Yann Collet's specification)."""
    at = 0
    digest = _P5
    if size >= 32:
        one, two, three, four = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while size - at >= 32:
            one = _round(one, _word(data, at, 8))
            two = _round(two, _word(data, at + 8, 8))
            three = _round(three, _word(data, at + 16, 8))
            four = _round(four, _word(data, at + 24, 8))
            at += 32
        digest = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        for lane in (one, two, three, four):
            digest = (digest ^ _round(np.uint64(0), lane)) * _P1 + _P4
    digest += np.uint64(size)
    while size - at >= 8:
        digest = _rotate(digest ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if size - at >= 4:
        digest = _rotate(digest ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < size:
        digest = _rotate(digest ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    digest = (digest ^ (digest >> np.uint64(33))) * _P2
    digest = (digest ^ (digest >> np.uint64(29))) * _P3
    return digest ^ (digest >> np.uint64(32))


@kernel
def hash_keys(data: Bytes, cells: Cells, first: Ints32, keys: Ints32, packed: Bytes, hashes: Ints) -> int:
    """The key hash of each row; 0 where there is no key (``first`` -1). ``packed`` is room for one key: returns how
    much would be needed, 0 when all is done."""
    for row in range(len(first)):
        if first[row] < 0:
            hashes[row] = 0
            continue
        size = 0
        for number in range(len(keys)):
            size += 4 + max(cells.size[first[row] + keys[number]], 0)
        if size > len(packed):
            return size
        to = 0
        for number in range(len(keys)):
            cell = first[row] + keys[number]
            length = cells.size[cell]
            for byte in range(4):  # a NULL is -1: the length 0xFFFFFFFF, and no bytes
                packed[to + byte] = (length >> (24 - 8 * byte)) & 0xFF
            to += 4
            for byte in range(max(length, 0)):
                packed[to + byte] = data[cells.at[cell] + byte]
            to += max(length, 0)
        hashes[row] = np.int64(_xxh64(packed, size))
    return 0

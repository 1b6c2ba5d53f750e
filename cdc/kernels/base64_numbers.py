"""The kernel that reads short numbers in base64 (RFC 4648), big-endian and in two's complement."""

from __future__ import annotations

import numpy as np

from tailrace.cdc.kernels.rows import Bytes, Ints, Ints32
from tailrace.eventstore.compiled.compiler import kernel

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NO_LETTER = 64
LETTERS: Bytes = np.full(256, _NO_LETTER, np.uint8)
"""For the kernel: what each byte means."""
LETTERS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_PADDING = ord("=")
_LETTERS_MAX = 10  # 60 bits, so 7 bytes


@kernel
def read_numbers(data: Bytes, letters: Bytes, offsets: Ints32, numbers: Ints, fits: Bytes) -> None:
    """The number in each text, which lie as in an Arrow binary array; ``fits`` is 0 where there is none of at most 7
    bytes."""
    for row in range(len(numbers)):
        begin, end = offsets[row], offsets[row + 1]
        numbers[row], fits[row] = 0, 0
        if (end - begin) % 4:
            continue
        for _ in range(2):
            if end > begin and data[end - 1] == _PADDING:
                end -= 1
        size = (end - begin) * 6 // 8
        if not size or end - begin > _LETTERS_MAX:
            continue
        number, known = 0, True
        for at in range(begin, end):
            letter = letters[data[at]]
            known = known and letter != _NO_LETTER
            number = number << 6 | int(letter)
        number >>= (end - begin) * 6 - size * 8
        if number >> (size * 8 - 1):
            number -= 1 << (size * 8)
        numbers[row], fits[row] = number, known

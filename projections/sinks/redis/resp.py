"""Redis' protocol for many rows at once, made column by column: no Python object per cell.

RESP, <https://redis.io/docs/latest/develop/reference/protocol-spec/>: a command is an array of bulk strings, ``*2`` and
then ``$3``, ``GET`` and so on, each ended by a carriage return and a line feed.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Piece: TypeAlias = bytes | pa.BinaryArray
"""What stands in every row, or one cell per row."""


def array(words: int) -> bytes:
    """How a command of so many words begins."""
    return b"*%d\r\n" % words


def word(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def command(*words: bytes) -> bytes:
    return array(len(words)) + b"".join(map(word, words))


def words(cells: pa.Array, prefix: bytes = b"") -> tuple[Piece, ...]:
    """Each cell, with what is before all of them, as one word; null for null."""
    lengths = pc.add(pc.binary_length(cells), len(prefix))
    return (b"$", numbers(lengths), b"\r\n" + prefix, cells.cast(pa.binary()), b"\r\n")


def numbers(values: pa.Array) -> pa.BinaryArray:
    """Integers as the protocol writes them."""
    return values.cast(pa.string()).cast(pa.binary())

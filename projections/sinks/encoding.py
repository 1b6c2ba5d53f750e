"""Rows in pieces, each encoded while the one before it is on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

# Of one turn through Arrow's functions, each of which costs as much as some hundred rows.
_PIECE_ROWS = 5_000
_PIECE_BYTES = 32 << 20  # in memory; what a sink makes of it is a few times that, and must stay below 2 GiB

Made = TypeVar("Made")


def encoded_ahead(rows: pa.Table, encode: Callable[[pa.Table], Made]) -> Iterator[Made]:
    """What ``encode`` makes of each piece, in order. The next one is made by another thread meanwhile: Arrow lets
    others run while it works."""
    with ThreadPoolExecutor(1, "tailrace-encode") as pool:
        made: Future[Made] | None = None
        for piece in pieces(rows):
            following = pool.submit(encode, piece)
            if made is not None:
                yield made.result()
            made = following
        if made is not None:
            yield made.result()


def pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows in slices of a bounded size, as far as rows are about equally large."""
    fitting = _PIECE_BYTES * rows.num_rows // max(rows.nbytes, 1)
    count = max(1, min(_PIECE_ROWS, fitting))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)

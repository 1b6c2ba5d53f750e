"""Images of rows, column by column, as the cells of one block: what native capture finds in its frames."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.cdc.kernels.rows import NULL, UNSENT, Bytes, Cells, Ints32
from tailrace.eventstore.errors import ProtocolError

_BYTES_MAX = (1 << 31) - 1  # positions of cells are 32 bits


class Block:
    """Cells of images that all have ``width`` columns."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._at: list[NDArray[np.int64]] = []
        self._size: list[Ints32] = []
        self._data: list[Bytes] = []
        self._bytes = self._cells = 0

    def add(
        self,
        rows: int,
        places: Sequence[int],
        texts: Sequence[pa.Array],
        unsent: Sequence[NDArray[np.bool_] | None],
    ) -> Ints32:
        """Images of so many rows; ``texts`` are those of the columns at ``places``, of which the rows ``unsent`` were
        not sent. Returns the first cell of each image. All other cells are NULL."""
        at = np.zeros((rows, self._width), np.int64)
        size = np.full((rows, self._width), NULL, np.int32)
        for place, column, left_out in zip(places, texts, unsent, strict=True):
            whole = column.cast(pa.large_binary())
            offsets = np.frombuffer(whole.buffers()[1], np.int64, rows + 1, whole.offset * 8)
            data = whole.buffers()[2]
            start, stop = (int(offsets[0]), int(offsets[-1])) if rows else (0, 0)
            at[:, place] = offsets[:-1] - start + self._bytes
            size[:, place] = np.where(whole.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), NULL)
            if left_out is not None:
                size[left_out, place] = UNSENT
            if stop > start:
                self._data.append(np.frombuffer(data, np.uint8)[start:stop])
                self._bytes += stop - start
        self._at.append(at.reshape(-1))
        self._size.append(size.reshape(-1))
        first = np.arange(rows, dtype=np.int32) * self._width + self._cells
        self._cells += rows * self._width
        return first.astype(np.int32)

    def finish(self) -> tuple[Bytes, Cells]:
        """Raises ProtocolError on a block too large for 32-bit positions."""
        if self._bytes > _BYTES_MAX:
            raise ProtocolError(
                f"{self._bytes} bytes of values at once", hint="take fewer records at a time: at most 2 GiB"
            )
        data = np.concatenate(self._data) if self._data else np.zeros(0, np.uint8)
        at = np.concatenate(self._at) if self._at else np.zeros(0, np.int64)
        size = np.concatenate(self._size) if self._size else np.zeros(0, np.int32)
        return data, Cells(at.astype(np.int32), size)

"""Rows of small epochs, which the catalog has.

Each has few rows, so decoding them is mostly what a part costs, and a refresh reads the parts of the last seconds
several times: for the keys that changed, for the rows of these, and once more for the next projection. So what was
decoded is kept for a while, all columns of it, as it lies in the part's bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Sequence

import pyarrow as pa

from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment.segment import with_positions

_KEPT_PARTS = 2048
_KEPT_BYTES = 16 << 20


def read_inline(refs: Sequence[SegmentRef], columns: Collection[str]) -> pa.Table:
    """The rows of whole parts of one version, one after another: as ``read_segment`` gives those of each."""
    names = {name.partition(".")[0] for name in columns}
    tables = (_PARTS.table(ref) for ref in refs)
    chosen = [table.select([name for name in table.column_names if name in names]) for table in tables]
    return pa.concat_tables(chosen).combine_chunks()


class _KeptParts:
    """The last ones that were decoded. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[Hashable, tuple[pa.Table, int]] = {}
        self._bytes = 0

    def table(self, ref: SegmentRef) -> pa.Table:
        inline = ref.inline or b""
        part = ref.topic.text, ref.first_epoch, tuple(ref.ranges), inline
        with self._lock:
            if part in self._tables:
                return self._tables[part][0]
        with pa.ipc.open_stream(pa.py_buffer(inline)) as reader:
            table = with_positions(reader.read_all(), list(ref.ranges), ref.first_epoch)
        with self._lock:
            self._keep(part, table, len(inline))
        return table

    def _keep(self, part: Hashable, table: pa.Table, size: int) -> None:
        if part in self._tables:
            return
        self._tables[part] = table, size
        self._bytes += size
        while len(self._tables) > _KEPT_PARTS or self._bytes > _KEPT_BYTES:
            _, gone = self._tables.pop(next(iter(self._tables)))
            self._bytes -= gone


_PARTS = _KeptParts()

"""Rows of small epochs, which the catalog has.

Each has few rows, so decoding them is mostly what a part costs, and a refresh reads the parts of the last seconds
several times: for the keys that changed, for the rows of these, and once more for the next projection. So what was
decoded is kept for a while, all columns of it, as it lies in the part's bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.segment.segment import with_positions

_PARTS: Final = KeptAnswers(16 << 20, most_answers=2048)


def read_inline(refs: Sequence[SegmentRef], columns: Collection[str]) -> pa.Table:
    """The rows of whole parts of one version, one after another: as ``read_segment`` gives those of each."""
    names = {name.partition(".")[0] for name in columns}
    tables = (_decoded(ref).rows for ref in refs)
    chosen = [table.select([name for name in table.column_names if name in names]) for table in tables]
    return pa.concat_tables(chosen).combine_chunks()


@dataclass(frozen=True, slots=True)
class _DecodedPart:
    """``rows`` lie in the part's bytes, ``nbytes`` of them."""

    rows: pa.Table
    nbytes: int


def _decoded(ref: SegmentRef) -> _DecodedPart:
    inline = ref.inline or b""

    def decode() -> _DecodedPart:
        with pa.ipc.open_stream(pa.py_buffer(inline)) as reader:
            rows = with_positions(reader.read_all(), ref.ranges, ref.first_epoch)
        return _DecodedPart(rows, len(inline))

    return _PARTS.get((ref.topic.text, ref.first_epoch, tuple(ref.ranges), inline), decode)

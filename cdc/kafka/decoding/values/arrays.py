"""Arrays: taken apart, their elements read as one column, and written as the server writes them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoding.json_values import texts_of
from tailrace.cdc.kafka.decoding.values.cells import Cells, Reader, Texts, other_kinds
from tailrace.cdc.kernels import json_text
from tailrace.cdc.kernels.json_spans import Spans
from tailrace.cdc.kernels.rows import Bytes, Ints32
from tailrace.eventstore.model.postgres_text import array_texts


def array(inner: Reader) -> Reader:
    def read(cells: Cells) -> Texts:
        lengths, items = _items(cells)
        elements = inner(items)
        ends = np.cumsum(np.maximum(lengths, 0))
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        owners = np.searchsorted(ends, np.asarray(elements.bad, np.int64), side="right")
        literals = array_texts(offsets, elements.texts.cast(pa.string()))
        texts = pc.if_else(pa.array(lengths >= 0), literals, pa.scalar(None, pa.string()))
        return Texts(texts, sorted({*other_kinds(cells, (json_text.ARRAY,)), *owners.tolist()}))

    return read


def _items(cells: Cells) -> tuple[Ints32, Cells]:
    """How many elements each cell has (-1: it is no array), and all of them."""
    texts = pc.if_else(pa.array(cells.kinds == json_text.ARRAY), cells.texts, pa.scalar(None, pa.binary()))
    rows = len(texts)
    _, places, buffer = texts.buffers()
    offsets = np.frombuffer(places, np.int32, rows + 1, texts.offset * 4)
    data: Bytes = np.frombuffer(buffer or b"\0", np.uint8)
    lengths: Ints32 = np.empty(rows, np.int32)
    none = _room(0)
    found = _room(json_text.find_items(data, json_text.SIGNS, offsets, lengths, *none))
    json_text.find_items(data, json_text.SIGNS, offsets, lengths, *found)
    return lengths, Cells(texts_of(data, found), found.kind)


def _room(items: int) -> Spans:
    return Spans(np.empty(items, np.int32), np.empty(items, np.int32), np.empty(items, np.uint8))

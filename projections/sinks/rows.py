"""Whole rows as JSON objects or as text fields, and back, in the schema they came from; and rows in pieces, each
encoded while the one before is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.sinks.columns import (
    from_json,
    from_texts,
    is_bytes,
    is_list,
    is_text,
    to_json,
    to_texts,
)


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_json_texts(rows: pa.Table, head: str = "{") -> list[str]:
    """A JSON object for each row with every column, NULL as null, as ``dump`` writes it. ``head`` takes the place of
    the opening brace."""
    return list(json_objects(rows, head).to_pylist())


def json_objects(rows: pa.Table, head: str = "{") -> pa.StringArray:
    """As ``to_json_texts``, as an array. It is made column by column, without a Python object for each cell."""
    pieces: list[str | pa.Array] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        before, cells, after = json_cells(column.combine_chunks())
        pieces += [f"{',' if pieces else head}{dump(name)}:{before}", cells, after]
    return join_pieces(*pieces, "}")


def json_cells(column: pa.Array) -> tuple[str, pa.Array, str]:
    """The JSON text of each cell (``null`` for NULL), without a prefix and suffix that all cells have: the quotes of a
    column without NULL."""
    kind = column.type
    if is_list(kind) or pa.types.is_floating(kind):
        return "", pa.array([dump(cell) for cell in to_json(column)], pa.string()), ""
    texts = to_texts(column).cast(pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        return "", texts.fill_null("null"), ""
    if is_text(kind) or is_bytes(kind):
        texts = _escape(texts)
    if not texts.null_count:
        return '"', texts, '"'
    return "", join_pieces('"', texts, '"').fill_null("null"), ""


def _escape(texts: pa.StringArray) -> pa.StringArray:
    """Texts as they are written between the quotes of JSON."""
    signs = content(texts)
    if (signs < ord(" ")).any():
        return pa.array(
            [None if text is None else dump(text)[1:-1] for text in texts.to_pylist()], pa.string()
        )
    for sign in ("\\", '"'):
        if (signs == ord(sign)).any():
            texts = pc.replace_substring(texts, sign, "\\" + sign)
    return texts


def content(cells: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The bytes of a text or binary array (with 32-bit offsets), cell after cell, not copied."""
    _, places, data = cells.buffers()
    if not len(cells) or data is None:
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(places, np.int32)
    return np.frombuffer(data, np.uint8)[ends[cells.offset] : ends[cells.offset + len(cells)]]


def join_pieces(*pieces: str | pa.Array) -> pa.StringArray:
    """The pieces of each row one after the other; null where one of them is."""
    return pc.binary_join_element_wise(*_merge_constants(pieces, str), "")


def join_bytes(*pieces: bytes | pa.BinaryArray) -> pa.BinaryArray:
    """``join_pieces`` for bytes."""
    together = _merge_constants(pieces, bytes)
    scalars = (pa.scalar(each, pa.binary()) if isinstance(each, bytes) else each for each in together)
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))


def _merge_constants(pieces: Iterable[Any], constant: type[str] | type[bytes]) -> list[Any]:
    """The pieces, with neighbouring constants joined: each call of Arrow takes time."""
    merged: list[Any] = []
    for piece in pieces:
        last: Any = merged[-1] if merged else None
        if isinstance(last, constant) and isinstance(piece, constant):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def from_objects(objects: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_json_texts``, from decoded objects. Other members are ignored; a missing one is NULL."""
    columns = [from_json([row.get(field.name) for row in objects], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_fields(rows: pa.Table) -> list[list[str | bytes]]:
    """For each row a flat list name, value, name, value … without NULLs, so that NULL differs from an empty text.

    Bytes stay bytes and lists are JSON; the rest is text as in ``columns``.
    """
    names, columns = rows.column_names, [cells.to_pylist() for _, cells in field_cells(rows)]
    flat = []
    for cells in zip(*columns, strict=True):
        row: list[str | bytes] = []
        for name, cell in zip(names, cells, strict=True):
            if cell is not None:
                row += (name, cell)
        flat.append(row)
    return flat


def field_cells(rows: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """For each column its name and the values as ``to_fields`` gives them."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        cells = column.combine_chunks()
        if is_list(cells.type):
            texts = [None if value is None else dump(value) for value in to_json(cells)]
            yield name, pa.array(texts, pa.string())
        elif is_bytes(cells.type):
            yield name, cells.cast(pa.binary())
        else:
            yield name, to_texts(cells).cast(pa.string())


def from_fields(rows: Sequence[dict[bytes, bytes]], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_fields``, from mappings of name to value; other fields are ignored."""
    columns = []
    for field in schema:
        name = field.name.encode()
        columns.append(_column([row.get(name) for row in rows], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(cells: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    if is_bytes(kind):
        return pa.array(cells, kind)
    if is_list(kind):
        return from_json([None if cell is None else json.loads(cell) for cell in cells], kind)
    return from_texts(pa.array(cells, pa.binary()).cast(pa.string()), kind)


def schema_to_text(schema: pa.Schema) -> str:
    """An Arrow schema as hexadecimal digits, for sinks that hold text."""
    return str(schema.serialize().to_pybytes().hex())


def schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


# Of one turn through Arrow's functions, each of which costs as much as some hundred rows.
_PIECE_ROWS = 5_000
_PIECE_BYTES = 32 << 20  # in memory; what a sink makes of it is a few times that, and must stay below 2 GiB

Made = TypeVar("Made")


def encode_ahead(rows: pa.Table, encode: Callable[[pa.Table], Made]) -> Iterator[Made]:
    """Encode each piece, in order. Another thread encodes the next piece meanwhile: Arrow releases the GIL."""
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
    """Rows in slices of a bounded size, if rows are about equally large."""
    fitting = _PIECE_BYTES * rows.num_rows // max(rows.nbytes, 1)
    count = max(1, min(_PIECE_ROWS, fitting))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)

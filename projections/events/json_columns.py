"""The JSON of many events of one type as a column of structs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tailrace.projections.events.earlier_versions import Origin, Path
from tailrace.projections.events.model_columns import Field, ModelColumns

_BLOCK_BYTES: Final = 16 << 20


class NotPlain(Exception):
    """Some of the JSON does not say to Arrow what it says to the model, or fits neither."""


def read_json(texts: pa.Array, columns: ModelColumns, origins: Sequence[Origin]) -> pa.StructArray:
    """Raises NotPlain."""
    if not len(texts):
        return pa.array([], columns.type)
    rows = max(1, len(texts) * _BLOCK_BYTES // (texts.nbytes + 1))
    pieces = [_read(texts.slice(at, rows), columns, origins) for at in range(0, len(texts), rows)]
    return pa.concat_arrays(pieces)


def from_values(values: Sequence[Mapping[str, Any]], columns: ModelColumns) -> pa.StructArray:
    """Events that their model has written as plain JSON. Raises NotPlain for a number or a moment that no column
    holds."""
    try:
        return _typed(pa.array(values, _as_stored(columns.type)), columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise NotPlain(str(error)) from None


def _read(texts: pa.Array, columns: ModelColumns, origins: Sequence[Origin]) -> pa.StructArray:
    lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(lines, "\n")[0].as_buffer()
    schema = _schema_of(
        {origin.path: _as_stored(field.type) for field, origin in zip(columns.fields, origins, strict=True)}
    )
    try:
        table = pa.json.read_json(
            pa.BufferReader(joined),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=max(joined.size, 1)),
            parse_options=pa.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True
            ),
        )
        if table.num_rows != len(texts):
            raise NotPlain("some are more or less than one object")
        arrays = [
            _filled(_at(table, origin, field), origin.default)
            for field, origin in zip(columns.fields, origins, strict=True)
        ]
        stored = pa.StructArray.from_arrays(arrays, fields=list(_as_stored(columns.type)))
        return _typed(stored, columns)
    except pa.ArrowInvalid as error:
        raise NotPlain(str(error)) from None


def _at(table: pa.Table, origin: Origin, field: Field) -> pa.Array:
    if not origin.path:
        return pa.nulls(table.num_rows, _as_stored(field.type))
    first, *inner = origin.path
    column = table[first].combine_chunks()
    return pc.struct_field(column, inner) if inner else column


def _typed(stored: pa.StructArray, columns: ModelColumns) -> pa.StructArray:
    arrays = []
    for at, field in enumerate(columns.fields):
        array = _filled(stored.field(at), field.default)
        if _has_hole(array, field):
            raise NotPlain(f"{field.name} is missing")
        arrays.append(array.cast(field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(columns.type))


def _filled(array: pa.Array, default: Any) -> pa.Array:
    if default is None or not array.null_count:
        return array
    return pc.fill_null(array, pa.scalar(default, array.type))


def _has_hole(array: pa.Array, field: Field) -> bool:
    """Whether a value is missing that the model wants."""
    if array.null_count:
        if not field.nullable:
            return True
        array = array.drop_null()
    if not field.parts:
        return False
    if pa.types.is_list(field.type):
        return _has_hole(array.flatten(), field.parts[0])
    return any(_has_hole(array.field(at), part) for at, part in enumerate(field.parts))


def _as_stored(kind: pa.DataType) -> pa.DataType:
    """What JSON has for it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _as_stored(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _as_stored(kind.value_type)))
    if pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    return kind


def _schema_of(types: Mapping[Path, pa.DataType]) -> pa.Schema:
    """Objects with these paths."""
    tree: dict[str, Any] = {}
    for path, kind in types.items():
        if path:
            at = tree
            for part in path[:-1]:
                at = at.setdefault(part, {})
            at[path[-1]] = kind
    return pa.schema(_fields_of(tree))


def _fields_of(tree: Mapping[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields_of(each)) if isinstance(each, dict) else each)
        for name, each in tree.items()
    ]

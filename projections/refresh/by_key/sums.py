"""Sums by key: what rows add to them, and what they are with other rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.definition.model import Additive, NoStage
from tailrace.projections.generations.key_set import family
from tailrace.projections.refresh.plan import NotIncremental

_DIGITS = 76
"""Of decimals of 256 bits, which hold sums of any values that a result has."""


def require_addable(schema: pa.Schema, key: Sequence[str]) -> None:
    """Raises NoStage for columns that are not added exactly, or tell no keys apart."""
    for each in schema:
        if each.name in key and family(each.type) is None:
            raise NoStage(f"its keys are of {each.type}")
        if each.name not in key and not _is_exact(each.type):
            raise NoStage(f"it sums {each.type}")


def _is_exact(kind: pa.DataType) -> bool:
    """Whether sums of values of a type are the same in any order."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def plain_sums(rows: pa.Table, additive: Additive, schema: pa.Schema, key: Sequence[str]) -> pa.Table | None:
    """What each row is the sum of, as a result with this ``schema`` holds it; None where the definition says that an
    engine computes it, or the types do."""
    if not additive.columns:
        return None
    made = []
    for each in schema:
        if each.name in additive.counts:
            made.append(_counts(rows, additive.counts[each.name]))
            continue
        column = rows[additive.columns[each.name]]
        if not (column.type.equals(each.type) if each.name in key else _is_exact(column.type)):
            return None
        made.append(column)
    try:
        return pa.table(
            [column.cast(each.type) for column, each in zip(made, schema, strict=True)], schema=schema
        )
    except pa.ArrowInvalid:
        return None


def _counts(rows: pa.Table, column: str | None) -> pa.Array | pa.ChunkedArray:
    """1 for each row with a value in a column, or for each row, and 0 for others."""
    return pa.repeat(1, rows.num_rows) if column is None else pc.is_valid(rows[column]).cast(pa.int64())


def picked(rows: pa.Table, picks: Mapping[str, str], schema: pa.Schema) -> pa.Table | None:
    """Partial results as the rows of a definition that only ``picks`` columns of them; None where it has to be computed
    of them."""
    if not picks:
        return None
    try:
        return rows.select([picks[name] for name in schema.names]).rename_columns(schema.names).cast(schema)
    except pa.ArrowInvalid:
        return None


def added(
    held: pa.Table, before: pa.Table, now: pa.Table, additive: Additive, key: Sequence[str]
) -> pa.Table:
    """The rows of keys, ``held``, with what their changed rows gave ``before`` and give ``now``; a key may be left
    without rows. Raises NotIncremental where the values do not fit, or there would be fewer rows than none."""
    schema = held.schema
    names = [name for name in schema.names if name not in key]
    parts = [_wide(held, names), _wide(now, names), _wide(before, names, negative=True)]
    sums = pa.concat_tables(parts).group_by([*key]).aggregate([(name, "sum") for name in names])
    sums = sums.rename_columns(
        [name.removesuffix("_sum") if name not in key else name for name in sums.column_names]
    )
    rows = sums[additive.rows]
    if pc.any(pc.less(rows, pa.scalar(Decimal(0), rows.type))).as_py():
        raise NotIncremental("what it holds is not of the rows that changed", "proof")
    try:
        return pa.table(
            [_narrow(sums, each, additive.counted) for each in schema], schema=schema
        ).combine_chunks()
    except pa.ArrowInvalid as error:
        raise NotIncremental(f"a sum is too large: {error}", "size") from None


def _wide(table: pa.Table, names: Sequence[str], *, negative: bool = False) -> pa.Table:
    """Values as decimals that are added without overflow; NULL adds nothing."""
    for name in names:
        column = table[name]
        kind = pa.decimal256(_DIGITS, column.type.scale if pa.types.is_decimal(column.type) else 0)
        wide = pc.fill_null(column.cast(kind), pa.scalar(Decimal(0), kind))
        table = table.set_column(
            table.schema.get_field_index(name), name, pc.negate(wide) if negative else wide
        )
    return table


def _narrow(sums: pa.Table, field: pa.Field, counted: Mapping[str, str]) -> pa.ChunkedArray:
    """A column in the type of the result."""
    column = sums[field.name]
    if field.name in counted:
        counts = sums[counted[field.name]]
        some = pc.not_equal(counts, pa.scalar(Decimal(0), counts.type))
        column = pc.if_else(some, column, pa.scalar(None, column.type))
    return column.cast(field.type)

"""One step of partial results that add up: what the changed rows gave before is taken from the values, and what they
give now is added.

  1. *Changed*: the rows of the one input with changes between two positions, as they were and as they are.
  2. *Given*: the definition over each of the two.
  3. *Added*: to the values of their keys in the result before. A key without rows is gone.

No other row is read, however many a key has. Sums of integers and decimals are the same in any order, so the result is
that of a full computation. ``NotIncremental`` says why a step cannot be taken so; everything is computed then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections.compute.bucket import BucketTask
from tailrace.projections.compute.read_plan import plan_input, require_changes
from tailrace.projections.definition.lineage import Direct, Lineage
from tailrace.projections.definition.model import Additive, NoStage, State
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.key_set import KeySet, family
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.step_files import read_results
from tailrace.projections.refresh.by_key.incremental import (
    IncrementalResult,
    RefreshWindow,
    changed_source_keys,
    result_over,
    written,
)
from tailrace.projections.refresh.by_key.rows_before import rows_before
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import RowsOfKeys, StepInput

_DIGITS = 76
"""Of decimals of 256 bits, which hold sums of any values that a result has."""


def require_addable(schema: pa.Schema, key: Sequence[str]) -> None:
    """Raises NoStage for columns that are not added exactly, or tell no keys apart."""
    for each in schema:
        if each.name in key and family(each.type) is None:
            raise NoStage(f"its keys are of {each.type}")
        if each.name not in key and not (pa.types.is_integer(each.type) or pa.types.is_decimal(each.type)):
            raise NoStage(f"it sums {each.type}")


def compute_additively(
    step: StepInput, additive: Additive, from_epoch: int, task: BucketTask
) -> IncrementalResult:
    """Take the step from ``from_epoch``, where the generation is: part of an attempt. Raises what
    ``compute_incrementally`` raises. Then nothing was written."""
    ctx, projection, generation = step.ctx, step.projection, step.generation
    require_changes(ctx.store, str(generation), generation.projection, generation.inputs)
    source = projection.inputs[additive.input]
    assert isinstance(source, State), "others do not add up"
    whole = plan_input(ctx.store, source, step.cut)
    assert isinstance(whole, StateInput), "the input is a State"
    columns = tuple(column.name for column in whole.selected_columns)
    window = RefreshWindow.of(step, Lineage((), {additive.input: Direct(columns)}, ()), from_epoch)
    try:
        changed = changed_source_keys(step, source, whole, window)
        then = rows_before(ctx, additive.input, window.before, step.cut, changed)
        here = window.now.rows_by_source_key(additive.input, changed.hashes, changed.cells)
        names = window.now.visible_columns(additive.input)
        ends = {"before": then, "now": here.select(names)}
        before, now = (result_over(step, {additive.input: rows}, at=at) for at, rows in ends.items())
    except (TooLarge, HistoryGone) as error:
        raise NotIncremental(error.message, "size") from None
    key = generation.key
    affected = KeySet.union([KeySet.of([rows[name] for name in key]) for rows in (before, now)])
    held = _rows_of(task, affected, key)
    result = added(held, before, now, additive, key)
    lineage = Lineage(key, {}, ())
    outcomes = written(projection, task, lineage, affected, result)
    return IncrementalResult(outcomes, len(affected), rows=RowsOfKeys(affected, result))


def _rows_of(task: BucketTask, keys: KeySet, key: Sequence[str]) -> pa.Table:
    """The result before, of some keys."""
    placement = task.placement
    buckets = np.unique(placement.buckets_of(pa.array(keys.hashes))).tolist()
    files = [task.previous[bucket] for bucket in buckets if bucket in task.previous]
    found = read_results(task.storage, files, placement.schema, placement.key, KeySubset.of(keys, key))
    return found.drop_columns([HASH]).cast(placement.schema)


def added(
    held: pa.Table, before: pa.Table, now: pa.Table, additive: Additive, key: Sequence[str]
) -> pa.Table:
    """The rows of keys, ``held``, with what their changed rows gave ``before`` and give ``now``. Pure. Raises
    NotIncremental where the values do not fit, or there would be fewer rows than none."""
    schema = held.schema
    names = [name for name in schema.names if name not in key]
    parts = [_wide(held, names), _wide(now, names), _wide(before, names, negative=True)]
    sums = pa.concat_tables(parts).group_by([*key]).aggregate([(name, "sum") for name in names])
    sums = sums.rename_columns(
        [name.removesuffix("_sum") if name not in key else name for name in sums.column_names]
    )
    rows = sums[additive.rows]
    zero = pa.scalar(Decimal(0), rows.type)
    if pc.any(pc.less(rows, zero)).as_py():
        raise NotIncremental("what it holds is not of the rows that changed", "proof")
    sums = sums.filter(pc.greater(rows, zero))
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

"""One step of partial results that add up: what the changed rows gave before is taken from the values, and what they
give now is added.

  1. *Changed*: the rows of the one input with changes between two positions, as they were and as they are.
  2. *Given*: the definition over each of the two; the rows themselves, where it sums columns as they are.
  3. *Added*: to the values of their keys in the result before. A key without rows is gone.

No other row is read, however many a key has. Sums of integers and decimals are the same in any order, so the result is
that of a full computation. ``NotIncremental`` says why a step cannot be taken so; everything is computed then.

A process that goes on puts steps off (``KeptSums``): it adds to what it keeps in memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections.compute.bucket import BucketTask, placement_of
from tailrace.projections.compute.read_plan import plan_input, require_changes
from tailrace.projections.definition.lineage import Direct, Lineage
from tailrace.projections.definition.model import Additive, State
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.key_set import KeySet, hashes_of
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
from tailrace.projections.refresh.by_key.sums import added, plain_sums
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import RowsOfKeys, StepInput
from tailrace.projections.round.kept_sums import LatestRows, SameHash, SumsSince


def compute_additively(
    step: StepInput, additive: Additive, last: DerivedRun, task: BucketTask
) -> IncrementalResult:
    """Take the step after ``last``: part of an attempt; of what is kept, where it was put off. Raises what
    ``compute_incrementally`` raises. Then nothing was written."""
    key, due = step.generation.key, step.ctx.kept_sums.due(last, step.cut.epoch)
    if due is None:
        changed, _ = _changed(step, additive, last, None)
    else:
        rows = due.rows.combine_chunks()
        changed = RowsOfKeys(KeySet.of([rows[name] for name in key]), rows, last.to_epoch)
    shown = _shown(changed, additive)
    outcomes = written(step.projection, task, Lineage(key, {}, ()), changed.keys, shown.rows)
    return IncrementalResult(outcomes, len(changed.keys), rows=shown, was_kept=due is not None)


def put_off(step: StepInput, additive: Additive, last: DerivedRun, at: int) -> RowsOfKeys | None:
    """Go on from epoch ``at``, where the results of it are, to the position in memory alone (``KeptSums``): the keys
    that changed, and their rows. None where that cannot be kept. Raises what ``compute_incrementally`` raises, and what
    the engine raises."""
    generation, kept = step.generation, step.ctx.kept_sums.since(last, at)
    latest = LatestRows(generation.key, generation.schema) if kept is None else kept.latest
    try:
        changed, count = _changed(step, additive, last, kept)
        if changed.keys.nulls:
            return None
        latest.add(step.cut.epoch, changed.rows, hashes_of([changed.rows[name] for name in generation.key]))
    except SameHash:
        return None
    step.ctx.kept_sums.put(last, step.cut.epoch, latest, count)
    return _shown(changed, additive)


def _changed(
    step: StepInput, additive: Additive, last: DerivedRun, kept: SumsSince | None
) -> tuple[RowsOfKeys, int]:
    """The keys that rows changed of, and the sums over all rows that they have now, of those without any too; and how
    many rows changed."""
    ctx, projection, generation = step.ctx, step.projection, step.generation
    require_changes(ctx.store, str(generation), generation.projection, generation.inputs)
    source = projection.inputs[additive.input]
    assert isinstance(source, State), "others do not add up"
    whole = plan_input(ctx.store, source, step.cut)
    assert isinstance(whole, StateInput), "the input is a State"
    columns = tuple(column.name for column in whole.selected_columns)
    since = last.to_epoch if kept is None else kept.to
    window = RefreshWindow.of(step, Lineage((), {additive.input: Direct(columns)}, ()), since)
    try:
        changed = changed_source_keys(step, source, whole, window)
        then = rows_before(ctx, additive.input, window.before, step.cut, changed)
        here = window.now.rows_by_source_key(additive.input, changed.hashes, changed.cells)
        names = window.now.visible_columns(additive.input)
        ends = {"before": then, "now": here.select(names)}
        before, now = (_summed(step, additive, rows, at) for at, rows in ends.items())
    except (TooLarge, HistoryGone) as error:
        raise NotIncremental(error.message, "size") from None
    key = generation.key
    affected = KeySet.union([KeySet.of([rows[name] for name in key]) for rows in (before, now)])
    held, others = (generation.schema.empty_table(), affected) if kept is None else kept.latest.find(affected)
    held = pa.concat_tables([held, _rows_of(step, last, others)])
    return RowsOfKeys(affected, added(held, before, now, additive, key), since), len(changed.hashes)


def _summed(step: StepInput, additive: Additive, rows: pa.Table, at: str) -> pa.Table:
    """Sums over some rows, ``at`` one end of the step. A key has several where nothing but adding up is left to do."""
    plain = plain_sums(rows, additive, step.generation.schema, step.generation.key)
    return result_over(step, {additive.input: rows}, at=at) if plain is None else plain


def _rows_of(step: StepInput, last: DerivedRun, keys: KeySet) -> pa.Table:
    """The result of a step, of some keys."""
    placement, held = placement_of(step.generation), files_of(last).buckets
    buckets = np.unique(placement.buckets_of(pa.array(keys.hashes))).tolist()
    files = [held[bucket] for bucket in buckets if bucket in held]
    some = KeySubset.of(keys, placement.key)
    found = read_results(step.ctx.store.storage, files, placement.schema, placement.key, some)
    return found.drop_columns([HASH]).cast(placement.schema)


def _shown(changed: RowsOfKeys, additive: Additive) -> RowsOfKeys:
    """Without the sums over no rows."""
    rows = changed.rows.filter(pc.greater(changed.rows[additive.rows], 0)).combine_chunks()
    return replace(changed, rows=rows)

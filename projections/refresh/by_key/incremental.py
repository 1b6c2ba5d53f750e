"""One incremental step: the keys that changes affect, the function over their rows alone, and what differs there.

  0. *Constant*: the values of its scalar subqueries over all rows are those of before (``subquery_values``).
  1. *Changed*: the source keys of the rows between two positions, deleted ones among them.
  2. *Affected*: the projection's keys in which rows of these source keys take part, before and now.
  3. *Restricted*: the rows of every input that take part in the affected keys, read on the driver.
  4. *Compared*: the function over them gives the rows of these keys. Rows of these keys that the generation has and
     the function does not give are deleted.

If the function is local in its key, the differences are those of a full computation. ``NotIncremental`` says why a
step cannot be taken so; everything is computed then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import ChangedKeys, TooLarge, changed_keys
from tailrace.projections.analysis.guards import columns_of, incomparable
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask
from tailrace.projections.compute.char_padding import unpad
from tailrace.projections.compute.compute import refuse_bad_keys, require_schema
from tailrace.projections.compute.frames import read_changes
from tailrace.projections.compute.patched_files import reason_against_changes
from tailrace.projections.compute.read_plan import (
    ChangesInput,
    plan_changes,
    plan_reads,
    require_changes,
)
from tailrace.projections.compute.scalar_subqueries import SubqueryValue
from tailrace.projections.definition.lineage import Direct, Lineage, Link, Path, lineage_of
from tailrace.projections.definition.model import Projection, ProjectionFailed, Result, State
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.result_input import changed_keys_of
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tailrace.projections.refresh.by_key.subquery_values import (
    NO_SUBQUERIES,
    Subqueries,
    given_values,
    unchanged_values,
)
from tailrace.projections.refresh.plan import Cause, NotIncremental
from tailrace.projections.refresh.step_input import RowsOfKeys, StepInput, source_of
from tailrace.projections.spark.errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLES_MAX = 3
_KEYS_WORTH_THREADS = 100_000
"""For few, threads wait for each other more than they work, where no network is waited for."""
_CHANGES_MAX = 2_000_000
"""Rows of an input between two positions. Their key hashes are in memory."""


@dataclass(frozen=True, slots=True)
class RefreshWindow:
    """The inputs at the two ends of a step: ``before``, where the generation is, and ``now``, where the step leads."""

    before: Inputs
    now: Inputs

    @classmethod
    def of(cls, step: StepInput, lineage: Lineage, from_epoch: int) -> RefreshWindow:
        cuts = (step.ctx.store.cut(from_epoch), step.cut)
        return cls(*(Inputs(step.ctx, step.engine, step.projection, lineage, cut) for cut in cuts))

    @property
    def from_epoch(self) -> int:
        return self.before.cut.epoch

    @property
    def cut(self) -> Cut:
        """The later end."""
        return self.now.cut

    @property
    def ends(self) -> tuple[Inputs, Inputs]:
        return self.before, self.now

    @property
    def null_links(self) -> set[str]:
        """Inputs with a NULL in the columns that lead to another input, at either end."""
        return self.before.null_links | self.now.null_links


@dataclass(frozen=True, slots=True)
class IncrementalResult:
    """An outcome for each bucket that may have one of the affected ``keys``. ``unchanged``: scalar subqueries whose
    values stayed although what they read changed. ``rows``: the affected keys, and all rows of them, where another
    result is computed of these. ``was_kept``: they were computed before, for that result."""

    outcomes: list[BucketOutcome]
    keys: int
    unchanged: tuple[str, ...] = ()
    rows: RowsOfKeys | None = None
    was_kept: bool = False


Objection = Callable[[KeySet, set[str]], tuple[Cause, str] | None]
"""Why affected keys are not followed, given these keys and the inputs with NULL links; None when they are."""


def reason_against(
    step: StepInput, from_epoch: int, changed: Sequence[str], apart: Collection[str] = ()
) -> str | None:
    """Why the log allows no incremental step from an epoch: something else than rows changed since. ``changed`` are the
    topics and projections with new rows; inputs ``apart`` need not say what they affect. Reads the catalog only."""
    store, projection = step.ctx.store, step.projection
    for name in lineage_of(projection).unknown:
        what = source_of(projection.inputs[name])
        if what in changed and name not in apart:
            return f"{what} changed, and input {name} does not say what it affects"
    before = store.cut(from_epoch)
    reasons = (reason_against_changes(store, topic, before, step.cut) for topic in projection.topics)
    return next((reason for reason in reasons if reason is not None), None)


def compute_incrementally(
    step: StepInput,
    from_epoch: int,
    task: BucketTask,
    objection: Objection,
    subqueries: Subqueries = NO_SUBQUERIES,
) -> IncrementalResult:
    """Take the step from ``from_epoch``, where the generation is: part of an attempt. ``subqueries`` are those of which
    the proof says that a refresh has to compare their values.

    Raises NotIncremental when it cannot be taken so, ProjectionFailed when the code is at fault or the output has a key
    that the lineage does not lead to, HistoryGone when changes that all of the result is computed of were removed. Then
    nothing was written.
    """
    ctx, projection = step.ctx, step.projection
    require_changes(ctx.store, str(step.generation), step.generation.projection, step.generation.inputs)
    lineage = lineage_of(projection)
    window = RefreshWindow.of(step, lineage, from_epoch)
    try:
        require_comparable(step, lineage, window.now)
        held = unchanged_values(step, window.before.cut, subqueries)
        with step.engine.active(), _computed_keys_alone(lineage):
            affected = _affected_keys(step, lineage, window)
        if (refused := objection(affected, window.null_links)) is not None:
            cause, why = refused
            raise NotIncremental(why, cause)
        if not len(affected):
            return IncrementalResult([], 0, held.compared)
        ctx.report(f"reading {len(affected):,} keys for {projection.name}", 0, None, "")
        with step.engine.active(), _computed_keys_alone(lineage):
            rows = window.now.rows_of_keys(affected)
        found = restricted_result(step, lineage, rows, affected, held.values)
    except (TooLarge, HistoryGone) as error:
        raise NotIncremental(error.message, "size") from None
    outcomes = written(projection, task, lineage, affected, found)
    return IncrementalResult(outcomes, len(affected), held.compared)


def written(
    projection: Projection, task: BucketTask, lineage: Lineage, affected: KeySet, result: pa.Table
) -> list[BucketOutcome]:
    """What differs, in files. None of them stays when a key is refused, or one cannot be written."""
    try:
        outcomes = compare_buckets(task, lineage, affected, result)
        refuse_bad_keys(projection, outcomes)
    except BaseException:
        task.discard()
        raise
    return outcomes


def require_comparable(step: StepInput, lineage: Lineage, now: Inputs) -> None:
    """Raises NotIncremental when rows of the inputs cannot be found by keys of the result."""
    reason = incomparable(
        step.projection, lineage, lambda name: columns_of(now.plan_of(name)), step.generation.schema
    )
    if reason is not None:
        raise NotIncremental(reason, "definition")


def _affected_keys(step: StepInput, lineage: Lineage, window: RefreshWindow) -> KeySet:
    key_sets: list[KeySet] = []
    for name, path in lineage.paths.items():
        match step.projection.inputs[name]:
            case Result() as source:
                key_sets += _keys_by_result(step, source, name, path, window)
            case State() as source:
                key_sets += _keys_by_state(step, source, name, path, window)
            case source:
                planned = plan_changes(step.ctx.store, source, window.cut, window.from_epoch)
                key_sets.append(window.now.keys_of(name, _appended_rows(step, planned)))
    if any(each.table.schema != key_sets[0].table.schema for each in key_sets):
        raise NotIncremental("its inputs say that the key is of different types", "definition")
    return KeySet.union(key_sets or [window.now.no_keys])


def _keys_by_state(
    step: StepInput, source: State, name: str, path: Path, window: RefreshWindow
) -> list[KeySet]:
    """The keys that changed rows of a table take part in. Columns of its own key are the same at both ends; where they
    lead to rows of another input that changed, that input says where these led."""
    planned = window.now.plan_of(name)
    assert isinstance(planned, StateInput), "the source is a State"
    changed = changed_source_keys(step, source, planned, window)
    if changed.cells is not None and set(path.needed) <= set(changed.cells):
        cells = pa.table({column: changed.cells[column] for column in path.needed or changed.cells})
        found = partial(window.now.keys_of, name, unpad(cells, planned.target.columns))
        if isinstance(path, Link) or path.computed:
            return [found()]
        question = "keys", source.topic, window.from_epoch, window.cut.epoch, path.needed
        return [step.ctx.round_rows.get(question, found)]
    return [
        side.keys_of(name, side.rows_by_source_key(name, changed.hashes, changed.cells))
        for side in window.ends
    ]


def _keys_by_result(
    step: StepInput, source: Result, name: str, path: Path, window: RefreshWindow
) -> list[KeySet]:
    """The keys that rows of another projection's result take part in which its steps changed."""
    changed = changed_keys_of(step.ctx.store, source.projection, window.from_epoch, window.cut, _CHANGES_MAX)
    if changed is None:
        raise NotIncremental(
            f"more than {_CHANGES_MAX:,} rows of projection {source.projection} changed", "size"
        )
    if set(path.needed) <= set(changed.column_names):
        return [window.now.keys_of(name, changed)]
    hashes = changed[HASH].combine_chunks().to_numpy()
    return [side.keys_of(name, side.rows_by_source_key(name, hashes)) for side in window.ends]


def changed_source_keys(
    step: StepInput, source: State, planned: StateInput, window: RefreshWindow
) -> ChangedKeys:
    """The keys of a table's rows that changed in a window. Raises NotIncremental when these are not all that changed,
    or too many."""
    store = step.ctx.store
    refs = store.segments(source.topic_id, window.cut, window.from_epoch)
    if sum(ref.rows for ref in refs) > _CHANGES_MAX:
        raise NotIncremental(f"more than {_CHANGES_MAX:,} rows of {source.topic_id} changed", "size")
    changed = step.ctx.round_rows.get(
        ("changed", source.topic, window.from_epoch, window.cut.epoch),
        lambda: changed_keys(store.storage, refs, planned.versions, planned.target),
    )
    if changed.truncated:
        raise NotIncremental(f"{source.topic_id} was truncated", "input")
    return changed


def _appended_rows(step: StepInput, planned: ChangesInput) -> pa.Table:
    rows = pa.concat_tables(
        read_changes(step.ctx.store.storage, planned, partition) for partition in range(planned.partitions)
    )
    if not planned.as_events and pc.any(pc.equal(rows["_op"], "t")).as_py():
        raise NotIncremental(f"{planned.topic} was truncated", "input")
    return rows


def restricted_result(
    step: StepInput,
    lineage: Lineage,
    rows: Mapping[str, pa.Table | DataFrame],
    affected: KeySet,
    values: Sequence[SubqueryValue] = (),
) -> pa.Table:
    """``result_over`` the rows of some keys. Raises ProjectionFailed when it gives a row of another key, NotIncremental
    when keys cannot be computed of all rows."""
    with _computed_keys_alone(lineage):
        found = result_over(step, rows, lineage.unknown, values)
    _refuse_outside(step.projection, lineage, affected, found)
    return found


def result_over(
    step: StepInput,
    rows: Mapping[str, pa.Table | DataFrame],
    whole_inputs: Sequence[str] = (),
    values: Sequence[SubqueryValue] = (),
    at: str = "",
) -> pa.Table:
    """The function over ``rows`` of its inputs (``at`` an end of the step) and all rows of the ``whole_inputs``, with
    the ``values`` that its scalar subqueries have over all rows, in the columns of the generation. Raises
    ProjectionFailed."""
    ctx, projection, generation, engine = step.ctx, step.projection, step.generation, step.engine
    whole = plan_reads(ctx.store, projection, step.cut, ctx.parallelism, whole_inputs)
    with engine.active():
        result = given_values(projection, engine.result(projection, whole, rows, at), values)
        require_schema(projection, generation.schema, str(generation), result)
        count = sum(given.num_rows for given in rows.values() if isinstance(given, pa.Table))
        ctx.report(f"computing {projection.name} from {count:,} rows", 0, None, "")
        with translate_errors(projection, "computing its result"):
            found: pa.Table = result.toArrow()
    return found.select(generation.schema.names).cast(generation.schema).combine_chunks()


@contextmanager
def _computed_keys_alone(lineage: Lineage) -> Iterator[None]:
    """An expression may fail for a row that the function leaves out before it computes the key. Raises NotIncremental
    then: where everything is computed, it shows whose mistake that is."""
    try:
        yield
    except ProjectionFailed as error:
        if not any(isinstance(path, Direct) and path.computed for path in lineage.paths.values()):
            raise
        what = f"its key cannot be computed of each row: {error.message}"
        raise NotIncremental(what, "definition") from error


def _refuse_outside(projection: Projection, lineage: Lineage, affected: KeySet, result: pa.Table) -> None:
    columns = [result[name] for name in lineage.key]
    outside = ~affected.matches(columns)
    for column in columns:
        outside &= column.is_valid().to_numpy(zero_copy_only=False)  # NULLs are refused with their own words
    if not outside.any():
        return
    sample = (
        result.select(list(lineage.key)).take(pa.array(np.flatnonzero(outside)[:_SAMPLES_MAX])).to_pylist()
    )
    shown = ", ".join(disclosure.value(json.dumps(row, default=str, ensure_ascii=False)) for row in sample)
    raise ProjectionFailed(
        f"projection {projection.name!r} ({projection.place}): it gave "
        f"{int(outside.sum()):,} rows with keys that no changed row affects (affects=): {shown}",
        hint="correct affects= of its inputs, or leave it out: then everything is computed at each change",
    )


def compare_buckets(
    task: BucketTask, lineage: Lineage, affected: KeySet, result: pa.Table
) -> list[BucketOutcome]:
    """Compare each bucket that may have one of the keys with the result before."""
    placement = task.placement
    hashes = placement.hashes(result.to_batches()[0]) if result.num_rows else pa.array([], pa.int64())
    rows = placement.rows(result.append_column(HASH, hashes))
    buckets = placement.buckets_of(rows[HASH].combine_chunks())
    by_hash = lineage.key == placement.key
    if by_hash:  # then the hashes of keys are those of rows
        of_keys = np.unique(placement.buckets_of(pa.array(affected.hashes))).tolist()
        touched = sorted({*of_keys, *buckets.tolist()})  # a NULL, which is refused, is in a bucket of its own
    else:
        touched = sorted({*task.previous, *buckets.tolist()})

    some = KeySubset.of(affected, lineage.key, whole=by_hash)
    if not task.storage.remote and len(affected) < _KEYS_WORTH_THREADS:
        return task.compare_keys(rows, some, touched)

    def compare(bucket: int) -> list[BucketOutcome]:
        return task.compare_keys(rows.filter(pa.array(buckets == bucket)), some, [bucket])

    with ThreadPoolExecutor(os.cpu_count(), "tailrace-compare") as pool:
        return [outcome for each in pool.map(compare, touched) for outcome in each]

"""One incremental step: the keys that changes affect, the function over their rows alone, and what differs there.

  1. *Changed*: the source keys of the rows between two positions, also those that they end.
  2. *Affected*: the projection's keys that the rows of these source keys take part in, as they were and as they are.
  3. *Restricted*: of every input the rows that take part in these keys, read on the driver.
  4. The function over them gives these keys' rows of the result; the generation's own rows of these keys that are not
     among them are gone. So the differences are those of a full computation, if the function is local in its key.

What keeps a step from being taken raises ``NotIncremental`` with the reason, and everything is computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.key_lookup import Changed, TooLarge, changed_keys
from tailrace.eventstore.state.state import StateInput
from tailrace.projections.analysis.comparable import columns_of, incomparable
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask
from tailrace.projections.compute.compute import define, refuse_bad_keys, require_schema
from tailrace.projections.compute.frames import frames, local_frame, read_changes
from tailrace.projections.compute.read_plan import (
    ChangesInput,
    Planned,
    plan_changes,
    plan_reads,
    require_changes,
)
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import Direct, Lineage, Link, Path, lineage_of
from tailrace.projections.definition.model import Projection, ProjectionFailed, Result, State
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.key_set import KeySet, Mask
from tailrace.projections.generations.result_input import changed_keys_of
from tailrace.projections.generations.step_files import KeySubset
from tailrace.projections.refresh.plan import Cause
from tailrace.projections.refresh.restricted_inputs import Inputs
from tailrace.projections.spark.errors import explained

_SAMPLES = 3
_MOST_CHANGES = 2_000_000
"""Rows of an input between two positions: their key hashes are held."""


class NotIncremental(Exception):
    """Why a step cannot be taken incrementally, and of what kind that reason is."""

    def __init__(self, reason: str, cause: Cause) -> None:
        super().__init__(reason)
        self.cause: Cause = cause


@dataclass(frozen=True, slots=True)
class Step:
    """What an incremental step found: an outcome for each bucket that may have one of the affected ``keys``."""

    outcomes: list[BucketOutcome]
    keys: int


def reason_against(
    ctx: ProjectionContext, projection: Projection, from_epoch: int, cut: Cut, changed: Sequence[str]
) -> str | None:
    """What the log says against an incremental step from an epoch to a cut: something happened in between that is not a
    change of rows. ``changed``: the topics with rows in between, and the projections. Reads the catalog only."""
    for name in lineage_of(projection).unknown:
        source = projection.inputs[name]
        what = f"projection {source.projection}" if isinstance(source, Result) else source.topic_id.text
        if what in changed:
            return f"{what} changed, and input {name} does not say what it affects"
    before = ctx.store.cut(from_epoch)
    for topic in projection.topics:
        info = ctx.store.topic(topic)
        if info.complete_since is not None and info.complete_since > from_epoch:
            return f"{topic} was read again"
        old, new = ctx.store.schemas_at(topic, before), ctx.store.schemas_at(topic, cut)
        if [schema.version for schema in old] != [schema.version for schema in new]:
            return f"the columns of {topic} changed"
        if not ctx.store.log_start(topic).has(topic, before):
            return f"the history of {topic} at epoch {from_epoch} is gone"
    return None


def compute_incrementally(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    from_epoch: int,
    cut: Cut,
    task: BucketTask,
    against: Callable[[KeySet, set[str]], tuple[Cause, str] | None],
) -> Step:
    """Take the step from ``from_epoch``, where the generation stands, to ``cut``: part of an attempt.

    ``against`` says of the affected keys, and of the inputs that have NULL in links of changed rows, why they are not
    followed, and of what kind that is.

    Raises NotIncremental with the reason when it cannot be taken; ProjectionFailed when the code is at fault or the
    output has a key that the lineage does not lead to; HistoryGone when changes that all of the result is computed of
    were removed: then nothing was written.
    """
    require_changes(ctx.store, str(generation), generation.projection, generation.inputs)
    lineage = lineage_of(projection)
    limit = ctx.settings.projections.incremental_bytes
    before = Inputs(ctx.store, projection, lineage, ctx.store.cut(from_epoch), limit)
    now = Inputs(ctx.store, projection, lineage, cut, limit)
    try:
        require_comparable(projection, lineage, now, generation)
        affected = _affected(ctx, projection, lineage, before, now, from_epoch, cut)
        if (told := against(affected, before.null_links | now.null_links)) is not None:
            cause, why = told
            raise NotIncremental(why, cause)
        if not len(affected):
            return Step([], 0)
        ctx.report(f"reading {len(affected):,} keys for {projection.name}", 0, None, "")
        rows = now.restricted(affected)
        found = restricted_result(ctx, projection, generation, lineage, rows, affected, cut)
    except (TooLarge, HistoryGone) as error:
        raise NotIncremental(error.message, "size") from None
    try:
        outcomes = settled_buckets(task, lineage, affected, found)
        refuse_bad_keys(projection, outcomes)
    except BaseException:
        task.discard()
        raise
    return Step(outcomes, len(affected))


def require_comparable(projection: Projection, lineage: Lineage, now: Inputs, generation: Generation) -> None:
    """Raises NotIncremental when rows of the inputs cannot be found by keys of the result."""
    reason = incomparable(projection, lineage, lambda name: columns_of(now.planned(name)), generation.schema)
    if reason is not None:
        raise NotIncremental(reason, "definition")


def _affected(
    ctx: ProjectionContext,
    projection: Projection,
    lineage: Lineage,
    before: Inputs,
    now: Inputs,
    from_epoch: int,
    cut: Cut,
) -> KeySet:
    found = [now.no_keys]
    for name, path in lineage.paths.items():
        source = projection.inputs[name]
        if isinstance(source, Result):
            found += _of_changed_result(ctx, source, name, path, before, now, from_epoch, cut)
            continue
        if not isinstance(source, State):
            planned = plan_changes(ctx.store, source, cut, from_epoch)
            found.append(now.keys_of(name, _appended(ctx, planned)))
            continue
        changed = _changed(ctx, source, now.planned(name), from_epoch, cut)
        columns = path.columns if isinstance(path, Direct) else path.own
        if changed.cells is not None and set(columns) <= set(changed.cells):
            rows = pa.table({column: changed.cells[column] for column in columns})  # the same at both ends
            ends = [(before, rows), (now, rows)] if isinstance(path, Link) else [(now, rows)]
        else:
            ends = [
                (side, side.of_source_keys(name, changed.hashes, changed.cells)) for side in (before, now)
            ]
        found += [side.keys_of(name, rows) for side, rows in ends]
    return KeySet.union(found)


def _of_changed_result(
    ctx: ProjectionContext,
    source: Result,
    name: str,
    path: Path,
    before: Inputs,
    now: Inputs,
    from_epoch: int,
    cut: Cut,
) -> list[KeySet]:
    """The keys that rows of another projection's result take part in which its steps changed."""
    changed = changed_keys_of(ctx.store, source.projection, from_epoch, cut, _MOST_CHANGES)
    if changed is None:
        raise NotIncremental(
            f"more than {_MOST_CHANGES:,} rows of projection {source.projection} changed", "size"
        )
    columns = path.columns if isinstance(path, Direct) else path.own
    if set(columns) <= set(changed.column_names):  # the same at both ends
        ends = [(before, changed), (now, changed)] if isinstance(path, Link) else [(now, changed)]
    else:
        hashes = changed[HASH].combine_chunks().to_numpy()
        ends = [(side, side.of_source_keys(name, hashes)) for side in (before, now)]
    return [side.keys_of(name, rows) for side, rows in ends]


def _changed(ctx: ProjectionContext, source: State, planned: Planned, from_epoch: int, cut: Cut) -> Changed:
    refs = ctx.store.segments(source.topic_id, cut, from_epoch)
    if sum(ref.rows for ref in refs) > _MOST_CHANGES:
        raise NotIncremental(f"more than {_MOST_CHANGES:,} rows of {source.topic_id} changed", "size")
    assert isinstance(planned, StateInput), "the source is a State"
    changed = changed_keys(ctx.store.storage, refs, planned.versions, planned.target)
    if changed.truncated:
        raise NotIncremental(f"{source.topic_id} was truncated", "input")
    return changed


def _appended(ctx: ProjectionContext, planned: ChangesInput) -> pa.Table:
    rows = pa.concat_tables(
        read_changes(ctx.store.storage, planned, partition) for partition in range(planned.partitions)
    )
    if not planned.as_events and pc.any(pc.equal(rows["_op"], "t"), min_count=0).as_py():
        raise NotIncremental(f"{planned.topic} was truncated", "input")
    return rows


def restricted_result(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    lineage: Lineage,
    rows: Mapping[str, pa.Table],
    affected: KeySet,
    cut: Cut,
) -> pa.Table:
    """The function over inputs restricted to some keys, in the columns of the generation.

    Raises ProjectionFailed when it gives a row of another key.
    """
    spark = ctx.spark
    whole = plan_reads(ctx.store, projection, cut, ctx.parallelism, lineage.unknown)
    with explained(projection, "reading its inputs"):
        inputs = frames(spark, ctx.store.storage, projection, whole, ctx.parallelism)
        inputs |= {name: local_frame(spark, projection, name, table) for name, table in rows.items()}
    result = define(projection, inputs, cut.commit_ts)
    require_schema(projection, generation.schema, str(generation), result)
    ctx.report(
        f"computing {projection.name} from {sum(table.num_rows for table in rows.values()):,} rows",
        0,
        None,
        "",
    )
    with explained(projection, "computing its result"):
        found: pa.Table = result.toArrow()
    found = found.select(generation.schema.names).cast(generation.schema).combine_chunks()
    _refuse_outside(projection, lineage, affected, found)
    return found


def _refuse_outside(projection: Projection, lineage: Lineage, affected: KeySet, found: pa.Table) -> None:
    columns = [found[name] for name in lineage.key]
    outside = ~affected.matches(columns)
    for column in columns:
        outside &= column.is_valid().to_numpy(zero_copy_only=False)  # NULLs are refused with their own words
    if not outside.any():
        return
    sample = found.select(list(lineage.key)).take(pa.array(np.flatnonzero(outside)[:_SAMPLES])).to_pylist()
    shown = ", ".join(disclosure.value(json.dumps(row, default=str, ensure_ascii=False)) for row in sample)
    raise ProjectionFailed(
        f"projection {projection.name!r} ({projection.place}): changed rows that by affects= concern other keys gave "
        f"{int(outside.sum()):,} rows of keys that none of them concerns: {shown}",
        hint="correct affects= of its inputs, or leave it out: then everything is computed at each change",
    )


def settled_buckets(
    task: BucketTask, lineage: Lineage, affected: KeySet, found: pa.Table
) -> list[BucketOutcome]:
    """Each bucket that may have one of the keys, compared with the result before."""
    placement = task.placement
    hashes = placement.hashes(found.to_batches()[0]) if found.num_rows else pa.array([], pa.int64())
    buckets = keys.buckets_of(hashes, placement.partitions, placement.split)
    rows = found.append_column(HASH, hashes)
    by_hash = lineage.key == placement.key
    if by_hash:  # then the hashes of keys are those of rows
        values = pa.array(affected.hashes)
        touched = np.unique(keys.buckets_of(values, placement.partitions, placement.split)).tolist()
        touched = sorted({*touched, *buckets.tolist()})  # a NULL, which is refused, is in a bucket of its own
    else:
        touched = sorted({*task.previous, *buckets.tolist()})

    def has(table: pa.Table) -> Mask:
        return affected.matches([table[name] for name in lineage.key])

    some = KeySubset(has, np.unique(affected.hashes) if by_hash else None)

    def settle(bucket: int) -> BucketOutcome:
        return task.settle(bucket, placement.rows(rows.filter(pa.array(buckets == bucket))), some)

    with ThreadPoolExecutor(os.cpu_count() or 1, "tailrace-settle") as pool:
        return list(pool.map(settle, touched))

"""A step by way of partial results: what changed is followed into these, and they give the result.

For a definition that is not followed by key, or whose changes concern most of its keys: one total, a few large groups,
the first ten; and for sums over groups of many rows, as changed rows alone say by how much these change. Its partial
results (``Stage``) are a generation of their own, without a sink, which nobody is shown:

  - *Begun* when the last refreshes computed everything and that took long; where they add up, when the last refreshes
    took long, or by the first build if the input is large. They belong to one generation of the definition.
  - *Refreshed* to the position before the step is taken, as any result that another reads. Where they add up, a process
    that goes on does so in memory, and takes a step of them once in a while (``KeptSums``).
  - *Left behind* for some refreshes where all of them had to be computed anew: that is no less work. Not so sums.
  - *Dropped* with their generation, or when they would be others than before.

``verify`` computes the definition as it is written. So it proves the partial results too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.disclosure import describe_error
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.analysis.empty_inputs import empty_inputs
from tailrace.projections.compute.compute import define, output_schema
from tailrace.projections.compute.frames import local_frame
from tailrace.projections.compute.input_facts import facts_of
from tailrace.projections.compute.read_plan import needs, resolve_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.fingerprint import fingerprint
from tailrace.projections.definition.model import (
    NoStage,
    Projection,
    ProjectionFailed,
    Result,
    Stage,
)
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.key_subset import KeySubset
from tailrace.projections.generations.result_input import ResultInput, plan_result, result_at
from tailrace.projections.generations.step_files import folder_of, read_delta, read_results
from tailrace.projections.refresh.by_key.additive import put_off
from tailrace.projections.refresh.by_key.sums import require_addable
from tailrace.projections.refresh.engines.choice import (
    choose,
    is_row_by_row,
    is_small,
    of_engine,
    parity_of,
    reads_of,
    sail_is_wanted,
)
from tailrace.projections.refresh.plan import Full, Incremental, Nothing, Plan
from tailrace.projections.refresh.plan_step import plan_generation
from tailrace.projections.refresh.prune import prune
from tailrace.projections.refresh.step import CommittedStep, take_step
from tailrace.projections.refresh.step_input import Asked, Partial, RowsOfKeys, StepInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("tailrace.projections")
_LONG_SECONDS = 2.0
"""What is computed whole in less is not worth partial results."""
_LONG_FOR_SPARK_ALONE = 0.5
"""The same of what Sail may not compute: mostly it may compute the partial results, without the quotients and means."""
_LONG_FOR_SUMS = 0.3
"""What takes less, by key or whole, is not worth partial results that add up."""
_REFRESHES = 2
"""So many of the last refreshes were long before partial results are begun."""
_CHANGED_MOST = 200_000
"""Partial results that changed, of which the result is computed by key."""
_NAMES = "names of partial results"


def by_stage(step: StepInput, decided: Full | Incremental) -> StepInput:
    """The step over partial results, which are at its position then; as it is where it is better taken without them.
    Raises what ``take_step`` raises for partial results."""
    ctx, generation = step.ctx, step.generation
    if step.definition.stages is None or step.definition.wants_now or not step.follows_log:
        return step
    name = generation.stage_name
    if ctx.stages.get(name, ...) is None or ctx.in_vain.is_to_be_left_out(name):
        return step
    held = _stage_generation(ctx, generation)
    if not (_is_worth_it(step, decided) if held is None else held.state is GenerationState.READY):
        return step
    try:
        stage = _stage_of(step)
        return replace(step, partial=_refreshed(step, stage, held))
    except (NoStage, ProjectionFailed) as error:
        _give_up(step, str(error))
        return step


def planned_by_stage(step: StepInput, decided: Plan) -> Plan:
    """What a refresh will do, with the partial results that there are."""
    held = _stage_generation(step.ctx, step.generation)
    if isinstance(decided, Nothing) or held is None or held.state is not GenerationState.READY:
        return decided
    return Incremental(decided.from_epoch, decided.to_epoch, f"{decided.reason}; by way of partial results")


def held_partial(step: StepInput) -> StepInput | None:
    """The partial results of a generation at their last step, to be compared with what they are computed of; None where
    there are none, or of another definition."""
    ctx = step.ctx
    held = _stage_generation(ctx, step.generation)
    if step.definition.stages is None or held is None or held.state is not GenerationState.READY:
        return None
    last = ctx.store.steps.last(held.projection, held.number)
    with suppress(NoStage):
        stage = _stage_of(step)
        if last is not None and held.fingerprint == fingerprint(stage.partial):
            return StepInput(ctx, stage.partial, held, ctx.store.cut(last.to_epoch))
    return None


def drop_stage(ctx: ProjectionContext, generation: Generation) -> None:
    """Drop the partial results of a generation, with their files and records."""
    held = _stage_generation(ctx, generation)
    if held is None:
        return
    paths = list(ctx.store.storage.list(folder_of(held.projection)))
    ctx.store.derived.drop_generation(held.projection, held.number)
    ctx.kept_sums.forget(held.projection, held.number)
    ctx.store.run_records.forget(held.projection)
    for path in paths:
        ctx.store.storage.delete(path)


def _stage_generation(ctx: ProjectionContext, generation: Generation) -> Generation | None:
    known = ctx.store.look.answer(_NAMES, ctx.store.derived.partial_results)
    if generation.stage_name not in known:
        return None
    return next(iter(ctx.generations(generation.stage_name)), None)


def _is_worth_it(step: StepInput, decided: Full | Incremental) -> bool:
    generation, stages = step.generation, step.definition.stages
    is_for_sums = stages is not None and stages.may_add and not is_row_by_row(step)
    if step.last is None:
        return is_for_sums and _is_large(step) and _adds_up(step)
    if isinstance(decided, Full) and (decided.from_epoch == 0 or decided.afresh):
        return False
    was_full = files_of(step.last).kind == "full"
    if not was_full and not is_for_sums:
        return False
    records = step.ctx.store.run_records.latest(
        generation.projection, limit=_REFRESHES, kinds=["full", "incremental"]
    )
    mine = [each for each in records if each.generation == generation.number]
    if was_full and _is_long(step, mine):
        return True
    return is_for_sums and (_is_large(step) or _is_slow(step, mine)) and _adds_up(step)


def _is_large(step: StepInput) -> bool:
    return not is_small(step.ctx, reads_of(step))


def _is_slow(step: StepInput, records: Sequence[RunRecord]) -> bool:
    """Whether the last refreshes took long, by key or whole, on the engine that will take the next."""
    spark_alone = not sail_is_wanted(step.ctx) or _is_refused(step)
    own = of_engine(records, "spark" if spark_alone else "sail")
    return len(own) == _REFRESHES and all((each.seconds or 0.0) >= _LONG_FOR_SUMS for each in own)


def _adds_up(step: StepInput) -> bool:
    try:
        return _stage_of(step).partial.additive is not None
    except (NoStage, ProjectionFailed):
        step.ctx.stages[step.generation.stage_name] = None  # not to be looked for again
        return False


def _is_long(step: StepInput, records: Sequence[RunRecord]) -> bool:
    """Whether everything was computed, and that took long, each of the last times."""
    own = of_engine(records, "spark")
    long = min(_LONG_FOR_SPARK_ALONE, _LONG_SECONDS) if _is_refused(step) else _LONG_SECONDS
    return len(own) == _REFRESHES and all(
        each.kind == "full" and (each.seconds or 0.0) >= long for each in own
    )


def _is_refused(step: StepInput) -> bool:
    """Whether Sail is wanted, and may not compute the definition."""
    parity = parity_of(step) if sail_is_wanted(step.ctx) else None
    return parity is not None and parity.failed is not None


def _stage_of(step: StepInput) -> Stage:
    """Raises NoStage."""
    ctx, definition = step.ctx, step.definition
    assert definition.stages is not None
    name = step.generation.stage_name
    if name not in ctx.stages:
        found = definition.stages.stage(
            definition, facts_of(ctx.store, definition, step.cut), partial(_called, step)
        )
        over = replace(found.over, inputs={**found.over.inputs, found.input: Result(name)})
        ctx.stages[name] = replace(found, partial=replace(found.partial, name=name, tolerance={}), over=over)
    known = ctx.stages[name]
    assert known is not None, "the caller has looked"
    return known


def _called(step: StepInput, definition: Projection) -> DataFrame:
    return define(definition, _without_rows(step, definition), step.cut.commit_ts)


def _without_rows(
    step: StepInput, definition: Projection, names: Sequence[str] | None = None
) -> dict[str, DataFrame]:
    """Inputs (default: all) that have columns alone."""
    ctx = step.ctx
    reads = resolve_reads(ctx.store, definition, step.cut, names)
    return empty_inputs(ctx.spark, definition, reads.inputs)


def _refreshed(step: StepInput, stage: Stage, held: Generation | None) -> Partial:
    """Partial results at the step's position. Raises NoStage where the result cannot be made of them."""
    ctx, clock = step.ctx, step.ctx.clock
    began = clock()
    if held is not None and held.fingerprint != fingerprint(stage.partial):
        drop_stage(ctx, step.generation)
        held = None
    generation = held or _begun(step, stage)
    over = replace(step, definition=stage.over)
    inner = StepInput(ctx, stage.partial, generation, step.cut, read_by=over, asked=Asked(held=generation))
    decided = plan_generation(inner)
    keys: int | None = 0
    changed = _put_off(inner, decided) if stage.by_key else None
    if changed is not None:
        keys, stored = len(changed.keys), _stored_bytes(inner)
    else:
        if not isinstance(decided, Nothing):
            keys, changed = _stepped(inner, decided)
            inner = replace(inner, asked=Asked())  # more may have been found out
        result = plan_result(ctx.store, generation.projection, step.cut, generation.number)
        stored = result.stored_bytes
        known = changed is not None and step.last is not None and changed.since <= step.last.to_epoch
        if not known:
            changed = _changed(step, generation, result) if stage.by_key else None
    parity = parity_of(inner) if sail_is_wanted(ctx) else None
    return Partial(
        stage.over,
        {generation.projection: generation.number},
        stored,
        keys,
        clock() - began,
        "sail" if parity is not None and parity.failed is None and parity.over else "spark",
        stage.picks,
        changed if stage.by_key else None,
        partial(_give_up, step),
    )


def _put_off(inner: StepInput, decided: Plan) -> RowsOfKeys | None:
    """The partial results that changed since the result over them, where these go on in memory (``KeptSums``)."""
    last, additive = inner.last, inner.definition.additive
    shown = inner.read_by.last if inner.read_by is not None else None
    if (
        additive is None
        or last is None
        or not isinstance(decided, Incremental)
        or shown is None
        or shown.to_epoch < last.to_epoch
        or not inner.ctx.kept_sums.puts_off
    ):
        return None
    step, chosen = choose(inner, decided, last)
    if not isinstance(chosen, Incremental):
        return None
    try:
        changed = put_off(step, additive, last, shown.to_epoch)
    except Exception as error:  # noqa: BLE001 the step that is taken instead meets it, and says what is to be done
        _log.debug("%s takes a step: %s", inner.generation, describe_error(error))
        inner.ctx.kept_sums.forget(inner.generation.projection, inner.generation.number)
        return None
    to = inner.ctx.kept_sums.take_turn(last)
    if to is not None:
        _catch_up(replace(inner, cut=inner.ctx.store.cut(to)))
    return changed


def _catch_up(inner: StepInput) -> None:
    """The step to where everything was put off. What cannot be done so is met by the next one."""
    decided = plan_generation(inner)
    taken = take_step(inner, decided) if isinstance(decided, Incremental) else None
    if taken is not None and taken.kind == "incremental":
        inner.ctx.kept_sums.go_on(taken.run)
        prune(inner.ctx, inner.generation, inner.definition)
    else:
        inner.ctx.kept_sums.forget(inner.generation.projection, inner.generation.number)


def _stepped(inner: StepInput, decided: Full | Incremental) -> tuple[int | None, RowsOfKeys | None]:
    """A step of partial results: how many keys it computed anew (None: all), and which, where these are known."""
    ctx, generation, definition = inner.ctx, inner.generation, inner.definition
    started = datetime.now(UTC)
    taken = take_step(inner, decided)
    ctx.kept_sums.forget(generation.projection, generation.number)
    if definition.additive is None or taken.kind == "full":
        _record(ctx, taken, started)
    prune(ctx, generation, definition)
    if taken.keys is None and taken.run.from_epoch and (taken.seconds or 0.0) >= _LONG_SECONDS:
        inner.note_in_vain()
    return taken.keys, taken.rows


def _stored_bytes(step: StepInput) -> int:
    """Of the files of the last step."""
    assert step.last is not None, "one was taken"
    held = files_of(step.last)
    return sum(file.bytes for file in (*held.runs, *held.overlays))


def _changed(step: StepInput, generation: Generation, result: ResultInput) -> RowsOfKeys | None:
    """The partial results that may be others than they were at the definition's last step; None where that is not
    known, or they are many."""
    ctx, last, name = step.ctx, step.last, generation.projection
    if last is None or result_at(ctx.store, name, last.to_epoch, generation.number) is None:
        return None
    steps = ctx.store.steps.list(name, generation.number, after=last.to_epoch)
    files = [file for each in steps for file in files_of(each).deltas]
    if sum(file.rows for file in files) > _CHANGED_MOST:
        return None
    key, schema, storage = generation.key, generation.schema, ctx.store.storage
    pieces = [rows for file in files for rows in read_delta(storage, file, schema, key)]
    keys = KeySet.union(
        [KeySet.of([schema.empty_table()[name] for name in key])]
        + [KeySet.of([rows[name] for name in key]) for rows in pieces]
    )
    placed, wanted = dict(result.placed), result.buckets_of(keys.hashes)
    rows = read_results(storage, [placed[bucket] for bucket in wanted], schema, key, KeySubset.of(keys, key))
    return RowsOfKeys(keys, rows.drop_columns([HASH]).cast(schema), last.to_epoch)


def _begun(step: StepInput, stage: Stage) -> Generation:
    """The generation of partial results, without any yet."""
    ctx, definition = step.ctx, stage.partial
    schema = output_schema(definition, _called(step, definition))
    if definition.additive is not None:
        require_addable(schema, definition.key)
    _require_same_columns(step, stage, schema)
    reads = resolve_reads(ctx.store, definition, step.cut)
    partitions = ctx.settings.store.partitions
    planned = Generation(
        projection=definition.name,
        number=1,
        fingerprint=fingerprint(definition),
        sink_text=step.generation.sink_text,
        key=definition.key,
        schema=schema,
        partitions=partitions,
        split=reads.split(partitions),
        pin=None,
        state=GenerationState.BUILDING,
        frozen_at=None,
        created_at=datetime.now(UTC),
        inputs=needs(ctx.store, definition),
    )
    return _create(ctx, planned, GenerationState.READY)


def _create(ctx: ProjectionContext, planned: Generation, state: GenerationState) -> Generation:
    number = ctx.store.derived.create_generation(planned.begun())
    ctx.store.derived.set_state(planned.projection, number, state)
    ctx.store.look.forget(_NAMES)
    return ctx.generation(planned.projection, number)


def _require_same_columns(step: StepInput, stage: Stage, schema: pa.Schema) -> None:
    """Raises NoStage where the result over partial results would have other columns than the generation."""
    ctx, over = step.ctx, stage.over
    inputs = _without_rows(step, over, [name for name in over.inputs if name != stage.input])
    inputs[stage.input] = local_frame(ctx.spark, over, stage.input, schema.empty_table())
    found = output_schema(over, define(over, inputs, step.cut.commit_ts))
    if not found.equals(step.generation.schema):
        raise NoStage("its columns would be others")


def _record(ctx: ProjectionContext, taken: CommittedStep, started: datetime) -> None:
    """For the next plan, which does not ask about sums that follow changed rows. Nobody is shown it."""
    run = taken.run
    ctx.store.run_records.add(
        RunRecord(
            run.projection,
            run.generation,
            started,
            datetime.now(UTC),
            run.from_epoch,
            run.to_epoch,
            taken.kind,
            taken.reason,
            keys=taken.keys,
            seconds=taken.seconds,
            engine=None if taken.on == "spark" else taken.on,
        )
    )


def _give_up(step: StepInput, why: str) -> None:
    """Do without partial results for the rest of the generation's life. What was begun leaves a mark, without files."""
    ctx, generation = step.ctx, step.generation
    _log.info("%s is refreshed without partial results: %s", generation, why)
    ctx.stages[generation.stage_name] = None
    held = _stage_generation(ctx, generation)
    if held is not None:
        drop_stage(ctx, generation)
        _create(ctx, replace(held, inputs=()), GenerationState.FAILED)

"""All of a projection's result at a position, on the engine that takes the step."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.compute.bucket import BucketOutcome, BucketTask
from tailrace.projections.compute.compute import compute, compute_here, require_schema
from tailrace.projections.compute.read_plan import ResultSources, plan_reads, require_changes
from tailrace.projections.refresh.step_input import StepInput


def compute_at(
    step: StepInput, task: BucketTask, results: Mapping[str, int] | None = None
) -> list[BucketOutcome]:
    """Run the projection over the whole log at a position and each bucket of its result through ``task``. This is part
    of an attempt: tasks open files long after they were named. ``results`` are the generations of
    other projections that are read; default: the live ones.

    Raises ProjectionFailed when the result's columns are not the generation's, HistoryGone when changes that it is
    computed of were removed.
    """
    ctx, projection, generation = step.ctx, step.projection, step.generation
    require_changes(ctx.store, str(generation), generation.projection, generation.inputs)
    ctx.report(f"reading for {step.label}", 0, None, "")
    sources = ResultSources(results or {}, ctx.computed_inputs(generation.pin))
    reads = plan_reads(ctx.store, projection, step.cut, ctx.parallelism, results=sources)
    with step.engine.active():
        result = step.engine.result(projection, reads)
        require_schema(projection, generation.schema, str(generation), result)
        ctx.report(f"computing {step.label} from {reads.rows:,} changes", 0, None, "")
        take = compute_here if step.here else compute
        return take(projection, result, task, ctx.report, step.label)

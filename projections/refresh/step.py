"""One step of a generation: computed incrementally or in full, and committed by compare-and-set (steps 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tailrace.eventstore.catalog.leases import Ended
from tailrace.eventstore.errors import Fenced, TransientError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.generations import DerivedRun
from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.guards import declared_against
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, placement_of
from tailrace.projections.compute.compute import compute, define, require_schema
from tailrace.projections.compute.frames import frames
from tailrace.projections.compute.read_plan import plan_reads, require_changes
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.result_input import results_at
from tailrace.projections.generations.step_files import StepFiles, folder_of, next_files
from tailrace.projections.refresh import resume
from tailrace.projections.refresh.costs import too_costly
from tailrace.projections.refresh.incremental import NotIncremental, compute_incrementally
from tailrace.projections.refresh.plan import Cause, Full, Incremental
from tailrace.projections.refresh.resume import Left
from tailrace.projections.refresh.samples import check_samples, proof_at
from tailrace.projections.spark.errors import explained

_RECORDS = 500
_NULL_LINKS = (
    "changed rows of {} have NULL where they belong to another input's, and of that trust=True shows nothing"
)
_NULLS = "changed rows have NULL for their key, and nothing in the plan leaves such rows out"


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A committed step: how it was computed and why so (``cause``: of a full one), how many keys were affected (None:
    all of them) and the seconds it took to compute (None: part of it was taken over)."""

    run: DerivedRun
    kind: Literal["full", "incremental"]
    reason: str
    keys: int | None
    seconds: float | None
    cause: Cause | None


def take_step(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    cut: Cut,
    decided: Full | Incremental,
    left: Left | None = None,
) -> CommittedStep:
    """Compute the result at ``cut`` and commit it, with what differs from the step before, as the next step; of a first
    one, without the buckets that earlier attempts finished and ``left``.

    Raises Fenced when another driver committed meanwhile, and Ended when ``gc`` took this process for dead;
    ProjectionFailed when the projection's code or output is at fault, and what reading the inputs raises. Then nothing
    is committed, and nothing stays of what was written.
    """
    derived, name, number = ctx.store.derived, generation.projection, generation.number
    last = derived.last_derived(name, number)
    files = files_of(last) if last else None
    _ = ctx.spark  # its start is no part of what a step takes
    with attempts.attempt(ctx.store.catalog, name, number, str(cut.epoch)) as attempt:
        task = BucketTask(
            storage=ctx.store.storage,
            placement=placement_of(generation),
            previous=files.buckets if files else {},
            tolerance=projection.tolerance,
            folder=folder_of(name, number),
            attempt=attempt.name,
            afresh=isinstance(decided, Full) and decided.afresh,
        )
        results = _results(ctx, projection, generation, cut)
        began = ctx.clock()
        done: dict[int, BucketOutcome] = {}
        if last is None:
            task = replace(task, basis=resume.basis_at(ctx, generation, cut, results).to_text())
            done = resume.take_over(ctx, generation, task, left) if left else {}
            task = replace(task, placement=replace(task.placement, without=frozenset(done)))
        outcomes, kind, reason, keys, cause = _computed(
            ctx, projection, generation, cut, decided, last, files, task
        )
        if done:
            outcomes = sorted([*outcomes, *done.values()], key=lambda outcome: outcome.bucket)
            reason += f"; {len(done)} of {len(task.placement.buckets)} buckets were finished before"
        seconds = None if done else ctx.clock() - began
        try:
            _require_same(ctx, projection, generation, cut, results)
            step = _files(ctx, cut, files, outcomes, results)
            step = replace(step, kind=kind, reason=reason, keys=keys)
            run = _committed(ctx, generation, cut, last, step, attempt.lease)
        except (Fenced, Ended, _Moved):  # any other may come of a COMMIT that was done
            task.discard()
            raise
        task.forget_receipts()
    follows = generation.pin is None and generation.preview is None
    if kind == "full" and follows and not declared_against(projection):
        _check(ctx, projection, generation, cut, run)
    return CommittedStep(run, kind, reason, keys, seconds, cause)


class _Moved(TransientError):
    """What a step reads is not any more what it was when the step began."""


def _results(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut
) -> dict[str, int]:
    return results_at(ctx.store, projection, cut, ctx.anew(generation.pin))


def _require_same(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    cut: Cut,
    results: Mapping[str, int],
) -> None:
    """Inputs are resolved several times in a step: all of them have to be of one generation."""
    if _results(ctx, projection, generation, cut) != results:
        raise _Moved(
            f"what projection {projection.name!r} reads was built anew while it was computed",
            hint="run it again",
        )


def _check(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut, run: DerivedRun
) -> None:
    """The proof by samples, once for each version of the inputs' columns."""
    if proof_at(ctx, projection, generation, cut) is not None:
        return
    checked = check_samples(ctx, projection, generation, cut, files_of(run))
    if checked is not None:
        ctx.store.derived.set_checked(generation.projection, generation.number, checked.to_json())


_Computed = tuple[list[BucketOutcome], Literal["full", "incremental"], str, int | None, Cause | None]


def _computed(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    cut: Cut,
    decided: Full | Incremental,
    last: DerivedRun | None,
    before: StepFiles | None,
    task: BucketTask,
) -> _Computed:
    reason, cause = decided.reason, decided.cause if isinstance(decided, Full) else None
    if isinstance(decided, Incremental) and last is not None and before is not None:
        records = [
            record
            for record in ctx.store.run_records.latest(generation.projection, limit=_RECORDS)
            if record.generation == generation.number
        ]
        rows, proof = before.rows, proof_at(ctx, projection, generation, cut)

        def against(affected: KeySet, null_links: set[str]) -> tuple[Cause, str] | None:
            if affected.nulls and not (proof and proof.never_null):
                return "proof", _NULLS
            if null_links and projection.trust:
                return "proof", _NULL_LINKS.format(", ".join(sorted(null_links)))
            costly = too_costly(records, len(affected), rows)
            return ("cost", costly) if costly is not None else None

        try:
            step = compute_incrementally(
                ctx,
                projection,
                generation,
                last.to_epoch,
                cut,
                task,
                against,
            )
            affected = f"{step.keys:,} keys" if step.keys != 1 else "1 key"
            return step.outcomes, "incremental", f"{reason}, which affects {affected}", step.keys, None
        except NotIncremental as error:
            reason, cause = f"{reason}; {error}", error.cause
    return compute_at(ctx, projection, generation, cut, task), "full", reason, None, cause


def _files(
    ctx: ProjectionContext,
    cut: Cut,
    before: StepFiles | None,
    outcomes: list[BucketOutcome],
    results: Mapping[str, int],
) -> StepFiles:
    written = {outcome.bucket: outcome.files for outcome in outcomes if outcome.files is not None}
    runs, overlays = next_files(before.buckets if before else {}, written)
    grown = sum(outcome.only_new - outcome.only_old for outcome in outcomes)
    return StepFiles(
        runs=runs,
        overlays=overlays,
        deltas=tuple(outcome.delta for outcome in outcomes if outcome.delta is not None),
        epoch_hash=ctx.epoch(cut.epoch).hash,
        rows=(before.rows if before else 0) + grown,
        results=results,
    )


def _committed(
    ctx: ProjectionContext,
    generation: Generation,
    cut: Cut,
    last: DerivedRun | None,
    files: StepFiles,
    lease: str,
) -> DerivedRun:
    return ctx.store.derived.commit_derived(
        generation.projection,
        generation.number,
        last.to_epoch if last else 0,
        cut.epoch,
        "delta" if last else "full",
        [files.to_data()],
        files.rows,
        cut.commit_ts,
        lease=lease,
    )


def compute_at(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    cut: Cut,
    task: BucketTask,
    results: Mapping[str, int] | None = None,
) -> list[BucketOutcome]:
    """Run the projection over the whole log at ``cut`` and each bucket of its result through ``task``: part of an
    attempt, because tasks open files long after they were named. ``results``: as in ``plan_reads``.

    Raises ProjectionFailed when the result's columns are not the generation's, HistoryGone when changes that it is
    computed of were removed.
    """
    require_changes(ctx.store, str(generation), generation.projection, generation.inputs)
    ctx.report(f"reading for {projection.name}", 0, None, "")
    anew = ctx.anew(generation.pin)
    reads = plan_reads(ctx.store, projection, cut, ctx.parallelism, results=results, anew=anew)
    with explained(projection, "reading its inputs"):
        inputs = frames(ctx.spark, ctx.store.storage, projection, reads, ctx.parallelism)
    result = define(projection, inputs, cut.commit_ts)
    require_schema(projection, generation.schema, str(generation), result)
    ctx.report(f"computing {projection.name} from {reads.rows:,} changes", 0, None, "")
    return compute(projection, result, task, ctx.report)

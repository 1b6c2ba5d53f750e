"""Prove that a sink equals the log: compute the projection from all rows at the sink's fence, and compare both ways.

The sink's rows are written to temporary files by bucket (``sink_rows``). The tasks that compare a refresh with the
result before compare these.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.model.position import Cut
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, RowSample, placement_of
from tailrace.projections.compute.engine import EngineName
from tailrace.projections.compute.sampling import Sampling, sampling_of
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation, Pin, files_of
from tailrace.projections.generations.result_input import missing_results, result_in
from tailrace.projections.generations.step_files import BucketFiles
from tailrace.projections.lifecycle.promote import reconcile
from tailrace.projections.lifecycle.sink_rows import read_sink
from tailrace.projections.refresh.by_stage import held_partial
from tailrace.projections.refresh.compute_all import compute_at
from tailrace.projections.refresh.engines.choice import parity_of
from tailrace.projections.refresh.engines.parity import require_parity
from tailrace.projections.refresh.record import record_failures
from tailrace.projections.refresh.step_input import StepInput
from tailrace.projections.sinks.specs import expires
from tailrace.projections.spark.sail import require_installed

SAMPLES_SHOWN = 10
_SEED_BITS = 32  # few enough digits to be typed again


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A row that differs: ``kind`` is "only in log", "only in sink" or "different". ``expected`` are its values by the
    log, ``actual`` those in the sink (None: no row); where both exist, those that differ. All as JSON, like ``key``. Of
    a comparison with the source ``expected`` are the source's values, ``actual`` the projection's."""

    kind: str
    key: str
    expected: str | None
    actual: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a sink and the log differ at ``epoch``. ``rows`` of the log were compared, as ``engine`` computed them: all,
    or those of keys that ``seed`` chose. ``only_in_log`` rows are missing in the sink, ``only_in_sink`` rows should not
    be there, ``different`` ones have other values; ``samples`` are the first of these. ``expired`` rows are missing in
    a sink whose rows expire. ``partial`` rows differ of the partial results that refreshes go by."""

    projection: str
    generation: int
    epoch: int
    rows: int
    only_in_log: int
    only_in_sink: int
    different: int
    samples: tuple[DifferentRow, ...]
    seed: int | None = None
    expired: int = 0
    engine: EngineName = "spark"
    partial: int = 0

    @property
    def equal(self) -> bool:
        return not (self.only_in_log or self.only_in_sink or self.different or self.partial)


def verify(
    ctx: ProjectionContext,
    name: str,
    number: int | None = None,
    *,
    sample: int | None = None,
    seed: int | None = None,
    on: EngineName = "spark",
) -> Comparison:
    """Compare the live generation (or generation ``number``) with the log, as this engine computes it.

    With ``sample`` only about so many keys are compared, chosen by ``seed`` (default: random). The projection is
    computed from all rows of its inputs even so.

    Raises UsageError when nothing is live, OperatorError when the generation is frozen or its sink is not of this
    log, TransientError when refreshes kept moving the sink meanwhile, DifferenceFound when the sink has rows that
    cannot even be compared.
    """
    started = datetime.now(UTC)
    projection = ctx.projection(name)
    known = require_live(ctx, name) if number is None else number
    _check_sample(sample, seed)
    with record_failures(ctx, name, "verify", known):
        compared = _compare(ctx, projection, number, sample, seed, on)
    _record(ctx, compared, started)
    return compared


def _compare(
    ctx: ProjectionContext,
    projection: Projection,
    number: int | None,
    sample: int | None,
    seed: int | None,
    on: EngineName,
) -> Comparison:
    generation = comparable(ctx, projection.name, number)
    if on == "sail":
        _require_witness(ctx, projection, generation)
    sampling = _sampling(ctx, generation, sample, seed)
    epoch, outcomes = _outcomes(ctx, projection, generation, sampling, on)
    found = _comparison(generation, epoch, outcomes, sampling, expiring=expires(ctx.spec(generation)))
    partial = _partial_differences(ctx, projection, generation) if on == "spark" and sample is None else 0
    return replace(found, engine=on, partial=partial)


def _partial_differences(ctx: ProjectionContext, projection: Projection, generation: Generation) -> int:
    """How many rows of its partial results are others than those of the log."""
    inner = held_partial(StepInput(ctx, projection, generation, ctx.store.cut()))
    if inner is None:
        return 0
    last = ctx.store.steps.last(inner.generation.projection, inner.generation.number)
    assert last is not None, "there is the step that they are compared at"
    files = files_of(last)
    task = BucketTask(ctx.store.storage, placement_of(inner.generation), files.buckets, {}, None, "")
    with ctx.store.pinned(f"projection {projection.name}"):
        outcomes = compute_at(inner, task, files.results)
    return sum(each.only_new + each.only_old + each.different for each in outcomes)


def _require_witness(ctx: ProjectionContext, projection: Projection, generation: Generation) -> None:
    """Raises OperatorError where Sail cannot tell: it is not installed, or known not to give the projection's rows as
    Spark does."""
    require_installed()
    last = ctx.store.steps.last(generation.projection, generation.number)
    if last is None:
        return
    step = StepInput(ctx, projection, generation, ctx.store.cut(last.to_epoch))
    parity = parity_of(step) or require_parity(step, files_of(last))
    if parity is not None and parity.failed is not None:
        raise OperatorError(
            f"Sail is no witness for projection {projection.name!r}: {parity.failed}",
            hint="verify it without --witness: Spark computes it",
        )


def require_live(ctx: ProjectionContext, name: str) -> int:
    """The number of the live generation. Raises UsageError when nothing is live."""
    number = ctx.store.derived.live(name)
    if number is None:
        raise UsageError(f"projection {name!r} was never built", hint=f"tailrace rebuild {name}")
    return number


def comparable(ctx: ProjectionContext, name: str, number: int | None = None) -> Generation:
    """The live generation, or generation ``number``. Raises OperatorError when it is frozen."""
    reconcile(ctx, name)
    generation = ctx.live(name) if number is None else ctx.generation(name, number)
    assert generation is not None, "what is live stays so, or another one is"
    if ctx.is_frozen(generation):
        raise OperatorError(
            f"{generation} was built by another definition than the loaded one, so there is nothing to compare with",
            hint=f"load the definition it was built by, or tailrace rebuild {name}",
        )
    return generation


def _outcomes(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    sampling: Sampling | None,
    on: EngineName,
) -> tuple[int, list[BucketOutcome]]:
    """The epoch of the last part that was read from the sink, and the outcome of each bucket."""
    name = projection.name
    outcomes: list[BucketOutcome] = []
    epoch = 0
    with (
        attempts.attempt(ctx.store.catalog, name, generation.number, "verify") as attempt,
        closing(read_sink(ctx, generation, sampling, attempt)) as parts,
    ):
        for part in parts:
            cut = generation.pin.cut if generation.pin else ctx.store.cut(part.fence.epoch)
            task = BucketTask(
                storage=part.rows.storage,
                placement=part.rows.placement,
                previous={bucket: BucketFiles(file) for bucket, file in part.rows.files.items()},
                tolerance=projection.tolerance,
                folder=None,
                attempt="",
            )
            steps = ctx.store.steps.list(name, generation.number, after=part.fence.epoch - 1)
            results = files_of(steps[0]).results if steps else {}
            complete = _mark_lost_results(ctx, projection, generation, cut, results)
            outcomes += compute_at(
                StepInput(ctx, projection, complete, cut, on, on == "sail", on == "sail"), task, results
            )
            epoch = part.fence.epoch
    return epoch, outcomes


def _mark_lost_results(
    ctx: ProjectionContext,
    projection: Projection,
    generation: Generation,
    cut: Cut,
    results: Mapping[str, int],
) -> Generation:
    """The generation, with the results that it reads and that are not kept at the cut any more marked to be computed
    again. Unchanged when the definitions that are loaded are not those by which these results were made."""
    kept = all(result_in(ctx.store, name, cut, results.get(name)) for name in projection.reads)
    if kept or generation.pin is not None:
        return generation
    position = f"epoch {cut.epoch:,}"
    gone = missing_results(ctx.store, projection, ctx.projections, position, cut)
    made_by = {name: live.fingerprint for name in gone if (live := ctx.live(name))}
    if any(made_by.get(name) != ctx.fingerprint(name) for name in gone):
        return generation
    return replace(generation, pin=Pin(position, cut, made_by))


def _record(ctx: ProjectionContext, compared: Comparison, started: datetime) -> None:
    """Record the comparison, for people and for metrics."""
    differ = (
        f"{compared.different:,} rows with other values, {compared.only_in_log:,} missing in the sink,"
        f" {compared.only_in_sink:,} only in the sink"
    )
    if compared.partial:
        differ += f", {compared.partial:,} of its partial results"
    ctx.store.run_records.add(
        RunRecord(
            projection=compared.projection,
            generation=compared.generation,
            started=started,
            finished=datetime.now(UTC),
            from_epoch=None,
            to_epoch=compared.epoch,
            kind="verify",
            reason=f"{compared.rows:,} rows are equal" if compared.equal else differ,
            rows_upserted=compared.different + compared.only_in_log,
            rows_deleted=compared.only_in_sink,
            status="equal" if compared.equal else "different",
        )
    )


def _check_sample(sample: int | None, seed: int | None) -> None:
    if sample is not None and sample < 1:
        raise UsageError(f"a sample cannot have {sample} keys", hint="give 1 or more")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise UsageError(f"{seed} is not a seed", hint="give the one that an earlier sample reported")


def _sampling(
    ctx: ProjectionContext, generation: Generation, sample: int | None, seed: int | None
) -> Sampling | None:
    if sample is None:
        return None
    last = ctx.store.steps.last(generation.projection, generation.number)
    rows = files_of(last).rows if last else 0
    return sampling_of(sample, rows, secrets.randbits(_SEED_BITS) if seed is None else seed)


def _comparison(
    generation: Generation,
    epoch: int,
    outcomes: list[BucketOutcome],
    sampling: Sampling | None,
    *,
    expiring: bool,
) -> Comparison:
    missing = sum(outcome.only_new for outcome in outcomes)
    samples = [
        different_row(found)
        for outcome in outcomes
        for found in outcome.samples
        if not (expiring and found.kind == "only_new")
    ]
    return Comparison(
        projection=generation.projection,
        generation=generation.number,
        epoch=epoch,
        rows=sum(outcome.rows for outcome in outcomes),
        only_in_log=0 if expiring else missing,
        only_in_sink=sum(outcome.only_old for outcome in outcomes),
        different=sum(outcome.different for outcome in outcomes),
        samples=tuple(samples[:SAMPLES_SHOWN]),
        seed=sampling.seed if sampling else None,
        expired=missing if expiring else 0,
    )


def different_row(sample: RowSample, *, old: str = "sink", new: str = "log") -> DifferentRow:
    """A row that differs between what a task calls the result before (``old``) and the result now (``new``)."""
    words = {"only_new": f"only in {new}", "only_old": f"only in {old}", "different": "different"}
    return DifferentRow(words[sample.kind], sample.key, expected=sample.new, actual=sample.old)

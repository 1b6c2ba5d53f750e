"""One step of a generation: computed incrementally or in full, and committed by compare-and-set (steps 7 and 8).

The life of a step:

  1. *Begun*: an attempt with a name and a lease; its files carry the name.
  2. *Computed*: incrementally where the plan says so and ``objection`` has none; else in full. Of a first step, buckets
     that earlier attempts finished are taken over (``resume``).
  3. *Committed*: files named in the catalog, if the step before is still the last one and the inputs are the same.
     Fenced, an ended lease and changed inputs discard the files; after any other error the commit may have happened,
     and ``gc`` removes what no step names.
  4. *Proved*: after a full step, whether keys may be followed from now on (``samples``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tailrace.eventstore.catalog.leases import Lease, LeaseEnded
from tailrace.eventstore.disclosure import describe_error
from tailrace.eventstore.errors import Fenced, TransientError
from tailrace.eventstore.metadata import attempts
from tailrace.eventstore.metadata.projection_steps import DerivedRun, NewStep
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.analysis.guards import declaration_refusal
from tailrace.projections.analysis.subqueries import any_of
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, placement_of
from tailrace.projections.compute.engine import EngineName
from tailrace.projections.definition.lineage import Lineage
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.step_files import StepFiles, folder_of, next_files
from tailrace.projections.refresh import resume
from tailrace.projections.refresh.by_key.additive import compute_additively
from tailrace.projections.refresh.by_key.incremental import (
    Objection,
    compute_incrementally,
    restricted_result,
    written,
)
from tailrace.projections.refresh.by_key.samples import check_samples, proof_of
from tailrace.projections.refresh.by_key.sums import picked
from tailrace.projections.refresh.compute_all import compute_at
from tailrace.projections.refresh.costs import too_costly
from tailrace.projections.refresh.engines.choice import (
    choose,
    for_all_rows,
    is_held,
    is_quick,
    of_engine,
    reads_of,
    tables_of_own_keys,
)
from tailrace.projections.refresh.engines.parity import compare_engines, note_failed
from tailrace.projections.refresh.engines.witness import witness
from tailrace.projections.refresh.plan import Cause, Full, Incremental, NotIncremental
from tailrace.projections.refresh.resume import Leftovers
from tailrace.projections.refresh.step_input import Asked, Partial, RowsOfKeys, StepInput
from tailrace.projections.spark.masters import runs_here

_log = logging.getLogger("tailrace.projections")
_RECORDS = 40
_FULL_RECORDS = 20
"""Of a projection's records, those that say what its steps take: these are mostly by key."""
_MANY_ROWS = 100_000
"""Of inputs, to be read for a result all of whose keys are affected: Spark's tasks read them at less cost."""
_NULL_LINKS = "changed rows of {} have a NULL link to another input, which trust=True does not cover"
_NULLS = "changed rows have NULL for their key, and nothing in the plan leaves such rows out"


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """What the buckets became, and why the step is of this ``kind``. ``keys``: how many were affected (None: all).
    ``cause``: the kind of reason for a full one. ``seconds``: how long that took, without what was tried in vain.
    ``rows``: those of the affected keys, where they are at hand. ``was_kept``: they were computed earlier."""

    outcomes: list[BucketOutcome]
    kind: Literal["full", "incremental"]
    reason: str
    keys: int | None = None
    cause: Cause | None = None
    on: EngineName = "spark"
    seconds: float = 0.0
    rows: RowsOfKeys | None = None
    was_kept: bool = False


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A step in the catalog. ``kind``, ``reason``, ``keys``, ``cause`` and ``rows`` are those of ``ComputedStep``;
    ``seconds`` is how long it was computed (None: part of it was taken over), ``on`` which engine."""

    run: DerivedRun
    kind: Literal["full", "incremental"]
    reason: str
    keys: int | None
    seconds: float | None
    cause: Cause | None
    on: EngineName = "spark"
    rows: RowsOfKeys | None = None


def take_step(
    step: StepInput, decided: Full | Incremental, leftovers: Leftovers | None = None
) -> CommittedStep:
    """Compute the result at the step's position and commit what differs from the step before. ``leftovers``: what
    earlier attempts at a first step finished; those buckets are not computed again.

    Raises Fenced when another driver committed meanwhile, Ended when ``gc`` took this process for dead,
    ProjectionFailed when the projection's code or output is at fault, and what reading the inputs raises. Then nothing
    is committed, and nothing stays of what was written.
    """
    ctx, projection, generation = step.ctx, step.projection, step.generation
    name, number = generation.projection, generation.number
    last = step.last
    before = files_of(last) if last else None
    step, decided = choose(step, decided, last)
    if isinstance(decided, Full) and decided.afresh:
        ctx.kept_rows.forget_all()  # they may have what was erased
        ctx.kept_sums.forget_all()
    if step.partial is None or step.partial.on == "spark":
        _ = step.engine.session  # its start is no part of what a step takes
    with attempts.attempt(ctx.store.catalog, name, number, str(step.cut.epoch)) as attempt:
        task = BucketTask(
            storage=ctx.store.storage,
            placement=placement_of(generation),
            previous=before.buckets if before else {},
            tolerance=projection.tolerance,
            folder=folder_of(name, number),
            attempt=attempt.name,
            afresh=isinstance(decided, Full) and decided.afresh,
        )
        results = step.results()
        done: dict[int, BucketOutcome] = {}
        if last is None:
            task = replace(task, basis=resume.basis_at(ctx, generation, step.cut, results).to_text())
            done = resume.take_over(ctx, generation, task, leftovers) if leftovers else {}
            task = replace(task, placement=replace(task.placement, without=frozenset(done)))
        computed = _compute(step, decided, last, task)
        if done:
            computed = _add_resumed(computed, done, len(task.placement.buckets))
        computed = _witnessed(step, computed, before, task, results)
        try:
            if step.results() != results:
                raise InputsChanged(projection.name)
            run = _commit(step, last, _step_files(step, before, computed, results), attempt.lease)
        except (Fenced, LeaseEnded, InputsChanged):  # any other may come of a COMMIT that was done
            task.discard()
            raise
        task.forget_receipts()
    if step.follows_log and step.on == "spark" and step.partial is None:
        if computed.kind == "full":
            prove(step, run)
        compare_engines(replace(step, asked=Asked()), files_of(run))  # the proof may be new
    seconds = None if done else computed.seconds
    return CommittedStep(
        run,
        computed.kind,
        computed.reason,
        computed.keys,
        seconds,
        computed.cause,
        computed.on,
        computed.rows,
    )


def _witnessed(
    step: StepInput,
    computed: ComputedStep,
    before: StepFiles | None,
    task: BucketTask,
    results: Mapping[str, int],
) -> ComputedStep:
    """What Sail computed; where Spark gives another row, everything as Spark computes it. Of what was computed earlier,
    the result is looked at that was computed of it then."""
    if computed.on == "spark" or computed.was_kept:
        return computed
    failed = witness(step, _step_files(step, before, computed, results), computed.seconds)
    if failed is None:
        return computed
    if step.partial is None:
        note_failed(step, failed)
    else:
        step.partial.give_up(failed)  # what Sail gave before may be in them
    _log.warning("%s is computed by Spark from now on: %s", step.generation, failed)
    task.discard()
    return ComputedStep(
        compute_at(replace(step, on="spark", from_files=False, here=False), task),
        "full",
        failed,
        cause="proof",
    )


class InputsChanged(TransientError):
    """Inputs are resolved several times in a step. A result among them is of another generation than it was."""

    def __init__(self, projection: str) -> None:
        super().__init__(
            f"a projection that {projection!r} reads was rebuilt while it was computed", hint="run it again"
        )


def prove(step: StepInput, run: DerivedRun) -> None:
    """Take samples, once for each version of the inputs' columns."""
    if step.definition.additive is not None:
        return
    if declaration_refusal(step.projection) or proof_of(step) is not None:
        return
    checked = check_samples(step, files_of(run))
    if checked is not None:
        generation = step.generation
        step.ctx.store.derived.set_checked(generation.projection, generation.number, checked.to_json())


def _compute(
    step: StepInput, decided: Full | Incremental, last: DerivedRun | None, task: BucketTask
) -> ComputedStep:
    if (step.on if step.partial is None else step.partial.on) == "spark":
        return _compute_once(step, decided, last, task)
    try:
        return _compute_once(step, decided, last, task)
    except Exception as error:  # noqa: BLE001 whatever Sail says, Spark shows whose mistake it is
        _log.warning("Sail could not compute %s, Spark does: %s", step.generation, describe_error(error))
        on_spark = None if step.partial is None else replace(step.partial, on="spark")
        return _compute_once(replace(step, on="spark", partial=on_spark), decided, last, task)


def _compute_once(
    step: StepInput, decided: Full | Incremental, last: DerivedRun | None, task: BucketTask
) -> ComputedStep:
    if step.partial is not None:
        return _compute_over(step, step.partial, decided, last, task)
    return _compute_on(step, decided, last, task)


def _compute_over(
    step: StepInput,
    partial: Partial,
    decided: Full | Incremental,
    last: DerivedRun | None,
    task: BucketTask,
) -> ComputedStep:
    """Of partial results: the rows of those that changed, or everything."""
    clock = step.ctx.clock
    began = clock()
    spark = step.ctx.settings.spark
    small = last is not None and is_held(step, last) and partial.is_small(spark.small_bytes)
    here = small and runs_here(spark.master)
    changed = partial.changed
    on: EngineName = partial.on if here or changed is not None else "spark"
    over = replace(step, definition=partial.over, on=on, from_files=here, here=here, partial=None)
    if changed is None:
        outcomes = compute_at(over, task, partial.generations)
    elif not len(changed.keys):
        outcomes = []
    else:
        lineage = Lineage(step.generation.key, {}, ())
        (name,) = over.definition.inputs
        rows = picked(changed.rows, partial.picks, step.generation.schema)
        if rows is None:
            rows = restricted_result(over, lineage, {name: changed.rows}, changed.keys)
        outcomes = written(over.projection, task, lineage, changed.keys, rows)
    reason = decided.what if isinstance(decided, Full) and partial.keys is not None else decided.reason
    anew = "all" if partial.keys is None else f"{partial.keys:,} {'key' if partial.keys == 1 else 'keys'}"
    return ComputedStep(
        outcomes,
        "full" if partial.keys is None else "incremental",
        f"{reason}; by way of partial results, {anew} of which were computed anew",
        partial.keys,
        (decided.cause if isinstance(decided, Full) else "cost") if partial.keys is None else None,
        on=on,
        seconds=partial.seconds + clock() - began,
    )


def _compute_on(
    step: StepInput, decided: Full | Incremental, last: DerivedRun | None, task: BucketTask
) -> ComputedStep:
    clock, name = step.ctx.clock, step.projection.name
    reason, cause = decided.reason, decided.cause if isinstance(decided, Full) else None
    in_vain = 0.0
    if isinstance(decided, Incremental) and step.ctx.in_vain.is_to_be_left_out(name):
        reason, cause = (
            f"{reason}; keys were followed in vain when they last were: their rows took too much memory, or time",
            "size",
        )
    elif isinstance(decided, Incremental) and last is not None:
        began = clock()
        try:
            proof = proof_of(step)
            subqueries = (proof and proof.subqueries) or {}
            additive = step.definition.additive
            result = (
                compute_incrementally(step, last.to_epoch, task, _objection(step, last), subqueries)
                if additive is None
                else compute_additively(step, additive, last, task)
            )
            reason += f", which affects {result.keys:,} key{'' if result.keys == 1 else 's'}"
            reason += f"; {any_of(result.unchanged)} did not change" if result.unchanged else ""
            seconds = clock() - began
            return ComputedStep(
                result.outcomes,
                "incremental",
                reason,
                result.keys,
                None,
                step.on,
                seconds,
                result.rows,
                result.was_kept,
            )
        except NotIncremental as error:
            reason, cause = f"{reason}; {error}", error.cause
            in_vain = clock() - began if error.cause == "cost" else math.inf if error.cause == "size" else 0.0
    step, began = for_all_rows(step, last), clock()
    outcomes = compute_at(step, task)
    if in_vain > clock() - began:
        step.note_in_vain()
    return ComputedStep(outcomes, "full", reason, cause=cause, on=step.on, seconds=clock() - began)


def _objection(step: StepInput, last: DerivedRun) -> Objection:
    """What is known against following keys once they are counted: NULLs that the proof does not cover, and cost."""
    own = [] if is_quick(step) else _own_records(step)
    rows, proof = _keys_in_all(step, files_of(last).rows), proof_of(step)

    def objection(affected: KeySet, null_links: set[str]) -> tuple[Cause, str] | None:
        if affected.nulls and not (proof and proof.never_null):
            return "proof", _NULLS
        if null_links and step.projection.trust:
            return "proof", _NULL_LINKS.format(", ".join(sorted(null_links)))
        if len(affected) >= rows and reads_of(step).rows >= _MANY_ROWS:
            return "cost", f"all its {rows:,} keys are affected"
        costly = too_costly(own, len(affected), rows)
        return ("cost", costly) if costly is not None else None

    return objection


def _own_records(step: StepInput) -> list[RunRecord]:
    """What earlier steps of the generation took on this engine, latest first."""
    records, name = step.ctx.store.run_records, step.generation.projection
    latest = records.latest(name, limit=_RECORDS)
    full = records.latest(name, limit=_FULL_RECORDS, kinds=["full"])
    known = [*latest, *(record for record in full if record not in latest)]
    return of_engine([record for record in known if record.generation == step.generation.number], step.on)


def _keys_in_all(step: StepInput, rows: int) -> int:
    """How many keys there may be: a result of ``rows`` may have a part of a table whose rows are keys."""
    return max([rows, *(reads_of(step, [name]).rows for name in tables_of_own_keys(step))])


def _add_resumed(computed: ComputedStep, done: Mapping[int, BucketOutcome], buckets: int) -> ComputedStep:
    return replace(
        computed,
        outcomes=sorted([*computed.outcomes, *done.values()], key=lambda outcome: outcome.bucket),
        reason=f"{computed.reason}; {len(done)} of {buckets} buckets were finished before",
    )


def _step_files(
    step: StepInput, before: StepFiles | None, computed: ComputedStep, results: Mapping[str, int]
) -> StepFiles:
    outcomes = computed.outcomes
    written = {outcome.bucket: outcome.files for outcome in outcomes if outcome.files is not None}
    runs, overlays = next_files(before.buckets if before else {}, written)
    grown = sum(outcome.only_new - outcome.only_old for outcome in outcomes)
    return StepFiles(
        runs=runs,
        overlays=overlays,
        deltas=tuple(outcome.delta for outcome in outcomes if outcome.delta is not None),
        epoch_hash=step.ctx.epoch(step.cut.epoch).hash,
        rows=(before.rows if before else 0) + grown,
        results=results,
        kind=computed.kind,
        reason=computed.reason,
        keys=computed.keys,
        moves=(before.moves if before else 0) + 1 if computed.cause == "subquery" else 0,
    )


def _commit(step: StepInput, last: DerivedRun | None, files: StepFiles, lease: Lease) -> DerivedRun:
    return step.ctx.store.steps.commit(
        NewStep(
            step.generation.projection,
            step.generation.number,
            last.to_epoch if last else 0,
            step.cut.epoch,
            "delta" if last else "full",
            [files.to_data()],
            files.rows,
            step.cut.commit_ts,
        ),
        lease=lease,
    )

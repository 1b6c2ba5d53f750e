"""What the next step of a generation would be, and how far it would lead. Starts no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.eventstore.maintenance.redaction.receipts import erasures
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Cut
from tailrace.projections.analysis.followed import changed_names
from tailrace.projections.analysis.guards import declaration_refusal
from tailrace.projections.analysis.subqueries import any_of
from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.result_input import (
    changed_results,
    changed_topics,
    common_cut,
    lagging_results,
    reason_against_results,
)
from tailrace.projections.refresh.by_key.incremental import reason_against
from tailrace.projections.refresh.by_key.samples import proof_of, samples_against
from tailrace.projections.refresh.costs import moves_each_time
from tailrace.projections.refresh.plan import Cause, Nothing, Plan, plan
from tailrace.projections.refresh.step_input import StepInput, source_of


def plan_generation(step: StepInput) -> Plan:
    """What a refresh of the generation to the step's position would do. Starts no Spark. Raises ProjectionFailed when a
    name in its query means something else than at the last step."""
    store, projection = step.ctx.store, step.definition
    epoch = step.cut.epoch
    last = step.last
    if last is None:
        return plan(None, epoch, ())
    if epoch <= last.to_epoch:
        return plan(last.to_epoch, epoch, ())
    read = files_of(last).results
    changed = changed_topics(store, projection.topics, last.to_epoch, epoch)
    results = changed_results(store, projection, last.to_epoch, step.cut, read)
    changed += [f"projection {name}" for name in results]
    if not changed:
        return plan(last.to_epoch, epoch, changed)
    for found in changed_names(store, projection, last):
        raise ProjectionFailed(found.what, hint=found.hint, place=found.place)
    redacted = erasures(store, step.ctx.topics(projection))
    erased = [topic.text for topic, at in redacted.items() if at > last.to_epoch]
    proof = proof_of(step)
    subqueries = (proof and proof.subqueries) or {}
    moving = [
        words
        for words, names in subqueries.items()
        if any(source_of(projection.inputs[name]) in changed for name in names)
    ]
    objection = _objection(step, last, changed, proof.apart if proof else ())
    if objection is None and moving and moves_each_time(files_of(last).moves):
        why = f"{any_of(moving)} is taken to have changed, as values of its subqueries did in the last refreshes"
        objection = "subquery", why
    return plan(last.to_epoch, epoch, changed, erased, objection, moving)


def _objection(
    step: StepInput, last: DerivedRun, changed: Sequence[str], apart: Sequence[str]
) -> tuple[Cause, str] | None:
    """The first reason against an incremental step, with its kind; the cheapest questions come first."""
    additive = step.definition.additive
    if additive is None and (why := declaration_refusal(step.projection)):
        return "definition", why
    if why := reason_against(step, last.to_epoch, changed, apart if additive is None else [additive.input]):
        return "input", why
    read = files_of(last).results
    if why := reason_against_results(step.ctx.store, step.projection, last.to_epoch, step.cut, read):
        return "input", why
    if additive is None and (why := samples_against(step)):
        return "proof", why
    return None


def plan_reachable(step: StepInput) -> tuple[Plan, Cut]:
    """What a refresh would do, and how far it would come: to the step's position, or as far as the results that it
    reads are."""
    store, projection, wanted = step.ctx.store, step.definition, step.cut
    reached = common_cut(store, projection, wanted)
    decided = plan_generation(replace(step, cut=reached))
    if isinstance(decided, Nothing) and reached.epoch < wanted.epoch:
        late = ", ".join(
            f"projection {name} is at epoch {epoch}"
            for name, epoch in lagging_results(store, projection, wanted).items()
        )
        decided = Nothing(f"it is as far as what it reads: {late}, the log ends at epoch {wanted.epoch}")
    return decided, reached

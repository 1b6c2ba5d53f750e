"""The proof that keys may be followed: the function's plan first, then samples.

A sample compares the function over the rows of some keys alone with what it gave for them over all rows. It is taken
after a full step: before the first incremental one of a generation, and again after the columns of an input changed.
The answer is kept with the generation, so that every process knows it. A generation that failed is always computed in
full: either ``affects`` is wrong, or the function looks beyond its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tailrace.eventstore import disclosure
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections.analysis.guards import plan_analysis
from tailrace.projections.compute.bucket import BucketTask, placement_of
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.generations.generation import SampleProof
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.result_input import results_at
from tailrace.projections.generations.step_files import StepFiles, read_result
from tailrace.projections.refresh.by_key.incremental import (
    compare_buckets,
    require_comparable,
    restricted_result,
)
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tailrace.projections.refresh.by_key.subquery_values import values_at
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import StepInput

SAMPLED_KEYS = 100
"""At most, and at most half of a bucket's: over all keys together even a function that mixes keys gives the same."""


def input_versions(step: StepInput) -> dict[str, int]:
    """The version of the columns of each input's topic; of another projection's result its generation."""
    store, projection = step.ctx.store, step.projection
    found = {topic: store.schemas_at(topic, step.cut) for topic in projection.topics}
    versions = {topic.text: schemas[-1].version for topic, schemas in found.items() if schemas}
    results = results_at(store, projection, step.cut)
    return versions | {f"projection {name}": number for name, number in results.items()}


def proof_of(step: StepInput) -> SampleProof | None:
    """The proof of a generation; None when it is not of the columns that the inputs have now, or not of what the author
    vouches for now."""
    checked = step.held.checked
    if checked is None or checked.subqueries is None or checked.trusted != step.projection.trust:
        return None
    return checked if dict(checked.versions) == input_versions(step) else None


def samples_against(step: StepInput) -> str | None:
    """Why the proof allows no incremental step: it failed, or there is none for the columns of now."""
    checked = proof_of(step)
    if checked is None:
        return "keys are followed after the next full refresh, which is compared on samples first"
    return checked.failed


def check_samples(step: StepInput, files: StepFiles) -> SampleProof | None:
    """Look at the function's plan, then compare the result, which ``files`` hold, on sampled keys. None: there is
    nothing to compare with."""
    ctx, projection, generation = step.ctx, step.projection, step.generation
    versions = input_versions(step)
    analysis = plan_analysis(ctx, projection)
    if isinstance(analysis, str) or analysis.reason is not None:
        refused = analysis if isinstance(analysis, str) else analysis.reason
        return SampleProof(versions, refused, projection.trust, subqueries={})
    lineage = lineage_of(projection)
    now = Inputs(ctx, step.engine, projection, lineage, step.cut)
    task = BucketTask(
        ctx.store.storage, placement_of(generation), files.buckets, projection.tolerance, None, ""
    )
    failed: str | None = None
    try:
        require_comparable(step, lineage, now)
        keys = sampled_keys(task, lineage.key, Random(f"{generation} {step.cut.epoch}"))
        if keys is None:
            return None
        with ctx.store.pinned(f"projection {projection.name}"):
            values = values_at(step, step.cut, analysis.subqueries)
            found = restricted_result(step, lineage, now.rows_of_keys(keys), keys, values)
        outcomes = compare_buckets(task, lineage, keys, found)
        samples = [found.key for outcome in outcomes for found in outcome.samples]
        if samples:
            failed = (
                "computed from only the rows that affect them (affects=), sampled keys have another result than"
                f" computed from all rows, for example {disclosure.value(samples[0])}"
            )
    except TooLarge:
        return None  # the next full step tries others
    except NotIncremental as error:
        failed = str(error)
    except ProjectionFailed as error:
        failed = error.message
    return SampleProof(
        versions, failed, projection.trust, analysis.never_null, analysis.subqueries, analysis.apart
    )


def sampled_keys(task: BucketTask, key: Sequence[str], random: Random) -> KeySet | None:
    """Some keys of a random bucket; None when the result has no rows."""
    placement = task.placement
    files = [task.previous[bucket] for bucket in sorted(task.previous)]
    if not files:
        return None
    rows = read_result(task.storage, random.choice(files), placement.schema, placement.key)
    keys = KeySet.of([rows[name] for name in key])
    wanted = min(SAMPLED_KEYS, -(-len(keys) // 2))
    return keys.take(random.sample(range(len(keys)), wanted)) if wanted else None

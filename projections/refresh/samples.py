"""The proof that keys may be followed: by the function's plan (``guards``), then by samples. The function over the rows
of some keys alone must give what it gave for them over all rows.

It is run after a full step, before the first incremental one of a generation and again after columns of an input
changed. What it finds is kept with the generation, so that every process knows; a generation that failed it is computed
in full for good, for its author's word about what affects what was wrong, or the function looks beyond its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tailrace.eventstore import disclosure
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections.analysis.guards import plan_says
from tailrace.projections.compute.bucket import BucketTask, placement_of
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import Projection, ProjectionFailed
from tailrace.projections.generations.generation import Checked, Generation
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.result_input import results_at
from tailrace.projections.generations.step_files import StepFiles, read_result
from tailrace.projections.refresh.incremental import (
    NotIncremental,
    require_comparable,
    restricted_result,
    settled_buckets,
)
from tailrace.projections.refresh.restricted_inputs import Inputs

SAMPLED_KEYS = 100
"""At most, and at most half of a bucket's: of all keys together even a function that mixes keys gives the same."""


def versions_at(ctx: ProjectionContext, projection: Projection, cut: Cut) -> dict[str, int]:
    """The version of the columns of each input's topic at a cut; of another projection's result its generation."""
    found = {topic: ctx.store.schemas_at(topic, cut) for topic in projection.topics}
    versions = {topic.text: schemas[-1].version for topic, schemas in found.items() if schemas}
    results = results_at(ctx.store, projection, cut)
    return versions | {f"projection {name}": number for name, number in results.items()}


def proof_at(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut
) -> Checked | None:
    """The proof of a generation, if it holds for the columns that the inputs have at a cut and for what its author
    vouches for."""
    checked = ctx.generation(generation.projection, generation.number).checked
    if checked is None or checked.trusted != projection.trust:
        return None
    return checked if dict(checked.versions) == versions_at(ctx, projection, cut) else None


def samples_against(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut
) -> str | None:
    """What the proof says against an incremental step to a cut: it failed, or there is none for the columns of now."""
    checked = proof_at(ctx, projection, generation, cut)
    if checked is None:
        return "keys are followed after the next full refresh, which is compared on samples first"
    return checked.failed


def check_samples(
    ctx: ProjectionContext, projection: Projection, generation: Generation, cut: Cut, files: StepFiles
) -> Checked | None:
    """Look at the function's plan, then compare the result at ``cut``, which ``files`` hold, on sampled keys. None:
    there is nothing to compare with."""
    versions = versions_at(ctx, projection, cut)
    against, never_null = plan_says(ctx, projection)
    if against is not None:
        return Checked(versions, against, projection.trust)
    lineage = lineage_of(projection)
    now = Inputs(ctx.store, projection, lineage, cut, ctx.settings.projections.incremental_bytes)
    task = BucketTask(
        ctx.store.storage, placement_of(generation), files.buckets, projection.tolerance, None, ""
    )
    failed: str | None = None
    try:
        require_comparable(projection, lineage, now, generation)
        keys = _sampled(task, lineage.key, Random(f"{generation} {cut.epoch}"))
        if keys is None:
            return None
        with ctx.store.pinned(f"projection {projection.name}"):
            rows = now.restricted(keys)
            found = restricted_result(ctx, projection, generation, lineage, rows, keys, cut)
        outcomes = settled_buckets(task, lineage, keys, found)
        samples = [found.key for outcome in outcomes for found in outcome.samples]
        if samples:
            failed = (
                "over the rows alone that affect them (affects=), the function gave sampled keys another result than"
                f" over all rows, for example {disclosure.value(samples[0])}"
            )
    except TooLarge:
        return None  # the next full step tries others
    except NotIncremental as error:
        failed = str(error)
    except ProjectionFailed as error:
        failed = error.message
    return Checked(versions, failed, projection.trust, never_null)


def _sampled(task: BucketTask, key: Sequence[str], random: Random) -> KeySet | None:
    """Keys of a random bucket; None when the result has no rows."""
    placement = task.placement
    files = [task.previous[bucket] for bucket in sorted(task.previous)]
    if not files:
        return None
    rows = read_result(task.storage, random.choice(files), placement.schema, placement.key)
    found = KeySet.of([rows[name] for name in key])
    wanted = min(SAMPLED_KEYS, -(-len(found) // 2))
    return found.take(random.sample(range(len(found)), wanted)) if wanted else None

"""Random histories: after every step the keys that it affects, computed alone, are what a computation of everything
gives, for every projection of the gallery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from eventstore.log import Store
from eventstore.position import Cut
from eventstore.state import readable_states
from projections import Projection, ProjectionFailed, Result, load_projections
from projections.compute import define
from projections.context import ProjectionContext
from projections.derived import read_result
from projections.difference import HASH
from projections.generation import Generation, files_of
from projections.history import ChangesInput, local_frame, plan_reads, read_changes, shown_columns
from projections.lifecycle import rebuild
from projections.order import in_order
from projections.plan import Nothing
from projections.refresh import plan_generation
from projections.results import ResultInput
from projections.steps import Taken, take_step
from tests.fixtures.scale import Scale
from tests.projections import gallery
from tests.projections.randomshop import RandomShop
from tests.projections.shoplog import ShopLog, settings_in, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_SQL = load_projections([], Path(__file__).parent, ["queries"])
EACH = {each.name: each for each in vars(gallery).values() if isinstance(each, Projection)} | IN_SQL
THOROUGH = ("path_of_two_joins", "crowded_cities", "sql_cities", "sql_numbers", "sql_totals", "sql_names")
"""At smoke scale: links of links, a key that changes and one that may be NULL, and a key of which one column is known;
three of them in SQL; a result, by another column than its key."""


def followed(ctx: ProjectionContext, projection: Projection, cut: Cut) -> Taken | None:
    """The next step of the first generation; None when nothing changed. Not recorded: its time decides nothing."""
    generation = ctx.generation(projection.name, 1)
    decided = plan_generation(ctx, projection, generation, cut)
    return None if isinstance(decided, Nothing) else take_step(ctx, projection, generation, cut, decided)


def followed_or_refused(ctx: ProjectionContext, projection: Projection, cut: Cut) -> Taken | str | None:
    """``followed``, or with which words it is refused."""
    try:
        return followed(ctx, projection, cut)
    except ProjectionFailed as error:
        return error.message


def standing(ctx: ProjectionContext, generation: Generation) -> list[str]:
    """What the generation's own result is, sorted."""
    last = ctx.store.derived.last_derived(generation.projection, generation.number)
    assert last is not None
    files = files_of(last)
    tables = [
        read_result(ctx.store.storage, files.buckets[bucket], generation.schema, generation.key)
        for bucket in files.buckets
    ]
    return sorted(str(row) for table in tables for row in table.drop_columns([HASH]).to_pylist())


def everything(ctx: ProjectionContext, projection: Projection, cut: Cut) -> pa.Table:
    """The function over all rows of its inputs at a cut, which are read without Spark; of other projections what their
    functions give."""
    inputs = {}
    for name, source in projection.inputs.items():
        if isinstance(source, Result):
            rows = everything(ctx, ctx.projections[source.projection], cut)
            inputs[name] = local_frame(ctx.spark, projection, name, rows)
    topics = [name for name in projection.inputs if name not in inputs]
    for name, planned in plan_reads(ctx.store, projection, cut, 1, topics).inputs.items():
        assert not isinstance(planned, ResultInput)
        if isinstance(planned, ChangesInput):
            tables = [read_changes(ctx.store.storage, planned, at) for at in range(planned.partitions)]
        else:
            tables = list(readable_states(ctx.store.storage, planned, range(planned.buckets)))
        rows = pa.concat_tables(tables).select(shown_columns(planned, projection.inputs[name]))
        inputs[name] = local_frame(ctx.spark, projection, name, rows)
    found: pa.Table = define(projection, inputs, cut.commit_ts).toArrow()
    return found


def lacks_key(projection: Projection, found: pa.Table) -> bool:
    return any(found[name].null_count for name in projection.key)


EXPECTED_FULL = (
    "was truncated",
    "the columns of",
    "keys are followed after the next full",
    "have NULL for their key",
    "does not say what it",
)


def history(
    folder: Path, seed: int, names: Sequence[str], steps: int, alterations: Mapping[int, str]
) -> None:
    """Build the projections over a random shop, then take step after step, each compared with everything."""
    folder.mkdir()
    settings = settings_in(folder, dsn="postgresql:///nowhere", redis_url="redis://nowhere")
    with Store.open(settings.store, create=True) as store:
        shop = RandomShop(ShopLog.start(store), Random(seed))
        done = shop.step(25)
        chosen = {name: EACH[name] for name in in_order(EACH, names)}
        ctx = ProjectionContext(store, settings, chosen, clock=standing_still)
        unfiltered = EACH["crowded_cities"]
        while unfiltered.name in names and lacks_key(unfiltered, everything(ctx, unfiltered, store.cut())):
            done += shop.step(6)
        for name in chosen:
            rebuild(ctx, name)
        for number in range(1, steps + 1):
            if alteration := alterations.get(number):
                getattr(shop, alteration)()
            done += ["--", alteration or "", *shop.step(6)]
            cut = store.cut()
            for name, projection in ctx.projections.items():
                generation = ctx.generation(name, 1)
                before = standing(ctx, generation)
                taken = followed_or_refused(ctx, projection, cut)
                reason = taken.reason if isinstance(taken, Taken) else taken
                where = f"{name}, seed {seed}, step {number}: {reason}; {done}"
                found = everything(ctx, projection, cut)
                if lacks_key(projection, found):
                    assert isinstance(taken, str) and "have NULL in their key" in taken, where
                    assert standing(ctx, generation) == before, where
                    continue
                schema = generation.schema
                rows = found.select(schema.names).cast(schema).to_pylist()
                assert standing(ctx, generation) == sorted(map(str, rows)), where
                assert not isinstance(taken, str), where
                if taken is not None and taken.kind != "incremental":
                    assert any(words in taken.reason for words in EXPECTED_FULL), where


def test_what_is_followed_by_key_is_what_everything_gives_at_every_step_of_random_histories(
    spark: SparkSession, tmp_path: Path, scale: Scale
) -> None:
    names = scale.pick(smoke=THOROUGH, full=tuple(EACH))
    alterations = scale.pick(smoke={}, full={7: "add_column", 13: "truncate"})
    for seed in range(scale.pick(smoke=1, full=3)):
        history(tmp_path / str(seed), seed, names, scale.pick(smoke=2, full=20), alterations)

"""Random histories: after every step the keys that it affects, computed alone, are what a computation of everything
gives, for every projection of the gallery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.input import plan_state
from tailrace.eventstore.state.state import readable_states
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, ProjectionFailed, Result, load_projections
from tailrace.projections.compute.compute import define, output_schema
from tailrace.projections.compute.frames import local_frame, read_changes, shown_columns
from tailrace.projections.compute.read_plan import ChangesInput, plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.order import refresh_order
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.generations.step_files import read_result
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.refresh.plan import Nothing
from tailrace.projections.refresh.plan_step import plan_generation
from tailrace.projections.refresh.step import CommittedStep, take_step
from tailrace.projections.refresh.step_input import StepInput
from tests.fixtures.scale import Scale
from tests.fixtures.spark import interpreted
from tests.projections.refresh import gallery
from tests.projections.refresh.randomshop import ALTERABLE, TRUNCATE, RandomShop
from tests.projections.shoplog import ShopLog, settings_in, standing_still, topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_SQL = load_projections([], Path(__file__).parent, ["queries"])
EACH = {each.name: each for each in vars(gallery).values() if isinstance(each, Projection)} | IN_SQL
Alterations = Mapping[int, Sequence[str]]
"""At which step the columns change how."""
FEW = ("left_join_totals", "window_numbers", "changes_of_orders", "events_of_streams")
OTHERS = (
    "semi_join_buyers",
    "anti_join_idle",
    "union_mentions",
    "self_join_rivals",
    "crowded_cities",
    "diamond",
    "sql_dear",
    "sql_any_order",
    "sql_chain",
    "sql_pairs",
    "sql_totals",
)
"""At smoke scale: each way in which a changed row leads to keys, in `make test` and in the slow tail."""
SMOKE: Alterations = {1: ("add note", "rename description", "weight to bigint", "drop memo")}
FULL: Alterations = {
    2: ("add note", "rename description"),
    4: ("rename note", "add rank", "drop memo"),
    6: ("note to text", "rank to bigint", "weight to bigint"),
    8: ("drop note",),
    9: ("add another note",),
    11: ("quantity to bigint, read again",),
    13: (TRUNCATE,),
    15: ("wider amount",),
    17: ("rename quantity",),
    18: ("rename quantity back", "drop description"),
}


def live(ctx: ProjectionContext, name: str) -> Generation:
    generation = ctx.live(name)
    assert generation is not None
    return generation


def followed(ctx: ProjectionContext, projection: Projection, cut: Cut) -> CommittedStep | None:
    """The next step of the live generation; None when nothing changed. Not recorded: its time decides nothing."""
    generation = live(ctx, projection.name)
    step = StepInput(ctx, projection, generation, cut)
    decided = plan_generation(step)
    return None if isinstance(decided, Nothing) else take_step(step, decided)


def followed_or_refused(
    ctx: ProjectionContext, projection: Projection, cut: Cut
) -> CommittedStep | str | None:
    """``followed``, or with which words it is refused."""
    try:
        return followed(ctx, projection, cut)
    except ProjectionFailed as error:
        return error.message


def standing(ctx: ProjectionContext, generation: Generation) -> list[str]:
    """What the generation's own result is, sorted."""
    last = ctx.store.steps.last(generation.projection, generation.number)
    assert last is not None
    files = files_of(last)
    tables = [
        read_result(ctx.store.storage, files.buckets[bucket], generation.schema, generation.key)
        for bucket in files.buckets
    ]
    return sorted(str(row) for table in tables for row in table.drop_columns([HASH]).to_pylist())


def everything(
    ctx: ProjectionContext, projection: Projection, cut: Cut, known: Mapping[str, pa.Table] | None = None
) -> pa.Table:
    """The function over all rows of its inputs at a cut, which are read without Spark; of other projections what their
    functions give, where it is not ``known``. In the types that a result is kept in."""
    inputs = {}
    for name, source in projection.inputs.items():
        if isinstance(source, Result):
            other = source.projection
            given = None if known is None else known.get(other)
            rows = everything(ctx, ctx.projections[other], cut) if given is None else given
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
    result = define(projection, inputs, cut.commit_ts)
    with interpreted(ctx.spark):
        found: pa.Table = result.toArrow().cast(output_schema(projection, result))
    return found


def lacks_key(projection: Projection, found: pa.Table) -> bool:
    return any(found[name].null_count for name in projection.key)


EXPECTED_FULL = (
    "was truncated",
    "the columns of",
    "keys are followed after the next full",
    "have NULL for their key",
    "does not say what it",
    "was read again",
    "was rebuilt",
    "; the value of (",
)


@dataclass(frozen=True)
class Oracle:
    """Takes the next step of projections in turn, each compared with everything."""

    ctx: ProjectionContext
    taken: Counter[str] = field(default_factory=Counter)
    """Steps of each projection that were followed by key; and refused ones, by name and reason."""

    def step(self, cut: Cut, where: str) -> None:
        known: dict[str, pa.Table] = {}
        for name, projection in self.ctx.projections.items():
            try:
                known[name] = everything(self.ctx, projection, cut, known)
            except ProjectionFailed as error:
                self._refused(projection, cut, error.message, where)
                continue
            self._compared(projection, cut, known[name], where)

    def _compared(self, projection: Projection, cut: Cut, found: pa.Table, where: str) -> None:
        schema = live(self.ctx, projection.name).schema
        if lacks_key(projection, found) or not found.schema.equals(schema):
            other = "have NULL in their key" if found.schema.equals(schema) else "no longer those of"
            self._refused(projection, cut, other, where)
            if lacks_key(projection, found):
                return
            rebuild(self.ctx, projection.name)
        else:
            taken = followed_or_refused(self.ctx, projection, cut)
            where = (
                f"{projection.name}: {taken.reason if isinstance(taken, CommittedStep) else taken}; {where}"
            )
            assert not isinstance(taken, str), where
            if taken is not None:
                self.taken[projection.name] += taken.kind == "incremental"
                assert taken.kind == "incremental" or any(words in taken.reason for words in EXPECTED_FULL), (
                    where
                )
        expected = sorted(map(str, found.to_pylist()))
        assert standing(self.ctx, live(self.ctx, projection.name)) == expected, where

    def _refused(self, projection: Projection, cut: Cut, words: str, where: str) -> None:
        generation = live(self.ctx, projection.name)
        before = standing(self.ctx, generation)
        taken = followed_or_refused(self.ctx, projection, cut)
        assert isinstance(taken, str) and words in taken, (projection.name, taken, words, where)
        assert standing(self.ctx, generation) == before, where
        self.taken[f"{projection.name} refused"] += 1


def require_rows(store: Store, shop: ShopLog, cut: Cut, where: str) -> None:
    """The log's tables are those that were written: what both ways of computing read is right."""
    for table, schema in shop.schemas.items():
        planned = plan_state(store, topic(table), cut)
        names = [column.name for column in schema.columns]
        tables = readable_states(store.storage, planned, range(planned.buckets))
        rows = [row for each in tables for row in each.select(names).to_pylist()]
        expected = [{name: row.get(name) for name in names} for row in shop.state[table].values()]
        assert sorted(map(str, rows)) == sorted(map(str, expected)), (table, where)


def history(
    folder: Path, seed: int, steps: int, alterations: Alterations, chosen: Collection[str]
) -> Counter[str]:
    """Build them over a random shop, then take step after step, each compared with everything; how often by key."""
    folder.mkdir()
    settings = settings_in(folder, dsn="postgresql:///nowhere", redis_url="redis://nowhere")
    with Store.open(settings.store, create=True) as store:
        shop = RandomShop(ShopLog.start(store, ALTERABLE), Random(seed))
        done = shop.step(25)
        gallery_in_order = {name: EACH[name] for name in refresh_order(EACH, chosen)}
        ctx = ProjectionContext(store, settings, gallery_in_order, clock=standing_still)
        unfiltered = EACH["crowded_cities"]
        while lacks_key(unfiltered, everything(ctx, unfiltered, store.cut())):
            done += shop.step(6)
        for name in ctx.projections:
            rebuild(ctx, name)
        oracle = Oracle(ctx)
        for number in range(1, steps + 1):
            done += ["--", *shop.step(6, *alterations.get(number, ()))]
            where, cut = f"seed {seed}, step {number}: {done}", store.cut()
            require_rows(store, shop.shop, cut, where)
            oracle.step(cut, where)
        return oracle.taken


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_followed_by_key_is_what_everything_gives_at_every_step_of_random_histories(
    spark: SparkSession, tmp_path: Path, scale: Scale, others: bool
) -> None:
    seeds, steps = scale.pick(smoke=(1, 2), full=(3, 20))
    rest = tuple(name for name in EACH if name not in OTHERS)
    chosen = OTHERS if others else scale.pick(smoke=FEW, full=rest)
    taken: Counter[str] = Counter()
    for seed in range(seeds):
        alterations: Alterations = scale.pick(smoke=SMOKE, full=FULL)
        taken += history(tmp_path / str(seed), seed, steps, alterations, chosen)
    followed_by_key = {name for name in chosen if taken[name]}
    # In few steps some have a whole input that changes in each, or no row to be proved by; a city that is NULL, as one
    # is in most steps, has all of them computed.
    assert len(followed_by_key) >= len(chosen) / 2, taken
    assert scale is Scale.SMOKE or followed_by_key >= set(chosen) - {"crowded_cities"}, taken
    if scale is Scale.FULL and "inner_join_page" in chosen:
        assert taken["inner_join_page refused"], "a column that it reads had another name, and another type"

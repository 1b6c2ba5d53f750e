"""Two stores of one name over one sink: neither drops nor replaces what the other has there, unless it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tailrace.eventstore.errors import NotOwner
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.metadata.generations import GenerationState, InputNeed
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle import build
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.ownership import require_own
from tailrace.projections.lifecycle.promote import promote, rollback
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec
from tailrace.testing.sink_steps import SinkStep, pieces
from tests.projections.shoplog import ShopLog
from tests.projections.sinks.sink_data import ANNA, BERT, SCHEMA, rows_of

SPECS: list[SinkSpec] = [
    PostgresTable("mart", "totals"),
    RedisCache("cache"),
    SearchIndex("search", {"name": "text"}),
    ParquetFolder("lake"),
]
every_sink = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)


@pytest.fixture
def ours(store: Store, settings: Settings, shop: ShopLog) -> ProjectionContext:
    return ProjectionContext(store, settings, {})


@pytest.fixture
def theirs(ours: ProjectionContext, tmp_path: Path) -> Iterator[ProjectionContext]:
    """A store of its own under the same name, with the same sinks."""
    place = ours.settings.store.model_copy(
        update={"catalog": f"sqlite:///{tmp_path}/theirs.db", "segments": tmp_path / "theirs"}
    )
    with ExitStack() as opened:
        store = opened.enter_context(Store.open(place, create=True))
        ShopLog.start(store)
        yield ProjectionContext(store, ours.settings.model_copy(update={"store": place}), {})


def planned(spec: SinkSpec) -> Generation:
    return Generation(
        "totals", 0, "", spec_to_text(spec), ("customer_id",), SCHEMA, 2, 1, None, GenerationState.BUILDING, None,
        datetime.now(UTC), (InputNeed("shop.public.orders", "state", 0),),
    )  # fmt: skip


def built(ctx: ProjectionContext, spec: SinkSpec) -> Generation:
    """A generation as a build leaves it, in catalog and sink, at the head of the log."""
    generation = build._take_number(ctx, planned(spec))
    head = ctx.store.head()
    assert head is not None
    fill(ctx, generation, Fence(ctx.store.log_id, "totals", generation.number, head.epoch, head.hash))
    ctx.store.steps.commit(NewStep("totals", generation.number, 0, head.epoch, "full", [{}], 1, None))
    ctx.store.derived.set_state("totals", generation.number, GenerationState.READY)
    return generation


def fill(ctx: ProjectionContext, generation: Generation, fence: Fence) -> None:
    sink, target = ctx.sink(generation), ctx.target(generation)
    sink.create(target)
    step = SinkStep(fence, (ANNA, BERT))
    with sink.load(target, None, fence) as load:
        for part in pieces(target, step):
            load.write(*part)
        load.commit()


def holds(ctx: ProjectionContext, generation: Generation) -> bool:
    return rows_of(ctx.sink(generation), ctx.target(generation)) == [ANNA, BERT]


def shown(ctx: ProjectionContext, generation: Generation) -> int | None:
    return ctx.sink(generation).live("acme", "totals")


@every_sink
def test_another_stores_generations_are_neither_dropped_nor_replaced(
    ours: ProjectionContext, theirs: ProjectionContext, spec: SinkSpec
) -> None:
    first, second = built(ours, spec), built(ours, spec)
    promote(ours, "totals", first.number)

    other = built(theirs, spec)
    assert other.number == 3, "numbers that are taken in the sink are skipped"
    assert holds(ours, second), "what nobody reads yet, too"
    with pytest.raises(NotOwner) as refused:
        promote(theirs, "totals", other.number)
    assert ours.store.log_id in refused.value.message and theirs.store.log_id in refused.value.message
    assert "--take-over" in refused.value.hint and theirs.store.derived.live("totals") is None
    dropped = gc(theirs, "totals")
    assert all(ours.store.log_id in each.left for each in dropped)
    assert shown(ours, first) == 1 and holds(ours, first) and holds(ours, second)

    theirs.take_over = True
    promote(theirs, "totals", other.number)
    assert shown(ours, first) == 3 and holds(ours, first)
    (record,) = theirs.store.run_records.latest("totals", limit=1, kinds=["take-over"])
    assert ours.store.log_id in record.reason
    with pytest.raises(NotOwner):
        promote(ours, "totals", second.number)
    assert shown(ours, first) == 3 and ours.store.derived.live("totals") == 1


@every_sink
def test_what_a_killed_build_left_in_a_sink_stays_its_stores(
    ours: ProjectionContext, theirs: ProjectionContext, spec: SinkSpec
) -> None:
    left = build._take_number(ours, planned(spec))
    sink, target = ours.sink(left), ours.target(left)
    sink.create(target)

    assert built(theirs, spec).number == 2, "the number is taken in the sink"
    gc(theirs, "totals", keep=0)
    assert sink.owner(target) == ours.store.log_id and sink.fence(target) is None
    fill(ours, left, Fence(ours.store.log_id, "totals", left.number, 1, "hash"))
    assert holds(ours, left)

    theirs.take_over = True
    taken = build._take_number(theirs, planned(spec))
    theirs.sink(taken).drop(require_own(theirs, sink, replace(target, log_id=theirs.store.log_id)))
    assert sink.owner(target) is None


def test_a_build_whose_place_in_the_sink_another_store_took_fails_so_that_the_next_one_gets_another(
    ours: ProjectionContext, theirs: ProjectionContext
) -> None:
    mine, other = (build._take_number(ctx, planned(SPECS[0])) for ctx in (ours, theirs))
    assert mine.number == other.number
    theirs.sink(other).create(theirs.target(other))
    with pytest.raises(NotOwner), build._fails_for_good(ours, mine):
        ours.sink(mine).create(ours.target(mine))
    assert ours.generation("totals", mine.number).state is GenerationState.FAILED
    assert build._take_number(ours, planned(SPECS[0])).number == 2


@every_sink
def test_a_copy_of_the_catalog_leaves_what_the_original_did_since(
    ours: ProjectionContext, shop: ShopLog, tmp_path: Path, spec: SinkSpec
) -> None:
    first = built(ours, spec)
    promote(ours, "totals")
    copied = tmp_path / "copy"
    backup(ours.store, copied)
    shop.work()
    second, third = built(ours, spec), built(ours, spec)
    promote(ours, "totals", second.number)
    place = ours.settings.store.model_copy(
        update={"catalog": f"sqlite:///{copied}/catalog.db", "segments": copied / "segments"}
    )
    with Store.open(place) as store:
        copy = ProjectionContext(store, ours.settings, {})
        mine = built(copy, spec)
        assert mine.number == 4
        with pytest.raises(NotOwner):
            promote(copy, "totals", mine.number)
        gc(copy, "totals", keep=0)
    assert shown(ours, first) == second.number and holds(ours, second) and holds(ours, third)


def test_a_store_is_no_hindrance_to_itself(ours: ProjectionContext) -> None:
    first, second = built(ours, SPECS[0]), built(ours, SPECS[0])
    promote(ours, "totals", first.number)
    promote(ours, "totals", second.number)
    assert rollback(ours, "totals").generation == 1
    assert [each.generation for each in gc(ours, "totals", number=2)] == [2]

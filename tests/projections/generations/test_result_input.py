"""Projections that read results of others: always at one position, whoever refreshed which of them, and however far."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, load_projections
from tailrace.projections.analysis.check import examine
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.load import gather_mistakes
from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.definition.order import circle_of, refresh_order
from tailrace.projections.generations.result_input import result_at
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh import prune as pruning
from tailrace.projections.refresh.plan import Full, Incremental, Nothing
from tailrace.projections.refresh.plan_all import plans
from tests.projections.lifecycle.test_crashes import job, killed, settings_file
from tests.projections.refresh.randomshop import RandomShop
from tests.projections.refresh.test_gallery import EACH, everything, standing
from tests.projections.shoplog import ShopLog, settings_in, standing_still
from tests.support import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIAMOND = ("sql_totals", "anti_join_idle", "diamond")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("shop")
    return settings_in(folder, dsn="postgresql:///nowhere", redis_url="redis://nowhere")


@pytest.fixture(scope="module")
def shop(settings: Settings) -> Iterator[ShopLog]:
    with Store.open(settings.store, create=True) as store:
        shop = ShopLog.start(store)
        shop.fill()
        yield shop


@pytest.fixture(scope="module")
def built(spark: SparkSession, shop: ShopLog, settings: Settings) -> ProjectionContext:
    """Two projections of the shop and one that reads both."""
    chosen = {name: EACH[name] for name in reversed(DIAMOND)}
    ctx = ProjectionContext(shop.store, settings, chosen, clock=standing_still)
    assert {outcome.projection for outcome in refresh(ctx)} == set(DIAMOND)
    return ctx


@pytest.fixture
def diamond(built: ProjectionContext) -> ProjectionContext:
    """The same, with everything up to date."""
    assert {outcome.status for outcome in refresh(built)} <= {"done", "nothing"}
    return built


def stands(ctx: ProjectionContext, name: str) -> int:
    """The epoch its result is of, which is what all functions together give there."""
    generation = ctx.live(name)
    assert generation is not None
    last = ctx.store.steps.last(name, generation.number)
    assert last is not None
    cut = ctx.store.cut(last.to_epoch)
    found = everything(ctx, ctx.projection(name), cut).select(generation.schema.names)
    assert standing(ctx, generation) == sorted(map(str, found.cast(generation.schema).to_pylist()))
    return last.to_epoch


@pytest.mark.slow
def test_whatever_is_refreshed_in_whatever_order_what_reads_two_is_of_one_position(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    random, start = Random(7), stands(diamond, "diamond")
    history = RandomShop(shop, random)
    # The second time one is at an epoch that the other passed over.
    for left_out, status in (("anti_join_idle", "nothing"), ("sql_totals", "waiting"), (None, "done")):
        history.step(6)
        chosen = [name for name in DIAMOND if name != left_out]
        random.shuffle(chosen)
        outcomes = {outcome.projection: outcome for outcome in refresh(diamond, chosen)}
        expected = start if left_out else diamond.store.cut().epoch
        assert (outcomes["diamond"].status, stands(diamond, "diamond")) == (status, expected)
        if status == "nothing":
            behind = f"projection {left_out} is at epoch {start}, the log ends at epoch {diamond.store.cut().epoch}"
            assert outcomes["diamond"].reason == f"it is as far as what it reads: {behind}"
            assert [each.plan for each in plans(diamond, ["diamond"])] == [
                Nothing(outcomes["diamond"].reason)
            ]
    assert outcomes["diamond"].reason.startswith("incremental: "), outcomes["diamond"].reason
    assert verify(diamond, "diamond").equal


@pytest.mark.slow
def test_a_driver_killed_between_two_that_are_read_leaves_what_reads_them_where_it_was(
    shop: ShopLog, diamond: ProjectionContext, settings: Settings, tmp_path: Path
) -> None:
    before = stands(diamond, "diamond")
    shop.work()
    queries = REPOSITORY / "tests" / "projections" / "refresh" / "queries"
    file = settings_file(settings, tmp_path, ["tests.projections.refresh.gallery"])
    file.write_text(
        file.read_text().replace("[projections]", f"[projections]\nsql = [{str(queries)!r}]")
        + f"[sinks.lake]\nkind = 'parquet'\npath = {str(settings.sinks['lake'].path)!r}\n"
    )
    assert killed(job(file, "refresh", *DIAMOND, failpoint="derived_committed"))
    ends = {name: stands(diamond, name) for name in DIAMOND}
    head = diamond.store.cut().epoch
    assert ends == {"sql_totals": head, "anti_join_idle": before, "diamond": before}
    assert [type(each.plan) for each in plans(diamond)] == [Nothing, Incremental, Incremental]

    refresh(diamond)
    assert {stands(diamond, name) for name in DIAMOND} == {head}
    assert verify(diamond, "diamond").equal


@pytest.mark.slow
def test_a_change_that_leaves_what_is_read_as_it_was_moves_everything_on(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    order = next(iter(shop.state["orders"].values()))
    head = shop.commit({"orders": [("u", order | {"quantity": order["quantity"] + 1})]})
    *_, last = refresh(diamond)
    assert {stands(diamond, name) for name in DIAMOND} == {head}
    assert (last.projection, last.upserts, last.deletes) == ("diamond", 0, 0)
    generation = diamond.live("diamond")
    assert generation is not None
    fence = diamond.fence(generation)
    assert fence is not None and fence.epoch == head
    assert {need.topic for need in generation.inputs} == {"shop.public.customers", "shop.public.orders"}


def as_it_was(ctx: ProjectionContext, name: str, number: int) -> bool:
    """Whether a pinned generation is what all functions together give at its position."""
    generation = ctx.generation(name, number)
    assert generation.pin is not None
    found = everything(ctx, ctx.projection(name), generation.pin.cut).select(generation.schema.names)
    return standing(ctx, generation) == sorted(map(str, found.cast(generation.schema).to_pylist()))


@pytest.mark.slow
def test_as_of_any_position_what_it_reads_is_what_was_kept_or_is_computed_with_it(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    order = next(iter(shop.state["orders"].values()))
    together = shop.commit_together(
        {"orders": [("u", order | {"quantity": 7})]}, {"orders": [("u", order | {"amount": Decimal(1)})]}
    )
    refresh(diamond)
    inside_an_epoch = f"0/{shop.lsn:X}"
    told: list[str] = []
    for asked, computed in ((together, set()), (inside_an_epoch, set(DIAMOND[:2])), ("2", set(DIAMOND[:2]))):
        told.clear()
        ctx = ProjectionContext(
            shop.store, diamond.settings, diamond.projections, report=lambda step, *_: told.append(step)
        )
        built = rebuild(ctx, "diamond", as_of=asked)
        pin = diamond.generation("diamond", built.generation).pin
        assert pin is not None and set(pin.computed_inputs) == computed
        assert {
            f"computing {each} with it: its result as of {asked} is not kept" for each in computed
        } <= set(told)
        assert as_it_was(diamond, "diamond", built.generation)
        assert verify(diamond, "diamond", built.generation).equal


@pytest.mark.slow
def test_what_was_computed_with_it_is_frozen_with_the_definition_it_was_computed_by(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    shop.work()
    number = rebuild(diamond, "diamond", as_of="2").generation
    changed = replace(EACH["sql_totals"], version="2")
    other = ProjectionContext(shop.store, diamond.settings, {**diamond.projections, "sql_totals": changed})
    assert other.is_frozen(other.generation("diamond", number))
    live = other.live("diamond")
    assert live is not None and not other.is_frozen(live), "it reads what is kept"
    with pytest.raises(OperatorError, match="built by another definition"):
        verify(other, "diamond", number)

    alone = ProjectionContext(shop.store, diamond.settings, {"diamond": EACH["diamond"]})
    numbers = [generation.number for generation in alone.generations("diamond")]
    with pytest.raises(
        UsageError, match="'sql_totals', which 'diamond' reads, is not kept as of 2"
    ) as refused:
        rebuild(alone, "diamond", as_of="2")
    assert "set projections.modules" in refused.value.hint
    possible = [int(epoch) for epoch in re.findall(r"\d+", refused.value.hint.partition(" and ")[0])]
    assert all(
        as_it_was(diamond, "diamond", rebuild(alone, "diamond", as_of=at).generation) for at in possible[-2:]
    )
    assert [each.number for each in alone.generations("diamond")][: len(numbers)] == numbers


def test_a_key_that_is_there_twice_in_what_is_computed_with_it_is_told(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    def each_twice(customers: DataFrame, orders: DataFrame) -> DataFrame:
        found: DataFrame = EACH["sql_totals"](customers, orders)
        return found.union(found)

    doubled = replace(EACH["sql_totals"], function=each_twice)
    ctx = ProjectionContext(shop.store, diamond.settings, {**diamond.projections, "sql_totals": doubled})
    with pytest.raises(ProjectionFailed, match=r"'sql_totals' .*: \d+ rows repeat a key"):
        rebuild(ctx, "diamond", as_of="2")


def test_it_is_verified_where_results_that_it_reads_are_kept_no_more(
    shop: ShopLog, diamond: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner goes on meanwhile, and forgets the steps of long ago."""
    monkeypatch.setattr(pruning, "_STEPS_RETAINED", 1)
    live = diamond.live("diamond")
    assert live is not None
    last = shop.store.steps.last("diamond", live.number)
    assert last is not None
    for _ in range(2):
        shop.work()
        refresh(diamond, ["sql_totals"])
    assert result_at(shop.store, "sql_totals", last.to_epoch) is None

    found = verify(diamond, "diamond")
    assert (found.equal, found.epoch) == (True, last.to_epoch)


@pytest.mark.slow
def test_what_was_built_anew_is_read_anew(shop: ShopLog, diamond: ProjectionContext) -> None:
    rebuild(diamond, "anti_join_idle")
    assert verify(diamond, "diamond").equal, "with what it was made of"
    shop.work()
    (planned,) = [each.plan for each in plans(diamond, ["anti_join_idle", "sql_totals", "diamond"])][2:]
    assert isinstance(planned, Incremental | Full) and "refreshed before it" in planned.reason
    *_, last = refresh(diamond)
    assert "full: " in last.reason and "projection anti_join_idle was rebuilt (generation 2)" in last.reason
    stands(diamond, "diamond")
    assert verify(diamond, "diamond").equal


def test_they_are_refreshed_behind_what_they_read_and_a_circle_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refresh_order(EACH, ["diamond", "cities", "anti_join_idle"]) == [
        "anti_join_idle",
        "diamond",
        "cities",
    ]
    assert circle_of(EACH, "diamond") == []
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "circular_views.py").write_text(
        """
from tailrace.projections import ParquetFolder, Result, projection

@projection(key="id", sink=ParquetFolder("lake"), b=Result("second", affects="id"))
def first(b): ...

@projection(key="id", sink=ParquetFolder("lake"), a=Result("first", affects="id"))
def second(a): ...
"""
    )
    with pytest.raises(UsageError, match=re.escape("it reads its own result: first <- second <- first")):
        load_projections(["circular_views"], tmp_path)
    with gather_mistakes() as mistakes:
        assert load_projections(["circular_views"], tmp_path) == {}
    assert [mistake.name for mistake in mistakes] == ["first", "second"]


def test_a_projection_that_nobody_knows_is_told_with_what_comes_close(
    empty_shop: ProjectionContext,
) -> None:
    alone: dict[str, Projection] = {name: EACH[name] for name in ("sql_names", "sql_cities")}
    ctx = ProjectionContext(empty_shop.store, empty_shop.settings, alone)
    (found,) = [each for each in examine(ctx, EACH["sql_names"]).findings if each.input]
    assert (found.what, found.input) == ("input 'totals': there is no projection sql_totals", "totals")

"""Projections that read results of others: always at one position, whoever refreshed which of them, and however far."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from eventstore.errors import UsageError
from eventstore.log import Store
from eventstore.settings import Settings
from projections import Projection, load_projections
from projections.definition import gathering
from projections.examine import examine
from projections.lifecycle import ProjectionContext, plans, rebuild, refresh, verify
from projections.order import circle_of, in_order
from projections.plan import Full, Incremental, Nothing
from tests.projections.randomshop import RandomShop
from tests.projections.shoplog import ShopLog, settings_in, standing_still
from tests.projections.test_crashes import job, killed, settings_file
from tests.projections.test_gallery import EACH, everything, standing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    last = ctx.store.derived.last_derived(name, generation.number)
    assert last is not None
    cut = ctx.store.cut(last.to_epoch)
    found = everything(ctx, ctx.projection(name), cut).select(generation.schema.names)
    assert standing(ctx, generation) == sorted(map(str, found.cast(generation.schema).to_pylist()))
    return last.to_epoch


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
    assert outcomes["diamond"].reason.startswith("incremental: "), outcomes["diamond"].reason
    assert verify(diamond, "diamond").equal


def test_a_driver_killed_between_two_that_are_read_leaves_what_reads_them_where_it_was(
    shop: ShopLog, diamond: ProjectionContext, settings: Settings, tmp_path: Path
) -> None:
    before = stands(diamond, "diamond")
    shop.work()
    queries = Path(__file__).parent / "queries"
    file = settings_file(settings, tmp_path, ["tests.projections.gallery"])
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


def test_as_of_a_past_position_it_is_built_where_what_it_reads_stood_and_refused_elsewhere(
    shop: ShopLog, diamond: ProjectionContext
) -> None:
    order = next(iter(shop.state["orders"].values()))
    together = shop.commit_together(
        {"orders": [("u", order | {"quantity": 7})]}, {"orders": [("u", order | {"amount": Decimal(1)})]}
    )
    refresh(diamond)
    numbers = [generation.number for generation in diamond.generations("diamond")]
    between_the_two = f"0/{shop.lsn:X}"
    for asked in (between_the_two, "1"):
        with pytest.raises(UsageError, match=f"is not kept as of {asked}") as refused:
            rebuild(diamond, "diamond", as_of=asked)
    assert [generation.number for generation in diamond.generations("diamond")] == numbers, (
        "nothing was begun"
    )
    possible = [int(epoch) for epoch in re.findall(r"\d+", refused.value.hint.partition(" and ")[0])]
    assert "possible are epochs" in refused.value.hint and possible[-1] == together and len(possible) > 1
    built = rebuild(diamond, "diamond", as_of=possible[-2])
    generation = diamond.generation("diamond", built.generation)
    found = everything(diamond, diamond.projection("diamond"), diamond.store.cut(possible[-2]))
    rows = found.select(generation.schema.names).cast(generation.schema).to_pylist()
    assert standing(diamond, generation) == sorted(map(str, rows))


def test_what_was_built_anew_is_read_anew(shop: ShopLog, diamond: ProjectionContext) -> None:
    rebuild(diamond, "anti_join_idle")
    assert verify(diamond, "diamond").equal, "with what it was made of"
    shop.work()
    (planned,) = [each.plan for each in plans(diamond, ["anti_join_idle", "sql_totals", "diamond"])][2:]
    assert isinstance(planned, Incremental | Full) and "refreshed before it" in planned.reason
    *_, last = refresh(diamond)
    assert (
        "full: " in last.reason and "projection anti_join_idle was built anew (generation 2)" in last.reason
    )
    stands(diamond, "diamond")
    assert verify(diamond, "diamond").equal


def test_they_are_refreshed_behind_what_they_read_and_a_circle_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_order(EACH, ["diamond", "cities", "anti_join_idle"]) == ["anti_join_idle", "diamond", "cities"]
    assert circle_of(EACH, "diamond") == []
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "circular_views.py").write_text(
        """
from projections import ParquetFolder, Result, projection

@projection(key="id", sink=ParquetFolder("lake"), b=Result("second", affects="id"))
def first(b): ...

@projection(key="id", sink=ParquetFolder("lake"), a=Result("first", affects="id"))
def second(a): ...
"""
    )
    with pytest.raises(UsageError, match=re.escape("it reads its own result: first <- second <- first")):
        load_projections(["circular_views"], tmp_path)
    with gathering() as mistakes:
        assert load_projections(["circular_views"], tmp_path) == {}
    assert [mistake.name for mistake in mistakes] == ["first", "second"]


def test_a_projection_that_nobody_knows_is_told_with_what_comes_close(
    empty_shop: ProjectionContext,
) -> None:
    alone: dict[str, Projection] = {name: EACH[name] for name in ("sql_names", "sql_cities")}
    ctx = ProjectionContext(empty_shop.store, empty_shop.settings, alone)
    (found,) = [each for each in examine(ctx, EACH["sql_names"]).findings if each.input]
    assert (found.what, found.input) == ("input 'totals': there is no projection sql_totals", "totals")

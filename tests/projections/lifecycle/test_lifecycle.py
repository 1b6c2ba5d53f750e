"""Rebuild = live = verify, for every sink; generations that freeze, are rolled back, pinned, promoted and collected."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import redis as redis_client
import tantivy
from psycopg import sql
from pydantic import SecretStr

from tailrace.cli.projection.status import describe_unshown, projection_statuses
from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import terms
from tailrace.eventstore.catalog.leases import AlreadyRunning
from tailrace.eventstore.errors import (
    Fenced,
    IncompleteTopic,
    OperatorError,
    TransientError,
    UnreadableCell,
    UsageError,
)
from tailrace.eventstore.log.row_counts import RowCount
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.metadata.generations import Behind, GenerationState
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, ProjectionFailed
from tailrace.projections.compute import read_plan
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.errors import NotLevel, NotShowable, NotShown
from tailrace.projections.generations.generation import files_of
from tailrace.projections.lifecycle import build
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import begin_under_lease, refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.progress import SinkInspector, measure_progress
from tailrace.projections.lifecycle.promote import promote, rollback
from tailrace.projections.lifecycle.verify import DifferentRow, verify
from tailrace.projections.refresh.costs import Estimate, Number
from tailrace.projections.refresh.lock import refresh_lease
from tailrace.projections.refresh.plan import Full, Incremental, Nothing
from tailrace.projections.refresh.plan_all import plans
from tailrace.projections.refresh.refresh import RefreshOutcome, finished
from tailrace.projections.runner import run
from tests.projections.conftest import Deploy, commit_step
from tests.projections.shoplog import TABLES, Row, ShopLog

NAMES = ("customer_totals", "order_cache", "product_search")
TOTALS = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    @projection(
        key="customer_id", sink=PostgresTable("mart", "totals"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
"""
BAD_TOTALS = TOTALS.replace('F.sum("amount")', 'F.sum(F.col("amount") * 100).cast("decimal(22,2)")')


def rows_of(ctx: ProjectionContext, name: str, number: int | None = None) -> list[Row]:
    """What the sink holds, sorted by key."""
    generation = ctx.live(name) if number is None else ctx.generation(name, number)
    assert generation is not None
    batches = ctx.sink(generation).scan(ctx.target(generation))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: int(row[generation.key[0]]))


def refreshed(ctx: ProjectionContext, cut: Cut) -> list[RefreshOutcome]:
    """``totals`` of one process among others."""
    return finished(begin_under_lease(ctx, "totals", cut))


def view(settings: Settings, table: str) -> list[tuple[Any, ...]]:
    """What readers of the view see."""
    dsn = settings.sinks["mart"].dsn
    assert dsn is not None
    with psycopg.connect(dsn.get_secret_value()) as connection:
        query = sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(table))
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_building_applying_and_verifying_tell_how_many_buckets_are_done(
    shop: ShopLog, deploy: Deploy
) -> None:
    told: dict[str, list[tuple[int, int | None]]] = {}

    def report(step: str, done: int, total: int | None, unit: str) -> None:
        if unit == "buckets":
            told.setdefault(step, []).append((done, total))

    ctx = deploy(TOTALS)
    ctx.report = report
    rebuild(ctx, "totals")
    live = ctx.live("totals")
    assert live is not None
    all_of_them = live.partitions * live.split
    (step,) = ctx.store.steps.list("totals", live.number)
    deltas = len(files_of(step).deltas)
    assert told["computing totals"][-1] == (all_of_them, all_of_them)
    assert told["applying totals"] == [(done, deltas) for done in range(deltas + 1)]
    told.clear()
    assert verify(ctx, "totals").equal
    assert told["computing totals"][-1] == (all_of_them, all_of_them)


def test_rebuild_equals_live_equals_verify_also_as_of_a_past_position(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy()
    then = shop.store.head()
    assert then is not None
    past = {name: shop.expected(name) for name in NAMES}
    first = refresh(ctx)
    assert [(outcome.status, outcome.reason) for outcome in first] == [("done", "first build")] * 3
    for name in NAMES:
        assert rows_of(ctx, name) == past[name]

    for name in TABLES:
        repartition(shop.store, TopicId.table("shop", "public", name), 3)
    shop.work()
    second = refresh(ctx)

    assert all(outcome.changed for outcome in second)
    for name in NAMES:
        live = rows_of(ctx, name)
        assert live == shop.expected(name)
        compared = verify(ctx, name)
        assert compared.equal and compared.rows == len(live), compared
        rebuilt = rebuild(ctx, name)
        assert rebuilt.promoted is not None and rebuilt.promoted.previous == 1
        assert rows_of(ctx, name) == live
        pinned = rebuild(ctx, name, as_of=then.epoch)
        assert pinned.promoted is None and pinned.epoch == then.epoch
        assert rows_of(ctx, name, pinned.generation) == past[name]
        assert rows_at(pinned.place, ctx.settings) == len(past[name]), pinned.place
        assert verify(ctx, name, pinned.generation).equal
        assert rows_of(ctx, name) == live


def test_a_refresh_brings_only_differences_and_nothing_when_its_inputs_did_not_change(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    (built,) = refresh(ctx)
    assert built.upserts == len({row["customer_id"] for row in shop.state["orders"].values()})

    shop.commit({"orders": [("c", shop.order(900, customer_id=1)), ("u", shop.state["orders"][2])]})
    (changed,) = refresh(ctx)
    shop.commit({"customers": [("c", {"id": 77, "name": "N", "city": "Graz"})]})
    (planned,) = plans(ctx)
    (untouched,) = refresh(ctx)

    assert (changed.status, changed.upserts, changed.deletes) == ("done", 1, 0)
    assert (untouched.status, untouched.upserts, untouched.deletes) == ("nothing", 0, 0)
    assert isinstance(planned.plan, Nothing) and "none of its inputs changed" in planned.plan.reason
    assert repartition(shop.store, TopicId.parse("shop.public.orders"), 3).epoch == shop.store.cut().epoch
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Nothing) and "none of its inputs changed" in planned.plan.reason
    shop.commit({"orders": [("c", shop.order(901))]})
    (planned,) = plans(ctx)
    assert isinstance(planned.plan, Incremental) and planned.plan.reason == "shop.public.orders changed"
    by_last = "by its last refresh"
    assert planned.estimate == Estimate(RowCount(1, 1), Number(1, by_last), Number(1, by_last))


@pytest.mark.slow
def test_rows_that_were_erased_are_computed_again_and_steps_from_before_forgotten(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    refresh(ctx)
    before = set(shop.store.storage.list("derived"))
    redact(shop.store, RedactionRequest(TopicId.parse("shop.public.orders"), ["900"], ["amount"]))
    (planned,) = plans(ctx)
    (done,) = refresh(ctx)
    amounts = [
        row["amount"] for row in shop.state["orders"].values() if row["customer_id"] == 1 and row["id"] != 900
    ]
    assert isinstance(planned.plan, Full) and "shop.public.orders were erased" in planned.plan.reason
    assert (done.status, done.upserts, done.deletes) == ("done", 1, 0)
    (total,) = [row["total"] for row in rows_of(ctx, "totals") if row["customer_id"] == 1]
    assert total == (sum(amounts) if amounts else None)
    assert len(ctx.store.steps.list("totals", 1)) == 1
    assert not before <= set(shop.store.storage.list("derived"))
    assert verify(ctx, "totals").equal
    assert shop.store.verify().findings == ()


@pytest.mark.slow
def test_a_function_sees_null_for_what_was_erased_and_the_names_when_it_asks(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(
        """
        from pyspark.sql import functions as F
        from tailrace.projections import PostgresTable, State, projection

        @projection(
            key="id", sink=PostgresTable("mart", "people"),
            people=State("shop.public.customers", columns=("id", "name", "city"), erased=True))
        def people(people):
            gone = F.coalesce(F.array_contains("_erased", "name"), F.lit(False))
            return people.select("id", F.when(gone, "(erased)").otherwise(people.name).alias("name"), "city")
        """
    )
    redact(shop.store, RedactionRequest(TopicId.parse("shop.public.customers"), ["2"], ["name", "city"]))
    rebuild(ctx, "people")
    known = {row["id"]: (row["name"], row["city"]) for row in shop.state["customers"].values()}
    found = {row["id"]: (row["name"], row["city"]) for row in rows_of(ctx, "people")}
    assert found == {**known, 2: ("(erased)", None)}
    assert verify(ctx, "people").equal


@pytest.mark.slow
def test_a_changed_definition_freezes_the_live_generation_until_it_is_rebuilt_or_comes_back(
    shop: ShopLog, deploy: Deploy
) -> None:
    good, bad = deploy(TOTALS), deploy(BAD_TOTALS)
    refresh(good)
    before = rows_of(good, "totals")
    shop.work()

    (frozen,) = refresh(bad)

    assert frozen.status == "frozen"
    assert "tailrace rebuild totals" in frozen.reason
    assert rows_of(good, "totals") == before
    assert generations(bad, "totals")[0].frozen
    with pytest.raises(OperatorError, match="built by another definition"):
        verify(bad, "totals")
    reformatted = deploy(TOTALS.replace("(orders):", "(orders):  # the shop's\n        '''Documented.'''"))
    (thawed,) = refresh(reformatted)
    assert thawed.status == "done"
    assert good.generation("totals", 1).frozen_at is None
    assert verify(good, "totals").equal


@pytest.mark.slow
def test_a_changed_definition_is_deployed_beside_a_runner_of_the_old_one(
    shop: ShopLog, deploy: Deploy
) -> None:
    old, new = deploy(TOTALS), deploy(BAD_TOTALS)
    refresh(old)
    kept_fresh: list[RefreshOutcome] = []

    def meanwhile(step: str, done: int, total: int | None, unit: str) -> None:
        if step.startswith("computing") and not kept_fresh:
            kept_fresh.extend(refreshed(old, old.store.cut(shop.work())))

    new.report = meanwhile
    with refresh_lease(old, ["totals"]):
        built = rebuild(new, "totals")
        with pytest.raises(AlreadyRunning):
            run(deploy(TOTALS), None, threading.Event())
        assert [(each.generation, each.status) for each in kept_fresh] == [(1, "done")]
        assert built.promoted is not None and built.epoch == kept_fresh[0].epoch
        shop.work()
        (frozen,) = refreshed(old, old.store.cut())
        assert (frozen.generation, frozen.status) == (2, "frozen")
        (again,) = refresh(new)
        assert (again.generation, again.status, again.epoch) == (2, "done", old.store.cut().epoch)


@pytest.mark.slow
def test_a_bad_deploy_is_rolled_back_and_says_when_that_means_going_stale(
    shop: ShopLog, deploy: Deploy, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when somebody reads the old one for long: then the promotion is finished by whoever comes next."""
    monkeypatch.setattr("tailrace.projections.sinks.postgres.view.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("tailrace.projections.lifecycle.promote.PAUSE_SECONDS", 0.05)
    good = deploy(TOTALS)
    rebuild(good, "totals")
    seen = view(settings, "totals")
    bad = deploy(BAD_TOTALS)
    rebuild(bad, "totals")
    assert view(settings, "totals") != seen

    back = rollback(ProjectionContext(good.store, settings, {}), "totals")

    assert (back.generation, back.left, back.behind, back.frozen) == (1, 2, 0, True)
    assert view(settings, "totals") == seen
    mart = settings.sinks["mart"].dsn
    assert mart is not None
    with psycopg.connect(mart.get_secret_value()) as reader:
        reader.execute("SELECT * FROM totals")
        with pytest.raises(TransientError, match="held by open transactions"):
            promote(bad, "totals", 2)
        assert view(settings, "totals") == seen and good.store.derived.live("totals") == 2
    shop.work()
    refresh(bad)
    assert view(settings, "totals") != seen
    with pytest.raises(
        UsageError, match=r"2 epochs behind the live generation 2; going back shows older data"
    ):
        rollback(bad, "totals")
    assert rollback(bad, "totals", stale_ok=True).behind == 2
    assert view(settings, "totals") == seen
    (caught_up,) = refresh(good)
    assert caught_up.generation == 1 and caught_up.changed
    assert verify(good, "totals").equal


@pytest.mark.slow
def test_a_promotion_that_a_reader_holds_up_is_told_and_what_readers_see_is_refreshed_meanwhile(
    shop: ShopLog, deploy: Deploy, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.projections.sinks.postgres.view.LOCK_SECONDS", 0.05)
    monkeypatch.setattr("tailrace.projections.lifecycle.promote.PAUSE_SECONDS", 0.05)
    ctx = deploy(TOTALS)
    rebuild(ctx, "totals")
    mart = settings.sinks["mart"].dsn
    assert mart is not None
    with psycopg.connect(mart.get_secret_value()) as reader:
        reader.execute("SELECT * FROM totals")
        with pytest.raises(
            NotShown, match=r"generation 2 .*is promoted, but readers still see generation 1"
        ) as held:
            rebuild(ctx, "totals")
        assert "projection promote totals" in held.value.hint
        shop.work()
        seen = view(settings, "totals")
        outcomes = refresh(ctx)
        assert [(each.generation, each.status) for each in outcomes] == [
            (2, "done"), (1, "done"), (2, "waiting"),
        ]  # fmt: skip
        assert view(settings, "totals") != seen
        head = ctx.store.cut().epoch
        (found,) = measure_progress(ctx, datetime.now(UTC), SinkInspector(60))
        assert found.unshown is not None and found.unshown.shown == 1 and found.unshown.since is not None
        assert [(rung.name, rung.epoch) for rung in found.rungs] == [("derived", head), ("sink", head)]
        assert [each.unshown for each in generations(ctx, "totals")] == [None, found.unshown]
        (status,) = projection_statuses(ctx.store, settings)
        assert (status.generation, status.sink_epoch, status.unshown) == (2, head, found.unshown)
        assert re.match(
            r"is promoted since 20.*, and readers still see g1: ", describe_unshown("totals", found.unshown)
        )

        assert rollback(ctx, "totals").generation == 1
        assert next(measure_progress(ctx, datetime.now(UTC), SinkInspector(60))).unshown is None
        with pytest.raises(NotShown):
            promote(ctx, "totals", 2)
    assert promote(ctx, "totals").generation == 2
    assert [each.unshown for each in generations(ctx, "totals")] == [None, None]
    assert view(settings, "totals") == [tuple(row.values()) for row in rows_of(ctx, "totals", 2)]


@pytest.mark.slow
def test_a_promotion_that_the_sink_refuses_says_why_each_time_and_refreshes_go_on_meanwhile(
    shop: ShopLog, deploy: Deploy, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    rebuild(ctx, "totals")
    rebuild(ctx, "totals", promote=False)

    def refuse(*_: object) -> None:
        raise OperatorError("permission denied", hint="GRANT the missing privilege")

    with monkeypatch.context() as refusing:
        refusing.setattr("tailrace.projections.sinks.postgres.view._swap", refuse)
        for number in (2, None, 2):
            with pytest.raises(
                NotShowable, match=r"generation 2 .*readers still see generation 1: permission denied"
            ):
                promote(ctx, "totals", number)
        shop.work()
        seen = view(settings, "totals")
        outcomes = refresh(ctx)
        assert [(each.generation, each.status) for each in outcomes] == [
            (2, "done"), (1, "done"), (2, "failed"),
        ]  # fmt: skip
        assert "permission denied" in outcomes[-1].reason and view(settings, "totals") != seen
        (found,) = measure_progress(ctx, datetime.now(UTC), SinkInspector(60))
        assert found.unshown is not None and found.unshown.shown == 1 and found.unshown.since is not None
    assert promote(ctx, "totals", 2).generation == 2
    assert next(measure_progress(ctx, datetime.now(UTC), SinkInspector(60))).unshown is None
    assert verify(ctx, "totals").equal


@pytest.fixture
def overtaken(shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has a runner of TOTALS go on with what is live, to rows that are new, after each of the next refreshes of
    anything else has chosen its position."""
    passed, old = failpoints.hit, deploy(TOTALS)
    left, orders = 0, itertools.count(1000)

    def grow() -> None:
        shop.commit({"orders": [("c", shop.order(next(orders)))]})

    def hit(name: str, times: int = 1) -> None:
        nonlocal left
        if name == "refresh_planned" and left > 0:
            before, left = left, 0
            grow()
            live = refreshed(old, old.store.cut())[0]
            assert (live.generation, live.status) == (1, "done")
            left = before - 1
        passed(name, times)

    def go_on(times: int) -> None:
        nonlocal left
        left = times
        grow()

    rebuild(old, "totals")
    monkeypatch.setattr(failpoints, "hit", hit)
    return go_on


def test_a_generation_is_promoted_at_the_position_of_the_live_one_or_later(
    shop: ShopLog, deploy: Deploy, overtaken: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = deploy(BAD_TOTALS)
    grown: list[int] = []
    promote_in_catalog = new.store.derived.promote

    def grow(step: str, done: int, total: int | None, unit: str) -> None:
        if step.startswith("computing") and not grown:
            grown.append(5)
            overtaken(5)

    def at_the_last_moment(*args: Any, **kwargs: Any) -> None:
        if len(grown) == 1:
            grown.append(1)
            old = deploy(TOTALS)
            shop.work()
            assert refreshed(old, old.store.cut())[0].status == "done"
        promote_in_catalog(*args, **kwargs)

    monkeypatch.setattr(new.store.derived, "promote", at_the_last_moment)
    new.report = grow
    built = rebuild(new, "totals")

    assert grown == [5, 1] and built.promoted is not None
    before, after = (new.store.steps.last("totals", number) for number in (1, 2))
    assert before is not None and after is not None
    assert built.promoted.fence.epoch == built.epoch == after.to_epoch >= before.to_epoch
    assert before.to_epoch == new.store.cut().epoch
    assert verify(new, "totals").equal


@pytest.mark.slow
def test_a_generation_that_the_live_one_outruns_is_kept_ready_and_finished_by_the_next_build_or_promotion(
    shop: ShopLog, deploy: Deploy, overtaken: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_LEVEL_ROUNDS", 2)
    new = deploy(BAD_TOTALS)

    def outrun() -> None:
        begun: list[bool] = []

        def grow(step: str, done: int, total: int | None, unit: str) -> None:
            if step.startswith("computing") and not begun:
                begun.append(True)
                overtaken(100)

        new.report = grow
        with pytest.raises(
            NotLevel, match=r"built but not promoted: .* 2 times.*behind the live generation 1"
        ):
            rebuild(new, "totals")
        overtaken(0)

    outrun()
    assert [(each.number, each.state) for each in new.generations("totals")] == [
        (1, GenerationState.LIVE), (2, GenerationState.READY),
    ]  # fmt: skip
    with pytest.raises(Behind):
        promote(new, "totals")

    built = rebuild(new, "totals")
    assert (built.generation, built.resumed) == (2, True) and built.promoted is not None

    assert rollback(new, "totals", stale_ok=True).generation == 1
    refresh(deploy(TOTALS))
    outrun()
    refresh(new)
    assert promote(new, "totals").generation == 3
    assert verify(new, "totals").equal


@pytest.mark.slow
def test_readers_go_back_in_time_only_when_that_is_said(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    rebuild(ctx, "totals")
    then = ctx.store.cut().epoch
    rebuild(ctx, "totals", promote=False)
    rebuild(ctx, "totals")
    with pytest.raises(UsageError, match=r"waits to be promoted: 2 is ready and older than the live one, 3"):
        promote(ctx, "totals")
    shop.work()
    refresh(ctx)

    for number in (1, 2):
        with pytest.raises(Behind, match="2 epochs behind the live generation 3; going back shows older"):
            promote(ctx, "totals", number)
    with pytest.raises(Behind, match="--stale-ok"):
        rebuild(ctx, "totals", as_of=then, promote=True)
    assert [each.generation.number for each in generations(ctx, "totals") if each.live] == [3]
    assert len(ctx.generations("totals")) == 3, "nothing was built in vain"

    back = promote(ctx, "totals", 1, stale_ok=True)
    assert (back.generation, back.previous, back.behind) == (1, 3, 2)
    with pytest.raises(UsageError, match="went back already, from generation 3 to generation 1"):
        rollback(ctx, "totals", stale_ok=True)
    pinned = rebuild(ctx, "totals", as_of=then, promote=True, stale_ok=True)
    assert pinned.promoted is not None and pinned.promoted.behind == 0


@pytest.mark.slow
def test_a_rollback_that_is_tried_again_goes_neither_forward_nor_back_twice(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    for _ in range(3):
        rebuild(ctx, "totals")
    assert rollback(ctx, "totals").generation == 2
    for _ in range(2):
        with pytest.raises(
            UsageError, match="went back already, from generation 3 to generation 2"
        ) as raised:
            rollback(ctx, "totals")
        assert "promote totals --generation N" in raised.value.hint
    rebuild(ctx, "totals")
    assert rollback(ctx, "totals").generation == 2


@pytest.mark.slow
def test_a_generation_whose_inputs_did_not_change_since_is_not_behind(shop: ShopLog, deploy: Deploy) -> None:
    both = TOTALS.replace(
        'affects="customer_id"))', 'affects="customer_id"), customers=State("shop.public.customers"))'
    ).replace("totals(orders)", "totals(orders, customers)")
    ctx, wider = deploy(TOTALS), deploy(both)
    rebuild(ctx, "totals")
    rebuild(wider, "totals")
    shop.commit({"customers": [("c", {"id": 77, "name": "N", "city": "Graz"})]})
    assert [each.generation for each in refresh(wider) if each.changed] == [2]

    assert rollback(ctx, "totals").behind == 0
    assert rebuild(ctx, "totals", promote=False).generation == 3
    promote(wider, "totals", 2)
    shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
    refresh(wider)
    with pytest.raises(Behind, match="behind the live generation 2"):
        promote(ctx, "totals", 3)


def test_a_zombie_driver_is_refused_by_compare_and_set_and_leaves_nothing(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)
    generation = ctx.generation("totals", 1)
    shop.work()
    cut = ctx.store.cut()
    shop.work()
    storage = ctx.store.storage
    overtaken = ProjectionContext(ctx.store, ctx.settings, ctx.projections)
    commit = ctx.store.steps.commit
    files: list[set[str]] = []

    def overtake(*args: Any, **kwargs: Any) -> Any:
        # What a second runner does while this one computes: it goes on to the head.
        ctx.store.steps.commit = commit  # type: ignore[method-assign]
        refresh(ctx)
        files.append(set(storage.list("derived")))
        return commit(*args, **kwargs)

    ctx.store.steps.commit = overtake  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="another process went on"):
        commit_step(overtaken, overtaken.projection("totals"), generation, cut)

    assert set(storage.list("derived")) < files[0], "the loser's files are gone, the winner's are there"
    assert verify(ctx, "totals").equal


def test_verify_counts_what_is_missing_superfluous_and_different_and_shows_both_versions(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)
    generation = ctx.generation("totals", 1)
    dsn = settings.sinks["mart"].dsn
    assert dsn is not None
    with psycopg.connect(dsn.get_secret_value()) as connection:
        found = connection.execute(
            "SELECT c.relname, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind = 'r' AND EXISTS (SELECT 1 FROM pg_attribute a"
            " WHERE a.attrelid = c.oid AND a.attname = 'customer_id')"
        ).fetchall()
        ((table, schema),) = found
        name = sql.Identifier(schema, table)
        connection.execute(sql.SQL("DELETE FROM {} WHERE customer_id = 3").format(name))
        connection.execute(
            sql.SQL("UPDATE {} SET total = total + 1 WHERE customer_id IN (4, 5)").format(name)
        )
        connection.execute(sql.SQL("UPDATE {} SET customer_id = 1000 WHERE customer_id = 6").format(name))

    compared = verify(ctx, "totals")

    assert not compared.equal
    assert (compared.only_in_log, compared.only_in_sink, compared.different) == (2, 1, 2)
    totals = {row["customer_id"]: row["total"] for row in shop.expected("customer_totals")}

    def total(number: int, more: int = 0) -> str:
        return f'{{"total": "{totals[number] + more}"}}'

    assert set(compared.samples) == {
        DifferentRow("only in log", '{"customer_id": 3}', total(3), None),
        DifferentRow("only in log", '{"customer_id": 6}', total(6), None),
        DifferentRow("only in sink", '{"customer_id": 1000}', None, total(6)),
        DifferentRow("different", '{"customer_id": 4}', total(4), total(4, 1)),
        DifferentRow("different", '{"customer_id": 5}', total(5), total(5, 1)),
    }
    assert generation.number == compared.generation

    half = [verify(ctx, "totals", sample=6, seed=seed) for seed in (1, 2)]
    assert all(each.rows < compared.rows for each in half) and half[0] == verify(
        ctx, "totals", sample=6, seed=1
    )
    for each in half:
        assert set(each.samples) <= set(compared.samples)
        assert len(each.samples) == each.only_in_log + each.only_in_sink + each.different
    assert verify(ctx, "totals", sample=1000) == compared, "as many as there are: all"


@pytest.mark.slow
def test_rows_that_went_by_themselves_are_no_difference(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    source = TOTALS.replace("PostgresTable", "RedisCache").replace(
        '"mart", "totals"', '"cache", ttl_seconds=9e6'
    )
    ctx = deploy(source)
    refresh(ctx)
    url = settings.sinks["cache"].url
    assert url is not None
    with redis_client.Redis.from_url(url.get_secret_value(), decode_responses=True) as client:
        rows = sorted(key for key in client.keys("*") if "}:" in key)
        client.delete(*rows[:2])  # as their end would
        found = verify(ctx, "totals")
        assert (found.equal, found.expired, found.samples) == (True, 2, ())
        client.hset(rows[2], "total", "1.00")
        found = verify(ctx, "totals")
        assert (found.equal, found.expired, found.different, len(found.samples)) == (False, 2, 1, 1)


@pytest.mark.slow
def test_a_sink_that_is_not_of_this_log_is_refused(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Any
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)
    elsewhere = settings.store.model_copy(
        update={"catalog": f"sqlite:///{tmp_path}/other.db", "segments": tmp_path / "other"}
    )
    with Store.open(elsewhere, create=True) as store:
        other = ShopLog.start(store)
        other.fill()
        foreign = ProjectionContext(store, settings, ctx.projections)

        (outcome,) = refresh(foreign)

        assert outcome.status == "failed"
        assert "generation 1 of projection 'totals', which this log did not build" in outcome.reason
        assert verify(ctx, "totals").equal
        foreign.take_over = True
        taken = rebuild(foreign, "totals")
        assert taken.generation == 2 and verify(foreign, "totals").equal
        (failed,) = refresh(ctx)
        assert failed.status == "failed" and "tailrace rebuild totals" in str(failed.error)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_a_sink_that_was_restored_a_moment_after_a_step_is_asked_again(
    shop: ShopLog, deploy: Deploy, settings: Settings, lost: bool
) -> None:
    """The process that applied the last step believes that the sink has it, until the next step finds another one. What
    is missing is applied, all steps where nothing is left."""
    ctx = deploy(TOTALS)
    (built,) = refresh(ctx)
    dsn = settings.sinks["mart"].dsn
    assert dsn is not None
    with psycopg.connect(dsn.get_secret_value(), autocommit=True) as mart:
        mart.execute("CREATE TABLE saved AS TABLE totals__g1")
        mart.execute("CREATE TABLE saved_fences AS TABLE tailrace_fences")
        shop.commit({"orders": [("c", shop.order(900, customer_id=1))]})
        refresh(ctx)
        live = ctx.live("totals")
        assert live is not None and ctx.fences.get(live) is not None
        if lost:
            mart.execute("DROP TABLE tailrace_fences; DROP TABLE totals__g1 CASCADE")
        else:
            mart.execute(
                "TRUNCATE totals__g1; INSERT INTO totals__g1 TABLE saved;"
                " UPDATE tailrace_fences f SET epoch = s.epoch, epoch_hash = s.epoch_hash FROM saved_fences s"
            )
    shop.commit({"orders": [("c", shop.order(901, customer_id=2))]})

    (again,) = refresh(ctx)

    assert again.status == "done" and again.upserts == (built.upserts + 2 if lost else 2)
    assert verify(ctx, "totals").equal


@pytest.mark.slow
def test_a_sink_that_lost_everything_is_told_and_built_again(
    shop: ShopLog, deploy: Deploy, redis_url: str
) -> None:
    ctx = deploy()
    refresh(ctx, ["order_cache"])
    with redis_client.Redis.from_url(redis_url) as client:
        client.flushall()
    shop.work()

    (lost,) = refresh(ctx, ["order_cache"])

    assert lost.status == "failed" and "tailrace rebuild order_cache" in str(lost.error)
    (listed,) = generations(ctx, "order_cache")
    (status,) = projection_statuses(ctx.store, ctx.settings)
    for unshown in (listed.unshown, status.unshown):
        assert unshown is not None
        told = describe_unshown("order_cache", unshown)
        assert told == "is promoted, and the sink holds nothing of it: tailrace rebuild order_cache"
    with redis_client.Redis.from_url(redis_url) as client:
        client.config_set("appendonly", "no")
    (remark,) = ctx.sink(listed.generation).check(ctx.target(listed.generation))
    assert "refreshes fail" in remark and "until tailrace rebuild order_cache has run" in remark
    rebuild(ctx, "order_cache")
    assert rows_of(ctx, "order_cache") == shop.expected("order_cache")
    assert verify(ctx, "order_cache").equal


@pytest.mark.slow
@pytest.mark.parametrize("removed", [False, True])
def test_a_projection_moves_away_from_a_sink_that_is_out_of_reach_or_removed(
    shop: ShopLog, deploy: Deploy, settings: Settings, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    cached = TOTALS.replace('PostgresTable("mart", "totals")', 'RedisCache("cache")')
    rebuild(deploy(cached.replace("PostgresTable,", "RedisCache,")), "totals")
    away = settings.sinks["cache"].model_copy(update={"url": SecretStr("redis://127.0.0.1:1/0")})
    sinks = {"mart": settings.sinks["mart"]} | ({} if removed else {"cache": away})
    ctx = deploy(TOTALS)
    ctx.settings = settings.model_copy(update={"sinks": sinks})
    (failed,) = refresh(ctx)
    assert failed.status == "failed"

    assert rebuild(ctx, "totals").generation == 2

    assert [each.status for each in refresh(ctx)] == ["nothing"]
    assert verify(ctx, "totals").equal
    if not removed:
        with pytest.raises(TransientError):
            gc(ctx, "totals", number=1)
        return
    (gone,) = gc(ctx, "totals", number=1)
    assert (gone.generation, gone.left) == (1, "there is no sink 'cache'")
    assert [found.generation.number for found in generations(ctx, "totals")] == [2]


def test_topics_that_are_still_loading_are_waited_for_and_hold_up_nobody_else(
    shop: ShopLog, deploy: Deploy, define: Callable[[str], Mapping[str, Projection]]
) -> None:
    late = TopicId.table("shop", "public", "late")
    register_topic(shop.store, late, TABLES["customers"])
    ctx = deploy(TOTALS)
    late_totals = TOTALS.replace("orders", "late").replace("totals", "late_totals")
    waiting = define(late_totals.replace("customer_id", "city").replace("amount", "id"))
    ctx.projections.update(waiting)

    outcomes = {outcome.projection: outcome for outcome in refresh(ctx)}

    assert outcomes["totals"].status == "done"
    assert outcomes["late_totals"].status == "waiting"
    assert "waiting for first load" in outcomes["late_totals"].reason
    with pytest.raises(IncompleteTopic):
        rebuild(ctx, "late_totals")
    assert ctx.generations("late_totals") == []


def test_a_projection_that_fails_leaves_readers_what_they_had(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)
    seen = view(settings, "totals")
    raising = deploy(TOTALS.replace('groupBy("customer_id")', 'groupBy("customer")'))
    repeated = deploy(TOTALS.replace('groupBy("customer_id")', 'groupBy("id", "customer_id")'))

    with pytest.raises(ProjectionFailed, match=r"deployed_\d+\.py:\d+.*`customer` cannot be resolved"):
        rebuild(raising, "totals")
    with pytest.raises(ProjectionFailed, match="rows repeat a key"):
        rebuild(repeated, "totals")

    states = [info.generation.state for info in generations(ctx, "totals")]
    assert states == [GenerationState.LIVE, GenerationState.FAILED]
    assert view(settings, "totals") == seen
    assert [dropped.generation for dropped in gc(ctx, "totals")] == [2]
    assert verify(ctx, "totals").equal


def rows_at(place: str, settings: Settings) -> int:
    """How many rows are where a rebuild says that they are."""
    kind, where, *_, sink = place.split()
    configured = settings.sinks[sink]
    match kind:
        case "table":
            assert configured.dsn is not None
            with psycopg.connect(configured.dsn.get_secret_value()) as connection:
                return len(connection.execute(f"TABLE {where}".encode()).fetchall())
        case "keys":
            assert configured.url is not None
            redis = redis_client.Redis.from_url(configured.url.get_secret_value())
            return len(list(redis.scan_iter(where.replace("BUCKET", "*").replace("KEY", "*"))))
        case _:
            index = tantivy.Index.open(where)
            return int(index.searcher().num_docs) - 1  # the fence is one


@pytest.mark.slow
def test_gc_keeps_the_live_generation_the_one_to_go_back_to_and_pinned_ones(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(TOTALS)
    pinned = rebuild(ctx, "totals", as_of=shop.store.cut().epoch)
    for _ in range(3):
        rebuild(ctx, "totals")

    dropped = gc(ctx, "totals")

    assert [gone.generation for gone in dropped] == [2]
    left = [(info.generation.number, info.live) for info in generations(ctx, "totals")]
    assert left == [(pinned.generation, False), (3, False), (4, True)]
    assert rollback(ctx, "totals").generation == 3
    assert [gone.generation for gone in gc(ctx, "totals", number=pinned.generation)] == [pinned.generation]
    with pytest.raises(UsageError, match="is live"):
        gc(ctx, "totals", number=3)
    assert not list(ctx.store.storage.list("derived/totals/2"))
    assert [gone.generation for gone in gc(ctx, "totals", keep=0)] == [4]
    with pytest.raises(UsageError, match="has no generation to go back to"):
        rollback(ctx, "totals")


@pytest.mark.slow
def test_the_runner_follows_the_log_until_it_is_told_to_stop(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    stop, reached = threading.Event(), threading.Event()
    wanted = [0]

    def tell(outcome: Any) -> None:
        if outcome.epoch is not None and outcome.epoch >= wanted[0]:
            reached.set()

    def write() -> None:
        for _ in range(2):
            assert reached.wait(120)
            wanted[0] = shop.work()
            reached.clear()
        assert reached.wait(120)
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    run(ctx, None, stop, tell)
    thread.join()

    live = ctx.live("totals")
    assert live is not None
    fence = ctx.fence(live)
    assert fence is not None and fence.epoch == wanted[0]
    assert verify(ctx, "totals").equal


@pytest.mark.slow
def test_events_and_changes_are_read_beside_state_and_the_clock_is_the_logs(
    shop: ShopLog, deploy: Deploy
) -> None:
    shop.commit(
        {"orders": [("u", shop.state["orders"][1] | {"status": "shipped"})]},
        events=[
            {"stream": "order-1", "version": 1, "type": "Shipped", "schema_version": 1, "data": '{"by":"post"}',
             "metadata": "{}", "event_id": "e1", "recorded_at": None},
        ],
    )  # fmt: skip
    ctx = deploy("""
        from pyspark.sql import functions as F
        from tailrace.projections import Changes, Events, PostgresTable, projection

        @projection(key="id", sink=PostgresTable("mart", "audit"),
                    changes=Changes("shop.public.orders"), events=Events("shop.order"))
        def audit(changes, events, now):
            shipped = events.where("type = 'Shipped'").select(
                F.regexp_extract("stream", "order-(.*)", 1).cast("bigint").alias("order_id"),
                F.get_json_object("data", "$.by").alias("carrier"))
            return (changes.groupBy(F.col("key.id").alias("id"))
                    .agg(F.count("*").alias("changes"), F.max("after.status").alias("status"))
                    .join(shipped, F.col("id") == F.col("order_id"), "left")
                    .select("id", "changes", "status", "carrier", F.lit(now).alias("as_of")))
    """)

    refresh(ctx)

    head = shop.store.head()
    assert head is not None
    first, second = rows_of(ctx, "audit")[:2]
    assert (first["changes"], first["status"], first["carrier"], first["as_of"]) == (
        2, "shipped", "post", head.commit_ts,
    )  # fmt: skip
    assert (second["changes"], second["status"], second["carrier"]) == (1, "paid", None)
    assert verify(ctx, "audit").equal


@pytest.mark.slow
def test_cells_the_typed_column_cannot_hold_are_an_error_null_or_text_as_the_reader_chooses(
    shop: ShopLog, deploy: Deploy
) -> None:
    shop.commit({"orders": [("c", shop.order(500) | {"amount": None})]}, raw={5: "NaN"})

    def built(table: str, column: str, option: str) -> Any:
        """The value of ``column`` in the sink's row 500."""
        ctx = deploy(f"""
            from tailrace.projections import PostgresTable, State, projection

            @projection(key="id", sink=PostgresTable("mart", "{table}"), orders=State("shop.public.orders"{option}))
            def {table}(orders):
                return orders.select("id", "{column}")
        """)
        rebuild(ctx, table)
        assert verify(ctx, table).equal
        return rows_of(ctx, table)[-1][column]

    with pytest.raises(
        UnreadableCell, match=r"'strict': shop.public.orders: column 'amount' of the row"
    ) as raised:
        built("strict", "amount", "")
    assert "on_unreadable" in raised.value.hint
    assert built("nulls", "amount", ', on_unreadable="null"') is None
    assert built("texts", "amount", ', on_unreadable={"amount": "text"}') == "NaN"
    assert built("columns", "quantity", ', columns=("id", "quantity")') == 3
    casting = ', columns=("id", "status"), cast={"status": "int"}'
    with pytest.raises(ProjectionFailed, match="CAST_INVALID_INPUT"):
        built("cast", "status", casting)
    assert built("tried", "status", casting + ', on_unreadable="null"') is None
    assert built("tried_alone", "status", casting + ', on_unreadable={"status": "null"}') is None


def test_floats_within_the_declared_tolerance_are_left_alone(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy("""
        from tailrace.projections import PostgresTable, State, projection

        @projection(key="id", sink=PostgresTable("mart", "doubles"), tolerance={"amount": 0.5},
                    orders=State("shop.public.orders"))
        def doubles(orders):
            return orders.selectExpr("id", "cast(amount as double) as amount")
    """)
    refresh(ctx)
    order = shop.state["orders"]
    shop.commit({
        "orders": [
            ("u", order[1] | {"amount": order[1]["amount"] + Decimal("0.25")}),
            ("u", order[2] | {"amount": order[2]["amount"] + Decimal("0.75")}),
        ]
    })  # fmt: skip

    (outcome,) = refresh(ctx)

    assert (outcome.upserts, outcome.deletes) == (1, 0)
    assert verify(ctx, "doubles").equal


def test_blobs_beyond_what_tasks_may_carry_are_sealed_first_also_when_upkeep_seals_meanwhile(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS.replace(', affects="customer_id"', ""))
    refresh(ctx)
    shop.work()
    topic = ctx.projection("totals").topics[0]
    assert any(ref.inline for ref in ctx.store.segments(topic, ctx.store.cut()))
    monkeypatch.setattr(read_plan, "INLINE_LIMIT", 1)
    passed = failpoints.hit
    overtaken: list[int] = []

    def overtake(name: str, times: int = 1) -> None:
        if name == "seal_written" and not overtaken:
            overtaken.append(terms.begin(ctx.store.catalog, terms.SEAL))
        passed(name, times)

    monkeypatch.setattr(failpoints, "hit", overtake)

    (outcome,) = refresh(ctx)

    assert outcome.status == "done" and overtaken
    assert not any(ref.inline for ref in ctx.store.segments(topic, ctx.store.cut()))
    assert verify(ctx, "totals").equal


@pytest.mark.slow
def test_an_added_input_column_freezes_nobody_unless_the_output_shows_it(
    shop: ShopLog, deploy: Deploy
) -> None:
    narrow = TOTALS.replace(
        'groupBy("customer_id").agg(', 'groupBy("customer_id").agg(F.count("*").alias("n"), '
    )
    everything = """
        from tailrace.projections import Changes, PostgresTable, State, projection

        @projection(key="id", sink=PostgresTable("mart", "everything"), orders=State("shop.public.orders"))
        def everything(orders):
            return orders

        @projection(key=("id", "lsn"), sink=PostgresTable("mart", "log"), orders=Changes("shop.public.orders"))
        def log(orders):
            return orders.selectExpr("key.id", "_lsn as lsn", "after.status", "_epoch as epoch")
    """
    totals, wide = deploy(narrow), deploy(everything)
    refresh(totals)
    refresh(wide)
    note = Column(7, "note", 25, type_name="text", fill="none")
    wider = TopicSchema(2, (*TABLES["orders"].columns, note))
    shop.commit({"orders": [("c", shop.order(700) | {"note": "new"})]}, new_schemas={"orders": wider})

    outcome, *unknown = refresh(totals)
    wide_outcomes = {outcome.projection: outcome for outcome in refresh(wide)}

    assert (outcome.status, outcome.upserts) == ("done", 1)
    assert ["no loaded module defines it" in found.reason for found in unknown] == [True, True]
    assert (wide_outcomes["log"].status, wide_outcomes["log"].upserts) == ("done", 1)
    assert wide_outcomes["everything"].status == "failed"
    assert "its output columns are no longer those of generation 1" in wide_outcomes["everything"].reason
    rebuild(wide, "everything")
    notes = {row["id"]: row["note"] for row in rows_of(wide, "everything")}
    assert notes[700] == "new" and notes[1] == "none"
    assert all(verify(wide, name).equal for name in ("everything", "log"))


WRONG = {
    "topic": (
        "shop.public.ordrs",
        "",
        "mart",
        r"no topic shop.public.ordrs.*did you mean shop.public.orders",
    ),
    "affects": ("shop.public.orders", ', affects="costumer_id"', "mart", "affects names costumer_id, which"),
    "columns": ("shop.public.orders", ', columns=("id", "nope")', "mart", "columns names nope"),
    "kind": ("shop.order", "", "mart", "shop.order is a topic of events, read as State"),
    "sink": (
        "shop.public.orders",
        "",
        "martt",
        "there is no sink 'martt'.*known sinks: cache, lake, mart, search",
    ),
    "sink_kind": (
        "shop.public.orders",
        "",
        "cache",
        "sink 'cache' is of kind redis, the projection needs postgres",
    ),
}


def test_names_that_the_log_or_the_settings_do_not_have_are_told_before_spark_starts(
    shop: ShopLog, settings: Settings, define: Callable[[str], Mapping[str, Projection]]
) -> None:
    for topic, option, sink, words in WRONG.values():
        wrong = define(f"""
            from tailrace.projections import PostgresTable, State, projection

            @projection(key="customer_id", sink=PostgresTable("{sink}", "t"), orders=State("{topic}"{option}))
            def totals(orders):
                return orders
        """)
        ctx = ProjectionContext(shop.store, settings, wrong)
        with pytest.raises(UsageError) as raised:
            rebuild(ctx, "totals")
        assert re.search(words, str(raised.value), re.DOTALL), raised.value
        assert re.search(r"'totals' \(.*deployed_\d+\.py:4(:\d+)?\)", raised.value.message)
        assert ctx._spark is None


@pytest.mark.slow
def test_what_an_earlier_sink_still_shows_does_not_stop_the_collection(
    shop: ShopLog, deploy: Deploy, settings: Settings
) -> None:
    rebuild(deploy(TOTALS), "totals")
    moved = deploy(TOTALS.replace('"mart", "totals"', '"mart", "sums"'))
    for _ in range(3):
        rebuild(moved, "totals")
    with pytest.raises(OperatorError, match="view totals depends") as caught:
        gc(moved, "totals")
    assert "drop what depends on it" in caught.value.hint
    assert [found.generation.number for found in generations(moved, "totals")] == [1, 3, 4]
    assert view(settings, "totals") == view(settings, "sums")

    cached = TOTALS.replace('PostgresTable("mart", "totals")', 'RedisCache("cache"{prefix})')
    cached = cached.replace("PostgresTable,", "RedisCache,").replace("totals", "cached")
    rebuild(deploy(cached.replace("{prefix}", "")), "cached")
    moved = deploy(cached.replace("{prefix}", ', "elsewhere"'))
    for _ in range(3):
        rebuild(moved, "cached")
    assert [gone.generation for gone in gc(moved, "cached")] == [2]
    assert [found.generation.number for found in generations(moved, "cached")] == [1, 3, 4]

"""Rows that are kept of a large table are those that are looked up in the log, whatever happens to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import ChangedKeys, changed_keys
from tailrace.eventstore.store import Store
from tailrace.projections import ParquetFolder, State, projection
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.lineage import Direct, Lineage
from tailrace.projections.refresh.by_key import rows_before as module
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tailrace.projections.refresh.by_key.rows_before import rows_before
from tailrace.projections.round import kept_rows
from tests.fixtures.scale import Scale
from tests.projections.refresh.randomshop import ALTERABLE, ALTERATIONS, TRUNCATE, RandomShop
from tests.projections.shoplog import ShopLog, settings_in, standing_still

TOPIC = TopicId.parse("shop.public.orders")


@projection(key="id", sink=ParquetFolder("lake"), orders=State("shop.public.orders", erased=True))
def rows_of_orders(orders: Any) -> Any:
    return orders


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProjectionContext]:
    monkeypatch.setattr(module, "_LONG_SECONDS", 0.0)
    monkeypatch.setattr("tailrace.projections.compute.patched_files._SHARE", 0)  # few rows make a state here
    settings = settings_in(tmp_path, dsn="postgresql:///nowhere", redis_url="redis://nowhere")
    with Store.open(settings.store, create=True) as store:
        ctx = ProjectionContext(store, settings, {}, clock=standing_still)
        with ctx.kept_rows.at_work():
            yield ctx


def looked_up(ctx: ProjectionContext, before: Cut, now: Cut, *, kept: bool) -> list[str] | None:
    """The rows at ``before`` of what changed up to ``now``; None after a truncate."""
    path = Direct(tuple(column.name for column in ctx.store.schemas_at(TOPIC, before)[-1].columns))
    inputs = Inputs(ctx, SparkEngine(ctx), rows_of_orders, Lineage((), {"orders": path}, ()), before)
    planned = inputs.plan_of("orders")
    assert isinstance(planned, StateInput)
    refs = ctx.store.segments(TOPIC, now, before.epoch)
    changed: ChangedKeys = changed_keys(ctx.store.storage, refs, planned.versions, planned.target)
    if changed.truncated:
        return None
    rows = (
        rows_before(ctx, "orders", inputs, now, changed)
        if kept
        else inputs.rows_by_source_key("orders", changed.hashes, changed.cells)
    )
    return sorted(map(str, rows.select(inputs.visible_columns("orders")).to_pylist()))


@pytest.mark.parametrize("seed", range(2))
def test_kept_rows_are_those_of_the_log_whatever_happens_to_the_table(
    context: ProjectionContext, monkeypatch: pytest.MonkeyPatch, scale: Scale, seed: int
) -> None:
    monkeypatch.setattr(kept_rows, "LAYER_KEYS", 6)
    shop = RandomShop(ShopLog.start(context.store, ALTERABLE), Random(seed))
    done, steps, found = shop.step(25), scale.pick(smoke=25, full=400), 0
    alterations, before = [*ALTERATIONS, TRUNCATE], context.store.cut()
    for number in range(steps):
        altered = (alterations.pop(0),) if number % 8 == 7 and alterations else ()
        done += ["--", *shop.step(shop.random.randint(1, 6), *altered)]
        now = context.store.cut()
        expected = looked_up(context, before, now, kept=False)
        context.kept_rows.finish()
        held = dict(context.kept_rows._held)
        assert looked_up(context, before, now, kept=True) == expected, (seed, done)
        found += bool(held) and context.kept_rows._held == held
        if number % 3:  # now and then a step is longer
            before = now
    assert found > steps / 3


def test_of_erased_rows_none_is_kept_and_files_are_bounded(
    context: ProjectionContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shop = ShopLog.start(context.store)
    shop.fill()
    before = context.store.cut()
    shop.commit({"orders": [("u", shop.order(1, customer_id=1))]})
    now = context.store.cut()
    assert looked_up(context, before, now, kept=True)
    context.kept_rows.finish()
    (held,) = context.kept_rows._held.values()
    redact(context.store, RedactionRequest(TOPIC, ["1"], ["amount"]))
    shop.commit({"orders": [("u", shop.order(2, customer_id=1))]})
    later = context.store.cut()
    expected = looked_up(context, now, later, kept=False)
    assert looked_up(context, now, later, kept=True) == expected
    assert not held.folder.exists()

    small = context.settings.projections.model_copy(update={"kept_rows_bytes": 100})
    settings = context.settings.model_copy(update={"projections": small})
    bounded = ProjectionContext(context.store, settings, {}, clock=standing_still)
    assert looked_up(bounded, now, later, kept=True) == expected
    assert not bounded.kept_rows._begun, "a process that ends before long keeps none"
    others = {*tmp_path.glob("tailrace-rows-*/*")}
    with bounded.kept_rows.at_work():
        assert looked_up(bounded, before, now, kept=True)
        bounded.kept_rows.finish()
    assert not bounded.kept_rows._held and {*tmp_path.glob("tailrace-rows-*/*")} == others

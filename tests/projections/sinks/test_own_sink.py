"""A sink of a user's own: the suite that every sink must pass, and a projection that is built into it."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from examples import sqlite_sink
from examples.sqlite_sink import SqliteFile
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import open_reader
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import spec_to_text
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh, undefined_outcomes
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.progress import SinkInspector, measure_progress
from tailrace.projections.lifecycle.verify import verify
from tailrace.testing.sink_contract import SinkContract
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.support.forking import Forked

TOTALS = """
    from pyspark.sql import functions as F
    from examples.sqlite_sink import SqliteFile
    from tailrace.projections import State, projection

    @projection(
        key="customer_id", sink=SqliteFile("{file}"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""
LOST = json.dumps({"kind": "own", "pickle": base64.b64encode(b"cno_such_module\nSink\n.").decode()})


class TestSqliteSink(SinkContract):
    process = Forked

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = partial(SqliteFile(str(tmp_path / "own.db")).open_sink, Settings())


def test_the_example_is_as_short_as_the_documents_say() -> None:
    assert len(Path(sqlite_sink.__file__).read_text().splitlines()) <= 60


def test_a_projection_goes_into_a_users_own_sink(shop: ShopLog, deploy: Deploy, tmp_path: Path) -> None:
    file = str(tmp_path / "totals.db")
    ctx = deploy(TOTALS.format(file=file))
    rebuild(ctx, "totals")
    shop.work()
    refresh(ctx)
    rebuild(ctx, "totals")

    assert verify(ctx, "totals").equal
    buyer = next(iter(shop.state["orders"].values()))["customer_id"]
    bought = sum(order["customer_id"] == buyer for order in shop.state["orders"].values())
    with open_reader(ctx.settings, ctx.settings.store.name, "totals", SqliteFile(file)) as reader:
        assert reader.many([buyer, -1]) == [{"customer_id": buyer, "orders": bought}, None]


def build(store: Store, name: str, sink: str) -> int:
    """A generation in the catalog alone."""
    return store.derived.create_generation(
        NewGeneration(
            name,
            fingerprint="",
            sink=sink,
            key=["id"],
            schema=pa.schema([("id", pa.int64())]).serialize().to_pybytes(),
            partitions=1,
            split=1,
            inputs=[InputNeed("shop.public.orders", "state", 0)],
        )
    )


def test_a_sink_whose_module_does_not_load_is_the_problem_of_its_projection_alone(
    shop: ShopLog, store: Store, settings: Settings, tmp_path: Path
) -> None:
    fine = spec_to_text(SqliteFile(str(tmp_path / "fine.db")))
    for name, sink in (("bad", LOST), ("fine", fine)):
        store.derived.promote(name, build(store, name, sink), None)
    ctx = ProjectionContext(store, settings, {})

    problems = {
        each.projection: each.problem for each in measure_progress(ctx, datetime.now(UTC), SinkInspector(60))
    }
    assert "a class that is not there any more" in problems["bad"] and problems["fine"] == ""
    assert [(each.projection, each.status) for each in undefined_outcomes(ctx)] == [
        ("bad", "frozen"),
        ("fine", "frozen"),
    ]
    (view,) = generations(ctx, "bad")
    assert view.live and "No module named 'no_such_module'" in view.problem


def test_a_generation_whose_sink_does_not_load_goes_by_its_number_alone_and_never_while_it_is_live(
    shop: ShopLog, store: Store, settings: Settings
) -> None:
    for _ in range(4):
        number = build(store, "bad", LOST)
        store.derived.promote("bad", number, store.derived.live("bad"))
    ctx = ProjectionContext(store, settings, {})

    with pytest.raises(UsageError, match="a class that is not there any more"):
        gc(ctx, "bad")
    with pytest.raises(UsageError, match="is live"):
        gc(ctx, "bad", number=4)
    (gone,) = gc(ctx, "bad", number=1)

    assert gone.generation == 1 and "a class that is not there any more" in gone.left
    assert [each.generation.number for each in generations(ctx, "bad")] == [2, 3, 4]

"""A sink of a user's own: the suite that every sink must pass, and a projection that is built into it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from eventstore.settings import Settings
from examples import sqlite_sink
from examples.sqlite_sink import SqliteFile
from projections import open_reader
from projections.lifecycle import rebuild, refresh, verify
from projections.sinks.contract import SinkContract
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.support.forking import Forked

TOTALS = """
    from pyspark.sql import functions as F
    from examples.sqlite_sink import SqliteFile
    from projections import State, projection

    @projection(
        key="customer_id", sink=SqliteFile("{file}"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""


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

"""Sail on the command line: asked for in the configuration, told by ``check`` and ``list``, a witness of ``verify``."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.tailrace.conftest import Project

MODULE = """
from pyspark.sql import functions as F
from tailrace import PostgresTable, State, projection

ORDERS = State("shop.public.orders", affects="customer_id")


@projection(key="customer_id", sink=PostgresTable("mart", "totals"), orders=ORDERS, freshness="2s")
def totals(orders):
    return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))


@projection(key="customer_id", sink=PostgresTable("mart", "means"), orders=ORDERS)
def means(orders):
    return orders.groupBy("customer_id").agg((F.sum("amount") / F.count("id")).alias("mean"))
"""


@pytest.mark.slow
def test_what_sail_may_compute_is_told_and_its_rows_are_a_witness(shop: Project, database: str) -> None:
    shop.module("views", MODULE)
    text = (shop.folder / "tailrace.toml").read_text()
    shop.configure(
        f'{text}\n[projections]\nmodules = ["views"]\n[spark]\nmaster = "local[2]"\nengine = "auto"'
    )
    shop.ok("init")
    shop.ok("capture", "--once")
    shop.ok("run", "--once")
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1")
    shop.ok("capture", "--once")
    shop.ok("run", "--once")

    listed = {
        line["projection"]: line
        for line in map(json.loads, shop.ok("--json", "projection", "list").out.splitlines())
    }
    assert listed["totals"]["parity"]["failed"] is None
    assert listed["means"]["parity"]["failed"] is not None
    checked = shop.ok("projection", "check").out
    assert "engine: equal to Spark on sail" in checked and "engine: Spark alone: " in checked

    (status,) = [
        each
        for each in json.loads(shop.ok("--json", "status").out)["projections"]
        if each["name"] == "totals"
    ]
    assert status["freshness"]["asked_seconds"] == 2 and status["freshness"]["got_seconds"] > 0

    proved = shop.ok("verify", "--witness", "totals").out.splitlines()
    assert len(proved) == 2 and "by Sail" in proved[1] and all("equals the log" in line for line in proved)
    refused = shop.run("verify", "--witness", "means")
    assert refused.code == 7 and "Sail is no witness for projection 'means'" in refused.err

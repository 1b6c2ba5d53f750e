"""From a commit to the log to a view, on throw-away servers: python examples/quickstart.py (needs tailrace[all])."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from tailrace import Store, load_settings
from tailrace.embedded import PostgresServer

CONFIG = """
[sources.shop]
dsn = "{dsn}"
tables = ["public.orders"]
[sinks.mart]
kind = "postgres"
dsn = "{dsn}"
[projections]
modules = ["totals"]
"""
TOTALS = """
from pyspark.sql import functions as F
from tailrace import PostgresTable, State, projection

@projection(key="customer", sink=PostgresTable("mart", "totals"), orders=State("shop.public.orders"))
def totals(orders):
    return orders.groupBy("customer").agg(F.sum("amount").alias("total"))
"""


def command(folder: Path, *arguments: str) -> None:
    print("$ tailrace", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "tailrace", *arguments], cwd=folder, check=True)


with PostgresServer() as server, tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "tailrace.toml").write_text(CONFIG.format(dsn=server.dsn()))
    (folder / "totals.py").write_text(TOTALS)
    with psycopg.connect(server.dsn(), autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric(10, 2))")
        db.execute("INSERT INTO orders VALUES (1, 'Ada', 10), (2, 'Ada', 5.5), (3, 'Grace', 7)")
        command(folder, "init")
        command(folder, "capture", "--until-idle")  # the first load
        db.execute("UPDATE orders SET amount = 12 WHERE id = 1")
        command(folder, "capture", "--until-idle")  # what came since
        command(folder, "log", "show", "shop.public.orders", "1")
        command(folder, "run", "--once")
        print(db.execute("SELECT customer, total FROM totals ORDER BY 1").fetchall())
    with Store.open(load_settings(folder / "tailrace.toml").store) as store:
        print("epochs in the log:", [(epoch.epoch, epoch.rows) for epoch in store.epochs()])

"""An installed Tailrace lives with a project that has packages named as the rooms of ours: each finds its own."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from textwrap import dedent

import psycopg
import pytest

from tailrace import __version__
from tests.support import REPOSITORY
from tests.support.spark_classes import options
from tests.support.wheels import PIP, make_environment, run
from tests.tailrace.conftest import Project

# Whatever of ours is looked for in these, it is not there.
FOREIGN = {
    "cdc": "def shout(name):\n    return name.upper() + '!'\n",
    "eventstore": "RATE = 2\n",
    "migrations": "COLUMNS = ['customer_id', 'total']\n",
    "tests": "SAMPLE = [3, 4]\n",
    "projections": "",
}
VIEWS = """
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from tailrace import PostgresTable, RedisCache, State, projection

import eventstore
from cdc import shout
from migrations import COLUMNS
from projections.specs import SqliteFile

ORDERS = State("shop.public.orders", affects="customer_id")


@projection(key="customer_id", sink=PostgresTable("mart", "totals", schema="mart"), orders=ORDERS)
def totals(orders):
    total = F.sum(orders.amount) * eventstore.RATE
    return orders.groupBy("customer_id").agg(total.alias("total")).select(*COLUMNS)


@projection(key="id", sink=RedisCache("cache"), customers=State("shop.public.customers"))
def loud(customers):
    def shouted(names: pd.Series) -> pd.Series:
        return names.map(shout)  # by a worker: it imports the project's own cdc

    return customers.select("id", F.pandas_udf(shouted, StringType())("name").alias("name"))


@projection(key="customer_id", sink=SqliteFile("counts.db"), orders=ORDERS)
def counts(orders):
    return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""
SERVICE = """
import json

import cdc, eventstore, migrations, projections, tests  # the project's own
import tailrace
from projections.views import counts, loud, totals

settings = tailrace.load_settings()
found = {"version": tailrace.__version__, "sample": tests.SAMPLE}
for view in (totals, loud, counts):
    with tailrace.open_reader(settings, settings.store.name, view.name, view.sink) as reader:
        found[view.name] = {key: value for key, value in reader.get(4).items() if key not in view.key}
with tailrace.Store.open(settings.store) as store:
    found["epochs"] = [epoch.rows for epoch in store.epochs()]
print(json.dumps(found, default=str))
"""


@pytest.fixture
def foreign(shop: Project, wheel: Path, redis_url: str, database: str, tmp_path: Path) -> Project:
    """A loaded log, and a project whose interpreter has the wheel: it sees the packages that are installed here, but
    not this checkout."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA mart")
    text = dedent((shop.folder / "tailrace.toml").read_text())
    sink = f'[sinks.cache]\nkind = "redis"\nurl = "{redis_url}"'
    modules = '[projections]\nmodules = ["projections.views"]\n[spark]\nmaster = "local[2]"'
    shop.configure(f"{text}\n{sink}\n{modules}")
    shop.ok("init")
    shop.ok("capture", "--once")

    shop.python = make_environment(tmp_path.with_name(f"{tmp_path.name}-venv"))
    run(*PIP, "--python", shop.python, "install", "--quiet", "--no-deps", wheel)
    site = run(shop.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # As a plain entry of sys.path: that folder's own .pth files, an editable install's too, are not read.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    daemon = [word for word in options().split() if not word.startswith("-Dspark.python.daemon")]
    shop.environment |= {"PYTHONPATH": "", "JAVA_TOOL_OPTIONS": " ".join(daemon)}
    shop.forked = False
    for name, content in FOREIGN.items():
        (shop.folder / name).mkdir()
        (shop.folder / name / "__init__.py").write_text(content)
    (shop.folder / "projections" / "views.py").write_text(VIEWS)
    own_sink = (REPOSITORY / "examples" / "sqlite_sink.py").read_text()
    (shop.folder / "projections" / "specs.py").write_text(own_sink)
    return shop


@pytest.mark.slow
def test_a_project_with_packages_named_like_ours_runs(foreign: Project, database: str) -> None:
    installed = Path(foreign.python).parents[1]
    where = run(foreign.python, "-c", "import tailrace; print(tailrace.__file__)", cwd=foreign.folder)
    assert Path(where.strip()).is_relative_to(installed)

    commands = (
        ["init"],
        ["projection", "check"],
        ["rebuild", "totals", "--yes"],
        ["run", "--once"],
        ["status"],
    )
    for done in (results := foreign.together(*commands)):
        assert done.code == 0, done.out + done.err
    live = {line.split()[0] for line in results[-1].out.splitlines() if " live " in line}
    assert live == {"totals", "loud", "counts"}
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*), sum(total) FROM mart.totals").fetchone() == (20, 10100)

    script = str(installed / "bin" / "tailrace")
    foreign.module("service", SERVICE)
    environment = f"SHOP_DSN={foreign.environment['SHOP_DSN']}"
    served = json.loads(run("env", environment, foreign.python, "service.py", cwd=foreign.folder))
    assert served == {
        "version": __version__,
        "sample": [3, 4],
        "totals": {"total": "430.00"},
        "loud": {"name": "CUSTOMER 4!"},
        "counts": {"orders": 5},
        "epochs": [120],
    }
    shown = run("env", environment, script, "status", "--json", cwd=foreign.folder)
    assert {each["name"] for each in json.loads(shown)["projections"]} == {"counts", "loud", "totals"}

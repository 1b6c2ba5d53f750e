"""A server of Spark Connect computes projections; this machine's Spark looks at plans alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tailrace.embedded.process import free_port
from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.settings import Settings
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.spark.connect import connect_session, functions_for
from tailrace.projections.spark.java import java_home
from tailrace.projections.spark.masters import check_master
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.shoplog import ShopLog, settings_in
from tests.support.capturing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.projections.context import ProjectionContext

# pyspark warns before it raises the error that says so.
pytestmark = pytest.mark.filterwarnings(r"ignore:\[RETRIES_EXCEEDED\]:UserWarning")
VIEWS = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    @projection(
        key="customer_id", sink=PostgresTable("mart", "totals"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"), F.max("id").alias("latest"))

    @projection(
        key="id", sink=PostgresTable("mart", "doubled"), trust=True,
        orders=State("shop.public.orders", affects="id"))
    def doubled(orders):
        twice = F.udf(lambda amount: None if amount is None else amount * 2, "decimal(14,2)")
        return orders.select("id", twice("amount").alias("amount"))

    @projection(
        key="id", sink=PostgresTable("mart", "largest"),
        orders=State("shop.public.orders", affects="id"))
    def largest(orders):
        return orders.where(F.col("amount") >= orders.agg(F.max("amount")).scalar()).select("id", "amount")
"""


@dataclass
class Server:
    """A server of Spark Connect on this machine, as Spark's own script starts it."""

    port: int
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        home = Path(pyspark.__file__).parent
        found = {
            "SPARK_HOME": str(home), "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        options = {
            "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
            "spark.local.dir": self.log.parent / "scratch", "spark.sql.warehouse.dir": self.log.parent / "warehouse",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [home / "bin" / "spark-submit", "--master", "local[2]", "--driver-memory", "1g", *words,
                 "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"],
                env=os.environ | found, cwd=self.log.parent, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, timeout=60)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.projections.spark.connect._TRIES", 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(free_port(), tmp_path_factory.mktemp("connect") / "server.log")
    try:
        started.start()
        yield started
    finally:
        started.kill()


@pytest.fixture
def settings(tmp_path: Path, database: str, redis_url: str, server: Server) -> Settings:
    return at(settings_in(tmp_path, dsn=database, redis_url=redis_url), server.address)


def at(given: Settings, master: str, *, shared_path: bool = True) -> Settings:
    return given.model_copy(
        update={
            "spark": given.spark.model_copy(update={"master": master}),
            "store": given.store.model_copy(update={"shared_path": shared_path}),
        }
    )


def refreshed(ctx: ProjectionContext) -> dict[str, RefreshOutcome]:
    outcomes = refresh(ctx)
    assert [each.error for each in outcomes if each.error] == []
    return {each.projection: each for each in outcomes}


def sums(shop: ShopLog) -> dict[object, Decimal]:
    found: dict[object, Decimal] = {}
    for row in shop.state["orders"].values():
        if row["amount"] is not None:
            found[row["customer_id"]] = found.get(row["customer_id"], Decimal(0)) + Decimal(
                str(row["amount"])
            )
    return found


def check(ctx: ProjectionContext, shop: ShopLog) -> None:
    """The sinks have what the shop's orders give, and a computation of everything finds them so."""
    totals = {row["customer_id"]: row["total"] for row in rows_of(ctx, "totals") if row["total"] is not None}
    assert totals == sums(shop)
    amounts = {key: row["amount"] for key, row in shop.state["orders"].items()}
    assert {row["id"]: row["amount"] for row in rows_of(ctx, "doubled")} == {
        key: None if amount is None else amount * 2 for key, amount in amounts.items()
    }
    most = max(amount for amount in amounts.values() if amount is not None)
    assert {row["id"] for row in rows_of(ctx, "largest")} == {k for k, v in amounts.items() if v == most}
    assert all(verify(ctx, name).equal for name in ctx.projections)


@pytest.mark.slow
def test_a_server_of_spark_connect_computes_first_builds_and_the_keys_that_change(
    deploy: Deploy, shop: ShopLog, spark: SparkSession
) -> None:
    ctx = deploy(VIEWS)
    assert type(ctx.computing_session).__module__.startswith("pyspark.sql.connect")
    here = spark.sparkContext.statusTracker()
    before = here.getJobIdsForGroup()
    assert {each.kind for each in refreshed(ctx).values()} == {"full"}
    check(ctx, shop)

    order = shop.state["orders"][1]
    for _ in range(3):  # the first ones may be full: the proof follows a full step
        shop.commit({"orders": [("c", shop.order(900, amount=Decimal("1.25"))), ("u", order)]})
        refreshed(ctx)
        shop.commit({"orders": [("d", {"id": 900})]})
        taken = refreshed(ctx)
    assert taken["totals"].kind == taken["doubled"].kind == "incremental"
    assert taken["largest"].reason.endswith("not compared over Spark Connect")
    check(ctx, shop)
    assert list(here.getJobIdsForGroup()) == list(before), "tasks ran in the JVM that looks at plans"


@pytest.mark.slow
def test_a_server_that_ends_is_waited_for_and_used_again(
    deploy: Deploy, shop: ShopLog, server: Server
) -> None:
    ctx = deploy(VIEWS)
    refreshed(ctx)
    shop.commit({"orders": [("c", shop.order(901, amount=Decimal(3)))]})
    server.kill()
    for outcome in refresh(ctx):
        assert isinstance(outcome.error, TransientError)
        assert "server of Spark Connect" in outcome.error.message
    server.start()
    refreshed(ctx)
    check(ctx, shop)


@pytest.mark.slow
def test_a_udf_that_a_module_makes_when_it_is_loaded_is_one_of_connect(
    deploy: Deploy, shop: ShopLog, server: Server
) -> None:
    with functions_for(server.address):
        ctx = deploy(
            """
            from pyspark.sql import functions as F
            from pyspark.sql.types import DecimalType
            from tailrace.projections import PostgresTable, State, projection

            doubled = F.udf(lambda amount: amount * 2, DecimalType(14, 2))

            @projection(
                key="id", sink=PostgresTable("mart", "dear"),
                orders=State("shop.public.orders", affects="id"))
            def dear(orders):
                return orders.where("amount > 2").select("id", doubled("amount").alias("amount"))
            """
        )
    refreshed(ctx)
    shop.commit({"orders": [("c", shop.order(902, amount=Decimal(7)))]})
    assert "belong to Spark Connect" in refreshed(ctx)["dear"].reason
    assert {row["id"] for row in rows_of(ctx, "dear")} == {
        key for key, row in shop.state["orders"].items() if row["amount"] is not None and row["amount"] > 2
    }


def test_what_cannot_be_reached_or_would_show_a_token_is_refused(tmp_path: Path) -> None:
    given = settings_in(tmp_path, dsn="postgresql:///nowhere", redis_url="redis://no")
    with pytest.raises(UsageError, match="folder of this machine"):
        check_master(at(given, "sc://spark:15002", shared_path=False))
    with pytest.raises(UsageError, match="holds a token"):
        check_master(at(given, "sc://spark:15002/;token=s3cret"))
    with pytest.raises(UsageError, match="no address of Spark Connect"):
        connect_session(at(given, "sc://spark:15002/path"))


@pytest.mark.slow
def test_nobody_at_the_address_is_told_so(tmp_path: Path) -> None:
    given = settings_in(tmp_path, dsn="postgresql:///nowhere", redis_url="redis://no")
    with pytest.raises(TransientError, match="cannot be used") as caught:
        connect_session(at(given, f"sc://127.0.0.1:{free_port()}"))
    assert "Connection refused" in caught.value.message

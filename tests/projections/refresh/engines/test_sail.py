"""Sail computes what it was seen to compute as Spark does, and nothing else; what it gives is what Spark gives."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import ParquetFolder, State, projection
from tailrace.projections.compute.frames import contents_of
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.order import refresh_order
from tailrace.projections.generations.generation import Parity
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.engines.witness import SHARE
from tailrace.projections.round.plans import KeptPlans
from tailrace.projections.spark.connect import remote_functions
from tailrace.projections.spark.sail import sail_session, sail_version
from tests.fixtures.scale import Scale
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.refresh.randomshop import ALTERABLE, RandomShop
from tests.projections.refresh.test_gallery import (
    EACH,
    everything,
    followed_or_refused,
    lacks_key,
    live,
    standing,
)
from tests.projections.shoplog import ShopLog, settings_in, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = """
    from pathlib import Path
    from pyspark.sql import functions as F, types as T
    from tailrace.projections import ParquetFolder, State, projection
    LAKE = ParquetFolder("lake")
"""
SMALL, LARGE = 256 << 20, 0
"""What counts as small inputs: all, none."""


def on_sail(settings: Settings, engine: str = "auto", small_bytes: int = SMALL) -> Settings:
    spark = settings.spark.model_copy(update={"engine": engine, "small_bytes": small_bytes})
    return settings.model_copy(update={"spark": spark})


def definition(name: str, body: str, affects: str = "None", key: str = "id") -> str:
    return f"""
    @projection(key="{key}", sink=LAKE, orders=State("shop.public.orders", affects={affects}))
    def {name}(orders):
        {body}
"""


TOTALS = HEAD + definition(
    "totals",
    'return orders.groupBy("customer_id").agg(F.count("id").alias("orders"), F.sum("amount").alias("total"))',
    '"customer_id"',
    "customer_id",
)


@projection(key="id", sink=ParquetFolder("lake"), orders=State("shop.public.orders"))
def copy_of_orders(orders: Any) -> Any:
    return orders


@pytest.fixture
def sailing(deploy: Deploy) -> Deploy:
    """A context with those definitions, which may use Sail."""

    def context(source: str, small_bytes: int = SMALL, engine: str = "auto") -> ProjectionContext:
        ctx = deploy(source)
        return ProjectionContext(
            ctx.store, on_sail(ctx.settings, engine, small_bytes), ctx.projections, clock=standing_still
        )

    return context


def last_record(ctx: ProjectionContext, name: str) -> RunRecord:
    (record,) = ctx.store.run_records.latest(name, limit=1)
    return record


def parity(ctx: ProjectionContext, name: str) -> Parity | None:
    return live(ctx, name).parity


def refreshed(ctx: ProjectionContext) -> None:
    assert [outcome.error for outcome in refresh(ctx)] == [None] * len(ctx.projections)


@pytest.mark.parametrize(
    ("small_bytes", "kind"),
    [(SMALL, "full"), pytest.param(LARGE, "incremental", marks=pytest.mark.slow)],
)
def test_a_definition_is_built_by_spark_compared_once_and_then_computed_by_sail(
    shop: ShopLog, sailing: Deploy, small_bytes: int, kind: str
) -> None:
    ctx = sailing(TOTALS, small_bytes)
    refreshed(ctx)
    assert last_record(ctx, "totals").engine is None, "a first build is Spark's"
    found = parity(ctx, "totals")
    assert found is not None and found.failed is None and found.engine == sail_version()
    for number in range(3):
        shop.commit({"orders": [("c", shop.order(900 + number, customer_id=3))]})
        refreshed(ctx)
        record = last_record(ctx, "totals")
        assert (record.engine, record.kind) == ("sail", kind), record.reason
    assert verify(ctx, "totals").equal
    assert parity(ctx, "totals") == found, "once"


def test_a_comparison_leaves_nothing_in_spark_s_memory_also_where_an_engine_raises_an_error(
    shop: ShopLog, sailing: Deploy
) -> None:
    """Python's collector does not see how large in the JVM is what it has yet to collect."""
    from pyspark.sql.classic.dataframe import DataFrame

    body = 'return orders.select("id", (F.col("customer_id") * 2147483647).alias("large"))'
    ctx = sailing(HEAD + definition("large", body))
    gc.collect()
    gc.disable()
    try:
        refreshed(ctx)
        held = [each for each in gc.get_objects() if isinstance(each, DataFrame)]
    finally:
        gc.enable()
    found = parity(ctx, "large")
    assert found is not None and "edge values" in str(found.failed)
    assert not held


def test_a_part_of_a_table_is_followed_by_key_however_small_and_however_many_rows_of_others_change(
    shop: ShopLog, sailing: Deploy
) -> None:
    part = definition("part", 'return orders.where("id % 50 = 0").select("id", "amount")', '"id"')
    ctx = sailing(HEAD + part)
    shop.commit({"orders": [("c", shop.order(number)) for number in range(5000, 9000)]})
    refreshed(ctx)
    for changed in (range(5000, 5001), range(5000, 6200), range(5001, 5002)):
        shop.commit({"orders": [("u", shop.order(number, amount=Decimal(7))) for number in changed]})
        refreshed(ctx)
        record = last_record(ctx, "part")
        assert (record.engine, record.kind, record.keys) == ("sail", "incremental", len(changed)), (
            record.reason
        )
        assert verify(ctx, "part").equal
    shop.commit({"orders": [("u", shop.order(number, amount=Decimal(8))) for number in range(5000, 9000)]})
    refreshed(ctx)
    record = last_record(ctx, "part")
    assert (record.engine, record.kind) == ("sail", "full"), record.reason
    assert "4,000 keys are affected, of " in record.reason
    assert verify(ctx, "part").equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "why"),
    [
        # Spark raises an error where a sum does not fit; Sail's wraps around.
        ('return orders.select("id", (F.col("quantity") + 1).alias("n"))', "edge values"),
        # Sail's quotient of decimals has fewer digits.
        (
            'return orders.select("id", (F.col("amount") / F.lit("3").cast("decimal(10,4)")).alias("n"))',
            "columns",
        ),
        # Sail 0.7 runs no Python of a client of 4.3.
        ('return orders.mapInArrow(lambda rows: rows, orders.schema).select("id")', "Sail cannot|error"),
    ],
)
def test_what_sail_gives_otherwise_stays_with_spark_and_is_told(
    shop: ShopLog, sailing: Deploy, body: str, why: str
) -> None:
    ctx = sailing(HEAD + definition("odd", body))
    refreshed(ctx)
    found = parity(ctx, "odd")
    assert found is not None and found.failed is not None
    assert any(word in found.failed for word in why.split("|")), found.failed
    shop.commit({"orders": [("c", shop.order(900))]})
    refreshed(ctx)
    assert last_record(ctx, "odd").engine is None
    assert verify(ctx, "odd").equal


@pytest.mark.slow
def test_without_being_asked_for_sail_is_not_used(shop: ShopLog, sailing: Deploy) -> None:
    ctx = sailing(TOTALS, engine="spark")
    refreshed(ctx)
    shop.commit({"orders": [("c", shop.order(900))]})
    refreshed(ctx)
    assert parity(ctx, "totals") is None and last_record(ctx, "totals").engine is None


@pytest.mark.slow
def test_a_step_that_sail_fails_is_spark_s(
    shop: ShopLog, sailing: Deploy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "from now on"
    body = f"""missing = "nothing" if Path({str(flag)!r}).exists() and "connect" in type(orders).__module__ else "id"
        return orders.select(F.col(missing).alias("id"), "amount")"""
    ctx = sailing(HEAD + definition("missing", body))
    refreshed(ctx)
    flag.touch()
    ctx.kept_plans = KeptPlans()  # the function is called again
    shop.commit({"orders": [("c", shop.order(900))]})
    with caplog.at_level(logging.WARNING):
        refreshed(ctx)
    assert last_record(ctx, "missing").engine is None and "Sail could not compute" in caplog.text
    assert verify(ctx, "missing").equal


@pytest.mark.parametrize("affects", ["None", pytest.param('"id"', marks=pytest.mark.slow)])
def test_a_plan_is_made_once_and_runs_over_what_each_step_reads(
    shop: ShopLog, sailing: Deploy, tmp_path: Path, affects: str
) -> None:
    """All rows of the input, or those of the changed keys."""
    calls = tmp_path / "calls"
    body = f"""with Path({str(calls)!r}).open("a") as file:
            file.write("sail " if "connect" in type(orders).__module__ else "spark ")
        return orders.where("amount > 0").select("id", "amount", "customer_id")"""
    ctx = sailing(HEAD + definition("counted", body, affects))
    refreshed(ctx)
    shop.commit({"orders": [("c", shop.order(900)), ("c", shop.order(901))]})
    refreshed(ctx)
    before = calls.read_text().split().count("sail")
    for number in range(902, 906):
        shop.commit(
            {
                "orders": [
                    ("c", shop.order(number)),
                    ("u", shop.order(number - 1)),
                    ("d", shop.state["orders"][number - 2]),
                ]
            }
        )
        refreshed(ctx)
        assert last_record(ctx, "counted").engine == "sail"
        assert len(rows_of(ctx, "counted")) == len(
            [row for row in shop.state["orders"].values() if row["amount"] > 0]
        )
    assert calls.read_text().split().count("sail") == before
    assert verify(ctx, "counted").equal


def test_contexts_of_one_process_do_not_show_each_other_their_rows() -> None:
    """The session, and with it the names of views, is the process's."""
    session = sail_session(Settings())

    def rows_shown(plans: KeptPlans, given: pa.Table) -> list[int]:
        with remote_functions():
            held = {"orders": contents_of(session, "orders", given)}
            result = plans.result(session, copy_of_orders, held, lambda tables: tables["orders"])
            return [row["id"] for row in result.toArrow().to_pylist()]

    first, second = KeptPlans(), KeptPlans()
    mine, other = (pa.table({"id": pa.array([number], pa.int64())}) for number in (1, 2))
    assert [rows_shown(first, mine), rows_shown(second, other)] == [[1], [2]]
    assert [rows_shown(first, mine), rows_shown(first, other), rows_shown(second, other)] == [[1], [2], [2]]


@pytest.mark.slow
def test_a_session_that_was_stopped_is_replaced(shop: ShopLog, sailing: Deploy) -> None:
    ctx = sailing(TOTALS)
    refreshed(ctx)
    sail_session(ctx.settings).stop()
    shop.commit({"orders": [("c", shop.order(900))]})
    refreshed(ctx)
    assert last_record(ctx, "totals").engine == "sail" and verify(ctx, "totals").equal


def test_children_start_untroubled_while_sail_computes() -> None:
    """As Spark's JVM is started, with a function that runs between fork and exec. In a process of its own: what gRPC
    does for children is decided when it begins."""
    program = """
        import subprocess, threading
        from tailrace.eventstore.settings import Settings
        from tailrace.projections.spark.connect import remote_functions
        from tailrace.projections.spark.sail import sail_session
        session = sail_session(Settings())
        ended = threading.Event()
        def compute():
            with remote_functions():
                while not ended.is_set():
                    session.range(5).count()
        computing = threading.Thread(target=compute)
        computing.start()
        try:
            for _ in range(40):
                subprocess.run(["true"], check=True, preexec_fn=lambda: None)
        finally:
            ended.set()
            computing.join()
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("small_bytes", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_rows_that_spark_gives_otherwise_end_sail_s_work_and_are_computed_again(
    shop: ShopLog, sailing: Deploy, tmp_path: Path, small_bytes: int
) -> None:
    """The definition gives another result on Sail from a moment on, as an engine with a mistake would."""
    flag = tmp_path / "from now on"
    body = f"""more = 1 if Path({str(flag)!r}).exists() and "connect" in type(orders).__module__ else 0
        return orders.select("id", (F.col("amount") + F.lit(more)).cast("decimal(12,2)").alias("amount"))"""
    ctx = sailing(HEAD + definition("lying", body, '"id"'), small_bytes)
    refreshed(ctx)
    flag.touch()
    ctx.kept_plans = KeptPlans()  # the function is called again
    shop.commit({"orders": [("c", shop.order(900))]})
    refreshed(ctx)
    assert last_record(ctx, "lying").engine == "sail"
    assert not verify(ctx, "lying").equal, "nobody looked"

    ctx.witness_time.saved = ctx.witness_time.cost / SHARE
    shop.commit({"orders": [("c", shop.order(901))]})
    refreshed(ctx)
    found, record = parity(ctx, "lying"), last_record(ctx, "lying")
    assert found is not None and found.failed is not None and "others than" in found.failed
    assert record.engine is None and record.kind == "full"
    assert verify(ctx, "lying").equal
    with pytest.raises(OperatorError, match="no witness"):
        verify(ctx, "lying", on="sail")


@pytest.mark.slow
def test_sail_is_a_witness_of_what_spark_computed(shop: ShopLog, sailing: Deploy) -> None:
    ctx = sailing(TOTALS, engine="spark")
    refreshed(ctx)
    compared = verify(ctx, "totals", on="sail")
    assert compared.equal and compared.engine == "sail" and compared.rows == len(rows_of(ctx, "totals"))
    assert verify(ctx, "totals", on="sail", sample=2, seed=7).equal


def steps_by_engine(
    folder: Path, seed: int, steps: int, small_bytes: int, chosen: Sequence[str]
) -> Mapping[str, Counter[str]]:
    """By projection, how many steps of a random history each engine took. Every step is compared with everything."""
    folder.mkdir()
    settings = on_sail(
        settings_in(folder, dsn="postgresql:///nowhere", redis_url="redis://nowhere"), "auto", small_bytes
    )
    found: dict[str, Counter[str]] = {name: Counter() for name in chosen}
    with Store.open(settings.store, create=True) as store:
        shop = RandomShop(ShopLog.start(store, ALTERABLE), Random(seed))
        done = shop.step(25)
        in_order = {name: EACH[name] for name in refresh_order(EACH, chosen)}
        ctx = ProjectionContext(store, settings, in_order, clock=standing_still)
        for name in in_order:
            rebuild(ctx, name)
        for number in range(1, steps + 1):
            done += ["--", *shop.step(6)]
            cut, where = store.cut(), f"seed {seed}, step {number}: {done}"
            for name, projection in in_order.items():
                expected = everything(ctx, projection, cut)
                taken = followed_or_refused(ctx, projection, cut)
                if lacks_key(projection, expected):
                    assert isinstance(taken, str), (name, where)
                    continue
                assert not isinstance(taken, str), (name, taken, where)
                if taken is not None:
                    found[name][taken.on] += 1
                rows = sorted(map(str, expected.to_pylist()))
                assert standing(ctx, live(ctx, name)) == rows, (name, taken, where)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("small_bytes", [SMALL, LARGE])
def test_every_step_of_random_histories_is_what_spark_gives_whoever_takes_it(
    spark: SparkSession, tmp_path: Path, scale: Scale, small_bytes: int
) -> None:
    some = (
        "left_join_totals",
        "window_numbers",
        "semi_join_buyers",
        "union_mentions",
        "sql_totals",
        "sql_pairs",
    )
    chosen = scale.pick(smoke=some, full=tuple(EACH))
    for seed in range(scale.pick(smoke=1, full=3)):
        found = steps_by_engine(tmp_path / str(seed), seed, scale.pick(smoke=3, full=12), small_bytes, chosen)
        on_sail_too = [name for name in chosen if found[name]["sail"]]
        assert len(on_sail_too) >= len(chosen) // 3, found

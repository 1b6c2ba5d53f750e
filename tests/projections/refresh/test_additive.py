"""Partial results that add up: whatever happens to the rows, they are what computing everything gives, though a step
reads no row but those that changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pytest

from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Additive
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh import by_stage
from tailrace.projections.refresh.by_key.sums import added, plain_sums
from tailrace.projections.refresh.plan import NotIncremental
from tests.fixtures.scale import Scale
from tests.projections.refresh.engines.test_sail import LARGE, on_sail
from tests.projections.refresh.randomshop import ALTERABLE, ALTERATIONS, TRUNCATE, RandomShop
from tests.projections.shoplog import ShopLog, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings

QUERIES = {
    "by_customer": (
        "customer",
        "select coalesce(customer_id, 0) as customer, sum(amount) as amount, count(*) as orders,"
        " count(amount) as priced, avg(amount) as mean, sum(amount) filter (where status = 'paid') as paid"
        " from orders group by coalesce(customer_id, 0)",
    ),
    "by_status": (
        "status",
        "select status, sum(amount) + count(*) as points from orders where id > 2 group by status having count(*) > 1",
    ),
    "as_it_is": (
        "status",
        "select status, sum(amount) as amount, sum(quantity) as items, count(*) as orders, count(amount) as priced"
        " from orders group by status",
    ),
    "total": ("what", "select 'all' as what, sum(amount) as amount, count(*) as orders from orders"),
    "best": (
        "status",
        "select status, coalesce(sum(amount), 0) as amount from orders group by status"
        " order by amount desc, status limit 2",
    ),
}
HEADER = """/* projection
key = "{key}"
sink = {{ kind = "postgres", sink = "mart", table = "{name}" }}
inputs.orders = "shop.public.orders"
*/
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial results are begun by the first refresh."""
    monkeypatch.setattr(by_stage, "_LONG_FOR_SUMS", 0.0)
    monkeypatch.setattr(by_stage, "_REFRESHES", 1)


@pytest.fixture
def context(store: Store, settings: Settings, tmp_path: Path, spark: SparkSession) -> ProjectionContext:
    (tmp_path / "queries").mkdir()
    for name, (key, query) in QUERIES.items():
        (tmp_path / "queries" / f"{name}.sql").write_text(HEADER.format(key=key, name=name) + query)
    loaded = load_projections([], tmp_path, ["queries"])
    return ProjectionContext(store, settings, loaded, clock=standing_still)


def last_record(ctx: ProjectionContext, name: str) -> RunRecord:
    (record,) = ctx.store.run_records.latest(name, limit=1)
    return record


@pytest.mark.slow
def test_sail_adds_what_it_was_seen_to_compute_and_a_witness_ends_partial_results(
    shop: ShopLog, context: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large table they are begun at once."""
    monkeypatch.setattr(by_stage, "_REFRESHES", 100)
    ctx = ProjectionContext(
        context.store, on_sail(context.settings, "auto", LARGE), context.projections, clock=standing_still
    )
    for number in range(3):
        assert not [each.error for each in refresh(ctx) if each.error is not None]
        shop.commit({"orders": [("c", shop.order(900 + number, customer_id=1))]})
    assert [last_record(ctx, name).engine for name in ("by_customer", "by_status")] == ["sail", "sail"]
    assert all(verify(ctx, name).equal for name in QUERIES)

    with monkeypatch.context() as patched:
        patched.setattr(
            "tailrace.projections.refresh.step.witness",
            lambda step, *_: None if step.generation.is_stage else "its rows are others",
        )
        (outcome,) = refresh(ctx, ["by_customer"])
    (mark,) = ctx.generations("by_customer.1")
    assert (outcome.kind, last_record(ctx, "by_customer").engine) == ("full", None)
    assert (mark.state, ctx.store.steps.list("by_customer.1", 1)) == ("failed", [])
    shop.commit({"orders": [("c", shop.order(910, customer_id=1))]})
    (outcome,) = refresh(ctx, ["by_customer"])
    assert "partial results" not in outcome.reason
    assert verify(ctx, "by_customer").equal


def test_the_first_build_of_a_large_table_makes_them_and_a_step_without_them_is_no_reason_to_leave_them(
    shop: ShopLog, context: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_stage, "_REFRESHES", 100)
    monkeypatch.setattr(by_stage, "_LONG_SECONDS", 0.0)
    settings = on_sail(context.settings, "spark", LARGE)
    ctx = ProjectionContext(context.store, settings, context.projections, clock=standing_still)
    assert not [each.error for each in refresh(ctx) if each.error is not None]
    assert [ctx.generations(f"{name}.1")[0].state for name in QUERIES] == ["ready"] * len(QUERIES)

    def reason(name: str) -> str:
        shop.commit({"orders": [("c", shop.order(900 + shop.store.cut().epoch, customer_id=1))]})
        (outcome,) = refresh(ctx, [name])
        assert verify(ctx, name).equal
        return outcome.reason

    with monkeypatch.context() as patched:
        patched.setattr("tailrace.projections.refresh.step.compute_additively", _too_large)
        assert reason("by_customer").endswith("by way of partial results, all of which were computed anew")
    assert reason("by_customer").endswith("by way of partial results, 1 key of which were computed anew")
    rebuild(ctx, "by_customer")
    assert reason("by_customer").endswith("by way of partial results, 1 key of which were computed anew")
    assert ctx.generations("by_customer.2")[0].state == "ready"


def test_what_is_only_grouped_summed_and_counted_is_added_up_without_an_engine(
    shop: ShopLog, context: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        assert not [each.error for each in refresh(context, ["as_it_is"]) if each.error is not None]
        shop.commit({"orders": [("c", shop.order(900 + number, customer_id=1))]})
    for place in ("by_key.additive.result_over", "step.restricted_result"):
        monkeypatch.setattr(f"tailrace.projections.refresh.{place}", _too_large)
    (outcome,) = refresh(context, ["as_it_is"])
    assert (outcome.kind, outcome.reason.rpartition("; ")[2]) == (
        "incremental", "by way of partial results, 1 key of which were computed anew",
    )  # fmt: skip
    assert verify(context, "as_it_is").equal


def _too_large(*_: object) -> NoReturn:
    raise NotIncremental("its rows took too much memory", "size")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_they_are_what_computing_everything_gives_whatever_happens_to_the_rows(
    store: Store, context: ProjectionContext, monkeypatch: pytest.MonkeyPatch, scale: Scale, seed: int
) -> None:
    if seed == 0:  # as of a large table
        monkeypatch.setattr("tailrace.projections.refresh.by_key.rows_before._LONG_SECONDS", 0.0)
    shop = RandomShop(ShopLog.start(store, ALTERABLE), Random(seed))
    done, steps = shop.step(25), scale.pick(smoke=16, full=200)
    alterations, followed, put_off = [*ALTERATIONS, TRUNCATE], 0, 0
    held, now = ExitStack(), [0.0]
    monkeypatch.setattr(context.kept_sums, "_clock", lambda: now[0])
    for number in range(steps):
        if number % 7 == 0:  # another process goes on
            held.close()
            held.enter_context(context.kept_rows.at_work())
            held.enter_context(context.kept_sums.at_work())
        now[0] += 40
        altered = (alterations.pop(0),) if number % 5 == 4 and alterations else ()
        done += ["--", *shop.step(shop.random.randint(1, 5), *altered)]
        outcomes = refresh(context)
        context.kept_rows.finish()
        assert not [each.error for each in outcomes if each.error is not None], done
        followed += sum(each.kind == "incremental" for each in outcomes)
        for name in QUERIES:
            partial_results = store.steps.last(f"{name}.1", 1)
            put_off += partial_results is not None and partial_results.to_epoch < store.cut().epoch
            if number % 8 == 7:
                assert verify(context, name).equal, (name, done)
    held.close()
    assert followed > steps
    assert put_off > steps // 2


ADDITIVE = Additive("orders", "rows", {"total": "counted"})
PLAIN = replace(ADDITIVE, columns={"key": "key", "total": "total"}, counts={"counted": "total", "rows": None})
PRICES = pa.array([Decimal("1.50"), None], pa.decimal128(12, 2))


def table(*rows: tuple[str, str | None, int, int]) -> pa.Table:
    columns: Mapping[str, list[object]] = {
        "key": [row[0] for row in rows],
        "total": [None if row[1] is None else Decimal(row[1]) for row in rows],
        "counted": [row[2] for row in rows],
        "rows": [row[3] for row in rows],
    }
    kinds = [
        ("key", pa.string()),
        ("total", pa.decimal128(38, 2)),
        ("counted", pa.int64()),
        ("rows", pa.int64()),
    ]
    return pa.table(columns, schema=pa.schema(kinds))


def test_a_key_may_be_left_without_rows_and_a_sum_of_no_values_is_null() -> None:
    held = table(("a", "5.00", 2, 3), ("b", "1.00", 1, 2), ("c", "2.00", 1, 1))
    before = table(("a", "5.00", 2, 2), ("c", "2.00", 1, 1))
    now = table(("b", "1.50", 1, 1), ("d", None, 0, 1))
    found = added(held, before, now, ADDITIVE, ["key"])
    expected = table(("a", None, 0, 1), ("b", "2.50", 2, 3), ("c", None, 0, 0), ("d", None, 0, 1))
    assert found.sort_by("key").equals(expected)


@pytest.mark.parametrize(
    ("held", "before", "now", "cause"),
    [
        (table(), table(("a", "1.00", 1, 1)), table(), "proof"),
        (table(("a", "9" * 36 + ".00", 1, 1)), table(), table(("a", "1.00", 1, 1)), "size"),
    ],
)
def test_values_that_do_not_fit_are_computed_anew(
    held: pa.Table, before: pa.Table, now: pa.Table, cause: str
) -> None:
    with pytest.raises(NotIncremental) as refused:
        added(held, before, now, ADDITIVE, ["key"])
    assert refused.value.cause == cause


@pytest.mark.parametrize(
    "cells", [PRICES, pa.array([3, None], pa.int32()), pa.array([None, None], pa.int64())]
)
def test_a_row_is_the_sum_of_itself(cells: pa.Array) -> None:
    rows = pa.table({"key": pa.array(["a", "b"]), "total": cells})
    first = cells[0].as_py()
    expected = table(
        ("a", None if first is None else str(first), int(first is not None), 1), ("b", None, 0, 1)
    )
    found = plain_sums(rows, PLAIN, expected.schema, ["key"])
    assert found is not None and found.equals(expected)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("key", pa.array([1, 2])),
        ("total", pa.array(["1.2", None])),
        ("total", pa.array([1.5, None])),
        ("total", pa.array([Decimal("1.2345"), None])),
    ],
)
def test_an_engine_says_what_columns_of_other_types_add_up_to(column: str, cells: pa.Array) -> None:
    rows = pa.table({"key": pa.array(["a", "b"]), "total": PRICES} | {column: cells})
    assert plain_sums(rows, PLAIN, table().schema, ["key"]) is None

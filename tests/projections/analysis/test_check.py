"""All that is wrong with a projection is said at once, with its place, before any row is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import Projection
from tailrace.projections.analysis.check import examine
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tests.projections.analysis import mistaken
from tests.projections.conftest import Deploy
from tests.projections.shoplog import TABLES, ShopLog

FILE = "tests/projections/analysis/mistaken.py"


def line(name: str) -> int:
    found: Projection = getattr(mistaken, name)
    return found.line


def said(found: tuple[DefinitionFinding, ...]) -> list[tuple[str, str]]:
    """Lines and words."""
    return [(each.place.removeprefix(f"{FILE}:").partition(":")[0], each.what) for each in found]


def test_a_sound_projection_is_incremental_and_the_inputs_that_nobody_follows_are_named(
    empty_shop: ProjectionContext,
) -> None:
    found = examine(empty_shop, mistaken.sound)
    assert (found.ok, found.findings, found.exit_code) == (True, (), 0)
    assert (found.incremental, found.reasons, found.whole) == (True, (), ("products",))


def test_what_the_plan_the_code_and_the_sink_object_to_is_said_together(
    empty_shop: ProjectionContext,
) -> None:
    found = examine(empty_shop, mistaken.messy)
    here = line("messy")
    assert said(found.findings) == [
        (str(here), "sink: the folder is partitioned by 'citty', which is not in the output"),
        (str(here), "sink: the folder is partitioned by 'ciity', which is not in the output"),
        (str(here + 4), "first(status) takes whichever row comes, and rows come in any order"),
        (str(here + 4), "sum(amount) adds floating-point numbers, whose sum depends on the order of rows"),
    ]
    assert said(found.reasons) == [
        (str(here + 2), "it takes a number of rows of the whole result, not of each key"),
        (str(here), "its result is not the same each time, as said above"),
    ]
    assert (found.ok, found.incremental, found.exit_code) == (False, False, 7)


def test_every_unknown_name_is_found_at_once_with_what_comes_close(empty_shop: ProjectionContext) -> None:
    found = examine(empty_shop, mistaken.lost)
    here = line("lost")
    assert said(found.findings) == [
        (str(here + 3), "input 'orders': no topic shop.public.ordes in the log"),
        (str(here + 4), "input 'customers': columns names nmae, which shop.public.customers does not have"),
        (str(here + 4), "input 'customers': cast names citi, which shop.public.customers does not have"),
        (str(here + 5), "input 'placed': shop.public.products is a topic of table, read as Events"),
        (str(here + 2), "there is no sink 'marts'"),
    ]
    assert found.findings[1].hint == "did you mean name? its columns are id, name, city"
    assert (found.findings[1].input, found.findings[1].column) == ("customers", "nmae")
    assert (found.incremental, found.exit_code) == (None, 2)


def test_a_function_that_fails_and_a_result_without_its_key_are_said(empty_shop: ProjectionContext) -> None:
    raising, keyless = examine(empty_shop, mistaken.raising), examine(empty_shop, mistaken.keyless)
    (failed,), (lacks,) = raising.findings, keyless.findings
    assert failed.what.startswith(f"failed defining its result ({FILE}:{line('raising') + 2}): ")
    assert "custmer_id" in failed.what and "customer_id" in failed.what
    assert lacks.what == "its output lacks its key: no column order_id among id, status"


def test_a_column_of_nulls_without_a_type_is_told_before_a_build_fails_on_it(
    empty_shop: ProjectionContext,
) -> None:
    found = examine(empty_shop, mistaken.untyped)
    assert said(found.findings) == [
        (str(line("untyped")), "sink: column 'note' has type null: cast it, for example to string")
    ]


def test_without_a_lineage_every_refresh_is_full_and_that_is_said(empty_shop: ProjectionContext) -> None:
    found = examine(empty_shop, mistaken.unfollowed)
    assert (found.ok, found.incremental) == (True, False)
    assert said(found.reasons) == [(str(line("unfollowed")), "no input says what it affects (affects=)")]


@pytest.mark.slow
def test_what_nobody_foresaw_in_one_projection_is_a_finding_of_it(empty_shop: ProjectionContext) -> None:
    (miscast,) = examine(empty_shop, mistaken.miscast).findings
    assert miscast.what.startswith("failed casting orders.status to nonsense")
    (unopened,) = examine(empty_shop, mistaken.unopened).findings
    assert unopened.what.startswith(f"failed being examined ({FILE}:") and "KeyError" in unopened.what
    looking = examine(empty_shop, mistaken.looking)
    assert looking.reasons[0].what == "it looks at rows while it defines its result"


def test_unknown_names_a_missing_key_the_plan_and_the_sink_are_all_told_at_once(
    empty_shop: ProjectionContext,
) -> None:
    found = examine(empty_shop, mistaken.all_at_once)
    wanted = (
        "input 'customers': cast names citi",
        "customr_id",
        "statuss",
        "ammount",
        "its output lacks its key: no column day among order_id, status, total, seen",
        "sink: the folder is partitioned by 'citty', which is not in the output",
        "limit takes whichever rows come first",
        "first(name) takes whichever row comes",
        "current_date() is another time in each refresh",
    )
    told = [each.what for each in found.findings]
    assert len(told) == len(wanted), told
    for words in wanted:
        assert any(words in what for what in told), (words, told)
    assert (found.incremental, found.exit_code) == (None, 2)


NUMERIC_TEXT = """
from tailrace.projections import ParquetFolder, Result, State, projection

LAKE = ParquetFolder("lake")

@projection(key="id", sink=LAKE, products=State("shop.public.products", affects="id"))
def weighed(products):
    return products.selectExpr("id", "name", "coalesce(weight, '0') AS kilos", "weight AS told")

@projection(key="id", sink=LAKE, products=State("shop.public.products", cast={"weight": "decimal(20,4)"}))
def typed(products):
    return products.select("id", "weight")

@projection(key="name", sink=LAKE, weighed=Result("weighed", affects="name"))
def heaviest(weighed):
    return weighed.groupBy("name").agg({"kilos": "max"})

@projection(key="kilos", sink=LAKE, weighed=Result("weighed"))
def sizes(weighed):
    return weighed.groupBy("kilos").count()

@projection(key="id", sink=LAKE, listed=Result("again"))
def twice_read(listed):
    return listed.selectExpr("id", "told * 2 AS doubled")

@projection(key="id", sink=LAKE, listed=Result("weighed"))
def again(listed):
    return listed.select("id", "told")

@projection(key="weight", sink=LAKE, typed=Result("typed"))
def of_typed(typed):
    return typed.groupBy("weight").count()
"""


@pytest.mark.slow
def test_numeric_text_is_followed_through_the_results_of_other_projections(
    shop: ShopLog, deploy: Deploy
) -> None:
    columns = (*TABLES["products"].columns, Column(5, "weight", 1700, type_name="numeric"))
    product = shop.state["products"][1] | {"weight": "1.0"}
    shop.commit({"products": [("u", product)]}, new_schemas={"products": TopicSchema(2, columns)})
    ctx = deploy(NUMERIC_TEXT)
    for name in ("weighed", "typed", "again"):
        rebuild(ctx, name)
    found = {
        name: [
            (each.input, each.column, each.what.rpartition(", and ")[2])
            for each in examine(ctx, ctx.projections[name]).findings
        ]
        for name in ("heaviest", "sizes", "twice_read", "of_typed")
    }
    assert found == {
        "heaviest": [("weighed", "kilos", "is compared as text (max)")],
        "sizes": [("weighed", "kilos", "is compared as text (groupBy)")],
        "twice_read": [("listed", "told", "is read as long")],
        "of_typed": [],
    }
    (hinted,) = examine(ctx, ctx.projections["sizes"]).findings
    assert hinted.hint == (
        'say its type: F.col("weighed.kilos").cast("decimal(20,4)"), or already where projection weighed reads it'
    )


RENAMED = """
from pyspark.sql import functions as F
from tailrace.projections import ParquetFolder, State, projection

LAKE = ParquetFolder("lake")

@projection(key="customer_id", sink=LAKE, orders=State("shop.public.orders", affects="customer_id"))
def totals(orders):
    return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))

@projection(key="customer_id", sink=LAKE, orders=State("shop.public.orders", columns=("customer_id", "amount")))
def amounts(orders):
    return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))

@projection(key="id", sink=LAKE, orders=State("shop.public.orders"))
def dotted(orders):
    return orders.select("id", "`unit.price`")
"""


@pytest.mark.slow
def test_what_became_of_a_renamed_column_is_said_and_a_name_that_spark_cannot_read_is_refused(
    shop: ShopLog, deploy: Deploy
) -> None:
    """Before a row is read, and by a refresh too."""
    ctx = deploy(RENAMED)
    rebuild(ctx, "totals")
    columns = [
        replace(each, name="sum" if each.name == "amount" else each.name) for each in TABLES["orders"].columns
    ]
    order = shop.order(900)
    order = {("sum" if name == "amount" else name): value for name, value in order.items()} | {
        "unit.price": "1"
    }
    version = TopicSchema(2, (*columns, Column(7, "unit.price", 25, type_name="text")))
    epoch = shop.commit({"orders": [("c", order)]}, new_schemas={"orders": version})
    said = f"amount of shop.public.orders was renamed to sum at epoch {epoch}"
    (failed,) = [each for each in refresh(ctx) if each.projection == "totals"]
    assert failed.status == "failed" and said in failed.reason
    for name in ("totals", "amounts"):
        assert any(said in each.what for each in examine(ctx, ctx.projections[name]).findings), name
    (refused,) = examine(ctx, ctx.projections["dotted"]).findings
    assert refused.level == "fail" and "its output has columns unit.price" in refused.what
    assert "AS a_b" in refused.hint


UNBUILT = """
from tailrace.projections import ParquetFolder, Result, State, projection

LAKE = ParquetFolder("lake")

@projection(key="id", sink=LAKE, orders=State("shop.public.orders", affects="id"))
def paid(orders):
    return orders.where("status = 'paid'").select("id", "customer_id", "quantity")

@projection(key="customer_id", sink=LAKE, paid=Result("paid", affects="customer_id"))
def bought(paid):
    return paid.groupBy("customer_id").agg({"quantity": "sum"}).withColumnRenamed("sum(quantity)", "bought")

@projection(key="customer_id", sink=LAKE, bought=Result("bought", affects="customer_id"))
def mistyped(bought):
    return bought.select("customer_id", "boght")

@projection(key="customer_id", sink=LAKE, paid=Result("paid", affects="custmer_id"))
def astray(paid):
    return paid.groupBy("customer_id").count()

@projection(key="id", sink=LAKE, orders=State("shop.public.orders", affects="id"))
def broken(orders):
    return orders.select("nothing")

@projection(key="id", sink=LAKE, broken=Result("broken", affects="id"))
def on_broken(broken):
    return broken
"""


@pytest.mark.slow
def test_results_that_were_never_built_have_the_columns_that_their_definitions_foretell(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(UNBUILT)
    found = {name: examine(ctx, projection) for name, projection in ctx.projections.items()}
    assert [(name, each.incremental) for name, each in found.items() if each.ok] == [
        ("paid", True),
        ("bought", True),
    ]
    (mistyped,), (astray,), (on_broken,) = (
        found[each].findings for each in ("mistyped", "astray", "on_broken")
    )
    assert "`boght` cannot be resolved. Did you mean one of the following? [`bought`" in mistyped.what
    assert astray.what == "input 'paid': affects names custmer_id, which projection paid does not have"
    assert (astray.hint, astray.column) == ("its columns are id, customer_id, quantity", "custmer_id")
    assert (
        on_broken.what == "projection 'broken' was never built, and its definition does not tell its columns"
    )
    assert [each.exit_code for each in (mistyped, astray, on_broken)] == [7, 2, 6]
    for name in ("paid", "bought"):
        rebuild(ctx, name)
    assert [(examine(ctx, ctx.projections[name]).findings) for name in ("bought", "astray")] == [
        (),
        (astray,),
    ]

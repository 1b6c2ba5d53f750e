"""Columns that differ in case alone, which Postgres tells apart and Spark does not: said before any row is read, and
one of them can be used."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import ProjectionFailed
from tailrace.projections.analysis.check import CheckReport, examine
from tailrace.projections.analysis.check_names import check
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.shoplog import TABLES, ShopLog

HEAD = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    def customers(*columns):
        return State("shop.public.customers", affects={"id": "id"}, columns=columns or None)
"""
DEFINED = {
    "made": """
    @projection(key="id", sink=PostgresTable("mart", "made"), customers=customers("id"))
    def made(customers):
        return customers.groupBy("id").agg(F.count("*").alias("N"), F.max("id").alias("n"))
    """,
    "all_of_it": """
    @projection(key="id", sink=PostgresTable("mart", "all_of_it"), customers=customers())
    def all_of_it(customers):
        return customers
    """,
    "named": """
    @projection(key="id", sink=PostgresTable("mart", "named"), customers=customers())
    def named(customers):
        return customers.select("id")
    """,
    "others": """
    @projection(key="name", sink=PostgresTable("mart", "others"), customers=State("shop.public.customers"))
    def others(customers):
        return customers.select("name").distinct()
    """,
    "one": """
    @projection(key="id", sink=PostgresTable("mart", "one"), customers=customers("id", "name"))
    def one(customers):
        return customers
    """,
    "another": """
    @projection(
        key="Id", sink=PostgresTable("mart", "another"),
        customers=State("shop.public.customers", affects={"Id": "Id"}, columns=("Id", "name")),
    )
    def another(customers):
        return customers.groupBy("Id").agg(F.max("name").alias("name"))
    """,
}


@pytest.fixture
def cased(shop: ShopLog, deploy: Deploy) -> ProjectionContext:
    """Customers with columns id, Id and ID, of which some have all."""
    more = (Column(4, "Id", 20, type_name="bigint"), Column(5, "ID", 20, type_name="bigint"))
    wider = TopicSchema(2, (*TABLES["customers"].columns, *more))
    shop.commit({"customers": [customer(80), customer(81)]}, new_schemas={"customers": wider})
    return deploy(HEAD + "".join(DEFINED.values()))


def customer(number: int) -> tuple[str, dict[str, Any]]:
    return "c", {"id": number, "name": f"Cas {number}", "city": None, "Id": -number, "ID": 1000 + number}


def examined(ctx: ProjectionContext, name: str) -> CheckReport:
    return examine(ctx, ctx.projection(name))


@pytest.mark.slow
def test_results_with_names_that_spark_does_not_tell_apart_are_said_before_a_row_is_read(
    cased: ProjectionContext,
) -> None:
    words = "its output has columns {}, which Spark does not tell apart"
    (made,) = examined(cased, "made").findings
    assert (made.level, made.what) == ("fail", words.format("N, n"))
    assert "rename one" in made.hint
    _, all_of_it = examined(cased, "all_of_it").findings
    assert (all_of_it.level, all_of_it.what) == ("fail", words.format("id, Id, ID"))
    with pytest.raises(ProjectionFailed, match="N, n, which Spark does not tell apart"):
        rebuild(cased, "made")


@pytest.mark.slow
def test_an_input_with_such_columns_is_said_with_the_way_to_choose_one(cased: ProjectionContext) -> None:
    chosen, failed = examined(cased, "named").findings
    assert chosen.what == (
        "input 'customers': shop.public.customers has columns id, Id, ID, which Spark does not tell apart:"
        " the function can name none of them"
    )
    assert (chosen.level, chosen.hint) == ("warn", 'choose one: customers=State(…, columns=("id", …))')
    assert f":{cased.projection('named').line}:" in chosen.place
    assert failed.level == "fail" and "ambiguous" in failed.what
    (warning,) = examined(cased, "others").findings  # names none of them, and works
    assert (warning.level, examined(cased, "others").ok) == ("warn", True)
    rebuild(cased, "others")
    assert verify(cased, "others").equal


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key", "sign"), [("one", "id", 1), ("another", "Id", -1)])
def test_one_of_such_columns_is_chosen_and_followed_by_key(
    cased: ProjectionContext, shop: ShopLog, name: str, key: str, sign: int
) -> None:
    for other in set(cased.projections) - {name}:
        del cased.projections[other]
    found = examined(cased, name)
    assert (found.findings, found.incremental) == ((), True)
    check(cased.store, cased.settings, cased.projection(name))
    if name == "another":  # rows from before it was added have none
        before = [row for row in shop.state["customers"].values() if row["id"] < 80]
        shop.commit({"customers": [("d", row) for row in before]})
    rebuild(cased, name)
    shop.commit({"customers": [customer(82), ("u", customer(81)[1] | {"name": "Changed"})]})
    (outcome,) = [outcome for outcome in refresh(cased) if outcome.projection == name]
    assert (outcome.status, outcome.upserts) == ("done", 2), outcome
    (run,) = cased.store.run_records.latest(name)[:1]
    assert run.kind == "incremental"
    names = {row[key]: row["name"] for row in rows_of(cased, name)}
    wanted = {80: "Cas 80", 81: "Changed", 82: "Cas 82"}
    assert {number: names.get(sign * number) for number in wanted} == wanted
    assert verify(cased, name).equal

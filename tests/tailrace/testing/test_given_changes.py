"""Given changes, then rows: however the changes are cut into batches."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import event
from tailrace.projections import Events, PostgresTable, Result, State, projection
from tailrace.testing import Table, appended, given_changes

ORDERS = Table(
    "shop.public.orders", {"id": "bigint", "customer_id": "bigint", "amount": "numeric(12,2)"}, key="id"
)
CUSTOMERS = Table("shop.public.customers", {"id": "bigint", "name": "text"}, key="id")


@event("given_noted")
class Noted(BaseModel):
    text: str


@projection(
    key="customer_id",
    sink=PostgresTable("mart", "totals"),
    orders=State("shop.public.orders", affects="customer_id"),
    customers=State("shop.public.customers", affects={"customer_id": "id"}),
)
def totals(orders: DataFrame, customers: DataFrame) -> DataFrame:
    joined = orders.join(customers, orders.customer_id == customers.id)
    return joined.groupBy("customer_id").agg(F.max("name").alias("name"), F.sum("amount").alias("total"))


@projection(
    key="stream",
    sink=PostgresTable("mart", "notes"),
    events=Events("shop.note", affects="stream", types=[Noted]),
)
def notes(events: DataFrame) -> DataFrame:
    return events.groupBy("stream").agg(F.max_by("given_noted.text", "version").alias("last"))


@projection(key="customer_id", sink=PostgresTable("mart", "again"), totals=Result("totals"))
def again(totals: DataFrame) -> DataFrame:
    return totals


HISTORY = (
    CUSTOMERS.created(id=7, name="Ada"),
    CUSTOMERS.created(id=8, name="Bo"),
    ORDERS.created(id=1, customer_id=7, amount=Decimal(5)),
    ORDERS.created(id=2, customer_id=7, amount=Decimal(1)),
    ORDERS.created(id=3, customer_id=8, amount=Decimal(9)),
    ORDERS.updated(id=1, customer_id=7, amount=Decimal("6.50")),
    ORDERS.deleted(id=3),
    CUSTOMERS.updated(id=7, name="Ada L."),
)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_result_is_what_the_history_makes_however_it_came() -> None:
    expected = {"customer_id": 7, "name": "Ada L.", "total": Decimal("7.50")}
    given_changes(totals, *HISTORY).then_rows(expected)
    with pytest.raises(AssertionError, match=r"all changes together: \n  .*7\.50.*\nexpected: none"):
        given_changes(totals, *HISTORY).then_rows()
    given_changes(totals, ORDERS, CUSTOMERS).then_rows()


@pytest.mark.usefixtures("spark")
def test_events_are_given_too() -> None:
    given_changes(
        notes,
        appended("shop.note", "a", Noted(text="one"), Noted(text="two")),
        appended("shop.note", "b", Noted(text="three")),
    ).then_rows({"stream": "a", "last": "two"}, {"stream": "b", "last": "three"})


def test_what_is_missing_or_wrong_is_said() -> None:
    with pytest.raises(
        UsageError, match=r"input 'customers' is of shop\.public\.customers, of which nothing is given"
    ):
        given_changes(totals, ORDERS)
    with pytest.raises(UsageError, match="result of projection totals"):
        given_changes(again)
    with pytest.raises(UsageError, match="and price is wrong or missing"):
        ORDERS.created(id=1, price=3)
    with pytest.raises(UsageError, match="and id is wrong or missing"):
        ORDERS.deleted(customer_id=3)
    with pytest.raises(UsageError, match="is no type that is known"):
        Table("shop.public.orders", {"id": "lunch"}, key="id")
    with pytest.raises(UsageError, match="no column nr"):
        Table("shop.public.orders", {"id": "bigint"}, key="nr")

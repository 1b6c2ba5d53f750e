"""Balances from typed events of several versions, for ``test_typed_events.py``: tasks of Spark import it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace import Events, Json, PostgresTable, RawEvent, event, projection, upcast, upcaster

Money = Annotated[Decimal, Field(max_digits=12, decimal_places=2)]


@event("typed_paid", version=2)
class Paid(BaseModel):
    amount: Money
    by: str


@event("typed_refunded")
class Refunded(BaseModel):
    amount: Money


upcast("typed_paid", 1, default={"by": "card"})


@upcaster("typed_returned", 1)
def returned(data: Json) -> list[RawEvent]:
    return [RawEvent("typed_refunded", 1, {"amount": data["price"]})]


@projection(
    key="stream",
    sink=PostgresTable("mart", "balances"),
    events=Events("shop.order", affects="stream", types=[Paid, Refunded]),
)
def balances(events: DataFrame) -> DataFrame:
    amount = F.coalesce("typed_paid.amount", -F.col("typed_refunded.amount"))
    return events.groupBy("stream").agg(F.sum(amount).alias("balance"), F.max("typed_paid.by").alias("by"))

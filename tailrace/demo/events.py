"""The shop's domain events: what happened to an order and why, which the row alone does not say."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
from pydantic import BaseModel

from tailrace.eventstore.streams import Stream, append, event

CATEGORY = "order"
Connection = psycopg.Connection[Any]


@event("order_placed")
class OrderPlaced(BaseModel):
    product: int
    quantity: int
    amount: Decimal


@event("order_paid")
class OrderPaid(BaseModel):
    method: str


@event("order_shipped")
class OrderShipped(BaseModel):
    parcel: str


@event("order_cancelled")
class OrderCancelled(BaseModel):
    reason: str


def record(connection: Connection, order: int, happened: BaseModel) -> None:
    """Append to the order's stream, in the transaction that changes its row."""
    append(connection, Stream(CATEGORY, str(order)), [happened])
